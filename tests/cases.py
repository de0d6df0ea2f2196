"""The one table of cases, and the generator of random ones, for forward, gradients, compilers, exporters and devices.

A case is an operator by its ONNX name, an input shape and attributes under their ONNX names. ``CASES`` is the table;
``random_case`` draws valid and invalid configurations of every operator, element type and rank. No torch in here.
"""

# ruff: noqa: C408 (dict(kernel_shape=...) keeps the table's rows on one line)
from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
BYTES = ("uint8", "int8")

WINDOWED = ("AveragePool", "LpPool", "MaxPool")
GLOBAL = ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
QUANTISED = ("QLinearAveragePool", "QLinearGlobalAveragePool")

FUNCTIONS = {
    "AveragePool": "average_pool",
    "LpPool": "lp_pool",
    "MaxPool": "max_pool",
    "GlobalAveragePool": "global_average_pool",
    "GlobalLpPool": "global_lp_pool",
    "GlobalMaxPool": "global_max_pool",
    "MaxUnpool": "max_unpool",
    "QLinearAveragePool": "qlinear_average_pool",
    "QLinearGlobalAveragePool": "qlinear_global_average_pool",
}


def numpy_type(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True, eq=False)
class Case:
    """``data`` names the kind of values (see ``fill``); ``scalars`` are a quantised operator's scales and zero points:
    x_scale, x_zero_point, y_scale, y_zero_point. MaxUnpool's output_shape, in ONNX an input, is an attribute here."""

    operator: str
    shape: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    data: str = "distinct"
    scalars: tuple = (1.0, 0, 1.0, 0)

    def __str__(self) -> str:
        return f"{self.operator}-{self.note.replace(' ', '_')}"

    @property
    def function(self) -> str:
        """The name of the operator's function, of its dispatcher operator and of its oracle."""
        return FUNCTIONS[self.operator]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types that the operator supports."""
        if self.operator in QUANTISED:
            return BYTES
        return FLOATS + BYTES if self.operator == "MaxPool" else FLOATS

    @property
    def differentiable(self) -> bool:
        return self.operator not in QUANTISED

    def inputs(self, dtype: str) -> list[np.ndarray]:
        """The operator's inputs in ONNX's order; the same on every call."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        x = fill(self.data, self.shape, dtype, rng)
        if self.operator == "MaxUnpool":
            return [x, rng.permutation(math.prod(unpooled_shape(self)))[: x.size].reshape(x.shape)]
        if self.operator not in QUANTISED:
            return [x]
        types = (np.float32, x.dtype, np.float32, x.dtype)
        return [x, *(np.asarray(s, getattr(s, "dtype", t)) for s, t in zip(self.scalars, types, strict=True))]


def unpooled_shape(case: Case) -> tuple[int, ...]:
    """The shape of MaxUnpool's result."""
    (batch, channels, *spatial), attributes = case.shape, case.attributes
    rank = len(spatial)
    strides, pads = attributes.get("strides", [1] * rank), attributes.get("pads", [0] * 2 * rank)
    axes = zip(spatial, attributes["kernel_shape"], strides, pads[:rank], pads[rank:], strict=True)
    inferred = (batch, channels, *((n - 1) * stride + kernel - begin - end for n, kernel, stride, begin, end in axes))
    return tuple(attributes.get("output_shape", inferred))


