"""Which ONNX operator each operator of `torch.ops.torch_onnxpool` is.

This table is all that the exporters need to register themselves, so it imports nothing: neither torch nor onnx. What
else several of them need without either is here, too.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, NamedTuple

ONNX = ""
MICROSOFT = "com.microsoft"
MICROSOFT_VERSION = 1


class OpsetError(RuntimeError):
    """A model cannot be written in the opset asked for. The text names the node that stands in the way."""


class OnnxOperator(NamedTuple):
    """An ONNX operator and the number of its outputs that one of ours computes."""

    op_type: str
    domain: str = ONNX
    outputs: int = 1


OPERATORS = {
    "average_pool": OnnxOperator("AveragePool"),
    "lp_pool": OnnxOperator("LpPool"),
    "max_pool": OnnxOperator("MaxPool"),
    "max_pool_with_indices": OnnxOperator("MaxPool", outputs=2),
    "max_unpool": OnnxOperator("MaxUnpool"),
    "global_average_pool": OnnxOperator("GlobalAveragePool"),
    "global_lp_pool": OnnxOperator("GlobalLpPool"),
    "global_max_pool": OnnxOperator("GlobalMaxPool"),
    "qlinear_average_pool": OnnxOperator("QLinearAveragePool", MICROSOFT),
    "qlinear_global_average_pool": OnnxOperator("QLinearGlobalAveragePool", MICROSOFT),
}

# The layer of an ONNX operator bears the operator's name.
LAYERS = frozenset((operator.domain, operator.op_type) for operator in OPERATORS.values())


def canonical_domain(domain: str) -> str:
    """ "ai.onnx" is another spelling of the default domain."""
    return ONNX if domain == "ai.onnx" else domain


def checked_opset(function: str, opset_version: Any) -> int:
    """It as an int; ValueError, in the name of a public function, for anything else."""
    if not isinstance(opset_version, Integral) or isinstance(opset_version, bool):
        raise ValueError(f"{function}: opset_version must be an int, got opset_version={opset_version!r}")
    return int(opset_version)
