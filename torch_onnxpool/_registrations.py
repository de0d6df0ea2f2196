"""What the dispatcher needs beside the native kernels: fake kernels, gradients and batching rules.

A gradient is stated once, by an ``Operator``, and comes by two routes: plain tensors take it along from the start, at a
third of the price per call; for whoever else calls or watches (compilers, exported models, functorch's transforms,
forward-mode derivatives, modes, subclasses) the dispatcher asks for it.
Autocast needs nothing: every type is computed in at least float32.

Every native operator has two overloads. ``default`` takes ONNX's attributes as its arguments and is what compilers,
exporters, tensor subclasses and modes see. ``eager`` takes them as one text, has no gradient of its own, and is what
plain tensors are computed by: at half the price, since torch takes 1 us to hand over a list.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from torch_onnxpool import _C, _libraries
from torch_onnxpool._arguments import fixed, refuse_wrong_types, schema_arguments
from torch_onnxpool._geometry import WINDOW_ATTRIBUTES, output_sizes, resolve_axes, unpooled_sizes

_libraries.load()

# Under names of their own: each dot costs a call 0.02 us.
are_functorch_transforms_active = torch._C._are_functorch_transforms_active
below_autograd = torch._C._AutoDispatchBelowAutograd
call_boxed = torch._C._dispatch_call_boxed  # what an overload comes down to, without the way there: 0.4 us
count_dispatch_modes = torch._C._len_torch_dispatch_stack
eager_arguments = _C.eager_arguments
enable_forward_mode = torch._C._set_fwd_grad_enabled
enable_grad = torch._C._set_grad_enabled
has_torch_function = torch.overrides.has_torch_function_unary
is_forward_mode_enabled = torch._C._is_fwd_grad_enabled
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
is_grad_enabled = torch.is_grad_enabled
is_tracing = torch._C._is_tracing
keys_after_autograd = torch._C._after_autograd_keyset


def _qualified(name: str) -> str:
    return f"torch_onnxpool::{name}"


# Tensors that no one but the kernels looks into.
_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nobody looks at what is done with tensors: no compiler, subclass, mode, tracer or transform."""
    if is_dynamo_compiling():  # and does not know all of what comes next
        return False
    for tensor in tensors:
        if type(tensor) not in _PLAIN_TENSORS:
            return False
    return not (
        has_torch_function(tensors[0]) or count_dispatch_modes() or is_tracing() or are_functorch_transforms_active()
    )


# An operator, its attributes, and what computes one of its native operators by tensors and attributes.
Call = tuple["Operator", dict[str, Any], Callable]

# Registrations that hold as long as this does.
_LIBRARY = torch.library.Library("torch_onnxpool", "IMPL")


class NativeOperator:
    """A native operator, by its name in ``torch.ops.torch_onnxpool``."""

    def __init__(self, name: str) -> None:
        overloads = getattr(torch.ops.torch_onnxpool, name)
        # Autograd has nothing to do for this overload: it need not be asked on the way, nor be kept out by a guard.
        _LIBRARY.impl(f"{name}.eager", torch.library.fallthrough_kernel, "Autograd")
        self.name = name
        self.op: torch._ops.OpOverload = overloads.default
        self._eager = torch._C._dispatch_find_schema_or_throw(overloads.eager._schema.name, "eager")

    def call(self, tensors: Sequence[Tensor], attributes: dict[str, Any]) -> Any:
        """The results, by the overload that all can watch and differentiate."""
        return self.op(*tensors, **schema_arguments(tensors, attributes))

    def compute(self, tensors: Sequence[Tensor], attributes: dict[str, Any]) -> Any:
        """The same where no derivative is wanted."""
        if _are_plain(tensors):
            return self.compute_plain(tensors, attributes)
        return self.call(tensors, attributes)

    def compute_plain(self, tensors: Sequence[Tensor], attributes: dict[str, Any]) -> Any:
        """The same of plain tensors."""
        arguments = eager_arguments(self._eager, tensors, attributes)
        if arguments is None:  # an int in place of a list, or what no operator takes
            arguments = eager_arguments(self._eager, tensors, schema_arguments(tensors, attributes))
        if arguments is not None:
            try:
                return call_boxed(*arguments)
            except NotImplementedError:  # no kernel for the device: the other overload has one for meta tensors
                pass
        return self.call(tensors, attributes)

    def register_autograd(self, operator: Operator, function: type[torch.autograd.Function], inputs: int) -> None:
        """Has a function differentiate the default overload.

        ``torch.library.register_autograd`` loses the tangents of forward mode, and refuses functorch's transforms.
        """
        apply = _apply_of(function)

        def differentiable(keys: torch._C.DispatchKeySet, *arguments: Any, **keyword_only: Any) -> Any:
            gradients, tangents = is_grad_enabled(), is_forward_mode_enabled()

            def compute(tensors: Sequence[Tensor], attributes: dict[str, Any]) -> Any:
                # Outer transforms, which come next, want the modes that torch turns off until the function returns.
                enable_grad(gradients)
                enable_forward_mode(tangents)
                with below_autograd():
                    return self.op.redispatch(keys & keys_after_autograd, *tensors, **attributes)

            tensors, attributes = _split(arguments, inputs, keyword_only)
            with enable_single_level_autograd_function():  # this transform's alone
                return apply((operator, attributes, compute), *tensors)

        _LIBRARY.impl(self.name, differentiable, "Autograd", with_keyset=True)