def fill(kind: str, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Values of one kind:

    distinct  between -2 and 2, clearly apart (no maximum hangs on a rounding) and away from 0
    ties      -1, 0 and 1
    zeros     0
    wide      either sign and magnitudes over the middle nine tenths of the type's exponents
    special   some NaN and infinities among ties
    """
    size, target = math.prod(shape), numpy_type(dtype)
    if dtype in BYTES:
        info = np.iinfo(target)
        low, high = (0, 3) if kind == "ties" else (0, 1) if kind == "zeros" else (info.min, info.max + 1)
        return rng.integers(low, high, shape).astype(target)
    if dtype not in FLOATS:  # a type that no operator takes
        return np.ones(shape, target)
    if kind == "distinct":
        values = (rng.permutation(size) - (size - 1) / 2 + rng.uniform(0.1, 0.4, size)) * 4 / max(size, 1)
    elif kind == "ties":
        values = rng.integers(-1, 2, size).astype(np.float64)
    elif kind == "zeros":
        values = np.zeros(size)
    elif kind == "wide":
        info = ml_dtypes.finfo(target)
        low, high = 0.9 * math.log10(info.tiny), 0.9 * math.log10(info.max)
        values = rng.choice([-1.0, 1.0], size) * 10.0 ** (rng.uniform(low, high) + rng.uniform(-0.4, 0.4, size))
    elif kind == "special":
        values = rng.choice([0.0, 1.0, 1.0, -1.0, 2.0, math.nan, math.inf, -math.inf], size)
    else:
        raise AssertionError(f"no values of kind {kind}")
    return values.reshape(shape).astype(target)


# --- the table -------------------------------------------------------------------------------------------------------

# What AveragePool, LpPool and MaxPool have in common: note, input shape, attributes.
WINDOWS = [
    ("1d", (2, 3, 11), dict(kernel_shape=[3])),
    ("2d", (2, 3, 6, 7), dict(kernel_shape=[2, 3])),
    ("3d", (1, 2, 4, 5, 4), dict(kernel_shape=[2, 3, 2])),
    ("4d", (1, 2, 3, 4, 3, 4), dict(kernel_shape=[2, 3, 1, 2], strides=[1, 2, 1, 2])),
    ("one tap", (2, 2, 3, 4), dict(kernel_shape=[1, 1])),
    ("whole plane", (2, 3, 5, 4), dict(kernel_shape=[5, 4])),
    ("size one", (1, 1, 1, 1), dict(kernel_shape=[1, 1])),
    ("size one axes", (1, 3, 1, 5), dict(kernel_shape=[1, 2], strides=[2, 2])),
    ("axes of one element", (2, 3, 1, 9, 1), dict(kernel_shape=[1, 3, 1], strides=[2, 2, 1])),
    ("padded axis of one element", (2, 3, 1, 6), dict(kernel_shape=[3, 2], pads=[1, 0, 1, 1])),
    ("only the last axis pooled", (2, 3, 2, 3, 18), dict(kernel_shape=[1, 1, 18])),
    ("one window and rows left over", (2, 3, 7, 3), dict(kernel_shape=[4, 3], strides=[4, 3])),
    ("one window and slices left over", (1, 2, 3, 7, 4), dict(kernel_shape=[3, 5, 4], strides=[1, 5, 1])),
    ("whole rows", (2, 3, 7, 16), dict(kernel_shape=[3, 16], pads=[1, 0, 1, 0])),
    ("only the first axis pooled", (2, 3, 9, 17), dict(kernel_shape=[3, 1], strides=[2, 1], pads=[1, 0, 1, 0])),
    ("many narrow rows", (1, 2, 70, 3), dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    ("batch 0", (0, 3, 5, 5), dict(kernel_shape=[2, 2])),
    ("batch 0 of axes of one element", (0, 3, 1, 5), dict(kernel_shape=[1, 2])),
    ("batch 0 of long rows", (0, 3, 20000), dict(kernel_shape=[3])),
    ("many channels", (2, 70, 5, 5), dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    ("wide rows", (1, 2, 4, 67), dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    ("wide kernel", (1, 2, 11, 37), dict(kernel_shape=[7, 7], strides=[2, 2], pads=[3, 3, 3, 3])),
    ("wide rows and strides", (1, 2, 3, 131),
     dict(kernel_shape=[2, 5], strides=[1, 3], dilations=[1, 2], pads=[0, 4, 0, 3])),
    ("long row", (1, 2, 150), dict(kernel_shape=[5], strides=[2], pads=[2, 2])),
    ("every position of a long row", (1, 2, 300), dict(kernel_shape=[3], pads=[1, 1])),
    ("long row of windows side by side", (1, 1, 400), dict(kernel_shape=[2], strides=[2])),
    ("strides", (2, 3, 7, 8), dict(kernel_shape=[3, 2], strides=[2, 3])),
    ("stride above kernel", (1, 2, 9, 10), dict(kernel_shape=[2, 1], strides=[4, 3])),
    ("dilations", (1, 2, 8, 9), dict(kernel_shape=[3, 2], dilations=[2, 3])),
    ("1d dilation and stride", (1, 2, 13), dict(kernel_shape=[3], dilations=[3], strides=[2], pads=[2, 1])),
    ("pads", (2, 2, 5, 6), dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])),
    ("asymmetric pads", (1, 2, 5, 6), dict(kernel_shape=[3, 3], pads=[0, 2, 1, 0], strides=[1, 2])),
    ("pads and dilations", (1, 2, 5, 5), dict(kernel_shape=[2, 2], pads=[2, 1, 1, 3], dilations=[3, 4])),
    ("dilation steps over input", (1, 2, 2, 3), dict(kernel_shape=[3, 3], pads=[3, 4, 3, 4], dilations=[3, 4])),
    ("pads as large as kernel", (1, 2, 4, 4), dict(kernel_shape=[2, 2], pads=[2, 2, 2, 2])),
    ("large pads", (1, 1, 3, 2), dict(kernel_shape=[2, 3], pads=[5, 0, 1, 7], strides=[2, 3])),
    ("empty windows", (2, 2, 3), dict(kernel_shape=[2], pads=[4, 5], strides=[2])),
    ("only empty windows at one side", (1, 2, 2, 2), dict(kernel_shape=[1, 1], pads=[0, 0, 3, 0])),
    ("ceil exact", (1, 2, 6, 6), dict(kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)),
    ("ceil overhang", (1, 2, 6, 7), dict(kernel_shape=[3, 3], strides=[2, 3], ceil_mode=1)),
    ("ceil overhang of two", (1, 2, 7, 8), dict(kernel_shape=[3, 4], strides=[3, 3], ceil_mode=1)),
    ("ceil pads", (1, 2, 6, 5), dict(kernel_shape=[3, 3], strides=[2, 3], pads=[1, 0, 1, 2], ceil_mode=1)),
    ("ceil drops window", (1, 2, 5, 4), dict(kernel_shape=[1, 2], strides=[3, 3], pads=[0, 0, 2, 3], ceil_mode=1)),
    ("ceil drops window starting on pad", (1, 1, 2, 2),
     dict(kernel_shape=[1, 1], strides=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1)),
    ("ceil dilation", (1, 2, 8, 7), dict(kernel_shape=[2, 3], strides=[3, 2], dilations=[3, 2], ceil_mode=1)),
    ("ceil 1d", (2, 2, 10), dict(kernel_shape=[4], strides=[4], ceil_mode=1)),
    ("ceil 3d", (1, 1, 5, 4, 6), dict(kernel_shape=[2, 3, 3], strides=[2, 2, 3], pads=[0, 1, 0, 1, 1, 0], ceil_mode=1)),
    ("partial window above input", (1, 2, 7, 7), dict(kernel_shape=[9, 10], strides=[4, 4], ceil_mode=1)),
    ("kernel of 1280", (1, 2, 7, 7), dict(kernel_shape=[1280, 1280], strides=[1280, 1280], ceil_mode=1)),
    ("same upper", (1, 2, 5, 6), dict(kernel_shape=[2, 3], auto_pad="SAME_UPPER")),
    ("same lower", (1, 2, 5, 6), dict(kernel_shape=[2, 3], auto_pad="SAME_LOWER")),
    ("same upper strides", (1, 2, 7, 6), dict(kernel_shape=[3, 4], strides=[2, 3], auto_pad="SAME_UPPER")),
    ("same lower strides", (1, 2, 7, 6), dict(kernel_shape=[3, 4], strides=[2, 3], auto_pad="SAME_LOWER")),
    ("same upper dilations", (1, 2, 6, 7), dict(kernel_shape=[3, 2], dilations=[2, 3], auto_pad="SAME_UPPER")),
    ("same lower dilations", (1, 2, 6, 7),
     dict(kernel_shape=[2, 2], dilations=[3, 2], auto_pad="SAME_LOWER", strides=[2, 1])),
    ("same upper stride above kernel", (1, 2, 7, 9), dict(kernel_shape=[1, 2], strides=[3, 5], auto_pad="SAME_UPPER")),
    ("same lower stride above kernel", (1, 2, 7, 9), dict(kernel_shape=[2, 1], strides=[4, 4], auto_pad="SAME_LOWER")),
    ("same upper kernel above input", (1, 2, 2, 3), dict(kernel_shape=[5, 4], auto_pad="SAME_UPPER")),
    ("same ignores ceil", (1, 2, 5, 6), dict(kernel_shape=[2, 3], strides=[2, 4], auto_pad="SAME_LOWER", ceil_mode=1)),
    ("same 3d", (1, 2, 3, 4, 3), dict(kernel_shape=[2, 3, 2], strides=[2, 1, 2], auto_pad="SAME_UPPER")),
    ("valid", (1, 2, 6, 7), dict(kernel_shape=[3, 2], strides=[2, 2], auto_pad="VALID")),
    ("valid ceil", (1, 2, 6, 7), dict(kernel_shape=[3, 2], strides=[2, 2], auto_pad="VALID", ceil_mode=1)),
    ("notset spelled out", (1, 2, 4),
     dict(kernel_shape=[2], auto_pad="NOTSET", ceil_mode=0, dilations=[1], pads=[0, 0], strides=[1])),
]  # fmt: skip

# Where counting the padding matters.
COUNT_INCLUDE_PAD = [
    "2d", "pads", "asymmetric pads", "pads and dilations", "dilation steps over input", "large pads", "empty windows",
    "only empty windows at one side", "ceil overhang", "ceil pads", "ceil drops window", "ceil 3d",
    "partial window above input", "same upper strides", "same lower dilations", "valid ceil", "many channels",
    "padded axis of one element",
]  # fmt: skip

# Where the order of p's branches, empty windows and odd powers of signed data matter.
P_VALUES = (1, 1.5, 3, 4, 64)
P_WINDOWS = ["2d", "pads and dilations", "empty windows", "ceil overhang"]

GLOBAL_SHAPES = [
    ("1d", (2, 3, 7)),
    ("2d", (2, 3, 4, 5)),
    ("3d", (1, 2, 3, 4, 2)),
    ("4d", (1, 2, 2, 3, 2, 2)),
    ("one element", (2, 3, 1, 1)),
    ("one channel", (1, 1, 3, 3)),
    ("many channels", (2, 70, 3, 3)),
    ("long row", (1, 2, 301)),
    ("large plane", (1, 3, 27, 29)),
    ("batch 0", (0, 3, 4, 4)),
]

by_note = {note: (shape, attributes) for note, shape, attributes in WINDOWS}

QUANTISATION = (0.25, 3, 0.125, 7)
QUANTISED_WINDOWS = [window for window in WINDOWS if "dilations" not in window[2]]

CASES = [
    *(Case(operator, shape, attributes, note) for operator in WINDOWED for note, shape, attributes in WINDOWS),
    *(
        Case("AveragePool", by_note[note][0], by_note[note][1] | {"count_include_pad": 1}, f"{note} counted")
        for note in COUNT_INCLUDE_PAD
    ),
    *(
        Case("LpPool", by_note[note][0], by_note[note][1] | {"p": p}, f"{note} p={p}")
        for note in P_WINDOWS
        for p in P_VALUES
    ),
    *(
        Case("MaxPool", by_note[note][0], by_note[note][1] | {"storage_order": 1}, f"{note} column major")
        for note in ("1d", "2d", "3d", "4d", "pads and dilations", "empty windows")
    ),
    Case("MaxPool", (2, 2, 5, 6), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, "ties", "ties"),
    Case("MaxPool", (2, 2, 5, 6), {"kernel_shape": [3, 2], "storage_order": 1}, "ties column major", "ties"),
    Case("MaxPool", (2, 1, 4, 9), {"kernel_shape": [1, 3], "strides": [1, 2], "storage_order": 1},
         "column major of one channel"),
    Case("MaxPool", (1, 2, 4, 5), {"kernel_shape": [2, 2]}, "zeros", "zeros"),
    Case("LpPool", (2, 2, 5, 6), {"kernel_shape": [2, 2]}, "ties", "ties"),
    *(
        Case("LpPool", (1, 2, 4, 5), {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1], "p": p}, f"zeros p={p}", "zeros")
        for p in (1, 1.5, 2, 3)
    ),
    *(Case("LpPool", (2, 3, 6, 7), {"kernel_shape": [3, 2], "p": p}, f"wide p={p}", "wide") for p in (1, 1.5, 2, 3, 9)),
    *(Case(operator, shape, {}, note) for operator in GLOBAL for note, shape in GLOBAL_SHAPES),
    *(Case("GlobalLpPool", (2, 3, 4, 5), {"p": p}, f"p={p}") for p in P_VALUES),
    *(Case("GlobalLpPool", (2, 3, 4, 5), {"p": p}, f"wide p={p}", "wide") for p in (1, 2, 3)),
    Case("GlobalLpPool", (2, 3, 4, 5), {}, "zeros", "zeros"),
    Case("GlobalMaxPool", (2, 3, 4, 5), {}, "ties", "ties"),
    *(
        Case("QLinearAveragePool", shape, attributes, note, scalars=QUANTISATION)
        for note, shape, attributes in QUANTISED_WINDOWS
    ),
    *(
        Case("QLinearAveragePool", (n, *spatial, c), attributes | {"channels_last": 1}, f"{note} channels last",
             scalars=QUANTISATION)
        for note, (n, c, *spatial), attributes in QUANTISED_WINDOWS
    ),
    *(
        Case("QLinearAveragePool", by_note[note][0], by_note[note][1] | {"count_include_pad": 1}, f"{note} counted",
             scalars=QUANTISATION)
        for note in COUNT_INCLUDE_PAD if "dilations" not in by_note[note][1]
    ),
    Case("QLinearAveragePool", (1, 2, 3, 4), {"kernel_shape": [2, 2]}, "saturates", scalars=(200.0, 1, 0.5, 100)),
    Case("QLinearAveragePool", (2, 2, 4, 4), {"kernel_shape": [2, 2]}, "ties", "ties", scalars=(1.0, 0, 0.5, 1)),
    *(
        Case("QLinearGlobalAveragePool", shape, {}, note, scalars=QUANTISATION)
        for note, shape in GLOBAL_SHAPES
    ),
    *(
        Case("QLinearGlobalAveragePool", (n, *spatial, c), {"channels_last": 1}, f"{note} channels last",
             scalars=QUANTISATION)
        for note, (n, c, *spatial) in GLOBAL_SHAPES
    ),
    Case("QLinearGlobalAveragePool", (1, 2, 2, 2), {}, "saturates", scalars=(200.0, 1, 0.5, 100)),
    Case("QLinearGlobalAveragePool", (2, 2, 2, 2), {}, "ties", "ties", scalars=(1.0, 0, 0.5, 1)),
    Case("QLinearGlobalAveragePool", (1, 2, 3), {}, "scalars of shape [1]",
         scalars=(np.float32([0.5]), [1], np.float32([0.25]), [2])),
]  # fmt: skip

# MaxUnpool has a second input, and is tested by itself.
UNPOOL_CASES = [
    Case("MaxUnpool", (2, 3, 5), {"kernel_shape": [2], "strides": [2]}, "1d"),
    Case("MaxUnpool", (2, 3, 3, 4), {"kernel_shape": [2, 3], "strides": [2, 3]}, "2d"),
    Case("MaxUnpool", (1, 2, 2, 3, 2), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 3]}, "3d"),
    Case("MaxUnpool", (1, 2, 2, 1, 2, 2), {"kernel_shape": [2, 1, 2, 1], "strides": [2, 1, 1, 2]}, "4d"),
    Case("MaxUnpool", (1, 2, 4, 4), {"kernel_shape": [2, 3]}, "no strides"),
    Case("MaxUnpool", (1, 2, 4, 4), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, "pads"),
    Case("MaxUnpool", (1, 2, 4, 5), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [0, 1, 2, 0]},
         "asymmetric pads"),
    Case("MaxUnpool", (1, 2, 5), {"kernel_shape": [2], "strides": [3], "pads": [3, 2]}, "pads above kernel"),
    Case("MaxUnpool", (2, 70, 3, 3), {"kernel_shape": [2, 2], "strides": [2, 2]}, "many channels"),
    Case("MaxUnpool", (1, 1, 1, 1), {"kernel_shape": [1, 1]}, "size one"),
    Case("MaxUnpool", (0, 2, 3, 3), {"kernel_shape": [2, 2], "strides": [2, 2]}, "batch 0"),
    Case("MaxUnpool", (1, 2, 3, 3), {"kernel_shape": [2, 2], "strides": [2, 2], "output_shape": [1, 2, 7, 8]},
         "larger"),
    Case("MaxUnpool", (1, 2, 3), {"kernel_shape": [4], "strides": [4], "output_shape": [1, 2, 9]}, "smaller"),
    Case("MaxUnpool", (1, 2, 2, 2), {"kernel_shape": [1, 1], "pads": [2, 0, 0, 2], "output_shape": [1, 2, 2, 3]},
         "output_shape overrides pads"),
]  # fmt: skip

assert len({str(case) for case in [*CASES, *UNPOOL_CASES]}) == len([*CASES, *UNPOOL_CASES]), (
    "two cases have the same name"
)


def cases(*operators: str, differentiable: bool = False) -> list[Case]:
    """The cases of some operators, or of all."""
    return [
        case
        for case in CASES
        if (not operators or case.operator in operators) and (case.differentiable or not differentiable)
    ]


# --- random configurations -------------------------------------------------------------------------------------------

LAYOUTS = ("contiguous", "channels_last", "cropped_channels_last", "transposed", "sliced")

LARGEST_EXTENT = {1: 16, 2: 8, 3: 5, 4: 3}  # of a spatial axis, by their number
LARGEST_PAD = {1: 5, 2: 3, 3: 2, 4: 1}


@dataclass(frozen=True)
class RandomCase:
    case: Case
    dtype: str
    layout: str


def random_case(rng: np.random.Generator) -> RandomCase:
    """Any operator, element type, rank and layout; about one in five configurations is not allowed."""
    operator = str(rng.choice(WINDOWED + WINDOWED + GLOBAL + QUANTISED))
    rank = int(rng.integers(1, 5))
    spatial = tuple(int(n) for n in rng.integers(1, LARGEST_EXTENT[rank] + 1, rank))
    if rank <= 2 and rng.random() < 0.1:  # rows longer than a vector register
        spatial = (*spatial[:-1], int(rng.integers(17, 81)))
    channels = int(rng.integers(4, 81)) if rank == 1 and rng.random() < 0.1 else int(rng.integers(1, 4))
    shape = (int(rng.choice([0, 1, 2, 3], p=[0.04, 0.5, 0.3, 0.16])), channels, *spatial)
    data = str(rng.choice(["distinct", "ties", "wide", "special"], p=[0.5, 0.2, 0.2, 0.1]))
    scalars = Case.scalars
    if operator in WINDOWED:
        attributes = random_attributes(operator, spatial, rng)
    elif operator == "GlobalLpPool":
        attributes = {"p": random_p(rng)} if rng.random() < 0.8 else {}
    elif operator in QUANTISED:
        attributes = random_attributes(operator, spatial, rng) if operator == "QLinearAveragePool" else {}
        if rng.random() < 0.8:
            attributes["channels_last"] = int(rng.integers(0, 2))
        if attributes.get("channels_last"):
            shape = (shape[0], *spatial, shape[1])
        scalars = random_scalars(rng)
    else:
        attributes = {}
    case = Case(operator, shape, attributes, data=data, scalars=scalars)
    dtype = str(rng.choice(case.dtypes))
    if rng.random() < 0.1:
        case, dtype = spoil(case, dtype, rng)
    return RandomCase(case, dtype, str(rng.choice(LAYOUTS)))


def random_attributes(operator: str, spatial: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
    rank = len(spatial)
    attributes: dict[str, Any] = {"kernel_shape": [int(rng.integers(1, min(n, 16) + 2)) for n in spatial]}
    if rng.random() < 0.6:
        attributes["strides"] = rng.integers(1, 5, rank).tolist()
    if operator in WINDOWED and rng.random() < 0.4:
        attributes["dilations"] = rng.integers(1, 4, rank).tolist()
    if rng.random() < 0.4:
        attributes["auto_pad"] = str(rng.choice(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if attributes.get("auto_pad", "NOTSET") == "NOTSET" and rng.random() < 0.7:
        attributes["pads"] = rng.integers(0, LARGEST_PAD[rank] + 1, 2 * rank).tolist()
    if rng.random() < 0.5:
        attributes["ceil_mode"] = int(rng.integers(0, 2))
    if "Average" in operator and rng.random() < 0.5:
        attributes["count_include_pad"] = int(rng.integers(0, 2))
    if operator == "MaxPool" and rng.random() < 0.5:
        attributes["storage_order"] = int(rng.integers(0, 2))
    if operator == "LpPool" and rng.random() < 0.8:
        attributes["p"] = random_p(rng)
    return attributes


def random_p(rng: np.random.Generator) -> float:
    return [1, 2, 3, 4, 64, 1.5, float(rng.uniform(1, 10))][rng.integers(0, 7)]


def random_scalars(rng: np.random.Generator) -> tuple:
    x_scale, y_scale = 2.0 ** rng.uniform(-6, 2, 2)
    x_zero_point, y_zero_point = (int(z) for z in rng.integers(0, 128, 2))
    return (float(x_scale), x_zero_point, float(y_scale), y_zero_point)


def spoil(case: Case, dtype: str, rng: np.random.Generator) -> tuple[Case, str]:
    """Break one rule."""
    shape, attributes, scalars = case.shape, dict(case.attributes), list(case.scalars)
    rank = len(shape) - 2
    rules = ["rank", "channels", "spatial", "dtype"]
    if "kernel_shape" in attributes:
        rules += ["kernel", "stride", "pad", "length", "contradiction", "auto_pad", "flag"]
    if case.operator in WINDOWED:
        rules += ["dilation"]
    if case.operator in QUANTISED:
        rules += ["scale", "zero_point_shape", "zero_point_type", "channels_last"]
    if case.operator in ("LpPool", "GlobalLpPool"):
        rules += ["p"]
    rule = str(rng.choice(rules))
    axis, below_one = int(rng.integers(0, rank)), int(rng.integers(-2, 1))
    if rule == "rank":
        shape = shape[: int(rng.integers(1, 3))]
    elif rule == "channels":
        shape = (shape[0], 0, *shape[2:])
    elif rule == "spatial":
        shape = (*shape[: 2 + axis], 0, *shape[3 + axis :])
    elif rule == "dtype":
        dtype = str(rng.choice(["int32", "int64", "bool", "uint8" if case.operator != "MaxPool" else "int16"]))
        dtype = "float32" if case.operator in QUANTISED else dtype
    elif rule in ("kernel", "stride", "dilation"):
        name = {"kernel": "kernel_shape", "stride": "strides", "dilation": "dilations"}[rule]
        values = list(attributes.get(name, [1] * rank))
        values[axis] = below_one
        attributes[name] = values
    elif rule == "pad":
        values = [0] * (2 * rank)
        values[axis] = -1
        attributes |= {"auto_pad": "NOTSET", "pads": values}
    elif rule == "length":
        name = str(rng.choice(["kernel_shape", "strides"]))
        attributes[name] = [1] * (rank + 1)
    elif rule == "contradiction":
        attributes |= {"auto_pad": "SAME_UPPER", "pads": [0] * (2 * rank)}
    elif rule == "auto_pad":
        attributes["auto_pad"] = str(rng.choice(["SAME", "same_upper", ""]))
    elif rule == "flag":
        attributes["ceil_mode"] = int(rng.choice([-1, 2]))
    elif rule == "p":
        attributes["p"] = float(rng.choice([0.5, 0.0, -1.0, math.nan, math.inf]))
    elif rule == "scale":
        scalars[2 * rng.integers(0, 2)] = float(rng.choice([0.0, -1.0, 1e9, 1e-20, math.nan, math.inf]))
    elif rule == "zero_point_shape":
        scalars[1] = [0, 0]
    elif rule == "zero_point_type":
        scalars[3] = np.array(0, np.int8 if dtype == "uint8" else np.uint8)
    elif rule == "channels_last":
        attributes["channels_last"] = 2
    return Case(case.operator, shape, attributes, data=case.data, scalars=tuple(scalars)), dtype
