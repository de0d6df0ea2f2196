"""Where other engines compute something else than ONNX's text says: the ledger of divergences, as data.

Each row has a stable id, which reports, the README and the strict expected failures of the tests use, and knows whether
a node falls under it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from onnx import NodeProto

from .._geometry import output_size
from .importer import layer_of
from .nodes import PoolNode, parse
from .operators import MICROSOFT, ONNX, checked_opset
from .schemas import type_name

ONNXRUNTIME = "onnxruntime"
REFERENCE = "reference evaluator"
SHAPE_INFERENCE = "onnx.shape_inference"
NODE_TEST = "official node test"
TORCH = "torch"
ENGINES = (ONNXRUNTIME, REFERENCE, SHAPE_INFERENCE, NODE_TEST, TORCH)

# What a difference can be seen by: other values, other sizes, or that a legal node is refused.
VALUES, SIZES, REFUSAL = "values", "sizes", "refusal"

# The release of onnxruntime that the rows were last measured on: what it does is what an export warns about.
MEASURED_ONNXRUNTIME = "1.31.1"

_FLOAT32_INTEGERS = 2**24  # the integers that float32 can tell apart

# What onnxruntime's CPU provider pools, and from which opset on. Around float16 it writes Casts, as of opset 6.
_ONNXRUNTIME_TYPES = {"tensor(float)": 1, "tensor(float16)": 6}
_ONNXRUNTIME_MAXPOOL_TYPES = _ONNXRUNTIME_TYPES | {"tensor(double)": 8, "tensor(int8)": 12, "tensor(uint8)": 12}


class WrittenAxis(NamedTuple):
    """One axis of a windowed operator, with the pads that are written; `input` is None where the size is not known."""

    input: int | None
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int
    auto_pad: str
    ceil_mode: int

    @property
    def output(self) -> int:
        return output_size(*self)

    @property
    def padded(self) -> int:
        return self.input + self.pad_begin + self.pad_end

    @property
    def effective_kernel(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    @property
    def reach(self) -> int:
        """Where the last window ends, from where the first one begins."""
        return (self.output - 1) * self.stride + self.effective_kernel


@dataclass(frozen=True)
class Subject:
    """A node, and as much as is known about its input X. A size that is not known is None."""

    node: PoolNode
    input_shape: tuple[int | None, ...] | None = None
    element_type: str | None = None  # as ONNX writes it: "tensor(float16)"
    values: np.ndarray | None = None

    def is_a(self, *op_types: str) -> bool:
        return self.node.domain == ONNX and self.node.op_type in op_types

    def has(self, **attributes: object) -> bool:
        return all(self.node.value(name) == value for name, value in attributes.items())

    @property
    def is_quantized_window(self) -> bool:
        return (self.node.domain, self.node.op_type) == (MICROSOFT, "QLinearAveragePool")

    @property
    def is_same(self) -> bool:
        return self.has(auto_pad="SAME_UPPER") or self.has(auto_pad="SAME_LOWER")

    @property
    def rounds_up(self) -> bool:
        return self.has(ceil_mode=1) and not self.is_same

    @property
    def spatial_rank(self) -> int | None:
        if self.node.spatial_rank is None and self.input_shape is not None:
            return len(self.input_shape) - 2
        return self.node.spatial_rank

    @cached_property
    def axes(self) -> list[WrittenAxis]:
        """What is known about each axis of the kernel; empty for operators that have none."""
        rank = self.node.spatial_rank
        if rank is None:
            return []
        first = 1 if self.has(channels_last=1) else 2
        sizes = self.input_shape[first : first + rank] if self.input_shape is not None else [None] * rank
        kernel, strides, dilations, pads = map(self.node.value, ("kernel_shape", "strides", "dilations", "pads"))
        lists = (sizes, kernel, strides, dilations or [1] * rank, pads[:rank], pads[rank:])
        modes = self.node.value("auto_pad"), self.node.value("ceil_mode") or 0
        return [WrittenAxis(*axis, *modes) for axis in zip(*lists, strict=True)]

    def any_axis(
        self, sized: Callable[[WrittenAxis], bool], unsized: Callable[[WrittenAxis], bool] = lambda axis: True
    ) -> bool:
        """Whether it is so on an axis; where the size is not known, whether it can be, as far as the attributes say."""
        return any(unsized(axis) if axis.input is None else sized(axis) for axis in self.axes)

    def any_value(self, holds: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Whether it is known to hold for a value of X."""
        with np.errstate(invalid="ignore"):  # comparisons with NaN
            return self.values is not None and bool(holds(self.values).any())