@functools.cache  # with and without indices, operators have the same one
def _backward_of(name: str) -> NativeOperator:
    return NativeOperator(f"{name}_backward")


@dataclass(eq=False)
class Operator:
    """An operator of the package and what its gradient is made of."""

    name: str
    onnx_name: str
    windowed: bool = True  # has a kernel_shape and its companions; otherwise one window spans the plane
    inputs: int = 1  # tensors
    differentiable: bool = True
    gradient_needs: str | None = None  # a result of the forward pass: Y or Indices
    with_indices: Operator | None = None  # gives Indices, if this one does not

    gives_indices: bool = field(init=False)
    keeps_X: bool = field(init=False)
    forward: NativeOperator = field(init=False)
    backward: NativeOperator = field(init=False)

    def __post_init__(self) -> None:
        self.gives_indices = self.name.endswith("_with_indices")
        # Where the gradient takes its data, or Indices yet to be found in them. Otherwise X may change, or be freed.
        self.keeps_X = self.gradient_needs == "Y" or self.with_indices is not None
        self.forward = NativeOperator(self.name)
        if self.differentiable:
            self.backward = _backward_of(self.name.removesuffix("_with_indices"))

    @property
    def backward_inputs(self) -> int:
        return 1 + self.inputs + (self.gradient_needs is not None)

    def remember(self, ctx: Any, tensors: Sequence[Tensor], result: Any) -> None:
        """Saves what the gradient wants of the forward pass."""
        if self.keeps_X:
            kept = (*tensors, result) if self.gradient_needs == "Y" else tensors
            ctx.save_for_backward(*kept)
            return
        X = tensors[0]
        ctx.shape_and_strides = X.shape, X.stride()
        if self.gives_indices:
            indices = result[1]
            ctx.save_for_backward(indices)
            ctx.mark_non_differentiable(indices)
            ctx.set_materialize_grads(False)  # torch would fill as many zeros for Indices
        elif self.inputs > 1:
            ctx.save_for_backward(*tensors[1:])

    def recall(self, ctx: Any, grad_Y: Tensor) -> Sequence[Tensor]:
        """What ``backward`` takes besides grad_Y."""
        if self.keeps_X:
            return ctx.saved_tensors
        return (_stand_in(grad_Y, *ctx.shape_and_strides), *ctx.saved_tensors)

    def with_gradient_needs(self, kept: Sequence[Tensor], attributes: dict[str, Any]) -> Sequence[Tensor]:
        """The same where a maximum was computed without Indices."""
        if self.with_indices and 1 + len(kept) < self.backward_inputs:
            return (*kept, dispatch(self.with_indices, (kept[0].detach(),), attributes)[1])
        return kept

    def gradient(self, grad_Y: Tensor, *kept: Tensor, **attributes: Any) -> Tensor:
        """grad_X, by the operator of its own that computes it."""
        kept = self.with_gradient_needs(kept, attributes)
        if is_grad_enabled() or forward_ad._current_level >= 0:  # the gradient will itself be differentiated
            return self.backward.call((grad_Y, *kept), attributes)
        return self.backward.compute((grad_Y, *kept), attributes)

    def tangent(self, X_tangent: Tensor, *kept: Tensor, **attributes: Any) -> Tensor:
        """The derivative of Y in a direction of X: ``grad_X`` is linear in ``grad_Y``, and this is its transpose."""
        X, *needed = self.with_gradient_needs(kept, attributes)
        grad_Y = needed[0] if self.gradient_needs == "Y" else X  # of Y's shape, where anything looks at it
        return self.second_gradient(X_tangent, grad_Y, X, *needed, **attributes)[0]

    def gradients_tangent(
        self, tangents: Sequence[Tensor | None], grad_Y: Tensor, X: Tensor, *kept: Tensor, **attributes: Any
    ) -> Tensor:
        """The derivative of ``backward`` in a direction of its tensors."""
        if self.gradient_needs == "Y":
            return _tangent_of_norms_gradient(self, tangents, grad_Y, X, *kept, **attributes)
        if tangents[0] is None:
            return torch.zeros_like(X)
        return self.gradient(tangents[0], X, *kept, **attributes)

    def second_gradient(
        self, grad_grad_X: Tensor, grad_Y: Tensor, X: Tensor, *kept: Tensor, **attributes: Any
    ) -> tuple[Tensor, ...]:
        """The gradients of ``backward`` by its tensors; but for norms it depends on the first alone, linearly."""
        if self.gradient_needs is None:
            return (dispatch(self, (grad_grad_X, *kept), attributes),)
        if self.gradient_needs == "Indices":
            return (_at_indices(grad_grad_X, kept[0], attributes.get("storage_order", 0)),)
        return _second_gradient_of_norm(self, grad_grad_X, grad_Y, X, *kept, **attributes)


