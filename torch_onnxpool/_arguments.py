"""Attributes as callers write them: what they are in Python's own types, what says nothing, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from operator import index
from types import NoneType
from typing import Any

import torch
import torch.fx
from torch import SymFloat, SymInt, Tensor
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


_IMMUTABLE = (NoneType, bool, float, int, str)

# What tracers leave open.
_OPEN = (SymFloat, SymInt, torch.fx.Proxy)


def _as_integer(value: Any) -> Any:
    """Also of numpy, and of tensors, which ``torch.jit.trace`` makes of sizes."""
    if type(value) is int or isinstance(value, _OPEN):
        return value
    if getattr(value, "dtype", None) == "bool":  # numpy's, which are no integers; those of torch are
        value = bool(value)
    return int(index(value))


def _as_integers(value: Any) -> Any:
    """A list, or the int that stands for one."""
    if type(value) is int:
        return value
    if isinstance(value, (list, tuple)):
        return [item if type(item) is int else _as_integer(item) for item in value]
    if getattr(value, "ndim", 0):  # an array or a tensor
        return _as_integers(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return _as_integers(list(value))
    return _as_integer(value)


def _as_number(value: Any) -> Any:
    """Not of tensors, which would get no gradient."""
    if isinstance(value, _OPEN):
        return value
    if not isinstance(value, Real):
        raise TypeError
    number = float(value)
    return int(value) if isinstance(value, Integral) and abs(number) < 2.0**63 else number


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    text = str.__str__(value)  # what an enumeration holds, where str() is its name
    if not text.isprintable():  # nor could C++ read it
        raise ValueError
    return text


def _as_bool(value: Any) -> bool:
    return bool((False, True).index(_as_integer(value)))


# What an argument must be, and what makes it that in Python's own types, or raises.
_TYPES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(LISTS, ("a list of integers of 64 bits", _as_integers)),
    **dict.fromkeys(
        ("ceil_mode", "channels_last", "count_include_pad", "storage_order"), ("an integer of 64 bits", _as_integer)
    ),
    "auto_pad": ("a string of printable characters", _as_text),
    "p": ("a number of 64 bits", _as_number),
    "return_indices": ("a bool", _as_bool),
}


class _WrongType:
    """In the place of a value of a wrong type, some of which torch would convert; it refuses this."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return repr(self._value)


def _in_python(name: str, value: Any) -> Any:
    """The value in Python's own types, which compilers and exporters know."""
    _warn_of_constants(name, value)
    try:
        return _TYPES[name][1](value)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        return _WrongType(value)


def _warn_of_constants(name: str, value: Any) -> None:
    """torch itself is silent about tensors that become attributes of an operator outside of it."""
    if is_tracing() and any(isinstance(v, Tensor) for v in (value if isinstance(value, (list, tuple)) else [value])):
        warnings.warn(
            f"{name} is computed from a tensor or its size, but becomes a constant of the trace: it will not be "
            "computed again for other inputs",
            TracerWarning,
            stacklevel=2,
        )


def as_list(name: str, value: Any, rank: int) -> Any:
    """What an int in place of a list stands for, with ``rank`` spatial axes; anything else as it is."""
    if name in LISTS and isinstance(value, (int, SymInt)):
        return [value] * (2 * rank if name == "pads" else rank)
    return value


def schema_arguments(tensors: Sequence[Tensor], attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes as a schema names them: those that say something, in Python's own types and all lists as lists."""
    X = tensors[0]
    arguments = {}
    for name, value in attributes.items():
        if name in DEFAULTS and value is DEFAULTS[name]:
            continue
        if isinstance(X, Tensor):  # not torch.fx's, with attributes that are no values yet
            value = as_list(name, _in_python(name, value), X.dim() - 2)
            if name in DEFAULTS and value == DEFAULTS[name]:
                continue
        arguments[name] = value
    return arguments


def fixed(attributes: dict[str, Any]) -> dict[str, Any]:
    """The same for whoever looks at them later: callers may change their lists and arrays meanwhile."""
    return {
        name: v if type(v) in _IMMUTABLE else v.copy() if type(v) is list else _in_python(name, v)
        for name, v in attributes.items()
    }


def plain(onnx_name: str, name: str, value: Any) -> Any:
    """An argument in Python's own types; ValueError if it is of a wrong type."""
    result = _in_python(name, value)
    numbers = result if isinstance(result, list) else [result]
    if isinstance(result, _WrongType) or any(isinstance(n, int) and not -(2**63) <= n < 2**63 for n in numbers):
        raise ValueError(f"{onnx_name}: {name} must be {_TYPES[name][0]}, got {name}={value!r}")
    return result


def refuse_wrong_types(onnx_name: str, **arguments: Any) -> None:
    """ValueError naming the first argument that is not of its type; nothing if all are."""
    for name, value in arguments.items():
        if name in _TYPES:
            plain(onnx_name, name, value)
        elif not isinstance(value, Tensor):
            raise ValueError(f"{onnx_name}: {name} must be a tensor, got {name}={value!r}")
        elif value.layout != torch.strided or value.is_nested or value.is_quantized:
            kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
            raise ValueError(f"{onnx_name}: {name} must be a dense tensor, got {name} that is {kind}")
