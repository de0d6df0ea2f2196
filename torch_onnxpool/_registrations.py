"""What the dispatcher needs beside the native kernels: fake kernels, gradients and batching rules.

A gradient is stated once, by an ``Operator``, and serves three routes: the formula registered with the dispatcher (when
compiling or tracing), ``PoolFunction`` in eager mode (less than half the price per call) and functorch's transforms.
Autocast needs nothing: every type is computed in at least float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torch_onnxpool import _C
from torch_onnxpool._geometry import WINDOW_ATTRIBUTES, output_sizes, resolve_axes

below_autograd = torch._C._AutoDispatchBelowAutograd


@dataclass(frozen=True)
class Operator:
    """A native operator, by its name in ``torch.ops.torch_onnxpool``."""

    name: str
    onnx_name: str
    windowed: bool = True  # has a kernel_shape and its companions; otherwise one window spans the plane
    differentiable: bool = True
    gradient_needs: str | None = None  # a result of the forward pass: Y or Indices

    @property
    def gives_indices(self) -> bool:
        return self.name.endswith("_with_indices")

    @property
    def base_name(self) -> str:
        return self.name.removesuffix("_with_indices")

    @property
    def backward_name(self) -> str:
        return f"{self.base_name}_backward"

    @cached_property
    def op(self) -> torch._ops.OpOverload:
        return _overload(self.name)

    @cached_property
    def backward_op(self) -> torch._ops.OpOverload:
        return _overload(self.backward_name)

    def keep(self, X: Tensor, result: Any) -> tuple[Tensor, ...]:
        """What the gradient wants of the forward pass."""
        if self.gives_indices:
            return X, result[1]
        return (X, result) if self.gradient_needs == "Y" else (X,)

    def gradient(self, grad_Y: Tensor, X: Tensor, *kept: Tensor, **attributes: Any) -> Tensor:
        """grad_X, by the operator of its own that computes it."""
        if self.gradient_needs == "Indices" and not kept:  # a maximum that was not asked where it is
            kept = (dispatch(OPERATORS[f"{self.name}_with_indices"], X.detach(), attributes)[1],)
        if torch.is_grad_enabled():  # the gradient will itself be differentiated
            return GradientFunction.apply(self, attributes, grad_Y, X, *kept)
        with below_autograd():
            return self.backward_op(grad_Y, X, *kept, **attributes)

    def second_gradient(self, grad_grad_X: Tensor, *kept: Tensor, **attributes: Any) -> Tensor:
        """The gradient of ``backward_op`` by grad_Y, in which averages and maxima are linear."""
        if self.gradient_needs is None:
            return dispatch(self, grad_grad_X, attributes)
        if self.gradient_needs == "Indices":
            return _at_indices(grad_grad_X, kept[0], attributes.get("storage_order", 0))
        raise NotImplementedError(f"{self.onnx_name}: its gradient cannot be differentiated a second time")


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("average_pool", "AveragePool"),
        Operator("lp_pool", "LpPool", gradient_needs="Y"),
        Operator("max_pool", "MaxPool", gradient_needs="Indices"),
        Operator("max_pool_with_indices", "MaxPool", gradient_needs="Indices"),
        Operator("global_average_pool", "GlobalAveragePool", windowed=False),
        Operator("global_lp_pool", "GlobalLpPool", windowed=False, gradient_needs="Y"),
        Operator("global_max_pool", "GlobalMaxPool", windowed=False, gradient_needs="Indices"),
        Operator("global_max_pool_with_indices", "GlobalMaxPool", windowed=False, gradient_needs="Indices"),
        Operator("qlinear_global_average_pool", "QLinearGlobalAveragePool", windowed=False, differentiable=False),
    )
}


def _qualified(name: str) -> str:
    return f"torch_onnxpool::{name}"


def _overload(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.torch_onnxpool, name).default


def _at_indices(x: Tensor, indices: Tensor, storage_order: int) -> Tensor:
    """The elements of ``x`` that ``indices`` name, 0 where they name none."""
    if storage_order:  # the first spatial axis fastest: row-major once the spatial axes are reversed
        x = x.permute(0, 1, *range(x.dim() - 1, 1, -1))
    return torch.where(indices < 0, 0, x.reshape(-1)[indices.clamp(min=0)])


# ---- Fake kernels: shapes and layouts, never a guard on a size ----


def _certain(condition: Any) -> bool:
    """Whether a condition on sizes holds whatever the values of its symbols."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def _dense_strides(shape: Sequence, order: Sequence[int]) -> list:
    """Strides of a dense tensor whose memory holds the axes in this order, the last one innermost."""
    strides, stride = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = stride
        stride = stride * shape[axis]
    return strides


def _is_dense(x: Tensor, order: Sequence[int]) -> bool:
    expected = _dense_strides(x.shape, order)
    return all(_certain(x.stride(axis) == expected[axis]) or _certain(x.shape[axis] <= 1) for axis in order)