_MAX_POOL_WITH_INDICES = Operator("max_pool_with_indices", "MaxPool", gradient_needs="Indices")
_GLOBAL_MAX_POOL_WITH_INDICES = Operator(
    "global_max_pool_with_indices", "GlobalMaxPool", windowed=False, gradient_needs="Indices"
)
OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("average_pool", "AveragePool"),
        Operator("lp_pool", "LpPool", gradient_needs="Y"),
        replace(_MAX_POOL_WITH_INDICES, name="max_pool", with_indices=_MAX_POOL_WITH_INDICES),
        _MAX_POOL_WITH_INDICES,
        Operator("max_unpool", "MaxUnpool", inputs=2),
        Operator("global_average_pool", "GlobalAveragePool", windowed=False),
        Operator("global_lp_pool", "GlobalLpPool", windowed=False, gradient_needs="Y"),
        replace(_GLOBAL_MAX_POOL_WITH_INDICES, name="global_max_pool", with_indices=_GLOBAL_MAX_POOL_WITH_INDICES),
        _GLOBAL_MAX_POOL_WITH_INDICES,
        Operator("qlinear_average_pool", "QLinearAveragePool", inputs=5, differentiable=False),
        Operator(
            "qlinear_global_average_pool", "QLinearGlobalAveragePool", windowed=False, inputs=5, differentiable=False
        ),
    )
}


def _at_indices(x: Tensor, indices: Tensor, storage_order: int) -> Tensor:
    """The elements of ``x`` that ``indices`` name, 0 where they name none."""
    if storage_order:  # the first spatial axis fastest: row-major once the spatial axes are reversed
        x = x.permute(0, 1, *range(x.dim() - 1, 1, -1))
    return torch.where(indices < 0, 0, x.reshape(-1)[indices.clamp(min=0)])


