"""Attributes as callers write them: what a list may be short for, what says nothing, and what is of a wrong type."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from operator import index
from types import NoneType
from typing import Any

from torch import Tensor

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
    """What an int in place of a list stands for, with ``rank`` spatial axes; anything else as it is."""
    if name in LISTS and isinstance(value, int):
        return [value] * (2 * rank if name == "pads" else rank)
    return value


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
        if not right:
            raise ValueError(f"{onnx_name}: {name} must be {wanted}, got {name}={value!r}")
