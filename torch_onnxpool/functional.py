"""ONNX's pooling operators as functions on tensors, with ONNX's argument names and defaults.

All functions take ``X`` of shape ``[N, C, D1, ..., Dr]`` with any number ``r >= 1`` of spatial axes, in any memory
layout; the result is channels last if ``X`` is, otherwise contiguous. On CPUs, ``X`` is copied if neither the elements
of its last axis nor its channels are next to each other. Lists have one entry for each spatial axis (``pads`` two); an
int stands for a list that repeats it. Bad input raises ``ValueError`` naming the operator, the rule and the values,
before any memory is touched.

Along one axis of ``n`` elements, a window has the taps ``t = o * stride - pad_begin + j * dilation`` for
``0 <= j < kernel``. Those with ``0 <= t < n`` are its data. With the effective kernel
``K = (kernel - 1) * dilation + 1`` the number of windows is

* ``floor((n + pad_begin + pad_end - K) / stride) + 1``, or
* ``ceil((n + pad_begin + pad_end - K) / stride) + 1`` with ``ceil_mode=1``, where a last window that would start in the
  end padding is dropped, or
* ``ceil(n / stride)`` with ``auto_pad`` SAME_UPPER or SAME_LOWER, which pad evenly and put an odd element at the end or
  at the beginning. VALID means no padding.

Source: the ONNX operator documentation, https://onnx.ai/onnx/operators/; where it is silent, what onnxruntime computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor, strided

from torch_onnxpool._arguments import refuse_wrong_types
from torch_onnxpool._registrations import OPERATORS, dispatch

__all__ = [
    "average_pool",
    "global_average_pool",
    "global_lp_pool",
    "global_max_pool",
    "lp_pool",
    "max_pool",
    "max_unpool",
    "qlinear_average_pool",
    "qlinear_global_average_pool",
]

Ints = int | Sequence[int]

_AVERAGE_POOL = OPERATORS["average_pool"]
_LP_POOL = OPERATORS["lp_pool"]
_MAX_POOL = OPERATORS["max_pool"]
_MAX_POOL_WITH_INDICES = OPERATORS["max_pool_with_indices"]
_GLOBAL_AVERAGE_POOL = OPERATORS["global_average_pool"]
_GLOBAL_LP_POOL = OPERATORS["global_lp_pool"]
_GLOBAL_MAX_POOL = OPERATORS["global_max_pool"]
_MAX_UNPOOL = OPERATORS["max_unpool"]
_QLINEAR_AVERAGE_POOL = OPERATORS["qlinear_average_pool"]
_QLINEAR_GLOBAL_AVERAGE_POOL = OPERATORS["qlinear_global_average_pool"]


def average_pool(
    X: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Average of each window: the sum of its data divided by their number, as ONNX AveragePool.

    With ``count_include_pad=1`` it is divided by the number of taps in data and padding; taps beyond the end padding,
    which only ``ceil_mode=1`` brings, never count. A window without data gives 0.

    Args:
        X: ``[N, C, D1, ..., Dr]`` of float16, bfloat16, float32 or float64. Half precision is summed in float32,
            float32 and float64 as they are: over the outer axes first, then along the last one, as onnxruntime does
            until opset 18, or in parts that windows share where these are large. One window over the whole plane is
            summed in float64. On the CPU gradients are added up in the same types, on GPUs those of float32 in float64.
        kernel_shape: window size in elements, >= 1.
        auto_pad: NOTSET, SAME_UPPER, SAME_LOWER or VALID; excludes ``pads`` unless NOTSET.
        ceil_mode: 1 rounds the number of windows up.
        count_include_pad: 1 counts padding in the divisor.
        dilations: distance between taps, default 1.
        pads: padding ``[begin of each axis, end of each axis]``, >= 0, default 0. May exceed the kernel.
        strides: distance between windows, default 1.

    Opsets: 1, 7 (count_include_pad), 10 (ceil_mode), 11, 19 (dilations), 22 (bfloat16).
    """
    return dispatch(
        _AVERAGE_POOL,
        (X,),
        {
            "kernel_shape": kernel_shape,
            "auto_pad": auto_pad,
            "ceil_mode": ceil_mode,
            "count_include_pad": count_include_pad,
            "dilations": dilations,
            "pads": pads,
            "strides": strides,
        },
    )


