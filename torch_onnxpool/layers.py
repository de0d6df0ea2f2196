"""ONNX's pooling operators as modules: they hold ONNX's attributes under their ONNX names and call ``functional``.

What can be known without an input is checked at construction: ``ValueError`` names the operator, the rule and the
values. Formulas, types, gradients and opsets stand at the functions of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_onnxpool import _C, functional
from torch_onnxpool._arguments import DEFAULTS, as_list, plain
from torch_onnxpool.functional import Ints

__all__ = [
    "AveragePool",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
]


class _Pool(nn.Module):
    """Holds ONNX attributes, checked and shown under their ONNX names."""

    onnx_name: str

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self._attribute_names = tuple(attributes)
        for name, value in attributes.items():
            is_default = name in DEFAULTS and value is DEFAULTS[name]
            setattr(self, name, value if is_default else plain(self.onnx_name, name, value))
        _check(self.onnx_name, self.onnx_attributes())

    def onnx_attributes(self) -> dict[str, Any]:
        """The attributes that say something: those that differ from ONNX's defaults."""
        values = {name: getattr(self, name) for name in self._attribute_names}
        return {name: value for name, value in values.items() if value != DEFAULTS.get(name)}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.onnx_attributes().items())


def _check(onnx_name: str, attributes: dict[str, Any]) -> None:
    lists = {name: value for name, value in attributes.items() if isinstance(value, list)}
    lengths = [len(value) // 2 if name == "pads" else len(value) for name, value in lists.items()]
    rank = next(filter(None, lengths), 1)  # an int fits every rank
    given = {name: as_list(name, value, rank) for name, value in attributes.items()}
    _C.check_attributes(onnx_name, rank, given.pop("kernel_shape", [1] * rank), **given)


class AveragePool(_Pool):
    """Average of each window, as ONNX AveragePool: see :func:`torch_onnxpool.average_pool`.

    ``AveragePool(kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER")`` pads as no torch layer can. Lists have
    one entry for each spatial axis (``pads`` two: all begins, then all ends); an int repeats itself.
    """

    onnx_name = "AveragePool"

    def __init__(
        self,
        kernel_shape: Ints,
        *,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        count_include_pad: int = 0,
        dilations: Ints | None = None,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> None:
        super().__init__(
            kernel_shape=kernel_shape,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            dilations=dilations,
            pads=pads,
            strides=strides,
        )

    def forward(self, X: Tensor) -> Tensor:
        return functional.average_pool(
            X,
            self.kernel_shape,
            auto_pad=self.auto_pad,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            dilations=self.dilations,
            pads=self.pads,
            strides=self.strides,
        )


class LpPool(_Pool):
    """p-norm of each window, as ONNX LpPool: see :func:`torch_onnxpool.lp_pool`."""

    onnx_name = "LpPool"

    def __init__(
        self,
        kernel_shape: Ints,
        *,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        dilations: Ints | None = None,
        p: float = 2,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> None:
        super().__init__(
            kernel_shape=kernel_shape,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            dilations=dilations,
            p=p,
            pads=pads,
            strides=strides,
        )

    def forward(self, X: Tensor) -> Tensor:
        return functional.lp_pool(
            X,
            self.kernel_shape,
            auto_pad=self.auto_pad,
            ceil_mode=self.ceil_mode,
            dilations=self.dilations,
            p=self.p,
            pads=self.pads,
            strides=self.strides,
        )


class MaxPool(_Pool):
    """Maximum of each window, as ONNX MaxPool; with ``return_indices=True`` ``(Y, Indices)``.

    See :func:`torch_onnxpool.max_pool`. Indices are flat over the whole tensor, unlike those of torch.
    """

    onnx_name = "MaxPool"

    def __init__(
        self,
        kernel_shape: Ints,
        *,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        dilations: Ints | None = None,
        pads: Ints | None = None,
        storage_order: int = 0,
        strides: Ints | None = None,
        return_indices: bool = False,
    ) -> None:
        super().__init__(
            kernel_shape=kernel_shape,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            dilations=dilations,
            pads=pads,
            storage_order=storage_order,
            strides=strides,
        )
        self.return_indices = plain(self.onnx_name, "return_indices", return_indices)

    def forward(self, X: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return functional.max_pool(
            X,
            self.kernel_shape,
            auto_pad=self.auto_pad,
            ceil_mode=self.ceil_mode,
            dilations=self.dilations,
            pads=self.pads,
            storage_order=self.storage_order,
            strides=self.strides,
            return_indices=self.return_indices,
        )

    def extra_repr(self) -> str:
        return super().extra_repr() + (", return_indices=True" if self.return_indices else "")


class GlobalAveragePool(_Pool):
    """Average over all spatial axes, as ONNX GlobalAveragePool: see :func:`torch_onnxpool.global_average_pool`."""

    onnx_name = "GlobalAveragePool"

    def __init__(self) -> None:
        super().__init__()

    def forward(self, X: Tensor) -> Tensor:
        return functional.global_average_pool(X)


class GlobalLpPool(_Pool):
    """p-norm over all spatial axes, as ONNX GlobalLpPool: see :func:`torch_onnxpool.global_lp_pool`."""

    onnx_name = "GlobalLpPool"

    def __init__(self, *, p: float = 2) -> None:
        super().__init__(p=p)

    def forward(self, X: Tensor) -> Tensor:
        return functional.global_lp_pool(X, p=self.p)


class GlobalMaxPool(_Pool):
    """Maximum over all spatial axes, as ONNX GlobalMaxPool: see :func:`torch_onnxpool.global_max_pool`."""

    onnx_name = "GlobalMaxPool"

    def __init__(self) -> None:
        super().__init__()

    def forward(self, X: Tensor) -> Tensor:
        return functional.global_max_pool(X)


class MaxUnpool(_Pool):
    """The way back from :class:`MaxPool`, as ONNX MaxUnpool: see :func:`torch_onnxpool.max_unpool`.

    The call takes X, the indices and, where the inferred size is not the wanted one, the output's whole shape.
    """

    onnx_name = "MaxUnpool"

    def __init__(self, kernel_shape: Ints, *, pads: Ints | None = None, strides: Ints | None = None) -> None:
        super().__init__(kernel_shape=kernel_shape, pads=pads, strides=strides)

    def forward(self, X: Tensor, I: Tensor, output_shape: Sequence[int] | Tensor | None = None) -> Tensor:  # noqa: E741
        return functional.max_unpool(
            X, I, self.kernel_shape, output_shape=output_shape, pads=self.pads, strides=self.strides
        )


def _number(tensor: Tensor) -> float | int | None:
    """The value of a tensor of one element; None of those that have none, as on meta devices."""
    try:
        return tensor.item()
    except RuntimeError:
        return None


class _QuantizedPool(_Pool):
    """Scales and zero points given at construction are buffers; those left out are passed in the call."""

    _quantization = ("x_scale", "x_zero_point", "y_scale", "y_zero_point")

    def _store(self, *values: Any) -> None:
        for name, value in zip(self._quantization, values):
            self.register_buffer(name, None if value is None else self._as_scalar(name, value))
        types = [zero.dtype for zero in (self.x_zero_point, self.y_zero_point) if zero is not None]
        if len(set(types)) > 1:
            raise ValueError(
                f"{self.onnx_name}: zero points must be of one type, that of X, got x_zero_point of {types[0]} and "
                f"y_zero_point of {types[1]}"
            )

    def _as_scalar(self, name: str, value: Any) -> Tensor:
        is_scale = name.endswith("scale")
        is_number = isinstance(value, (float, int)) and not isinstance(value, bool)
        try:
            tensor = torch.as_tensor(value, dtype=torch.float32 if is_scale and is_number else None)
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{self.onnx_name}: {name} must be a scalar, got {name}={value!r}") from error
        types = (torch.float32,) if is_scale else (torch.uint8, torch.int8)
        if tensor.dtype not in types or tensor.dim() > 1 or tensor.numel() != 1:
            wanted = "float32" if is_scale else "uint8 or int8, such as torch.tensor(128, dtype=torch.uint8)"
            raise ValueError(f"{self.onnx_name}: {name} must be one element of type {wanted}, got {name}={value!r}")
        number = _number(tensor)
        if is_scale and number is not None and not (math.isfinite(number) and number != 0):
            raise ValueError(f"{self.onnx_name}: {name} must be finite and not 0, got {name}={value!r}")
        return tensor.detach().clone()

    def _scalars(self, passed: Sequence[Tensor]) -> list[Tensor]:
        """Scales and zero points in ONNX's order, from the buffers and what the call passes after X."""
        missing = [name for name in self._quantization if getattr(self, name) is None]
        if len(passed) != len(missing):
            wanted = ", ".join(["X", *missing])
            raise ValueError(f"{self.onnx_name}: the call must give {wanted}, got {1 + len(passed)} arguments")
        remaining = iter(passed)
        return [next(remaining) if name in missing else getattr(self, name) for name in self._quantization]

    def _apply(self, fn: Any, recurse: bool = True) -> _QuantizedPool:
        """Scales and zero points keep the types that ONNX wants when a model is converted to another one."""
        given = {name: self._buffers[name] for name in self._quantization}
        super()._apply(fn, recurse)
        for name, value in given.items():
            if value is not None and self._buffers[name].dtype != value.dtype:
                self._buffers[name] = value.to(self._buffers[name].device)
        return self

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:
        """Zero points of the other type are refused: copying would make other numbers of those that it cannot hold."""
        for name in ("x_zero_point", "y_zero_point"):
            own, loaded = getattr(self, name), state_dict.get(prefix + name)
            if own is not None and loaded is not None and loaded.dtype != own.dtype:
                errors.append(f"{self.onnx_name}: {prefix}{name} must be of type {own.dtype}, got {loaded.dtype}")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def extra_repr(self) -> str:
        stored = {name: getattr(self, name) for name in self._quantization}
        numbers = {name: _number(value) for name, value in stored.items() if value is not None}
        shown = [f"{name}={'?' if number is None else repr(number)}" for name, number in numbers.items()]
        return ", ".join([part for part in (super().extra_repr(), *shown) if part])


class QLinearAveragePool(_QuantizedPool):
    """Average of each window of quantised values, as com.microsoft QLinearAveragePool.

    Scales and zero points given here become buffers (and initialisers of an exported model); those left out are passed
    in the call, after X and in this order. See :func:`torch_onnxpool.qlinear_average_pool`.

    Args:
        kernel_shape, auto_pad, ceil_mode, count_include_pad, pads, strides: ONNX's attributes.
        x_scale, x_zero_point, y_scale, y_zero_point, channels_last: as in :class:`QLinearGlobalAveragePool`.
    """

    onnx_name = "QLinearAveragePool"

    def __init__(
        self,
        kernel_shape: Ints,
        x_scale: Any = None,
        x_zero_point: Any = None,
        y_scale: Any = None,
        y_zero_point: Any = None,
        *,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        channels_last: int = 0,
        count_include_pad: int = 0,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> None:
        super().__init__(
            kernel_shape=kernel_shape,
            auto_pad=auto_pad,
            ceil_mode=ceil_mode,
            channels_last=channels_last,
            count_include_pad=count_include_pad,
            pads=pads,
            strides=strides,
        )
        self._store(x_scale, x_zero_point, y_scale, y_zero_point)

    def forward(self, X: Tensor, *quantization: Tensor) -> Tensor:
        return functional.qlinear_average_pool(
            X,
            *self._scalars(quantization),
            self.kernel_shape,
            auto_pad=self.auto_pad,
            ceil_mode=self.ceil_mode,
            channels_last=self.channels_last,
            count_include_pad=self.count_include_pad,
            pads=self.pads,
            strides=self.strides,
        )


class QLinearGlobalAveragePool(_QuantizedPool):
    """Average of quantised values over all spatial axes, as com.microsoft QLinearGlobalAveragePool.

    Scales and zero points given here become buffers (and initialisers of an exported model); those left out are passed
    in the call, after X and in this order. See :func:`torch_onnxpool.qlinear_global_average_pool`.

    Args:
        x_scale, y_scale: float32, a number or a tensor of one element.
        x_zero_point, y_zero_point: of X's type (uint8 or int8), a numpy scalar or a tensor of one element.
        channels_last: 1 if the channels are X's last dimension.
    """

    onnx_name = "QLinearGlobalAveragePool"

    def __init__(
        self,
        x_scale: Any = None,
        x_zero_point: Any = None,
        y_scale: Any = None,
        y_zero_point: Any = None,
        *,
        channels_last: int = 0,
    ) -> None:
        super().__init__(channels_last=channels_last)
        self._store(x_scale, x_zero_point, y_scale, y_zero_point)

    def forward(self, X: Tensor, *quantization: Tensor) -> Tensor:
        return functional.qlinear_global_average_pool(X, *self._scalars(quantization), channels_last=self.channels_last)
