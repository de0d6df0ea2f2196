"""Our operators in the dynamo exporter, the default of `torch.onnx.export`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import onnx
import torch
from onnx import defs, helper
from onnxscript import evaluator, ir

from . import emission, folding, nodes, schemas
from .operators import ONNX, OPERATORS

# Sizes, pads and the like have so many elements at most; onnx infers shapes from them.
_MOST_ELEMENTS = 32

# The opsets that the exporter's own converter writes. Others are left to that of onnx, which works on the whole file.
NATIVE_OPSETS = range(18, 26)


@dataclass
class Hiding:
    """Lets translations write nodes as they shall be in the end, in a domain that nothing else touches."""

    opset: int | None  # of ai.onnx in the end; None until a translation knows the exporter's default

    DOMAIN = "torch_onnxpool.hidden"


_hiding: ContextVar[Hiding | None] = ContextVar("torch_onnxpool_hiding", default=None)


def table() -> dict[torch._ops.OpOverload, Callable]:
    """See `exporter.translation_table`."""
    folding.install()
    overloads = {operator: getattr(torch.ops.torch_onnxpool, operator).default for operator in OPERATORS}
    return {overload: _translation(operator, overload) for operator, overload in overloads.items()}


def register() -> None:
    """Register every operator with the exporter, through the private function that its own operators use."""
    from torch.onnx._internal.exporter._torchlib._torchlib_registry import onnx_impl

    for overload, translation in table().items():
        onnx_impl(overload, no_compile=True)(translation)


@contextmanager
def hidden_nodes(opset: int | None) -> Iterator[Hiding]:
    """Within, translations write for this opset, into the hidden domain."""
    hiding = Hiding(opset)
    token = _hiding.set(hiding)
    try:
        yield hiding
    finally:
        _hiding.reset(token)


def _requested_opset(written: int) -> int:
    """The opset that torch.onnx.export was asked for. Translations are not told; the call that they run in knows."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "export_compat":
        frame = frame.f_back
    return written if frame is None else frame.f_locals.get("opset_version", written)


class _Recorded:
    """The graph of the exporter's recorder (see `emission.Graph`)."""

    def __init__(self, opset: int, domain: str = ONNX) -> None:
        self.opset = opset
        self._domain = domain  # in place of ai.onnx

    def node(
        self, op_type: str, inputs: Sequence, attributes: Mapping[str, Any], domain: str = ONNX, outputs: int = 1
    ) -> Sequence[ir.Value]:
        # Without a version the node goes through the exporter's opset conversion as it is.
        version = schemas.at(op_type, domain, self.opset).since_version if domain else None
        node = ir.node(
            op_type, inputs, dict(attributes), domain=domain or self._domain, num_outputs=outputs, version=version
        )
        if not domain:
            _infer(node, schemas.at(op_type, domain, self.opset))
        # Not evaluator.default().eval(): that drops attributes unknown to the exporter's own opset.
        evaluator.default().nodes.append(node)
        return node.outputs

    def constant(self, array: np.ndarray) -> ir.Value:
        (value,) = self.node("Constant", [], {"value": ir.tensor(array)})
        value.const_value = ir.tensor(array)
        return value


def _infer(node: ir.Node, schema: defs.OpSchema) -> None:
    """Give the outputs of a node their types, as far as onnx knows. The exporter does so for results of calls only."""
    inputs = {f"input{index}": value for index, value in enumerate(node.inputs)}
    outputs = {f"output{index}": value for index, value in enumerate(node.outputs)}
    proto = _node_proto(node, inputs, outputs)
    types = {name: _type_proto(value) for name, value in inputs.items() if value.dtype is not None}
    data = {
        name: ir.serde.serialize_tensor(value.const_value)
        for name, value in inputs.items()
        if value.const_value is not None and value.const_value.size <= _MOST_ELEMENTS
    }
    inferred = onnx.shape_inference.infer_node_outputs(schema, proto, types, data)
    for name, value in outputs.items():
        if name in inferred:
            value.type = ir.serde.deserialize_type_proto_for_type(inferred[name])
            value.shape = ir.serde.deserialize_type_proto_for_shape(inferred[name])


def _node_proto(node: ir.Node, inputs: Iterable[str], outputs: Iterable[str]) -> onnx.NodeProto:
    """With names for its values, which have none yet."""
    proto = onnx.NodeProto(op_type=node.op_type, input=inputs, output=outputs)
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    return proto


def _type_proto(value: ir.Value, dtype: int | None = None) -> onnx.TypeProto:
    """Its type, with this element type where its own is not known."""
    shape = value.shape and [size if isinstance(size, int) else size.value for size in value.shape]
    return helper.make_tensor_type_proto(value.dtype or dtype, shape)


def _translation(operator: str, overload: torch._ops.OpOverload) -> Callable:
    parameters = overload._schema.arguments
    # torch.export drops arguments that are equal to their defaults.
    defaults = {parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()}

    def translation(*args, **kwargs):
        given = {parameter.name: value for parameter, value in zip(parameters, args)}
        arguments = {**defaults, **given, **kwargs}
        x, written = arguments["X"], evaluator.default().opset.version
        element_type = None if x.dtype is None else schemas.type_name(x.dtype)
        shape = None if x.shape is None else [size if isinstance(size, int) else None for size in x.shape]
        hiding = _hiding.get()
        if hiding is None:
            # Below 18 the exporter writes opset 18 and converts the file afterwards: both must be able to say it.
            requested = _requested_opset(written)
            nodes.compose(operator, arguments, requested, element_type)
            graph = _Recorded(written)
        else:
            if hiding.opset is None:
                hiding.opset = _requested_opset(written)
            graph = _Recorded(hiding.opset, Hiding.DOMAIN)
        recorded = len(evaluator.default().nodes)
        outputs = emission.write(graph, operator, arguments, shape, element_type)
        if hiding is None and requested not in NATIVE_OPSETS:
            _warn_if_conversion_fails(operator, evaluator.default().nodes[recorded:], written, requested)
        return outputs[0] if len(outputs) == 1 else outputs

    translation.__name__ = operator
    return translation


def _warn_if_conversion_fails(operator: str, written: Sequence[ir.Node], opset: int, requested: int) -> None:
    """The exporter only logs that onnx's converter has failed, and leaves the file in the opset it was in."""
    if any(node.domain != ONNX for node in written):  # others are left alone
        return
    names: dict[int, str] = {}

    def name(value: ir.Value | None) -> str:
        return "" if value is None else names.setdefault(id(value), f"value{len(names)}")

    protos, inputs, outputs = [], {}, {}
    for node in written:
        inputs |= {name(value): value for value in node.inputs if value is not None and name(value) not in outputs}
        outputs |= {name(value): value for value in node.outputs}
        protos.append(_node_proto(node, map(name, node.inputs), map(name, node.outputs)))
    graph = helper.make_graph(
        protos,
        "one_pool",
        [helper.make_value_info(n, _type_proto(value, onnx.TensorProto.FLOAT)) for n, value in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(ONNX, opset)])
    try:
        onnx.version_converter.convert_version(model, requested)
    except Exception as error:
        warnings.warn(
            f"{OPERATORS[operator].op_type}: torch.onnx.export is about to leave the file at opset {opset} without a "
            f"word, as onnx cannot convert what stands for it to the requested opset {requested} ({error}). "
            "torch_onnxpool.onnx.export can.",
            UserWarning,
            stacklevel=2,
        )
