"""Attributes as callers write them: what a list may be short for, what says nothing, and what is of a wrong type."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Real
from operator import index
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.jit import TracerWarning, is_tracing

# The attributes that are lists. An int in their place stands for a list that repeats it.
LISTS = ("dilations", "kernel_shape", "output_shape", "pads", "strides")

# What ONNX means by an attribute that is not given; lists that are not given depend on the rank.
DEFAULTS = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "channels_last": 0,
    "count_include_pad": 0,
    "dilations": None,
    "output_shape": None,
    "p": 2,
    "pads": None,
    "storage_order": 0,
    "strides": None,
}


def as_list(name: str, value: Any, rank: int) -> Any:
    """What an int in place of a list stands for, with ``rank`` spatial axes; anything else as it is.

    An int may be one of numpy or, as ``torch.jit.trace`` makes of sizes, a tensor.
    """
    if name not in LISTS:
        return value
    if isinstance(value, (list, tuple)):
        tensors = [item for item in value if isinstance(item, Tensor)]
        _warn_of_constants(name, tensors)
        return [index(item) if isinstance(item, Tensor) else item for item in value] if tensors else value
    if is_integer_scalar(value):
        _warn_of_constants(name, [value])
        return [index(value)] * (2 * rank if name == "pads" else rank)
    return value


def is_integer_scalar(value: Any) -> bool:
    """Whether it can stand for a list; numpy's arrays and tensors of one element have dimensions."""
    if isinstance(value, int):
        return True
    if getattr(value, "shape", ()):
        return False
    try:
        index(value)
    except (RuntimeError, TypeError):  # no number, or one with a fraction
        return False
    return True


def _warn_of_constants(name: str, values: Sequence[Any]) -> None:
    """torch itself is silent about tensors that become attributes of an operator outside of it."""
    if is_tracing() and any(isinstance(value, Tensor) for value in values):
        warnings.warn(
            f"{name} is computed from a tensor or its size, but becomes a constant of the trace: it will not be "
            "computed again for other inputs",
            TracerWarning,
            stacklevel=2,
        )


def schema_arguments(tensors: Sequence[Tensor], attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes as a schema names them: those that say something, and all lists as lists."""
    arguments = {}
    for name, value in attributes.items():
        if isinstance(value, (int, float, str, NoneType)) and name in DEFAULTS and value == DEFAULTS[name]:
            continue
        arguments[name] = as_list(name, value, tensors[0].dim() - 2) if isinstance(tensors[0], Tensor) else value
    return arguments


_INTEGERS = ("ceil_mode", "channels_last", "count_include_pad", "storage_order")
_INT64 = range(-(2**63), 2**63)


def check_return_indices(value: Any) -> None:
    """ValueError for anything but a bool: it would be accepted and mean nothing."""
    if value not in (False, True):
        raise ValueError(f"MaxPool: return_indices must be a bool, got return_indices={value!r}")


def refuse_wrong_types(onnx_name: str, **arguments: Any) -> None:
    """ValueError naming the first argument that is not of its type; nothing if all are."""

    def is_integer(value: Any) -> bool:
        try:
            return index(value) in _INT64
        except TypeError:
            return False

    for name, value in arguments.items():
        if name in LISTS:
            wanted = "a list of integers"
            right = isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_integer, value))
        elif name in _INTEGERS:
            wanted, right = "an integer", is_integer(value)
        elif name == "p":
            wanted, right = "a number", isinstance(value, Real)
        elif name == "auto_pad":
            wanted, right = "a string", isinstance(value, str)
        else:
            wanted, right = "a tensor", isinstance(value, Tensor)
            if right and (value.layout != torch.strided or value.is_nested or value.is_quantized):
                kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
                raise ValueError(f"{onnx_name}: {name} must be a dense tensor, got {name} that is {kind}")
        if not right:
            raise ValueError(f"{onnx_name}: {name} must be {wanted}, got {name}={value!r}")