class _NormGradient:
    """The gradient of a norm as a composition, from which its derivatives come.

    ``grad_X = sign(X) |X|^(p-1) * (sum over windows of grad_Y / Y^(p-1))``. Sums over windows are averages times the
    number of data. A window of zeros and, for p < 2, a zero have no slope. All is float64, and powers are of magnitudes
    relative to the plane's largest. Unlike in the norm and its gradient, they may be beyond its range even so: where Y
    is smaller than that by a factor of more than 10^(308/(p-1)).
    """

    def __init__(self, operator: Operator, X: Tensor, Y: Tensor, p: float = 2, **window: Any) -> None:
        self.p, self._window, self._X = p, window, X.double()
        self._average = OPERATORS[operator.name.replace("lp", "average")]
        self._count = dispatch(operator, (torch.ones_like(self._X),), {**window, "p": 1})
        size = self._X.abs()
        scale = size.detach().nan_to_num(0, 0).amax(tuple(range(2, size.dim())), keepdim=True)  # its powers cancel out
        scale = scale.masked_fill(scale == 0, 1)
        size = size / scale
        self.power = self._X.sign() * size ** (p - 1)
        self.slope_of_power = (p - 1) * (size if p >= 2 else size.masked_fill(size == 0, math.inf)) ** (p - 2) / scale
        Y = Y.double().masked_fill(Y == 0, math.inf)
        self.inverse_Y = Y.reciprocal()
        self.inverse_power = (scale / Y) ** (p - 1)

    def sum_of_data(self, value: Tensor) -> Tensor:
        """For each window."""
        return self._count * dispatch(self._average, (value,), self._window)

    def sum_of_windows(self, value: Tensor) -> Tensor:
        """For each element."""
        return self._average.gradient(value * self._count, self._X, **self._window)


def _second_gradient_of_norm(
    operator: Operator, grad_grad_X: Tensor, grad_Y: Tensor, X: Tensor, Y: Tensor, **attributes: Any
) -> tuple[Tensor, ...]:
    """The gradients of a norm's gradient by grad_Y, X and Y."""
    norm = _NormGradient(operator, X, Y, **attributes)
    grad_grad, grad = grad_grad_X.double(), grad_Y.double()
    by_grad_Y = norm.inverse_power * norm.sum_of_data(grad_grad * norm.power)
    by_X = grad_grad * norm.slope_of_power * norm.sum_of_windows(grad * norm.inverse_power)
    by_Y = (1 - norm.p) * grad * norm.inverse_Y * by_grad_Y
    return tuple(by.to(tensor.dtype) for by, tensor in zip((by_grad_Y, by_X, by_Y), (grad_Y, X, Y)))


def _tangent_of_norms_gradient(
    operator: Operator, tangents: Sequence[Tensor | None], grad_Y: Tensor, X: Tensor, Y: Tensor, **attributes: Any
) -> Tensor:
    """Its derivative in a direction of grad_Y, X and Y."""
    norm = _NormGradient(operator, X, Y, **attributes)
    grad = grad_Y.double()
    by_grad_Y, by_X, by_Y = (
        torch.zeros_like(tensor) if tangent is None else tangent.double()
        for tangent, tensor in zip(tangents, (grad, X, grad))
    )
    sent = norm.inverse_power * (by_grad_Y + (1 - norm.p) * norm.inverse_Y * grad * by_Y)
    tangent = norm.power * norm.sum_of_windows(sent)
    tangent = tangent + norm.slope_of_power * by_X * norm.sum_of_windows(norm.inverse_power * grad)
    return tangent.to(X.dtype)


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


def _has_channels_last(x: Tensor) -> bool:
    """Whether its channels lie next to each other and its positions do not, as in csrc/bindings.h."""
    if _certain(x.shape[1] <= 1) or not _certain(x.stride(1) == 1):
        return False
    several = [axis for axis in range(2, x.dim()) if not _certain(x.shape[axis] == 1)]
    return bool(several) and not _certain(x.stride(several[-1]) == 1)


def _empty_like_layout(x: Tensor, shape: Sequence, dtype: torch.dtype) -> Tensor:
    """Channels last or contiguous, as ``x`` is."""
    if not _has_channels_last(x):
        return x.new_empty(shape, dtype=dtype)
    channels_last = (0, *range(2, x.dim()), 1)
    return x.new_empty_strided(shape, _dense_strides(shape, channels_last), dtype=dtype)


def _type_name(dtype: torch.dtype) -> str:
    """As C++ says it, too."""
    return str(dtype).removeprefix("torch.")


