"""What both exporters write for a call of one of our operators, and the warnings that go with it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from . import ledger, nodes, portability
from .operators import ONNX

_PORTABLE_TO = (ledger.ONNXRUNTIME, ledger.REFERENCE, ledger.SHAPE_INFERENCE)


class Graph(Protocol):
    """A graph that an exporter is writing. Its values are the exporter's own; nothing here looks into them."""

    opset: int  # of ai.onnx

    def node(
        self, op_type: str, inputs: Sequence, attributes: Mapping[str, Any], domain: str = ONNX, outputs: int = 1
    ) -> Sequence:
        """Write a node; its outputs."""

    def constant(self, array: np.ndarray) -> Any:
        """Write a constant; its value."""


def write(
    graph: Graph,
    operator: str,
    arguments: Mapping[str, Any],
    shape: Sequence[int | None] | None,
    element_type: str | None,
) -> Sequence:
    """Write the node for a call of `torch.ops.torch_onnxpool.<operator>`, or its portable form; the outputs.

    Args:
        arguments: all arguments of the operator by their names, tensors as values of the graph.
        shape, element_type: of X, as far as they are known.

    Raises:
        ValueError: for what the graph's opset cannot say.

    Warns:
        PortabilityWarning: where onnxruntime will compute something else, or nothing.
    """
    node = nodes.compose(operator, arguments, graph.opset, element_type)
    known = {"input_shape": shape, "element_type": element_type}
    reason = None if portability.has_form(operator) else portability.no_form(operator)
    if portability.is_wanted() and _rows_with_portable_form(node, known):
        try:
            return portability.write(graph, operator, arguments, shape, element_type)
        except portability.Unportable as unportable:
            reason = str(unportable)
    for row in ledger.rows_for(node, **known, engine=ledger.ONNXRUNTIME, engine_version=ledger.MEASURED_ONNXRUNTIME):
        warnings.warn(_warning(node, shape, row, reason), portability.PortabilityWarning, stacklevel=2)
    inputs = [arguments[name] for name in node.inputs]
    # Among our arguments, a list of sizes can be what is an input in ONNX.
    inputs = [_vector(graph, value) if isinstance(value, (list, tuple)) else value for value in inputs]
    return graph.node(node.op_type, inputs, node.attributes, node.domain, len(node.outputs))


def _vector(graph: Graph, sizes: Sequence) -> Any:
    """A list of sizes as one value; those that are not known before the model runs are scalars of the graph."""
    if all(isinstance(size, int) for size in sizes):
        return graph.constant(np.array(sizes, np.int64))
    one = graph.constant(np.array([1], np.int64))
    parts = [
        graph.constant(np.array([size], np.int64))
        if isinstance(size, int)
        else graph.node("Reshape", [size, one], {})[0]
        for size in sizes
    ]
    return graph.node("Concat", parts, {"axis": 0})[0]


def _rows_with_portable_form(node: nodes.PoolNode, known: dict[str, Any]) -> bool:
    return any(row.portable for engine in _PORTABLE_TO for row in ledger.rows_for(node, **known, engine=engine))


def _warning(node: nodes.PoolNode, shape: Sequence[int | None] | None, row: ledger.Row, reason: str | None) -> str:
    """Tells which node it is: no line of the user's calls it. `reason` is why the portable form cannot be written."""
    if row.portable is not None and reason is not None:
        remedy = f"It has no portable form here: {reason}"
    elif row.portable is not None:
        remedy = f"Remedy: torch_onnxpool.onnx.portable() writes {row.portable}"
        remedy += f"; or {row.remedy}" if row.remedy else ""
    else:
        remedy = f"Remedy: {row.remedy}"
    how = row.difference(ledger.ONNXRUNTIME).how
    kernel_shape = node.attributes.get("kernel_shape")
    got = [] if kernel_shape is None else [f"kernel_shape={kernel_shape}"]
    if shape is not None:
        got.append(f"X of shape [{', '.join('?' if size is None else str(size) for size in shape)}]")
    which = f", got {' and '.join(got)}" if got else ""
    return f"{node.op_type}: {row.case}{which}: onnxruntime {how} (ledger: {row.id}). {remedy}."
