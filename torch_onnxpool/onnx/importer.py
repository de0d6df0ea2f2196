"""NodeProto -> layer."""

from __future__ import annotations

from onnx import NodeProto
from torch import nn

from .. import layers
from . import nodes


def layer_from_node(node: NodeProto, opset_version: int) -> nn.Module:
    """The layer that computes an ONNX node.

    Its `forward` takes the node's inputs in their order. It returns a tensor, or a tuple if the node has two outputs.

    Args:
        node: any version of AveragePool, LpPool, MaxPool, GlobalAveragePool, GlobalLpPool, GlobalMaxPool, or
            QLinearGlobalAveragePool of com.microsoft.
        opset_version: the version of the node's domain that its model imports.

    Raises:
        ValueError: for an unknown operator; for an attribute that is unknown, younger than the opset, missing, of
            another type or in contradiction to others; and for other inputs or outputs than the operator has.
    """
    if not isinstance(node, NodeProto):
        raise ValueError(f"layer_from_node: node must be an onnx.NodeProto, got {type(node).__name__}")
    if not isinstance(opset_version, int):
        raise ValueError(f"layer_from_node: opset_version must be an int, got opset_version={opset_version!r}")
    parsed = nodes.parse(node, opset_version)
    arguments = dict(parsed.attributes)
    # Some exporters write pads of zero beside auto_pad, where they say nothing. Our layers refuse to be told both.
    if parsed.has_idle_pads:
        del arguments["pads"]
    if "Indices" in parsed.outputs:
        arguments["return_indices"] = True
    return getattr(layers, parsed.op_type)(**arguments)