def _check_input(operator: Operator, X: Tensor, channels_last: int = 0) -> None:
    """ValueError for what the C++ side refuses, as far as it is known; of real tensors it sees everything itself."""
    known = [size if isinstance(size, int) else 1 for size in X.shape]
    _C.check_input(operator.onnx_name, _type_name(X.dtype), known, channels_last=bool(channels_last))


def _pooled_shape(operator: Operator, shape: Sequence, kernel_shape: Sequence[int] = (), **attributes: Any) -> list:
    """The output's shape for an input of ``shape`` [N, C, D1, ..., Dr]; the C++ side checks what is known."""
    rank = len(shape) - 2
    ones = [1] * rank
    _C.check_attributes(operator.onnx_name, rank, kernel_shape if operator.windowed else ones, **attributes)
    if not operator.windowed:
        return [*shape[:2], *ones]
    window = {name: value for name, value in attributes.items() if name in WINDOW_ATTRIBUTES}
    if all(isinstance(size, int) for size in shape):  # then C++ can tell whether the window fits
        resolve_axes(operator.onnx_name, shape, kernel_shape, **window)
    return [*shape[:2], *output_sizes(shape[2:], kernel_shape, **window)]


def _unpooled_shape(
    shape: Sequence,
    kernel_shape: Sequence[int],
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> list:
    """The output's shape for an input of ``shape``; what the C++ side refuses is refused here where it is certain."""
    _C.check_attributes("MaxUnpool", len(shape) - 2, kernel_shape, pads=pads, strides=strides)
    unpooled = [*shape[:2], *unpooled_sizes(shape[2:], kernel_shape, pads=pads, strides=strides)]
    if output_shape is not None:
        if len(output_shape) != len(shape) or any(_certain(a != b) for a, b in zip(output_shape[:2], shape[:2])):
            raise ValueError(
                "MaxUnpool: output_shape must be [N, C, D1, ...] with the N and C of X, "
                f"got output_shape={list(output_shape)} for X of shape {list(shape)}"
            )
        unpooled = list(output_shape)
    if any(_certain(size < 1) for size in unpooled[1:]):
        raise ValueError(
            f"MaxUnpool: the output must not be empty, got the shape {unpooled} for X of shape {list(shape)}"
        )
    known = [size for size in unpooled if isinstance(size, int)]
    if 8 * math.prod(max(1, size) for size in known) >= 2**63:
        raise ValueError(f"MaxUnpool: the output must be addressable in 64 bits, got the shape {unpooled}")
    return unpooled


def _register_fake_forward(operator: Operator) -> None:
    @torch.library.register_fake(_qualified(operator.name))
    def fake(X: Tensor, *kernel_shape: Sequence[int], **attributes: Any):
        _check_input(operator, X)
        shape = _pooled_shape(operator, X.shape, *kernel_shape, **attributes)
        Y = _empty_like_layout(X, shape, X.dtype)
        return (Y, _empty_like_layout(X, shape, torch.int64)) if operator.gives_indices else Y


@torch.library.register_fake(_qualified("max_unpool"))
def _fake_unpool(X: Tensor, I: Tensor, kernel_shape: Sequence[int], **attributes: Any) -> Tensor:  # noqa: E741
    _check_input(OPERATORS["max_unpool"], X)
    shape = _unpooled_shape(X.shape, kernel_shape, **attributes)
    if I.dim() != X.dim() or any(_certain(a != b) for a, b in zip(I.shape, X.shape)):
        raise ValueError(f"MaxUnpool: I must have the shape {list(X.shape)}, got I of shape {list(I.shape)}")
    if I.dtype != torch.int64:
        raise ValueError(f"MaxUnpool: I must be of type int64, got I of type {_type_name(I.dtype)}")
    if I.device != X.device:
        raise ValueError(f"MaxUnpool: I must be on the device of X, {X.device}, got I on {I.device}")
    return _empty_like_layout(X, shape, X.dtype)


def _check_scalar(operator: Operator, name: str, scalar: Tensor, X: Tensor) -> None:
    wanted = torch.float32 if name.endswith("scale") else X.dtype
    rule = None
    if scalar.dim() > 1 or (scalar.dim() == 1 and _certain(scalar.shape[0] != 1)):
        rule = f"must be a scalar or of shape [1], got {name} of shape {list(scalar.shape)}"
    elif scalar.dtype != wanted:
        rule = f"must be of type {_type_name(wanted)}, got {name} of type {_type_name(scalar.dtype)}"
    elif scalar.device not in (X.device, torch.device("cpu")):
        rule = f"must be on the CPU or on the device of X, {X.device}, got {name} on {scalar.device}"
    if rule:
        raise ValueError(f"{operator.onnx_name}: {name} {rule}")


def _register_fake_quantized(operator: Operator) -> None:
    @torch.library.register_fake(_qualified(operator.name))
    def fake(X, x_scale, x_zero_point, y_scale, y_zero_point, *kernel_shape, channels_last=0, **attributes):
        _C.check_attributes(operator.onnx_name, 1, [1], channels_last=channels_last)
        _check_input(operator, X, channels_last)
        scalars = {"x_scale": x_scale, "x_zero_point": x_zero_point, "y_scale": y_scale, "y_zero_point": y_zero_point}
        for name, scalar in scalars.items():
            _check_scalar(operator, name, scalar, X)
        shape = [X.shape[0], X.shape[-1], *X.shape[1:-1]] if channels_last else X.shape
        N, C, *spatial = _pooled_shape(operator, shape, *kernel_shape, **attributes)
        return _empty_like_layout(X, [N, *spatial, C] if channels_last else [N, C, *spatial], X.dtype)


def _register_fake_backward(operator: Operator) -> None:
    @torch.library.register_fake(_qualified(operator.backward.name))
    def fake(grad_Y: Tensor, X: Tensor, *kept: Any, **attributes: Any) -> Tensor:
        return _empty_like_layout(X, X.shape, X.dtype)


# ---- Gradients ----


def _stand_in(like: Tensor, shape: Sequence, strides: Sequence) -> Tensor:
    """X where nobody looks at its data, in next to no memory.

    Which strides are 1 is all that results take from X's layout.
    """
    return like.new_empty_strided(shape, [1 if _certain(stride == 1) else 0 for stride in strides])


def _split(arguments: Sequence, tensor_count: int, keyword_only: dict[str, Any]) -> tuple[Sequence, dict[str, Any]]:
    """The tensors among a schema's arguments, and the attributes: kernel_shape goes by position."""
    attributes = dict(zip(("kernel_shape",), arguments[tensor_count:]))
    return arguments[:tensor_count], {**attributes, **keyword_only}


def _apply_of(function: type[torch.autograd.Function]) -> Callable:
    """What its ``apply`` calls next: the one of Python binds arguments through inspect.signature on every call."""
    return super(torch.autograd.Function, function).apply


def _formula(jvp: Callable) -> Callable:
    """A ``jvp`` that may itself be differentiated forwards, by an outer level.

    torch calls it with forward mode off. With forward mode on, what was saved must not have this level's tangents.
    """

    @functools.wraps(jvp)
    def formula(ctx: Any, *tangents: Tensor | None) -> Any:
        primals = (
            forward_ad.unpack_dual(saved, level=0).primal if saved.is_floating_point() else saved
            for saved in ctx.saved_tensors
        )
        with forward_ad._set_fwd_grad_enabled(True):
            return jvp(ctx, tangents, *primals)

    return formula


class PlainPoolFunction(torch.autograd.Function):
    """An operator and its gradient, for tensors without tangents."""

    @staticmethod
    def forward(ctx, call: Call, *tensors: Tensor):
        operator, attributes, compute = ctx.call = call
        result = compute(tensors, attributes)
        operator.remember(ctx, tensors, result)
        return result

    @staticmethod
    def backward(ctx, grad_Y, *_):
        operator, attributes, _ = ctx.call
        if grad_Y is None:  # which stands for zeros
            return (None,) * (1 + operator.inputs)
        grad_X = operator.gradient(grad_Y, *operator.recall(ctx, grad_Y), **attributes)
        return (None, grad_X, *[None] * (operator.inputs - 1))


class PoolFunction(PlainPoolFunction):
    """The same for all tensors, 1 us slower: torch saves for either direction."""

    @staticmethod
    def forward(ctx, call: Call, *tensors: Tensor):
        result = PlainPoolFunction.forward(ctx, call, *tensors)
        ctx.save_for_forward(*(ctx.to_save or ()))
        return result

    @staticmethod
    @_formula
    def jvp(ctx, tangents, *kept):
        operator, attributes, _ = ctx.call
        X = () if operator.keeps_X else tangents[1:2]  # of X's shape, where nothing looks at its data
        tangent = operator.tangent(tangents[1], *X, *kept, **attributes)
        return (tangent, None) if operator.gives_indices else tangent


class GradientFunction(torch.autograd.Function):
    """A backward operator, likewise."""

    @staticmethod
    def forward(ctx, call: Call, *tensors: Tensor) -> Tensor:
        _, attributes, compute = ctx.call = call
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        return compute(tensors, attributes)

    @staticmethod
    @_formula
    def jvp(ctx, tangents, *saved):
        operator, attributes, _ = ctx.call
        return operator.gradients_tangent(tangents[1:], *saved, **attributes)

    @staticmethod
    def backward(ctx, grad_grad_X):
        operator, attributes, _ = ctx.call
        gradients = operator.second_gradient(grad_grad_X, *ctx.saved_tensors, **attributes)
        return (None, *gradients, *[None] * (operator.backward_inputs - len(gradients)))


_apply_plain_pool_function = _apply_of(PlainPoolFunction)


# What a call raises for an argument of a wrong type; ValueError, since torch makes None in a tensor's place an empty
# tensor. Types are looked at only then, so that good calls stay fast.
_WRONG_TYPE = (AttributeError, RuntimeError, TypeError, ValueError)


def dispatch(operator: Operator, tensors: Sequence[Tensor], attributes: dict[str, Any]):
    """Calls an operator by the cheapest route that serves whoever is watching."""
    try:
        X = tensors[0]
        if not _are_plain(tensors) or forward_ad._current_level >= 0:
            return _dispatch_watched(operator, tensors, schema_arguments(tensors, attributes))
        if X.requires_grad and is_grad_enabled() and operator.differentiable:
            wanted = operator.with_indices or operator
            call = wanted, fixed(attributes), wanted.forward.compute_plain
            result = _apply_plain_pool_function(call, *tensors)
            return result[0] if operator.with_indices else result
        return operator.forward.compute_plain(tensors, attributes)
    except _WRONG_TYPE as error:
        names = (argument.name for argument in operator.forward.op._schema.arguments)
        arguments = schema_arguments(tensors, attributes)
        refuse_wrong_types(operator.onnx_name, **dict(zip(names, tensors)), **arguments)
        if not isinstance(error, ValueError):  # the stable ABI has no names for some types
            _check_input(operator, X, arguments.get("channels_last", 0))
        raise


def _dispatch_watched(operator: Operator, tensors: Sequence[Tensor], attributes: dict[str, Any]):
    """The same for exporters, compilers, forward mode and transforms."""
    for tensor in tensors:
        if isinstance(tensor, torch.fx.Proxy):
            return _record(tensor.tracer, operator, tensors, attributes)
    # What is exported is what was called, not what its gradient would need.
    exporting = torch.compiler.is_exporting() or torch.jit.is_tracing()
    if operator.with_indices and not exporting and tensors[0].requires_grad and torch.is_grad_enabled():
        return operator.with_indices.forward.op(*tensors, **attributes)[0]
    return operator.forward.op(*tensors, **attributes)


def _record(tracer: torch.fx.Tracer, operator: Operator, tensors: Sequence[Tensor], attributes: dict[str, Any]):
    """A call of the public function, for ``torch.fx``: ranks, gradients and indices are not known yet."""
    from torch_onnxpool import functional

    if operator.gives_indices:
        attributes = {**attributes, "return_indices": True}
    function = getattr(functional, operator.name.removesuffix("_with_indices"))
    return tracer.create_proxy("call_function", function, tuple(tensors), attributes)


# ---- Batching rules: the new dimension becomes a part of N ----


def _samples_first(x: Tensor, dim: int | None, batch_size: int) -> Tensor:
    return x.expand(batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


def _begins(samples: Tensor, elements: int) -> Tensor:
    """Where samples of so many elements begin among the elements of all, for each of ``samples``."""
    numbers = torch.arange(samples.shape[0], device=samples.device)
    return (numbers * elements).reshape(-1, *[1] * (samples.dim() - 1))


def _flat_over_all(indices: Tensor, elements: int) -> Tensor:
    """Indices flat over each sample of ``elements`` elements, made flat over all.

    Those that name no element of their sample, of which those below 0 mean none, must not name one of another's.
    """
    shifted = indices + _begins(indices, elements)
    shifted = torch.where(indices < elements, shifted, indices + indices.shape[0] * elements)
    return torch.where(indices < 0, indices, shifted)


def _flat_over_each(indices: Tensor, elements: int) -> Tensor:
    """The way back."""
    return torch.where(indices < 0, indices, indices - _begins(indices, elements))


def _batched(
    operator: Operator,
    op: torch._ops.OpOverload,
    tensors: Sequence[Tensor],
    dims: Sequence,
    batch_size: int,
    attributes: dict[str, Any],
):
    """Calls ``op``, an operator or its backward operator, on samples in N; the result and its batch dimensions."""
    samples = [_samples_first(tensor, dim, batch_size) for tensor, dim in zip(tensors, dims)]
    is_backward = len(samples) == operator.backward_inputs
    shape = samples[is_backward].shape[1:]  # of X
    elements = math.prod(shape)  # pooling's indices address X
    if operator.name == "max_unpool":  # and unpooling's Y
        elements = math.prod(_unpooled_shape(shape, **attributes))
        if attributes.get("output_shape") is not None:
            N, *others = attributes["output_shape"]
            attributes = {**attributes, "output_shape": [batch_size * N, *others]}
    if (is_backward and operator.gradient_needs == "Indices") or operator.name == "max_unpool":
        samples[-1] = _flat_over_all(samples[-1], elements)
    if is_backward and operator.gradient_needs != "Y":  # then X need not be copied to become flat
        samples[1] = _stand_in(samples[1], (1, batch_size * shape[0], *shape[1:]), samples[1].stride())
    result = op(*(tensor.flatten(0, 1) for tensor in samples), **attributes)
    if not isinstance(result, tuple):
        return result.unflatten(0, (batch_size, shape[0])), 0
    Y, indices = (part.unflatten(0, (batch_size, shape[0])) for part in result)
    return (Y, _flat_over_each(indices, elements)), (0, 0)


def _register_batching(operator: Operator, op: torch._ops.OpOverload, tensor_count: int) -> None:
    @torch.library.register_vmap(_qualified(op._schema.name.split("::")[1]))
    def batched(info, in_dims, *arguments, **keyword_only):
        tensors, attributes = _split(arguments, tensor_count, keyword_only)
        return _batched(operator, op, tensors, in_dims[:tensor_count], info.batch_size, attributes)


def _register_quantized_batching(operator: Operator, op: torch._ops.OpOverload) -> None:
    @torch.library.register_vmap(_qualified(operator.name))
    def batched(info, in_dims, X, *arguments, **attributes):
        if any(dim is not None for dim in in_dims[1:5]):
            raise ValueError(
                f"{operator.onnx_name}: under vmap only X may be batched, got batched scales or zero points"
            )
        samples = _samples_first(X, in_dims[0], info.batch_size)
        Y = op(samples.flatten(0, 1), *arguments, **attributes)
        return Y.unflatten(0, samples.shape[:2]), 0


for _operator in OPERATORS.values():
    if not _operator.differentiable:
        _register_fake_quantized(_operator)
        _register_quantized_batching(_operator, _operator.forward.op)
        continue
    if _operator.inputs == 1:
        _register_fake_forward(_operator)
    _operator.forward.register_autograd(_operator, PoolFunction, _operator.inputs)
    _register_batching(_operator, _operator.forward.op, _operator.inputs)
    if not _operator.gives_indices:  # its backward operator is the one of the operator without indices
        _register_fake_backward(_operator)
        _operator.backward.register_autograd(_operator, GradientFunction, _operator.backward_inputs)
        _register_batching(_operator, _operator.backward.op, _operator.backward_inputs)
