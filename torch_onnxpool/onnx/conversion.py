"""The opset of a model that the dynamo exporter has made: all of it converted, or an error that names a node.

Pooling nodes are hidden meanwhile, as onnx's converter knows too little about them. They need no conversion: they have
been written for the opset asked for. The rest is left to onnx, one opset after the other, but for nodes that it refuses
without need, because only the element types have grown between two versions (Relu, Add and many more).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import onnx
from onnx import NodeProto, defs, helper
from onnxscript import ir

from . import schemas
from .operators import ONNX, OpsetError
from .translation import Hiding

# Larger initializers do not go through onnx's converter: it does not look into them, and a file has at most 2 GB.
_LARGE = 1024

# Older files have all initializers among their inputs.
_LEAST_IR_VERSION = 4

_NEGATIVE_AXES_SINCE = 11

# Whose axes are those of the output, rather than those of the first input.
_AXES_OF_OUTPUT = ("OneHot", "Unsqueeze")

# What takes all axes from its own on for one, below this opset; onnx's converter leaves it as it is.
_FLATTENING = ("Hardmax", "LogSoftmax", "Softmax")
_FLATTENING_UNTIL = 13

# Parameters that older versions of an operator call otherwise.
_FORMERLY = {"input_mean": "mean", "input_var": "var"}


def finish(model: ir.Model, opset: int) -> None:
    """Bring a model with hidden nodes to this opset of ai.onnx, in place, and let its hidden nodes be seen."""
    written = model.graph.opset_imports.get(ONNX, opset)
    model.graph.opset_imports[Hiding.DOMAIN] = 1  # also of a model without pools
    if written != opset and any(node.domain == ONNX for node in _all_nodes(model)):
        _convert(model, written, opset)
    for node in _all_nodes(model):
        if node.domain == Hiding.DOMAIN:
            node.domain = ONNX
    imports = model.graph.opset_imports
    imports.pop(Hiding.DOMAIN, None)
    imports[ONNX] = opset
    if opset < written:  # engines that know no younger opsets know no younger files either
        oldest = helper.find_min_ir_version_for([helper.make_opsetid(*item) for item in imports.items()], True)
        model.ir_version = max(oldest, _LEAST_IR_VERSION)


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
    converted, reached = _proto(model, initializers, large), written
    while reached != opset:
        following = reached + (1 if opset > reached else -1)
        if following < _NEGATIVE_AXES_SINCE <= reached:
            _count_axes_from_the_front(converted.graph, values, opset)
        converted = _convert_by_one(converted, values, reached, following, opset)
        reached = following
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


def _convert_by_one(proto: onnx.ModelProto, values: dict, reached: int, following: int, opset: int) -> onnx.ModelProto:
    """The model in the opset that follows, on its way to another one."""
    hidden: set[str] = set()
    while True:
        try:
            converted = onnx.version_converter.convert_version(proto, following)
            break
        except Exception as error:
            hidden |= _hide_unchanged(proto, str(error), values, reached, following, opset)
    for node in converted.graph.node:
        if node.output[0] in hidden:
            node.domain = ONNX
        elif node.domain == ONNX and all(defs.has(node.op_type, version, ONNX) for version in (reached, following)):
            _drop(node, _lost_attributes(node, values, reached, following) or set())
    return converted


def _hide_unchanged(
    proto: onnx.ModelProto, error: str, values: dict, reached: int, following: int, opset: int
) -> set[str]:
    """After an error of onnx's converter: hide the nodes of the operator it is about, if they may stay as they are.

    Their first outputs. Otherwise raise, naming the first node that may not.
    """
    patterns = (r"No Adapter \w+ Version \$?\d+ for (\w+)", r"No Previous Version of (\w+)", r"(\w+)\W*$")
    found = next(filter(None, (re.search(pattern, error) for pattern in patterns)), None)
    refused = [node for node in proto.graph.node if node.domain == ONNX and found and node.op_type == found[1]]
    if not refused:
        raise OpsetError(f"cannot write opset {opset}: onnx's converter fails: {error}")
    for node in refused:
        dropped = _may_stay(node, values, reached, following)
        if dropped is None:
            raise OpsetError(_refusal(opset, node.name, node.op_type, f"cannot be converted: {error}"))
        _drop(node, dropped)
        node.domain = Hiding.DOMAIN
    return {node.output[0] for node in refused}


def _drop(node: NodeProto, names: set[str]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _count_axes_from_the_front(graph: onnx.GraphProto, values: dict[str, ir.Value], opset: int) -> None:
    """Make negative axes, which older opsets do not know, positive ones. All axes are attributes by now."""
    for node in graph.node:
        for attribute in node.attribute:
            value = helper.get_attribute_value(attribute) if attribute.name in ("axis", "axes") else []
            axes = value if isinstance(value, list) else [value]
            if min(axes, default=0) >= 0:
                continue
            counted = values.get(node.output[0] if node.op_type in _AXES_OF_OUTPUT else node.input[0])
            if counted is None or counted.shape is None:
                why = f"has {attribute.name}={value}, and below opset {_NEGATIVE_AXES_SINCE} there are no negative axes"
                raise OpsetError(_refusal(opset, node.name, node.op_type, f"{why}: the rank must be known"))
            axes = [axis % counted.shape.rank() for axis in axes]
            attribute.CopyFrom(helper.make_attribute(attribute.name, axes if isinstance(value, list) else axes[0]))


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
    fits = _accepts(then.inputs, node.input, values) and _accepts(then.outputs, node.output, values)
    return _lost_attributes(node, values, written, opset) if fits else None


def _has_parameters_of_both(node: NodeProto, now: defs.OpSchema, then: defs.OpSchema) -> bool:
    """Whether the inputs and outputs that a node has are the same in two versions, and it needs no others in either."""

    option = defs.OpSchema.FormalParameterOption

    def of(schema: defs.OpSchema) -> list | None:
        both = ((schema.inputs, node.input), (schema.outputs, node.output))
        for parameters, names in both:
            given = itertools.zip_longest(parameters, names[: len(parameters)])
            if any(parameter.option == option.Single and not name for parameter, name in given):
                return None
        return [
            [(_FORMERLY.get(p.name, p.name), p.option == option.Variadic) for p in parameters[: len(names)]]
            for parameters, names in both
        ]

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
    value = schemas.value_of(attribute)
    return value == schemas.default(schema.attributes[attribute.name], len(value) if isinstance(value, list) else 0)


def _accepts(parameters, names, values: dict[str, ir.Value]) -> bool:
    """Whether the inputs (outputs) of a schema take the types of these values, as far as they are known."""
    given = [values[name].dtype if name in values else None for name in names]
    parameters = [*parameters, *parameters[-1:] * len(given)]  # the last one may be repeated
    return all(type_ is None or f"tensor({type_.name.lower()})" in p.types for p, type_ in zip(parameters, given))
