"""NodeProto -> layer."""

from __future__ import annotations

import torch
from onnx import NodeProto
from torch import Tensor, nn

from .. import layers
from . import nodes
from .operators import checked_opset


def layer_from_node(node: NodeProto, opset_version: int) -> nn.Module:
    """The layer that computes an ONNX node.

    Its `forward` takes the node's inputs in their order, without those that it leaves out. It returns a tensor, or a
    tuple if the node has two outputs.

    Args:
        node: any version of AveragePool, LpPool, MaxPool, MaxUnpool, GlobalAveragePool, GlobalLpPool, GlobalMaxPool, or
            QLinearAveragePool or QLinearGlobalAveragePool of com.microsoft.
        opset_version: the version of the node's domain that its model imports.

    Raises:
        ValueError: for an unknown operator; for an attribute that is unknown, younger than the opset, missing, of
            another type or in contradiction to others; and for other inputs or outputs than the operator has.
    """
    if not isinstance(node, NodeProto):
        raise ValueError(f"layer_from_node: node must be an onnx.NodeProto, got {type(node).__name__}")
    return layer_of(nodes.parse(node, checked_opset("layer_from_node", opset_version)))


def layer_of(node: nodes.PoolNode) -> nn.Module:
    """The same for a node that has been parsed. ValueError for attributes that contradict each other."""
    arguments = dict(node.attributes)
    # Some exporters write pads of zero beside auto_pad, where they say nothing. Our layers refuse to be told both.
    if node.has_idle_pads:
        del arguments["pads"]
    if "Indices" in node.outputs:
        arguments["return_indices"] = True
    if node.op_type == "QLinearAveragePool" and len(node.inputs) < len(node.schema.inputs):
        return _ZeroPointsLeftOut(node.inputs[1:], **arguments)
    return getattr(layers, node.op_type)(**arguments)


class _ZeroPointsLeftOut(layers.QLinearAveragePool):
    """For a node without one or both zero points: they are 0, in the type of X, which the node does not tell."""

    def __init__(self, given: tuple[str, ...], **attributes) -> None:
        super().__init__(**attributes)
        self._given = given
        # Buffers, so that an exporter finds initialisers.
        self.register_buffer("_uint8_zero", torch.zeros((), dtype=torch.uint8), persistent=False)
        self.register_buffer("_int8_zero", torch.zeros((), dtype=torch.int8), persistent=False)

    def forward(self, X: Tensor, *quantization: Tensor) -> Tensor:
        if len(quantization) != len(self._given):
            wanted = ", ".join(["X", *self._given])
            raise ValueError(f"{self.onnx_name}: the call must give {wanted}, got {1 + len(quantization)} arguments")
        given = dict(zip(self._given, quantization))
        zero = self._int8_zero if X.dtype == torch.int8 else self._uint8_zero
        return super().forward(X, *(given.get(name, zero) for name in self._quantization))

    def _get_name(self) -> str:
        return self.onnx_name
