"""Equivalents that every engine computes alike: what `portable()` makes of nodes that fall under a row of the ledger.

All forms are equal to the node as formulas, for infinities and NaN too; averages and norms may be rounded once more on
the way. They rest on three facts. Zeros change no sum, and no sum of powers. A maximum does not change when one of its
data is taken twice. And a pooling over several axes is the pooling over some of them followed by that over the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from onnx import TensorProto

from .. import _geometry
from . import ledger, nodes, schemas
from .operators import ONNX, OPERATORS

if TYPE_CHECKING:
    from .emission import Graph

_FLOAT16, _BFLOAT16, _FLOAT, _DOUBLE, _INT64 = (
    f"tensor({name})" for name in ("float16", "bfloat16", "float", "double", "int64")
)
_TORCH_TYPES = {
    _FLOAT16: torch.float16,
    _BFLOAT16: torch.bfloat16,
    _FLOAT: torch.float32,
    _DOUBLE: torch.float64,
    "tensor(int8)": torch.int8,
    "tensor(uint8)": torch.uint8,
}
_ONNX_TYPES = {
    _FLOAT16: TensorProto.FLOAT16,
    _BFLOAT16: TensorProto.BFLOAT16,
    _FLOAT: TensorProto.FLOAT,
    _INT64: TensorProto.INT64,
}

# onnxruntime's CPU provider pools over no more axes at once.
_MOST_AXES = 3

_wanted: ContextVar[bool] = ContextVar("torch_onnxpool_portable", default=False)


class PortabilityWarning(UserWarning):
    """An exported node is legal ONNX and right, but onnxruntime computes something else, or cannot load it."""


class Unportable(Exception):
    """There is no portable form. The text says why, in the middle of a sentence."""


@contextmanager
def portable() -> Iterator[None]:
    """Let exports within write the equivalent that runs everywhere for a node that falls under a row of the ledger.

    Nodes under no row are written as always. What is written for the others stands in the ledger's rows; most of it
    needs the sizes of the spatial axes (not those of N and C) to be static. Where there is no portable form, the node
    itself is written, with a `PortabilityWarning` if onnxruntime is wrong on it.

        with torch_onnxpool.onnx.portable():
            torch.onnx.export(model, args, "model.onnx")
    """
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


def is_wanted() -> bool:
    return _wanted.get()


def has_form(operator: str) -> bool:
    """Whether there is a portable form of this operator of ours, under any row."""
    return not operator.startswith(("max_unpool", "qlinear_"))


def no_form(operator: str) -> str:
    return f"none is known for {OPERATORS[operator].op_type}"


def write(
    graph: Graph,
    operator: str,
    arguments: Mapping[str, Any],
    shape: Sequence[int | None] | None,
    element_type: str | None,
) -> Sequence:
    """Write the portable form of a call, as `emission.write` writes the node itself. `Unportable` if there is none."""
    if not has_form(operator):
        raise Unportable(no_form(operator))
    if shape is None or element_type is None:
        raise Unportable("rank and element type of X must be known")
    attributes = {name: value for name, value in arguments.items() if name != "X"}
    pool = _Pool(graph, operator, arguments["X"], list(shape), element_type, attributes)
    # The operators are defined to compute bfloat16 in float32 and to round once, and float16 holds few sums of powers.
    if element_type == _BFLOAT16 or (element_type, operator) == (_FLOAT16, "global_lp_pool"):
        y, *indices = replace(pool, x=pool.cast(pool.x, _FLOAT)).write()
        return [pool.cast(y, element_type), *indices]
    return pool.write()


@dataclass(frozen=True)
class _Axis:
    """A spatial axis with its padding made explicit and the number of windows rounded down."""

    input: int | None  # where it is not known, neither is the output
    output: int | None
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int  # of the padding, the declared part
    overhang: int  # beyond it

    @property
    def pads_exceed_kernel(self) -> bool:
        return max(self.begin, self.end + self.overhang) >= self.kernel

    def taps(self, window: int) -> list[int]:
        first = window * self.stride - self.begin
        return [first + tap * self.dilation for tap in range(self.kernel)]

    def data(self, window: int) -> list[int]:
        return [tap for tap in self.taps(window) if 0 <= tap < self.input]

    @property
    def has_empty_window(self) -> bool:
        return not all(map(self.data, range(self.output)))

    def padded(self) -> _Axis:
        """The same windows on an input that has the declared padding as data."""
        size = None if self.input is None else self.input + self.begin + self.end
        return replace(self, input=size, begin=0, end=0)


@dataclass(frozen=True)
class _Pool:
    """A call that is being written."""

    graph: Graph
    operator: str
    x: Any
    shape: list[int | None]
    element_type: str
    attributes: dict[str, Any]

    def write(self) -> Sequence:
        since = ledger.onnxruntime_pools_since(OPERATORS[self.operator].op_type, schemas.type_name(self.computed_type))
        if self.graph.opset < since < math.inf:
            rule = f"has no kernel for {self.computed_type} below opset {since}"
            raise Unportable(f"onnxruntime {rule}, export at opset {since} or above")
        if self.operator.startswith("global_"):
            return [self.whole_plane()]
        if self.graph.opset < {"average_pool": 7, "lp_pool": 2}.get(self.operator, 1):
            raise Unportable("onnxruntime has no kernel for this opset, export at opset 7 or above")
        if since == math.inf:
            raise Unportable(f"onnxruntime has no kernel for {self.computed_type}, cast the input to float32")
        if len(self.shape) - 2 > _MOST_AXES:
            return [self.window_in_parts()]
        return self.window(self.x, self.axes())

    # --- what is written ---

    def one(self, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        (output,) = self.graph.node(op_type, inputs, attributes)
        return output

    def cast(self, value: Any, element_type: str) -> Any:
        if self.graph.opset < 6:
            raise Unportable("onnxruntime has no Cast below opset 6, export at opset 6 or above")
        return self.one("Cast", value, to=_ONNX_TYPES[element_type])

    def ints(self, *values: int) -> Any:
        if self.graph.opset < 9:  # Constant knows only floating types there
            return self.cast(self.graph.constant(np.array(values, np.float64)), _INT64)
        return self.graph.constant(np.array(values, np.int64))

    def number(self, value: float) -> Any:
        return self.graph.constant(np.array(value, self.computed_type))

    def pool(self, x: Any, operator: str, **attributes: Any) -> Sequence:
        """A node of ours that needs no rewriting."""
        defaults = {p.name: p.default_value for p in self.parameters(operator) if p.has_default_value()}
        node = nodes.compose(operator, {**defaults, "X": x, **attributes}, self.graph.opset)
        return self.graph.node(node.op_type, [x], node.attributes, node.domain, len(node.outputs))

    def pad(self, x: Any, begins: Sequence[int], ends: Sequence[int], value: float = 0) -> Any:
        """Pads the spatial axes with a value."""
        if not any([*begins, *ends]):
            return x
        pads = [0, 0, *begins, 0, 0, *ends]
        if self.graph.opset < 11:  # value is an attribute there, in float32
            if abs(value) > float(np.finfo(np.float32).max):
                raise Unportable("Pad takes float64 values from opset 11 on, export at opset 11 or above")
            return self.one("Pad", x, pads=pads, value=float(value))
        return self.one("Pad", x, self.ints(*pads), self.number(value))

    def add_zeros(self, x: Any, axes: Sequence[_Axis]) -> Any:
        """X with its padding as data. One more row is padded and cut off again: onnxruntime would otherwise take a Pad
        before AveragePool for that pool's own padding, and find it too large."""
        begins, ends = [axis.begin for axis in axes], [axis.end + axis.overhang for axis in axes]
        if self.operator != "average_pool" or not any([*begins, *ends]):
            return self.pad(x, begins, ends)
        ends[0] += 1
        x = self.pad(x, begins, ends)
        if self.graph.opset < 10:
            return self.one("Slice", x, starts=[0], ends=[-1], axes=[2])
        return self.one("Slice", x, self.ints(0), self.ints(-1), self.ints(2))

    # --- what is known ---

    @staticmethod
    def parameters(operator: str) -> list:
        return getattr(torch.ops.torch_onnxpool, operator).default._schema.arguments

    @property
    def is_max(self) -> bool:
        return self.operator.startswith("max_pool")

    @property
    def gives_indices(self) -> bool:
        return self.operator == "max_pool_with_indices"

    @property
    def computed_type(self) -> np.dtype:
        computed = _FLOAT if self.element_type == _BFLOAT16 else self.element_type
        return torch.empty(0, dtype=_TORCH_TYPES[computed]).numpy().dtype

    @property
    def lowest(self) -> float:
        dtype = _TORCH_TYPES[self.element_type]
        return (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).min

    def axes(self) -> list[_Axis]:
        sizes, rank, get = self.shape[2:], len(self.shape) - 2, self.attributes.get
        pads, ones = get("pads") or [0] * (2 * rank), [1] * rank
        lists = (get("kernel_shape"), get("strides") or ones, get("dilations") or ones, pads[:rank], pads[rank:])
        return [self.axis(number, size, *axis) for number, (size, *axis) in enumerate(zip(sizes, *lists), start=2)]

    def axis(
        self, number: int, size: int | None, kernel: int, stride: int, dilation: int, begin: int, end: int
    ) -> _Axis:
        auto_pad, ceil_mode = self.attributes["auto_pad"], self.attributes["ceil_mode"]
        effective_kernel = (kernel - 1) * dilation + 1
        if size is None:
            if auto_pad.startswith("SAME") and stride == 1:  # the padding of SAME does not depend on the size
                begin, end = (effective_kernel - 1) // 2, effective_kernel // 2
                begin, end = (begin, end) if auto_pad == "SAME_UPPER" else (end, begin)
            elif auto_pad.startswith("SAME") or ceil_mode:
                raise Unportable(f"axis {number} of X must have a static size")
            return _Axis(None, None, kernel, stride, dilation, begin, end, 0)
        (resolved,) = _geometry.resolve_axes(
            OPERATORS[self.operator].op_type,
            [1, 1, size],
            [kernel],
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            dilations=[dilation],
            pads=[begin, end] if auto_pad == "NOTSET" else None,
            strides=[stride],
        )
        begin, end, output = resolved.pad_begin, resolved.pad_end, resolved.output
        used = (output - 1) * stride + effective_kernel - size - begin
        if used > end:
            return _Axis(size, output, kernel, stride, dilation, begin, end, used - end)
        if used + stride <= end:  # rounding up has dropped a window that rounding down would keep
            end = max(used, 0)
        return _Axis(size, output, kernel, stride, dilation, begin, end, 0)

    def require_sizes(self, axes: Sequence[_Axis]) -> None:
        for number, axis in enumerate(axes, start=2):
            if axis.input is None:
                raise Unportable(f"axis {number} of X must have a static size")

    # --- the forms ---

    def window(self, x: Any, axes: list[_Axis]) -> Sequence:
        """A windowed operator over axes that onnxruntime can pool together."""
        if self.is_max:
            return self.maximum(x, axes)
        if self.attributes.get("count_include_pad") and any(
            axis.begin != axis.end or axis.overhang or axis.pads_exceed_kernel for axis in axes
        ):
            # What counts becomes data; what hangs over becomes padding that does not count.
            x = self.add_zeros(x, [replace(axis, overhang=0) for axis in axes])
            return replace(self, attributes=self.attributes | {"count_include_pad": 0}).window(
                x, [axis.padded() for axis in axes]
            )
        if any(axis.pads_exceed_kernel for axis in axes):
            return [self.sum_of_padded(x, axes)]
        return self.plain(x, axes)

    def plain(self, x: Any, axes: Sequence[_Axis]) -> Sequence:
        """One node with explicit pads."""
        pads = [axis.begin for axis in axes] + [axis.end + axis.overhang for axis in axes]
        lists = {
            "kernel_shape": [axis.kernel for axis in axes],
            "strides": [axis.stride for axis in axes],
            "dilations": [axis.dilation for axis in axes],
            "pads": pads,
        }
        kept = {
            name: self.attributes[name]
            for name in ("count_include_pad", "p", "storage_order")
            if name in self.attributes
        }
        return self.pool(x, self.operator, **lists, **kept)

    def sum_of_padded(self, x: Any, axes: list[_Axis]) -> Any:
        """Averages of data and norms, with padding as zeros in the input."""
        if self.operator == "average_pool":
            self.require_sizes(axes)
        x = self.add_zeros(x, axes)
        rounded = self.operator == "average_pool" and self.element_type == _FLOAT16
        if rounded:
            x = self.cast(x, _FLOAT)
        (y,) = self.plain(x, [replace(axis, begin=0, end=0, overhang=0) for axis in axes])
        if self.operator == "average_pool":
            # This has divided by the number of taps, not by that of data.
            shares = np.ones(())
            for axis in axes:
                data = np.array([len(axis.data(window)) for window in range(axis.output)])
                share = np.divide(axis.kernel, data, out=np.zeros(axis.output), where=data > 0)
                shares = shares[..., None] * share
            y = self.one("Mul", y, self.graph.constant(shares[None, None].astype(np.float32)))
        return self.cast(y, _FLOAT16) if rounded else y

    def maximum(self, x: Any, axes: list[_Axis]) -> Sequence:
        has_empty_window = all(axis.input for axis in axes) and any(axis.has_empty_window for axis in axes)
        # onnxruntime computes both types in float32, whose lowest value is another one
        marked = self.gives_indices or self.element_type in (_FLOAT16, _BFLOAT16)
        if not any(axis.pads_exceed_kernel for axis in axes) and not (has_empty_window and marked):
            return self.plain(x, axes)
        self.require_sizes(axes)
        if self.gives_indices and self.graph.opset < 9:
            raise Unportable("Where can be said from opset 9 on")
        # Every window gets taps of its own. A tap in the padding repeats the nearest datum of its window; those of a
        # window without data take a slot behind the data, which holds the lowest value.
        taps = [[self.nearest_data(axis, window) for window in range(axis.output)] for axis in axes]
        slots = [int(axis.has_empty_window) for axis in axes]
        x = self.pad(x, [0] * len(axes), slots, self.lowest)
        for number, axis_taps in enumerate(taps, start=2):
            x = self.one("Gather", x, self.ints(*itertools.chain(*axis_taps)), axis=number)
        kernel = [axis.kernel for axis in axes]
        y, *indices = self.pool(x, self.operator, kernel_shape=kernel, strides=kernel)
        return [y, *(self.indices(index, axes, taps) for index in indices)]

    @staticmethod
    def nearest_data(axis: _Axis, window: int) -> list[int]:
        data = axis.data(window)
        if not data:
            return [axis.input] * axis.kernel
        return [min(max(tap, data[0]), data[-1]) for tap in axis.taps(window)]

    def indices(self, gathered: Any, axes: list[_Axis], taps: list[list[list[int]]]) -> Any:
        """Indices over the gathered taps, as those over X; -1 where a window has no data."""
        sizes = [axis.input for axis in axes]
        order = range(len(axes)) if self.attributes["storage_order"] else reversed(range(len(axes)))
        inner, step, empty = np.zeros((1,) * len(axes), np.int64), 1, np.zeros((1,) * len(axes), bool)
        for number in order:
            along = [1] * len(axes)
            along[number] = -1
            inner = inner + step * np.array(taps[number], np.int64).reshape(along)
            empty = empty | np.array([not axes[number].data(w) for w in range(axes[number].output)]).reshape(along)
            step *= sizes[number]
        plane_size = self.ints(inner.size)
        plane = self.one("Div", gathered, plane_size)
        position = self.one("Sub", gathered, self.one("Mul", plane, plane_size))
        position = self.one("Gather", self.graph.constant(inner.reshape(-1)), position, axis=0)
        index = self.one("Add", self.one("Mul", plane, self.ints(math.prod(sizes))), position)
        if not empty.any():
            return index
        return self.one("Where", self.graph.constant(empty[None, None]), self.ints(-1), index)

    def window_in_parts(self) -> Any:
        """Over more axes than onnxruntime pools at once: over the last two, then the two before them, and so on."""
        if self.gives_indices:
            raise Unportable("onnxruntime finds no indices over more than 3 spatial axes")
        axes, done = self.axes(), []
        self.require_sizes(axes)
        x = self.x
        while axes:
            axes, part = axes[:-2], axes[-2:]
            # What has been pooled already is one axis behind, with a kernel of 1.
            behind = math.prod(axis.output for axis in done)
            planes = [*self.shape[:2], *(axis.input for axis in axes)]
            x = self.reshape(
                x, [-1 if None in planes else math.prod(planes), 1, *(axis.input for axis in part), behind]
            )
            (x,) = self.window(x, [*part, _Axis(behind, behind, 1, 1, 1, 0, 0, 0)])
            done = part + done
        if self.shape[:2] == [None, None]:
            raise Unportable("axis 0 or 1 of X must have a static size")
        return self.reshape(
            x, [-1 if size is None else size for size in self.shape[:2]] + [axis.output for axis in done]
        )

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return self.one("Reshape", x, self.ints(*shape))

    def whole_plane(self) -> Any:
        """A global operator as a Reduce operator, or as LpPool over the whole plane."""
        if self.operator != "global_lp_pool":
            return self.reduce("ReduceMean" if self.operator == "global_average_pool" else "ReduceMax", self.x)
        p = self.attributes["p"]
        if p in (1, 2):
            return self.reduce(f"ReduceL{p:.0f}", self.x)
        if self.graph.opset < 7:
            raise Unportable("onnxruntime has no kernel for this opset, export at opset 7 or above")
        if None not in self.shape[2:] and self.element_type != _DOUBLE and len(self.shape) - 2 <= _MOST_AXES:
            (y,) = self.pool(self.x, "lp_pool", kernel_shape=self.shape[2:], p=p)
            return y
        powers = self.one("Pow", self.one("Abs", self.x), self.number(p))
        return self.one("Pow", self.reduce("ReduceSum", powers), self.number(1 / p))

    def reduce(self, op_type: str, x: Any) -> Any:
        axes = range(2, len(self.shape))
        if "axes" in schemas.at(op_type, ONNX, self.graph.opset).attributes:
            return self.one(op_type, x, axes=list(axes))
        return self.one(op_type, x, self.ints(*axes))
