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

from . import schemas
from .operators import ONNX
from .translation import Hiding

# Larger initializers do not go through onnx's converter: it does not look into them, and a file has at most 2 GB.
_LARGE = 1024

_NEGATIVE_AXES_SINCE = 11

# What takes all axes from its own on for one, below this opset; onnx's converter leaves it as it is.
_FLATTENING = ("Hardmax", "LogSoftmax", "Softmax")
_FLATTENING_UNTIL = 13

# Parameters that older versions of an operator call otherwise.
_FORMERLY = {"input_mean": "mean", "input_var": "var"}


class OpsetError(RuntimeError):
    """A model cannot be written in the opset asked for. The text names the node that stands in the way."""


def finish(model: ir.Model, opset: int) -> None:
    """Bring a model with hidden nodes to this opset of ai.onnx, in place, and let its hidden nodes be seen."""
    written = model.graph.opset_imports.get(ONNX, opset)
    model.graph.opset_imports[Hiding.DOMAIN] = 1  # also of a model without pools
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
        if node.domain != ONNX:
            continue
        # onnx's converter does not look into subgraphs.
        if node.graph is not model.graph and not schemas.is_same(node.op_type, ONNX, written, opset):
            why = (
                f"has changed between opsets {written} and {opset}, and stands in a branch, where onnx converts nothing"
            )
            raise OpsetError(_refusal(opset, node.name, node.op_type, why))
        if node.op_type in _FLATTENING and opset < _FLATTENING_UNTIL <= written and not _is_along_the_last_axis(node):
            why = f"takes all axes from its own on for one, below opset {_FLATTENING_UNTIL}"
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
    for node in converted.graph.node:
        if node.domain == ONNX and all(defs.has(node.op_type, version, ONNX) for version in (written, opset)):
            _drop(node, _lost_attributes(node, values, written, opset) or set())
    try:
        onnx.checker.check_model(converted)
    except onnx.checker.ValidationError as error:
        raise OpsetError(f"cannot write opset {opset}: onnx's converter fails: {error}") from error
    graph = ir.from_proto(converted).graph
    by_name = {value.name: value for value in graph.inputs}
    del graph.inputs[inputs:]
    for value in initializers:
        if value.name in by_name:  # otherwise it has become an attribute
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
    patterns = (r"No Adapter \w+ Version \$?\d+ for (\w+)", r"No Previous Version of (\w+)", r"(\w+)\W*$")
    found = next(filter(None, (re.search(pattern, error) for pattern in patterns)), None)
    refused = [node for node in proto.graph.node if node.domain == ONNX and found and node.op_type == found[1]]
    if not refused:
        raise OpsetError(f"cannot write opset {opset}: onnx's converter fails: {error}")
    for node in refused:
        dropped = _may_stay(node, values, written, opset)
        if dropped is None:
            raise OpsetError(_refusal(opset, node.name, node.op_type, f"cannot be converted: {error}"))
        _drop(node, dropped)
        node.domain = Hiding.DOMAIN


def _drop(node: NodeProto, names: set[str]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _is_along_the_last_axis(node: ir.Node) -> bool:
    """Or along one that is followed by axes of one element only."""
    axis, shape = node.attributes.get_int("axis", -1), node.inputs[0].shape
    return axis == -1 if shape is None else all(size == 1 for size in shape[axis:][1:])


def _refusal(opset: int, name: str, op_type: str, why: str) -> str:
    return f"cannot write opset {opset}: the node {name!r} ({op_type}) {why}"


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
    if not _has_parameters_of_both(node, now, then):
        return None
    if any(attributes.get(name) != attribute for name, attribute in older.items()):
        return None
    if opset < _NEGATIVE_AXES_SINCE and any(_is_negative_axis(attribute) for attribute in node.attribute):
        return None
    fits = _accepts(then.inputs, node.input, values) and _accepts(then.outputs, node.output, values)
    return _lost_attributes(node, values, written, opset) if fits else None


def _has_parameters_of_both(node: NodeProto, now: defs.OpSchema, then: defs.OpSchema) -> bool:
    """Whether the inputs and outputs that a node has are the same in two versions, and it needs no others in either."""

    def of(schema: defs.OpSchema) -> list | None:
        both = ((schema.inputs, len(node.input)), (schema.outputs, len(node.output)))
        if any(p.option == defs.OpSchema.FormalParameterOption.Single for all_, count in both for p in all_[count:]):
            return None
        return [[(_FORMERLY.get(p.name, p.name), p.option) for p in all_[:count]] for all_, count in both]

    return of(now) is not None and of(now) == of(then)


def _lost_attributes(node: NodeProto, values: dict, written: int, opset: int) -> set[str] | None:
    """Those that the operator does not have in another opset; None if one of them says something."""
    now, then = defs.get_schema(node.op_type, written, ONNX), defs.get_schema(node.op_type, opset, ONNX)
    lost = [attribute for attribute in node.attribute if attribute.name not in then.attributes]
    if all(_says_nothing(node, attribute, now, values) for attribute in lost):
        return {attribute.name for attribute in lost}
    return None


def _says_nothing(node: NodeProto, attribute: onnx.AttributeProto, schema: defs.OpSchema, values: dict) -> bool:
    if attribute.name == "allowzero":  # torch always sets it
        shape = values[node.input[1]].const_value if node.input[1] in values else None
        return shape is not None and bool(shape.numpy().all())
    if attribute.name not in schema.attributes:
        return False
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