def lp_pool(
    X: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    p: float = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """p-norm of each window, ``(sum over its data of |x|^p)^(1/p)``, as ONNX LpPool.

    The result is the true value whenever it is representable: powers neither overflow nor vanish on the way. A window
    without data gives 0. The gradient is ``sign(x) * (|x| / y)^(p-1)``, and 0 where ``y`` is 0. Forward-mode and second
    derivatives are as safe, but not finite for windows whose ``y`` is smaller than the largest ``|x|`` of the plane by
    more than a factor of ``10^(308/(p-1))``, which is 77 000 for p = 64.

    Args:
        X: ``[N, C, D1, ..., Dr]`` of float16, bfloat16, float32 or float64.
        kernel_shape, auto_pad, ceil_mode, dilations, pads, strides: as in :func:`average_pool`.
        p: any finite number >= 1. ONNX knows other than integers in opset 1 only.

    Opsets: 1 (p is a float), 2, 11, 18 (ceil_mode, dilations), 22 (bfloat16).
    """
    if type(p) is not int and type(p) is not float:
        refuse_wrong_types(_LP_POOL.onnx_name, p=p)
    return dispatch(
        _LP_POOL,
        (X,),
        {
            "kernel_shape": kernel_shape,
            "auto_pad": auto_pad,
            "ceil_mode": ceil_mode,
            "dilations": dilations,
            "p": p,
            "pads": pads,
            "strides": strides,
        },
    )


@overload
def max_pool(
    X: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = ...,
    ceil_mode: int = ...,
    dilations: Ints | None = ...,
    pads: Ints | None = ...,
    storage_order: int = ...,
    strides: Ints | None = ...,
    return_indices: Literal[False] = ...,
) -> Tensor: ...


@overload
def max_pool(
    X: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = ...,
    ceil_mode: int = ...,
    dilations: Ints | None = ...,
    pads: Ints | None = ...,
    storage_order: int = ...,
    strides: Ints | None = ...,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def max_pool(
    X: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = ...,
    ceil_mode: int = ...,
    dilations: Ints | None = ...,
    pads: Ints | None = ...,
    storage_order: int = ...,
    strides: Ints | None = ...,
    return_indices: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...


def max_pool(
    X: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Maximum of each window, as ONNX MaxPool; with ``return_indices=True`` also where it is.

    Padding never competes. NaN wins over everything. A window without data gives the type's lowest finite value. Of 0
    and -0, which are equal, either may be the result. Indices are int64 and flat over the whole tensor,
    ``(n * C + c) * D1 * ... * Dr + inner``, where ``inner`` is row-major or, with ``storage_order=1``, has the first
    spatial axis fastest. Of equal maxima the first in row-major order is named; a window without data has index -1. The
    gradient goes to the element that the index names.

    Args:
        X: ``[N, C, D1, ..., Dr]`` of float16, bfloat16, float32, float64, int8 or uint8.
        kernel_shape, auto_pad, ceil_mode, dilations, pads, strides: as in :func:`average_pool`.
        storage_order: 0 (row-major) or 1 (column-major) Indices.
        return_indices: return ``(Y, Indices)`` instead of ``Y``.

    Opsets: 1, 8 (Indices, storage_order), 10 (ceil_mode, dilations), 11, 12 (int8, uint8), 22 (bfloat16).
    """
    if type(return_indices) is not bool:
        refuse_wrong_types(_MAX_POOL.onnx_name, return_indices=return_indices)
    return dispatch(
        _MAX_POOL_WITH_INDICES if return_indices else _MAX_POOL,
        (X,),
        {
            "kernel_shape": kernel_shape,
            "auto_pad": auto_pad,
            "ceil_mode": ceil_mode,
            "dilations": dilations,
            "pads": pads,
            "storage_order": storage_order,
            "strides": strides,
        },
    )


def max_unpool(
    X: Tensor,
    I: Tensor,  # noqa: E741
    kernel_shape: Ints,
    *,
    output_shape: Sequence[int] | Tensor | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """The way back from :func:`max_pool`, as ONNX MaxUnpool: elements go where indices say, all else is 0.

    ``Y.flatten()[I] = X`` in row-major order, so that of duplicates the last wins, and its gradient is that of the
    element it received. The output has the size ``(d - 1) * stride - pad_begin - pad_end + kernel`` along an axis of
    ``d`` elements, or ``output_shape``, which the indices then address.

    Args:
        X: ``[N, C, D1, ..., Dr]`` of float16, bfloat16, float32 or float64.
        I: int64, of X's shape: indices flat over the whole output, row-major. Outside of it they are an error.
        kernel_shape, pads, strides: those of the pooling that is undone, as in :func:`average_pool`.
        output_shape: ``[N, C, ...]``, all dimensions of the output, as a list or a tensor of int64. Sizes that are open
            when compiling or exporting stay so, but for the TorchScript exporter.

    Opsets: 9, 11, 22 (bfloat16).
    """
    if isinstance(output_shape, Tensor) and output_shape.layout == strided and not output_shape.is_meta:
        output_shape = output_shape.tolist()
    return dispatch(
        _MAX_UNPOOL,
        (X, I),
        {
            "kernel_shape": kernel_shape,
            "output_shape": output_shape,
            "pads": pads,
            "strides": strides,
        },
    )


def global_average_pool(X: Tensor) -> Tensor:
    """Average over all spatial axes, as ONNX GlobalAveragePool: ``[N, C, D1, ..., Dr]`` to ``[N, C, 1, ..., 1]``.

    Args:
        X: float16, bfloat16, float32 or float64.

    Opsets: 1, 22 (bfloat16).
    """
    return dispatch(_GLOBAL_AVERAGE_POOL, (X,), {})


def global_lp_pool(X: Tensor, *, p: float = 2) -> Tensor:
    """p-norm over all spatial axes, ``(sum of |x|^p)^(1/p)``, as ONNX GlobalLpPool: to ``[N, C, 1, ..., 1]``.

    Range, accuracy and gradient are those of :func:`lp_pool`.

    Args:
        X: float16, bfloat16, float32 or float64.
        p: any finite number >= 1. ONNX knows other than integers in opset 1 only.

    Opsets: 1 (p is a float), 2, 22 (bfloat16).
    """
    if type(p) is not int and type(p) is not float:
        refuse_wrong_types(_GLOBAL_LP_POOL.onnx_name, p=p)
    return dispatch(_GLOBAL_LP_POOL, (X,), {"p": p})


def global_max_pool(X: Tensor) -> Tensor:
    """Maximum over all spatial axes, as ONNX GlobalMaxPool: ``[N, C, D1, ..., Dr]`` to ``[N, C, 1, ..., 1]``.

    NaN wins over everything. The gradient goes to the first maximum in row-major order.

    Args:
        X: float16, bfloat16, float32 or float64.

    Opsets: 1, 22 (bfloat16).
    """
    return dispatch(_GLOBAL_MAX_POOL, (X,), {})


def qlinear_average_pool(
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    kernel_shape: Ints,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Average of each window of quantised values, as com.microsoft QLinearAveragePool, bit for bit.

    The data are dequantised, ``x_scale * (x - x_zero_point)``, added in row-major order and divided by their number, or
    with ``count_include_pad=1`` by the size of the window, padding and what hangs over included; the average is
    quantised, ``round(average / y_scale + y_zero_point)``, and saturated (by onnxruntime only where the quotient has no
    more than 32 bits). Every step is in float32, halves are rounded to even. A window without data gives
    ``y_zero_point``. One window that spans the plane without padding is :func:`qlinear_global_average_pool`, with its
    rounding and its limits.

    Args:
        X: ``[N, C, D1, ..., Dr]``, or ``[N, D1, ..., Dr, C]`` with ``channels_last=1``, of uint8 or int8.
        x_scale, y_scale: float32 tensors of one element, finite and not 0.
        x_zero_point, y_zero_point: tensors of one element, of X's type.
        kernel_shape, auto_pad, ceil_mode, count_include_pad, pads, strides: as in :func:`average_pool`, but for what
            count_include_pad counts.
        channels_last: 1 if the channels are X's last dimension.

    Returns:
        A tensor of X's type. There is no gradient.

    Opset: com.microsoft 1.
    """
    return dispatch(
        _QLINEAR_AVERAGE_POOL,
        (X, x_scale, x_zero_point, y_scale, y_zero_point),
        {
            "kernel_shape": kernel_shape,
            "auto_pad": auto_pad,
            "ceil_mode": ceil_mode,
            "channels_last": channels_last,
            "count_include_pad": count_include_pad,
            "pads": pads,
            "strides": strides,
        },
    )


def qlinear_global_average_pool(
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    channels_last: int = 0,
) -> Tensor:
    """Average of quantised values over all spatial axes, as com.microsoft QLinearGlobalAveragePool, bit for bit.

    ``round((sum(x) - n * x_zero_point) * (x_scale / (y_scale * n))) + y_zero_point``, saturated, with ``n`` elements in
    a plane, every step in float32 and halves rounded to even. A value ``q`` stands for ``scale * (q - zero_point)``.

    Args:
        X: ``[N, C, D1, ..., Dr]``, or ``[N, D1, ..., Dr, C]`` with ``channels_last=1``, of uint8 or int8; a plane has
            fewer than 2^24 elements.
        x_scale, y_scale: float32 tensors of one element, with ``x_scale / (y_scale * n)`` in [2^-32, 256).
        x_zero_point, y_zero_point: tensors of one element, of X's type.
        channels_last: 1 if the channels are X's last dimension.

    Returns:
        A tensor of X's type with every spatial dimension 1. There is no gradient.

    Opset: com.microsoft 1.
    """
    return dispatch(
        _QLINEAR_GLOBAL_AVERAGE_POOL,
        (X, x_scale, x_zero_point, y_scale, y_zero_point),
        {"channels_last": channels_last},
    )