def _empty_like_layout(x: Tensor, shape: Sequence, dtype: torch.dtype) -> Tensor:
    """Channels last if ``x`` has that layout only, otherwise contiguous, as in csrc/ops.cpp."""
    channels_last = (0, *range(2, x.dim()), 1)
    if not _is_dense(x, range(x.dim())) and _is_dense(x, channels_last):
        return x.new_empty_strided(shape, _dense_strides(shape, channels_last), dtype=dtype)
    return x.new_empty(shape, dtype=dtype)


def _register_fake_forward(operator: Operator) -> None:
    def output_shape(X: Tensor, kernel_shape: Sequence[int] | None = None, **attributes: Any) -> list:
        rank = X.dim() - 2
        if not operator.windowed:
            return [*X.shape[:2], *[1] * rank]
        _C.check_attributes(operator.onnx_name, rank, kernel_shape, **attributes)
        window = {name: value for name, value in attributes.items() if name in WINDOW_ATTRIBUTES}
        if all(isinstance(size, int) for size in X.shape):  # then C++ can tell whether the window fits
            resolve_axes(operator.onnx_name, X.shape, kernel_shape, **window)
        return [*X.shape[:2], *output_sizes(X.shape[2:], kernel_shape, **window)]

    @torch.library.register_fake(_qualified(operator.name))
    def fake(X: Tensor, *kernel_shape: Sequence[int], **attributes: Any):
        shape = output_shape(X, *kernel_shape, **attributes)
        Y = _empty_like_layout(X, shape, X.dtype)
        return (Y, _empty_like_layout(X, shape, torch.int64)) if operator.gives_indices else Y


def _register_fake_backward(operator: Operator) -> None:
    @torch.library.register_fake(_qualified(operator.backward_name))
    def fake(grad_Y: Tensor, X: Tensor, *kept: Any, **attributes: Any) -> Tensor:
        return _empty_like_layout(X, X.shape, X.dtype)


@torch.library.register_fake(_qualified("qlinear_global_average_pool"))
def _fake_quantized(X, x_scale, x_zero_point, y_scale, y_zero_point, *, channels_last=0):
    ones = [1] * (X.dim() - 2)
    shape = [X.shape[0], *ones, X.shape[-1]] if channels_last else [*X.shape[:2], *ones]
    return _empty_like_layout(X, shape, X.dtype)


# ---- Gradients ----


def _register_gradient(operator: Operator) -> None:
    def setup_context(ctx, inputs, output, keyword_only_inputs=None):
        X, *kernel_shape = inputs
        ctx.attributes = _attributes(kernel_shape, keyword_only_inputs)
        ctx.save_for_backward(*operator.keep(X, output))

    def backward(ctx, grad_Y, *_):
        grad_X = operator.gradient(grad_Y, *ctx.saved_tensors, **ctx.attributes)
        return (grad_X, None) if operator.windowed else grad_X

    torch.library.register_autograd(_qualified(operator.name), backward, setup_context=setup_context)


def _register_second_gradient(operator: Operator) -> None:
    kept_count = 0 if operator.gradient_needs is None else 1

    def setup_context(ctx, inputs, output, keyword_only_inputs=None):
        ctx.input_count = len(inputs)
        kept, kernel_shape = inputs[2 : 2 + kept_count], inputs[2 + kept_count :]
        ctx.attributes = _attributes(kernel_shape, keyword_only_inputs)
        ctx.save_for_backward(*kept)

    def backward(ctx, grad_grad_X):
        grad_grad_Y = operator.second_gradient(grad_grad_X, *ctx.saved_tensors, **ctx.attributes)
        return (grad_grad_Y, *[None] * (ctx.input_count - 1))

    torch.library.register_autograd(_qualified(operator.backward_name), backward, setup_context=setup_context)


def _attributes(kernel_shape: Sequence, keyword_only: dict[str, Any] | None) -> dict[str, Any]:
    attributes = dict(keyword_only or {})
    if kernel_shape:
        attributes["kernel_shape"] = kernel_shape[0]
    return attributes


class PoolFunction(torch.autograd.Function):
    """An operator in eager mode and under functorch's transforms."""

    @staticmethod
    def forward(operator: Operator, X: Tensor, attributes: dict[str, Any]):
        with below_autograd():
            return operator.op(X, **attributes)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.operator, X, ctx.attributes = inputs
        ctx.save_for_backward(*ctx.operator.keep(X, output))
        if ctx.operator.gives_indices:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad_Y, *_):
        return None, ctx.operator.gradient(grad_Y, *ctx.saved_tensors, **ctx.attributes), None

    @staticmethod
    def vmap(info, in_dims, operator, X, attributes):
        folded = _fold(X, in_dims[1], info.batch_size)
        return _unfold(PoolFunction.apply(operator, folded, attributes), folded, info.batch_size)


