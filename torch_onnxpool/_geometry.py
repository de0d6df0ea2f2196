"""The geometry of a pooling: asked of the kernels' own code where sizes are known, and as formulas on symbolic sizes.

The formulas are those of csrc/geometry.h without a branch on a size: attributes are Python ints, so every decision is
made on them alone, and a size takes part in sums and floor divisions only. A test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch_onnxpool import _C

# What the output's size depends on beside kernel_shape.
WINDOW_ATTRIBUTES = ("auto_pad", "ceil_mode", "dilations", "pads", "strides")


class Axis(NamedTuple):
    """One spatial axis: sizes in elements, padding with auto_pad resolved."""

    input: int
    output: int
    kernel: int
    stride: int
    dilation: int
    pad_begin: int
    pad_end: int


def resolve_axes(onnx_name: str, shape: Sequence[int], kernel_shape: Sequence[int], **window: Any) -> list[Axis]:
    """The axes of a pooling of ``shape`` [N, C, D1, ..., Dr]; ValueError where the operator refuses."""
    return [Axis(*axis) for axis in _C.resolve_axes(onnx_name, shape, kernel_shape, **window)]


def output_size(
    n, kernel: int, stride: int, dilation: int, pad_begin: int, pad_end: int, auto_pad: str, ceil_mode: int
):
    """Output size along one axis of ``n`` elements, for validated attributes and a window that fits."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return (n + stride - 1) // stride
    effective_kernel = (kernel - 1) * dilation + 1
    if not ceil_mode:
        return (n + pad_begin + pad_end - effective_kernel) // stride + 1
    # ceil((n + pb + pe - K) / s) + 1, less one if that window would start in the end padding; both are monotonic in n,
    # and which one is smaller depends on the attributes alone.
    overshoot = (
        min(pad_end - effective_kernel + stride, 0) if pad_end <= effective_kernel else pad_end - effective_kernel
    )
    return (n + pad_begin + overshoot + stride - 1) // stride


def output_sizes(
    spatial_shape: Sequence,
    kernel_shape: Sequence[int],
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> list:
    """Output sizes along all spatial axes."""
    rank = len(spatial_shape)
    dilations = dilations or [1] * rank
    pads = pads or [0] * (2 * rank)
    strides = strides or [1] * rank
    return [
        output_size(n, kernel, stride, dilation, pad_begin, pad_end, auto_pad, ceil_mode)
        for n, kernel, stride, dilation, pad_begin, pad_end in zip(
            spatial_shape, kernel_shape, strides, dilations, pads[:rank], pads[rank:]
        )
    ]


def unpooled_sizes(
    spatial_shape: Sequence,
    kernel_shape: Sequence[int],
    *,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> list:
    """MaxUnpool's output sizes: (d - 1) * stride - pad_begin - pad_end + kernel."""
    rank = len(spatial_shape)
    pads = pads or [0] * (2 * rank)
    strides = strides or [1] * rank
    return [
        (n - 1) * stride - pad_begin - pad_end + kernel
        for n, kernel, stride, pad_begin, pad_end in zip(spatial_shape, kernel_shape, strides, pads[:rank], pads[rank:])
    ]
