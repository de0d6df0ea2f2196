"""One pooling node, and the two ways to get it: from a NodeProto and from a call of one of our operators.

Importer, both exporters and the ledger all see a `PoolNode`, and all texts about what an opset can say are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import AttributeProto, NodeProto
from onnx.defs import OpSchema

from . import schemas
from .operators import LAYERS, MICROSOFT_VERSION, ONNX, OPERATORS, canonical_domain
from .schemas import Value

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class PoolNode:
    """A pooling node of a model: all of it but the names of its tensors."""

    op_type: str
    domain: str
    opset: int  # of its own domain
    attributes: Mapping[str, Value]  # those that are written; the others have their defaults
    inputs: tuple[str, ...] = ("X",)  # the schema's names of those that are given
    outputs: tuple[str, ...] = ("Y",)

    @property
    def schema(self) -> OpSchema:
        return schemas.at(self.op_type, self.domain, self.opset)

    @property
    def version(self) -> int:
        return self.schema.since_version

    @property
    def spatial_rank(self) -> int | None:
        """The number of axes of the kernel; None for operators without one, which pool over whatever they get."""
        kernel_shape = self.attributes.get("kernel_shape")
        return None if kernel_shape is None else len(kernel_shape)

    @property
    def has_idle_pads(self) -> bool:
        """Whether pads are written beside another auto_pad, but all zero."""
        pads = self.attributes.get("pads")
        return pads is not None and self.value("auto_pad") != "NOTSET" and pads == [0] * (2 * self.spatial_rank)

    def value(self, name: str) -> Value | None:
        """An attribute as the operator sees it: its default where it is not written, None where it does not exist."""
        if name in self.attributes:
            return self.attributes[name]
        attribute = schemas.history(self.op_type, self.domain)[-1].attributes.get(name)
        return attribute and schemas.default(attribute, self.spatial_rank or 0)


def parse(proto: NodeProto, opset: int) -> PoolNode:
    """Read a node of a model by the schema of its version. ValueError names operator, rule and value."""
    domain = canonical_domain(proto.domain)
    op_type = proto.op_type
    if (domain, op_type) not in LAYERS:
        known = ", ".join(sorted(name for _, name in LAYERS))
        raise ValueError(f"{op_type}: must be one of {known}, got domain={domain or 'ai.onnx'!r}")
    schema = schemas.at(op_type, domain, opset)
    attributes: dict[str, Value] = {}
    for attribute in proto.attribute:
        name = attribute.name
        if name in attributes:
            raise ValueError(f"{op_type}: an attribute is written once, got {name} twice")
        attributes[name] = _parse_attribute(attribute, schema, opset)
    for name, attribute in schema.attributes.items():
        # LpPool-1 calls its kernel optional, and then says nothing about what a missing one means.
        if (attribute.required or name == "kernel_shape") and name not in attributes:
            raise ValueError(f"{op_type}: {name} is required, got attributes {sorted(attributes)}")
    _check_outputs(schema, len(proto.output), opset)
    inputs = _given(op_type, "inputs", schema.inputs, proto.input)
    outputs = _given(op_type, "outputs", schema.outputs, proto.output)
    return PoolNode(op_type, domain, opset, attributes, inputs, outputs)


def compose(operator: str, arguments: Mapping[str, object], opset: int, element_type: str | None = None) -> PoolNode:
    """The node for a call of `torch.ops.torch_onnxpool.<operator>` in a model of this `ai.onnx` opset.

    Attributes are written where they differ from the schema's default, and where they are required. ValueError for what
    the opset cannot say, naming operator, attribute and the first opset that can. `element_type` is that of X, as in
    "tensor(float16)", if it is known.
    """
    op_type, domain, outputs = OPERATORS[operator]
    opset = opset if domain == ONNX else MICROSOFT_VERSION
    schema = schemas.at(op_type, domain, opset)
    if element_type is not None and element_type not in schema.inputs[0].types:
        first = schemas.first_opset(op_type, domain, lambda version: element_type in version.inputs[0].types)
        since = "can be said in no opset" if first is None else f"can be said from opset {first} on"
        raise ValueError(f"{op_type}: X of type {element_type} {since}, got opset {opset}")
    _check_outputs(schema, outputs, opset)
    spatial_rank = len(arguments.get("kernel_shape", ()))
    attributes: dict[str, Value] = {}
    for name, newest in schemas.history(op_type, domain)[-1].attributes.items():
        given = arguments[name]
        if given is None or (not newest.required and given == schemas.default(newest, spatial_rank)):
            continue
        if name not in schema.attributes:
            _refuse_attribute(schema, name, given, opset)
        attributes[name] = _compose_attribute(schema, schema.attributes[name], given, opset)
    inputs = tuple(parameter.name for parameter in schema.inputs if arguments.get(parameter.name) is not None)
    return PoolNode(op_type, domain, opset, attributes, inputs, _names(schema.outputs[:outputs]))


def _parse_attribute(attribute: AttributeProto, schema: OpSchema, opset: int) -> Value:
    name = attribute.name
    if attribute.ref_attr_name:
        raise ValueError(f"{schema.name}: {name} must be a value, got a reference to {attribute.ref_attr_name!r}")
    try:
        value = schemas.value_of(attribute)
    except UnicodeDecodeError:
        raise ValueError(f"{schema.name}: {name} must be UTF-8, got {name}={attribute.s!r}") from None
    if name not in schema.attributes:
        _refuse_attribute(schema, name, value, opset)
    expected = schema.attributes[name].type.name
    given = AttributeProto.AttributeType.Name(attribute.type)
    if given != expected:
        raise ValueError(f"{schema.name}: {name} must be {expected} in opset {opset}, got {name}={value!r} ({given})")
    return value


def _compose_attribute(schema: OpSchema, attribute: OpSchema.Attribute, value, opset: int) -> Value:
    match attribute.type.name:
        case "INTS":
            return [int(element) for element in value]
        case "FLOAT":
            return float(value)
        case "STRING":
            return str(value)
    # Only p is an INT that our operators take as a real number.
    if not float(value).is_integer() or int(value) not in _INT64:
        first = schemas.first_opset(schema.name, schema.domain, lambda version: _type(version, attribute.name) == "INT")
        rule = f"{attribute.name} must be an integer of 64 bits from opset {first} on"
        raise ValueError(f"{schema.name}: {rule}, got {attribute.name}={value} at opset {opset}")
    return int(value)


def _type(schema: OpSchema, name: str) -> str | None:
    return schema.attributes[name].type.name if name in schema.attributes else None


def _refuse_attribute(schema: OpSchema, name: str, value: object, opset: int) -> None:
    first = schemas.first_opset(schema.name, schema.domain, lambda version: name in version.attributes)
    rule = "is no attribute of it in any opset" if first is None else f"can be said from opset {first} on"
    raise ValueError(f"{schema.name}: {name} {rule}, got {name}={value!r} at opset {opset}")


def _check_outputs(schema: OpSchema, outputs: int, opset: int) -> None:
    """Refuse an output that only younger versions have."""
    newest = schemas.history(schema.name, schema.domain)[-1]
    if schema.max_output < outputs <= newest.max_output:
        first = schemas.first_opset(schema.name, schema.domain, lambda version: outputs <= version.max_output)
        name = newest.outputs[schema.max_output].name
        rule = f"{name} can be said from opset {first} on"
        raise ValueError(f"{schema.name}: {rule}, got {outputs} outputs at opset {opset}")


def _given(op_type: str, what: str, parameters, names) -> tuple[str, ...]:
    """The schema's names of the inputs (outputs) that a node has; an empty name stands for an optional one left out."""
    given = tuple(parameter.name for parameter, name in zip(parameters, names) if name)
    required = {p.name for p in parameters if p.option != OpSchema.FormalParameterOption.Optional}
    if len(names) > len(parameters) or not required.issubset(given):
        raise ValueError(f"{op_type}: {what} must be {list(_names(parameters))}, got {list(names)}")
    return given


def _names(parameters) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in parameters)
