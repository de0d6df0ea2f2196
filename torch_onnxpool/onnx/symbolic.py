"""Our operators in the TorchScript exporter, `torch.onnx.export(..., dynamo=False)`.

This module is loaded together with torch.onnx and, like it, does not load onnx; the first export does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .operators import ONNX, OPERATORS

# The exporter takes the newest registration not above the requested opset from 9 on, and the one for opset 9 below.
_REGISTERED_AT = (1, 9)

# How torch.onnx calls the types of an operator's arguments and those of a node's attributes.
_DESCRIPTORS = {"Tensor": "v", "int": "i", "float": "f", "str": "s", "List[int]": "is", "Optional[List[int]]": "is"}
_SUFFIXES = {int: "i", float: "f", str: "s"}


def register() -> None:
    """Register every operator with the exporter."""
    for operator in OPERATORS:
        symbolic = _symbolic(operator)
        for opset in _REGISTERED_AT:
            torch.onnx.register_custom_op_symbolic(f"torch_onnxpool::{operator}", symbolic, opset)


def _symbolic(operator: str) -> Callable:
    parameters = getattr(torch.ops.torch_onnxpool, operator).default._schema.arguments

    def symbolic(graph, *values):
        from . import emission, schemas

        # Keyword-only arguments arrive by position, in the order of the operator's schema.
        arguments = {parameter.name: value for parameter, value in zip(parameters, values, strict=True)}
        originals = list(graph.original_node.outputs())
        # Below opset 8 MaxPool has no Indices; that only matters if something reads them.
        written = "max_pool" if graph.opset < 8 and len(originals) == 2 and not originals[1].uses() else operator
        x_type = arguments["X"].type()
        element_type = x_type.dtype() and schemas.type_name(x_type.dtype())
        results = list(emission.write(_Traced(graph), written, arguments, x_type.varyingSizes(), element_type))
        for result, original in zip(results, originals):
            if result.type().dtype() is None:  # an operator without shape inference
                result.setType(_inferred_type(original.type(), x_type))
        results += [None] * (len(originals) - len(results))
        return tuple(results) if len(results) > 1 else results[0]

    symbolic.__name__ = operator
    # parse_args turns graph values into Python values, and names them in its messages by this signature.
    names = ["graph", *(parameter.name for parameter in parameters)]
    symbolic.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names])
    return torch.onnx.symbolic_helper.parse_args(*(_DESCRIPTORS[str(p.type)] for p in parameters))(symbolic)


class _Traced:
    """The graph of the exporter (see `emission.Graph`)."""

    def __init__(self, graph) -> None:
        self.opset = graph.opset
        self._graph = graph

    def node(
        self, op_type: str, inputs: Sequence, attributes: Mapping[str, Any], domain: str = ONNX, outputs: int = 1
    ) -> Sequence:
        name = f"{domain}::{op_type}" if domain else op_type
        suffixed = {f"{name}_{_suffix(value)}": value for name, value in attributes.items()}
        results = self._graph.op(name, *inputs, outputs=outputs, **suffixed)
        return list(results) if outputs > 1 else [results]

    def constant(self, array: np.ndarray) -> torch._C.Value:
        return self._graph.op("Constant", value_t=torch.from_numpy(array))


def _suffix(value: object) -> str:
    """How torch.onnx calls the type of an attribute."""
    return _SUFFIXES[type(value[0] if isinstance(value, list) else value)]


def _inferred_type(traced: torch._C.TensorType, x: torch._C.TensorType) -> torch._C.TensorType:
    """The type of an output whose operator infers none: with dynamic axes, the sizes of the traced run mean nothing."""
    return traced if x.sizes() is not None else traced.with_sizes([None] * traced.dim())
