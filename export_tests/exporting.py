"""What all export tests share: exporting with each exporter, looking at the pooling nodes, running other engines."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import NodeProto, helper
from onnx.reference import ReferenceEvaluator
from tensors import to_array
from torch.onnx._internal.exporter import _compat  # noqa: F401 (what the next one needs to be imported)
from torch.onnx._internal.exporter._registration import ONNXRegistry

import torch_onnxpool
from torch_onnxpool.onnx import operators

filled_registry = functools.cache(ONNXRegistry.from_torchlib)


def copied_registry(**opset_version: int) -> ONNXRegistry:
    """At every export torch fills a registry with the translations of all its operators, for which onnxscript parses
    their sources each time: longer than all the rest takes for a small model. Here each opset's is filled once."""
    registry = copy.copy(filled_registry(**opset_version))
    registry.functions = {target: list(translations) for target, translations in registry.functions.items()}
    return registry


ONNXRegistry.from_torchlib = staticmethod(copied_registry)

EXPORTERS = ("dynamo", "program", "torchscript")

# What the exporters always say.
WARNINGS = (
    "You are using the legacy",
    ".*opset version",
    ".*is deprecated",
    "The feature will be removed",
    "It is recommended that constant folding",
    r".*\(ledger: [a-z0-9-]+\)",  # test_portable.py is about these
)

# What is not written on a node. Typed here once more, so that the schemas are not tested against themselves.
DEFAULTS = {
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "count_include_pad": 0,
    "storage_order": 0,
    "channels_last": 0,
    "p": 2,
}
DEFAULT_ELEMENTS = {"strides": 1, "dilations": 1, "pads": 0}


def layer_of(operator: str, *args: Any, **attributes: Any) -> torch.nn.Module:
    return getattr(torch_onnxpool, operator)(*args, **attributes).eval()


class Together(torch.nn.Module):
    """Layers side by side, each with inputs of its own: what an export costs does not depend on their number."""

    def __init__(self, layers: Sequence[torch.nn.Module], arities: Sequence[int]) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.arities = arities

    def forward(self, *inputs):
        inputs, outputs = iter(inputs), []
        for layer, arity in zip(self.layers, self.arities, strict=True):
            result = layer(*itertools.islice(inputs, arity))
            outputs += result if isinstance(result, tuple) else [result]
        return tuple(outputs)


def export_together(layers: Sequence[torch.nn.Module], inputs: Sequence[tuple], exporter: str, opset: int) -> list:
    """Export layers in one model; their nodes, the only ones there."""
    model = Together(layers, [len(tensors) for tensors in inputs]).eval()
    proto = export(model, tuple(itertools.chain(*inputs)), exporter, opset, full_check=False)
    assert opset_of(proto) == opset
    assert len(proto.graph.node) == len(layers)
    return list(proto.graph.node)


def export(model, args: tuple, exporter: str = "dynamo", opset: int = 20, full_check: bool = True, **options):
    """The checked ModelProto that an exporter writes, by way of plain torch.onnx.export."""
    with warnings.catch_warnings():
        for warning in WARNINGS:
            warnings.filterwarnings("ignore", warning)
        if exporter == "torchscript":
            file = io.BytesIO()
            torch.onnx.export(model, args, file, opset_version=opset, dynamo=False, **options)
            proto = onnx.load_from_string(file.getvalue())
        else:
            if exporter == "program":
                model = torch.export.export(model, args, dynamic_shapes=options.pop("dynamic_shapes", None))
            proto = torch.onnx.export(model, args, opset_version=opset, verbose=False, **options).model_proto
    onnx.checker.check_model(proto, full_check=full_check)
    return proto


def pooling_nodes(proto: onnx.ModelProto) -> list[NodeProto]:
    return [node for node in proto.graph.node if (node.domain, node.op_type) in operators.LAYERS]


def only_node(proto: onnx.ModelProto) -> NodeProto:
    """The node of a model that must hold nothing else."""
    (node,) = proto.graph.node
    return node


def attributes_of(node: NodeProto) -> dict[str, Any]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def without_defaults(attributes: dict[str, Any]) -> dict[str, Any]:
    """What must be written: the attributes that are not the default, and kernel_shape."""

    def is_default(name: str, value: Any) -> bool:
        if name in DEFAULT_ELEMENTS:
            return all(element == DEFAULT_ELEMENTS[name] for element in value)
        return name in DEFAULTS and value == DEFAULTS[name]

    return {name: value for name, value in attributes.items() if not is_default(name, value)}


def opset_of(proto: onnx.ModelProto, domain: str = "") -> int:
    return {entry.domain: entry.version for entry in proto.opset_import}[domain]


def run_onnxruntime(proto: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised as well
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def run_reference(proto: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    names = [value.name for value in proto.graph.input]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return ReferenceEvaluator(proto).run(None, dict(zip(names, inputs, strict=True)))


def one_node_model(node: NodeProto, inputs: list[np.ndarray], opset: int) -> onnx.ModelProto:
    """A model of this node, with outputs whose shapes are left to whoever runs it."""
    elements = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs]
    types = [elements[0], onnx.TensorProto.INT64]
    graph = helper.make_graph(
        [node],
        "one_node",
        [helper.make_tensor_value_info(n, e, a.shape) for n, e, a in zip(node.input, elements, inputs, strict=True)],
        [helper.make_tensor_value_info(name, type_, None) for name, type_ in zip(node.output, types)],
    )
    imports = [helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(helper.make_opsetid(node.domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def make_node(operator: str, outputs: int = 1, inputs: tuple[str, ...] = ("X",), domain: str = "", **attributes: Any):
    return helper.make_node(operator, inputs, ["Y", "Indices"][:outputs], domain=domain, **attributes)


def outputs_of(layer: torch.nn.Module, *inputs: torch.Tensor) -> list[np.ndarray]:
    """A layer's outputs as arrays."""
    with torch.no_grad():
        outputs = layer(*inputs)
    return [to_array(output) for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


def assert_close(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """The same numbers, up to the rounding of sums and powers in the element type."""
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if not np.issubdtype(ours.dtype, np.inexact) and ours.dtype != ml_dtypes.bfloat16:
            np.testing.assert_array_equal(ours, theirs)
            continue
        tolerance = {2: 2e-3, 4: 1e-5, 8: 1e-13}[ours.dtype.itemsize]
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        largest = np.max(np.abs(theirs), initial=0, where=np.isfinite(theirs))
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 10 * largest)