@dataclass(frozen=True)
class Difference:
    """What one engine does instead."""

    engine: str
    how: str
    seen_by: tuple[str, ...] = (VALUES,)
    versions: tuple[str, str] | None = None  # the first and the last release that does, if it has been repaired
    when: Callable[[Subject], bool] = lambda subject: True  # which part of the row it concerns

    def concerns(self, subject: Subject, version: str | None) -> bool:
        repaired = version and self.versions and not _in_range(version, *self.versions)
        return not repaired and self.when(subject)


@dataclass(frozen=True)
class Row:
    """One divergence: the case, what is right, who differs, and whether a node falls under it."""

    id: str
    case: str
    ours: str
    differs: tuple[Difference, ...]
    applies: Callable[[Subject], bool]
    portable: str | None = None  # what `torch_onnxpool.onnx.portable()` writes instead
    remedy: str | None = None  # what helps where it cannot

    def difference(self, engine: str) -> Difference:
        """What this engine does instead. ValueError for one that does not differ."""
        by_engine = {difference.engine: difference for difference in self.differs}
        if engine not in by_engine:
            raise ValueError(f"{self.id}: engine must be one of {', '.join(by_engine)}, got engine={engine!r}")
        return by_engine[engine]


def rows_for(
    node: NodeProto | PoolNode,
    opset_version: int | None = None,
    *,
    input_shape: Sequence[int | None] | None = None,
    element_type: str | None = None,
    values: np.ndarray | None = None,
    engine: str | None = None,
    engine_version: str | None = None,
) -> tuple[Row, ...]:
    """The rows that a node falls under, as far as is known.

    Rows about the values of X need `values`. Where sizes are not given, rows about them apply if the attributes allow.

    Args:
        node: as a NodeProto with the opset version of its domain, or, if it is known to be legal, as a `PoolNode`.
        input_shape, element_type, values: of X. `values` gives all three.
        engine: only the rows in which this one of ENGINES (ONNXRUNTIME, REFERENCE, SHAPE_INFERENCE, NODE_TEST, TORCH)
            differs.
        engine_version: only those in which this release of the engine does.

    Raises:
        ValueError: for a node that is not legal, a shape of another rank than its kernel's, and an unknown engine.
    """
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"rows_for: engine must be one of {', '.join(ENGINES)}, got engine={engine!r}")
    if isinstance(node, NodeProto):
        node = parse(node, checked_opset("rows_for", opset_version))
        layer_of(node)  # which refuses illegal ones
    if values is not None:
        input_shape, element_type = values.shape, type_name(values.dtype)
    if None not in (input_shape, node.spatial_rank) and len(input_shape) != 2 + node.spatial_rank:
        raise ValueError(
            f"{node.op_type}: X must have the {node.spatial_rank} spatial axes of kernel_shape, got X of shape "
            f"{list(input_shape)}"
        )
    subject = Subject(node, None if input_shape is None else tuple(input_shape), element_type, values)

    def differs(row: Row) -> bool:
        return any(d.engine == engine and d.concerns(subject, engine_version) for d in row.differs)

    return tuple(row for row in ROWS if row.applies(subject) and (engine is None or differs(row)))


def row(row_id: str) -> Row:
    """The row of this id. ValueError if there is none."""
    by_id = {row.id: row for row in ROWS}
    if row_id not in by_id:
        raise ValueError(f"row: row_id must be one of {', '.join(by_id)}, got row_id={row_id!r}")
    return by_id[row_id]