class GradientFunction(torch.autograd.Function):
    """A backward operator, likewise."""

    @staticmethod
    def forward(operator: Operator, attributes: dict[str, Any], grad_Y: Tensor, X: Tensor, *kept: Tensor) -> Tensor:
        with below_autograd():
            return operator.backward_op(grad_Y, X, *kept, **attributes)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.operator, ctx.attributes, _, _, *kept = inputs
        ctx.save_for_backward(*kept)
        ctx.input_count = len(inputs)

    @staticmethod
    def backward(ctx, grad_grad_X):
        grad_grad_Y = ctx.operator.second_gradient(grad_grad_X, *ctx.saved_tensors, **ctx.attributes)
        return (None, None, grad_grad_Y, *[None] * (ctx.input_count - 3))

    @staticmethod
    def vmap(info, in_dims, operator, attributes, *tensors):
        folded = _fold_gradient(operator, tensors, in_dims[2:], info.batch_size)
        return GradientFunction.apply(operator, attributes, *folded).unflatten(0, (info.batch_size, -1)), 0


# torch.autograd.Function.apply binds its arguments through inspect.signature on every call; this is what it calls next.
_apply_pool_function = super(torch.autograd.Function, PoolFunction).apply


def dispatch(operator: Operator, X: Tensor, attributes: dict[str, Any]):
    """Calls a differentiable operator by the cheapest route that serves whoever is watching."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return operator.op(X, **attributes)
    if torch._C._are_functorch_transforms_active():
        return PoolFunction.apply(operator, X, attributes)
    if (X.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        return _apply_pool_function(operator, X, attributes)
    with below_autograd():
        return operator.op(X, **attributes)


# ---- Batching rules: the new dimension becomes a part of N ----


def _fold(x: Tensor, dim: int | None, batch_size: int) -> Tensor:
    x = x.expand(batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def _sample_offsets(folded_X: Tensor, batch_size: int) -> Tensor:
    """Where each sample begins in the flat folded tensor, shaped to be added to Indices."""
    offsets = torch.arange(batch_size, device=folded_X.device) * (folded_X.numel() // batch_size)
    return offsets.reshape(-1, *[1] * folded_X.dim())


def _unfold(result: Any, folded_X: Tensor, batch_size: int):
    if isinstance(result, tuple):
        Y, indices = (r.unflatten(0, (batch_size, -1)) for r in result)
        local = indices - _sample_offsets(folded_X, batch_size)
        return (Y, torch.where(indices < 0, indices, local)), (0, 0)
    return result.unflatten(0, (batch_size, -1)), 0


def _fold_gradient(operator: Operator, tensors: Sequence[Tensor], dims: Sequence, batch_size: int) -> list[Tensor]:
    folded = [_fold(tensor, dim, batch_size) for tensor, dim in zip(tensors, dims)]
    if operator.gradient_needs == "Indices":
        indices = folded[2].unflatten(0, (batch_size, -1))
        indices = torch.where(indices < 0, indices, indices + _sample_offsets(folded[1], batch_size))
        folded[2] = indices.flatten(0, 1)
    return folded


def _register_batching(operator: Operator) -> None:
    @torch.library.register_vmap(_qualified(operator.name))
    def batched(info, in_dims, X, *kernel_shape, **attributes):
        folded = _fold(X, in_dims[0], info.batch_size)
        return _unfold(operator.op(folded, *kernel_shape, **attributes), folded, info.batch_size)


def _register_gradient_batching(operator: Operator) -> None:
    tensor_count = 2 if operator.gradient_needs is None else 3

    @torch.library.register_vmap(_qualified(operator.backward_name))
    def batched(info, in_dims, *arguments, **attributes):
        tensors, kernel_shape = arguments[:tensor_count], arguments[tensor_count:]
        folded = _fold_gradient(operator, tensors, in_dims, info.batch_size)
        return operator.backward_op(*folded, *kernel_shape, **attributes).unflatten(0, (info.batch_size, -1)), 0


@torch.library.register_vmap(_qualified("qlinear_global_average_pool"))
def _batch_quantized(info, in_dims, X, *quantization, channels_last=0):
    if any(dim is not None for dim in in_dims[1:]):
        raise ValueError(
            "QLinearGlobalAveragePool: under vmap only X may be batched, got batched scales or zero points"
        )
    op = OPERATORS["qlinear_global_average_pool"].op
    folded = _fold(X, in_dims[0], info.batch_size)
    return _unfold(op(folded, *quantization, channels_last=channels_last), folded, info.batch_size)


for _operator in OPERATORS.values():
    if _operator.differentiable:
        _register_fake_forward(_operator)
        _register_gradient(_operator)
        _register_batching(_operator)
        if not _operator.gives_indices:  # its backward operator is the one of the operator without indices
            _register_fake_backward(_operator)
            _register_second_gradient(_operator)
            _register_gradient_batching(_operator)
