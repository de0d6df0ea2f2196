"""Pools on constants in the dynamo exporter's optimizer, which computes them beforehand.

Left alone, it asks onnx's reference evaluator, which is wrong on many pools (see the ledger); here it asks our layers.
This concerns every model that onnxscript optimizes, whoever wrote its pools.
"""

from __future__ import annotations

import functools
import warnings

import torch
from onnx_ir.tensor_adapters import TorchTensor, to_torch_dtype
from onnxscript import ir

from . import schemas
from .importer import layer_from_node
from .operators import LAYERS

_installed = False


def install() -> None:
    """Teach the optimizer, once. Its registry is private: if that fails, warn and name what helps."""
    global _installed
    if _installed:
        return
    _installed = True
    try:
        from onnxscript.optimizer._constant_folding import registry

        for domain, op_type in LAYERS:
            versions = [schema.since_version for schema in schemas.history(op_type, domain)]
            for first, last in zip(versions, [*(version - 1 for version in versions[1:]), None]):
                registry.register(op_type, domain, (first, last))(functools.partial(_fold, first))
    except Exception as error:
        warnings.warn(
            f"torch_onnxpool cannot teach onnxscript's optimizer ({type(error).__name__}: {error}), which is wrong on "
            "pools of constants. Remedy: torch_onnxpool.onnx.export, or optimize=False",
            stacklevel=2,
        )


def _fold(opset: int, node: ir.Node, op, state) -> list[ir.Value] | None:
    """The outputs that replace those of a node of this opset, or one like it; None leaves it to the optimizer.

    The node itself does not know: subgraphs do not say which opsets their model imports.
    """
    values = [value for value in node.inputs if value is not None]
    if any(value.const_value is None or value.is_graph_input() for value in values):
        return None
    try:
        outputs = layer_from_node(ir.to_proto(node), opset)(*(_to_torch(value.const_value) for value in values))
    except ValueError:  # not legal, as whoever loads the file will say
        return None
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs += outputs[:1] * (len(node.outputs) - len(outputs))  # for those without a name, which nobody uses
    return [op.Constant(value=TorchTensor(output)) for output in outputs]


def _to_torch(tensor: ir.TensorProtocol) -> torch.Tensor:
    flat = torch.frombuffer(bytearray(tensor.tobytes()), dtype=to_torch_dtype(tensor.dtype))
    return flat.reshape(tuple(tensor.shape))