def onnxruntime_pools_since(op_type: str, element_type: str) -> float:
    """The first opset in which onnxruntime can pool elements of this type, infinity if there is none."""
    return (_ONNXRUNTIME_MAXPOOL_TYPES if op_type == "MaxPool" else _ONNXRUNTIME_TYPES).get(element_type, math.inf)


def _in_range(version: str, first: str, last: str) -> bool:
    """Whether a release is one of a range of minor releases."""
    release, first, last = (tuple(map(int, text.split(".")[:2])) for text in (version, first, last))
    return first <= release <= last


# --- what the rows ask ---


def _overhangs(axis: WrittenAxis) -> bool:
    return axis.reach > axis.padded


def _falls_short(axis: WrittenAxis) -> bool:
    """Without a clamp SAME would pad by less than 0; rounded up, there would be one more window, behind the input."""
    return axis.reach < axis.padded


def _can_fall_short(axis: WrittenAxis) -> bool:
    """For some size of the input, with SAME or where sizes are rounded up."""
    return axis.pad_end + axis.stride > axis.effective_kernel


def _has_empty_window(axis: WrittenAxis) -> bool:
    """Our own operator knows. Without a long padding or a dilation over the whole input there is no such window."""
    if max(axis.pad_begin, axis.pad_end) < axis.effective_kernel and axis.dilation <= axis.input:
        return False
    pads = None if axis.auto_pad != "NOTSET" else [axis.pad_begin, axis.pad_end]
    window = {"auto_pad": axis.auto_pad, "ceil_mode": axis.ceil_mode, "pads": pads}
    x = torch.zeros(1, 1, axis.input, dtype=torch.uint8)
    _, indices = torch.ops.torch_onnxpool.max_pool_with_indices(
        x, [axis.kernel], dilations=[axis.dilation], strides=[axis.stride], **window
    )
    return bool((indices < 0).any())


def _leaves_float32(subject: Subject) -> bool:
    """Some sum of powers can be beyond what float32 holds; nobody computes those of float64 in it."""
    if subject.values is None or subject.element_type == "tensor(double)":
        return False
    magnitudes = np.abs(subject.values.astype(np.float64))
    magnitudes = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
    if not magnitudes.size:
        return False
    p, limits = float(subject.node.value("p")), np.finfo(np.float32)
    taps = np.prod([axis.kernel for axis in subject.axes] or subject.values.shape[2:], dtype=np.float64)
    largest, smallest = p * np.log2([magnitudes.max(), magnitudes.min()])
    return bool(largest + np.log2(taps) >= limits.maxexp or smallest < limits.minexp)


_POOLS = ("AveragePool", "LpPool", "MaxPool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")

