"""The opset of a model that the dynamo exporter has made: all of it converted, or an error that names a node.

Pooling nodes are hidden meanwhile, as onnx's converter knows too little about them. They need no conversion: they have
been written for the opset asked for. The rest is left to onnx, but for nodes that it refuses without need, because
only the element types have grown between two versions (Relu, Add and many more).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
from onnx import NodeProto, defs, helper
from onnxscript import ir

from .operators import ONNX
from .translation import Hiding

# Larger initializers do not go through onnx's converter: it does not look into them, and a file has at most 2 GB.
_LARGE = 1024

_NEGATIVE_AXES_SINCE = 11


class OpsetError(RuntimeError):
    """A model cannot be written in the opset asked for. The text names the node that stands in the way."""


def finish(model: ir.Model, opset: int) -> None:
    """Bring a model with hidden nodes to this opset of ai.onnx, in place, and let its hidden nodes be seen."""
    written = model.graph.opset_imports.get(ONNX, opset)
    if written != opset and any(node.domain == ONNX for node in _all_nodes(model)):
        _convert(model, written, opset)
    for node in _all_nodes(model):
        if node.domain == Hiding.DOMAIN:
            node.domain = ONNX
    model.graph.opset_imports.pop(Hiding.DOMAIN, None)
    model.graph.opset_imports[ONNX] = opset


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Those of subgraphs, too."""
    return ir.traversal.RecursiveGraphIterator(model.graph)


def _convert(model: ir.Model, written: int, opset: int) -> None:
    for node in _all_nodes(model):
        # onnx's converter does not look into subgraphs.
        if node.graph is not model.graph and node.domain == ONNX and not _is_same(node.op_type, written, opset):
            why = (
                f"has changed between opsets {written} and {opset}, and stands in a branch, where onnx converts nothing"
            )
            raise OpsetError(_refusal(opset, node.name, node.op_type, why))
    values = {value.name: value for node in model.graph for value in (*node.inputs, *node.outputs) if value}
    inputs = len(model.graph.inputs)
    initializers = list(model.graph.initializers.values())
    large = [value for value in initializers if value.const_value.size > _LARGE]
    proto = _proto(model, initializers, large)
    while True:
        try:
            converted = onnx.version_converter.convert_version(proto, opset)
            break
        except Exception as error:
            _hide_unchanged(proto, str(error), values, written, opset)
    onnx.checker.check_model(converted)
    graph = ir.from_proto(converted).graph
    by_name = {value.name: value for value in graph.inputs}
    del graph.inputs[inputs:]
    for value in initializers:
        by_name[value.name].const_value = value.const_value
        graph.register_initializer(by_name[value.name])
    model.graph = graph


def _proto(model: ir.Model, initializers: list[ir.Value], large: list[ir.Value]) -> onnx.ModelProto:
    """The model with initializers as inputs, and without the data of large ones."""
    graph = model.graph
    inputs = len(graph.inputs)
    for value in initializers:
        value.shape, value.dtype = value.const_value.shape, value.const_value.dtype
        graph.inputs.append(value)
    for value in large:
        del graph.initializers[value.name]
    try:
        return ir.to_proto(model)
    finally:
        del graph.inputs[inputs:]
        for value in large:
            graph.register_initializer(value)


def _hide_unchanged(proto: onnx.ModelProto, error: str, values: dict, written: int, opset: int) -> None:
    """After an error of onnx's converter: hide the nodes of the operator it is about, if they may stay as they are.

    Otherwise raise, naming the first that may not.
    """
    found = re.search(r"No Adapter \w+ Version \$?\d+ for (\w+)", error) or re.search(r"(\w+)\W*$", error)
    refused = [node for node in proto.graph.node if node.domain == ONNX and found and node.op_type == found[1]]
    if not refused:
        raise OpsetError(f"cannot write opset {opset}: onnx's converter fails: {error}")
    for node in refused:
        dropped = _may_stay(node, values, written, opset)
        if dropped is None:
            raise OpsetError(_refusal(opset, node.name, node.op_type, f"cannot be converted: {error}"))
        kept = [attribute for attribute in node.attribute if attribute.name not in dropped]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.domain = Hiding.DOMAIN


def _refusal(opset: int, name: str, op_type: str, why: str) -> str:
    return f"cannot write opset {opset}: the node {name!r} ({op_type}) {why}"


def _is_same(op_type: str, written: int, opset: int) -> bool:
    return defs.has(op_type, opset, ONNX) and _version(op_type, written) == _version(op_type, opset)


def _version(op_type: str, opset: int) -> int:
    return defs.get_schema(op_type, opset, ONNX).since_version


def _may_stay(node: NodeProto, values: dict[str, ir.Value], written: int, opset: int) -> set[str] | None:
    """The attributes that a node loses, and nothing else, by going into another opset; None if more must change.

    That is so if two versions of its operator differ in element types only, and the node's are in both, or in
    attributes that say nothing on this node.
    """
    try:
        now, then = defs.get_schema(node.op_type, written, ONNX), defs.get_schema(node.op_type, opset, ONNX)
    except defs.SchemaError:
        return None
    attributes, older = (
        {name: (a.type, a.required, a.default_value.SerializeToString()) for name, a in schema.attributes.items()}
        for schema in (now, then)
    )
    parameters = [[(p.name, p.option) for p in (*schema.inputs, *schema.outputs)] for schema in (now, then)]
    if parameters[0] != parameters[1] or any(attributes.get(name) != attribute for name, attribute in older.items()):
        return None
    dropped = {attribute.name for attribute in node.attribute} - older.keys()
    if not all(
        _says_nothing(node, attribute, now, values) for attribute in node.attribute if attribute.name in dropped
    ):
        return None
    if opset < _NEGATIVE_AXES_SINCE and any(_is_negative_axis(attribute) for attribute in node.attribute):
        return None
    fits = _accepts(then.inputs, node.input, values) and _accepts(then.outputs, node.output, values)
    return dropped if fits else None


def _says_nothing(node: NodeProto, attribute: onnx.AttributeProto, schema: defs.OpSchema, values: dict) -> bool:
    if attribute.name == "allowzero":  # torch always sets it
        shape = values[node.input[1]].const_value
        return shape is not None and bool(shape.numpy().all())
    default = schema.attributes[attribute.name].default_value
    return helper.get_attribute_value(attribute) == (helper.get_attribute_value(default) if default.name else None)


def _accepts(parameters, names, values: dict[str, ir.Value]) -> bool:
    """Whether the inputs (outputs) of a schema take the types of these values, as far as they are known."""
    given = [values[name].dtype if name in values else None for name in names]
    parameters = [*parameters, *parameters[-1:] * len(given)]  # the last one may be repeated
    return all(type_ is None or f"tensor({type_.name.lower()})" in p.types for p, type_ in zip(parameters, given))


def _is_negative_axis(attribute: onnx.AttributeProto) -> bool:
    value = helper.get_attribute_value(attribute) if attribute.name in ("axis", "axes") else ()
    return min(value if isinstance(value, (list, tuple)) else [value], default=0) < 0