ROWS = (
    Row(
        "same-dilated",
        "SAME_UPPER or SAME_LOWER with dilation > 1",
        "the padding is that of the effective kernel",
        (
            Difference(ONNXRUNTIME, "takes the undilated kernel: wrong size or error", (VALUES, SIZES, REFUSAL)),
            Difference(REFERENCE, "wrong", when=lambda s: s.is_a("AveragePool", "LpPool")),
        ),
        lambda s: s.is_same and any(min(axis.dilation, axis.kernel) > 1 for axis in s.axes),
        portable="explicit pads",
    ),
    Row(
        "same-negative",
        "SAME_UPPER or SAME_LOWER with stride > kernel",
        "the padding is not less than 0",
        (
            Difference(ONNXRUNTIME, "raises, or crops the input", (VALUES, SIZES, REFUSAL)),
            Difference(REFERENCE, "raises, or crops the input", (VALUES, SIZES, REFUSAL)),
        ),
        lambda s: s.is_same and s.any_axis(_falls_short, _can_fall_short),
        portable="explicit pads",
    ),
    Row(
        "large-pads",
        "a pad >= kernel_shape",
        "legal",
        (
            Difference(ONNXRUNTIME, "refuses to load the model", (REFUSAL,)),
            Difference(TORCH, "refuses pads above half of the kernel", (REFUSAL,)),
        ),
        lambda s: any(max(axis.pad_begin, axis.pad_end) >= axis.kernel for axis in s.axes),
        portable="a Pad node, or for MaxPool a Gather of the data of each window",
    ),
    Row(
        "ceil-clip-inference",
        "ceil_mode=1 below opset 22, a last window that would start behind the input",
        "the window is dropped",
        (Difference(SHAPE_INFERENCE, "keeps it", (SIZES,)),),
        lambda s: (
            s.is_a(*_POOLS) and s.has(ceil_mode=1) and s.node.version < 22 and s.any_axis(_falls_short, _can_fall_short)
        ),
        portable="explicit end pads with ceil_mode=0",
    ),
    Row(
        "ceil-float32",
        "ceil_mode=1, a size above 2^24",
        "sizes are exact integers",
        (Difference(ONNXRUNTIME, "off by one", (SIZES,)),),
        lambda s: s.rounds_up and s.any_axis(lambda a: a.padded > _FLOAT32_INTEGERS, lambda a: False),
        portable="explicit end pads with ceil_mode=0",
    ),
    Row(
        "valid-ceil",
        "auto_pad=VALID with ceil_mode=1",
        "ceil_mode is honoured, as in onnxruntime; the text's formula ignores it",
        (Difference(REFERENCE, "follows the text (MaxPool), or refuses", (SIZES, REFUSAL)),),
        lambda s: s.has(auto_pad="VALID", ceil_mode=1) and s.any_axis(_overhangs),
        portable="explicit end pads with ceil_mode=0",
    ),
    Row(
        "cip-overhang",
        "count_include_pad=1, ceil_mode=1, a last window that hangs over, opset <= 18",
        "what hangs over is not counted",
        (Difference(ONNXRUNTIME, "counts it", versions=("1.20", "1.28")),),
        lambda s: (
            s.is_a("AveragePool")
            and s.has(count_include_pad=1)
            and s.rounds_up
            and s.node.version < 19
            and s.any_axis(_overhangs)
        ),
        portable="a Pad node for what counts, and end pads for what does not",
    ),
    Row(
        "cip-asymmetric",
        "count_include_pad=1, asymmetric pads, opset >= 19",
        "counts the pads of both sides",
        (Difference(ONNXRUNTIME, "wrong", versions=("1.22", "1.24")),),
        lambda s: (
            s.has(count_include_pad=1)
            and s.node.version >= 19
            and (s.is_same or any(axis.pad_begin != axis.pad_end for axis in s.axes))
        ),
        portable="a Pad node for what counts",
    ),
    Row(
        "lp-abs",
        "LpPool of negative values",
        "absolute values",
        (Difference(TORCH, "sums signed powers: wrong, or NaN, for odd p"),),
        lambda s: s.is_a("LpPool") and s.node.value("p") % 2 != 0 and s.any_value(lambda x: x < 0),
    ),
    Row(
        "lp-ceil",
        "LpPool, ceil_mode=1, a last window that hangs over",
        "the plain sum",
        (
            Difference(TORCH, "scales it up to a whole window"),
            Difference(REFERENCE, "scales it up to a whole window"),
        ),
        lambda s: s.is_a("LpPool") and s.rounds_up and s.any_axis(_overhangs),
        portable="explicit end pads with ceil_mode=0",
    ),
    Row(
        "lp-range",
        "LpPool, GlobalLpPool where a sum of powers leaves float32",
        "the true value",
        (
            Difference(ONNXRUNTIME, "inf or 0"),
            Difference(REFERENCE, "inf or 0"),
            Difference(TORCH, "inf or 0"),
        ),
        lambda s: s.is_a("LpPool", "GlobalLpPool") and _leaves_float32(s),
    ),
    Row(
        "max-neginf",
        "MaxPool, GlobalMaxPool, a window of -inf only",
        "-inf",
        (
            Difference(
                ONNXRUNTIME,
                "-3.4e38 in float32 with one output",
                when=lambda s: s.element_type == "tensor(float)" and "Indices" not in s.node.outputs,
            ),
        ),
        lambda s: s.is_a("MaxPool", "GlobalMaxPool") and s.any_value(np.isneginf),
    ),
    Row(
        "max-nan",
        "MaxPool, GlobalMaxPool, NaN in a window",
        "NaN, and the index of the first one",
        (
            Difference(ONNXRUNTIME, "depends on its position and on the code path"),
            Difference(REFERENCE, "loses it", when=lambda s: s.is_a("MaxPool")),
        ),
        lambda s: s.is_a("MaxPool", "GlobalMaxPool") and s.any_value(np.isnan),
    ),
    Row(
        "empty-window",
        "a window without any datum",
        "0; MaxPool: the lowest finite value, index -1",
        (
            Difference(
                ONNXRUNTIME,
                "an index outside the tensor; -inf in float16",
                when=lambda s: (
                    "Indices" in s.node.outputs or (s.is_a("MaxPool") and s.element_type == "tensor(float16)")
                ),
            ),
            Difference(REFERENCE, "NaN or 0", when=lambda s: s.is_a("AveragePool", "MaxPool")),
            Difference(TORCH, "-inf", when=lambda s: s.is_a("MaxPool")),
        ),
        lambda s: (
            not s.is_a("MaxUnpool")
            and s.any_axis(_has_empty_window, lambda a: max(a.pad_begin, a.pad_end) >= a.effective_kernel)
        ),
        portable="a Gather of the data of each window (MaxPool)",
    ),
    Row(
        "rank",
        "more than 3 spatial dimensions",
        "any number",
        (Difference(ONNXRUNTIME, "the CPU provider has at most 3", (REFUSAL,)),),
        lambda s: (s.is_a(*_POOLS, "MaxUnpool") or s.is_quantized_window) and (s.spatial_rank or 0) > 3,
        portable="one pool for every three axes, or a Reduce operator",
    ),
    Row(
        "dtypes",
        "float64, bfloat16; float16 below opset 6",
        "supported",
        (
            Difference(
                ONNXRUNTIME,
                "the CPU provider has float16 from opset 6 on, float64 for MaxPool from opset 8 on, no bfloat16",
                (REFUSAL,),
            ),
        ),
        lambda s: (
            s.is_a(*_POOLS, "MaxUnpool")
            and s.element_type is not None
            and s.node.opset < onnxruntime_pools_since(s.node.op_type, s.element_type)
        ),
        portable="bfloat16 as float32 between two Casts, global operators on float64 as Reduce operators",
        remedy="cast the input to float32",
    ),
    Row(
        "global-lp-22",
        "GlobalLpPool at opset >= 22",
        "valid",
        (Difference(ONNXRUNTIME, "has no kernel", (REFUSAL,)),),
        lambda s: s.is_a("GlobalLpPool") and s.node.version >= 22,
        portable="ReduceL1, ReduceL2, or LpPool over the whole plane",
    ),
    Row(
        "v1-kernels",
        "AveragePool-1, LpPool-1, GlobalLpPool-1",
        "valid",
        (Difference(ONNXRUNTIME, "has no kernel", (REFUSAL,)),),
        lambda s: s.is_a("AveragePool", "LpPool", "GlobalLpPool") and s.node.version == 1,
        portable="GlobalLpPool as ReduceL1 or ReduceL2",
        remedy="export at opset 7 or above",
    ),
    Row(
        "unpool-shape",
        "MaxUnpool with output_shape",
        "indices address output_shape",
        (
            Difference(NODE_TEST, "they address the inferred shape"),
            Difference(REFERENCE, "they address the inferred shape"),
        ),
        lambda s: s.is_a("MaxUnpool") and "output_shape" in s.node.inputs,
    ),
    Row(
        "empty-zero-point",
        "QLinearAveragePool without x_zero_point",
        "it is 0",
        (Difference(ONNXRUNTIME, "refuses to load the model", (REFUSAL,)),),
        lambda s: s.is_quantized_window and "x_zero_point" not in s.node.inputs,
        remedy="give the node a zero point of 0",
    ),
    Row(
        "max-indices",
        "MaxPool with Indices, more than one plane",
        "indices are flat over the whole tensor",
        (Difference(TORCH, "indices are flat over each plane"),),
        lambda s: "Indices" in s.node.outputs and (s.input_shape is None or s.input_shape[:2] != (1, 1)),
    ),
)
