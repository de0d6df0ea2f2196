"""Facts about the operators' versions, read from `onnx.defs`.

Versions, attributes, types and defaults of the `ai.onnx` domain are never retyped here. The schemas of `com.microsoft`,
which onnx does not know, are declared as the same `OpSchema` objects, so that one code path serves both domains.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from onnx import AttributeProto, TensorProto, defs, helper
from onnx.defs import OpSchema

from .operators import MICROSOFT, MICROSOFT_VERSION, ONNX

Value = int | float | str | list[int]

# Defaults that onnx.defs gives in prose only, and in the oldest versions not at all (their meaning never changed):
# the value, and how many of it there are for each spatial axis.
_DEFAULTS_IN_PROSE = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 2)}

_RENAMED_TYPES = {"float32": "float", "float64": "double"}


def _quantized(
    op_type: str, attributes: list[OpSchema.Attribute], zero_points: OpSchema.FormalParameterOption
) -> OpSchema:
    return OpSchema(
        op_type,
        MICROSOFT,
        MICROSOFT_VERSION,
        inputs=[
            OpSchema.FormalParameter("X", "T"),
            OpSchema.FormalParameter("x_scale", "tensor(float)"),
            OpSchema.FormalParameter("x_zero_point", "T", param_option=zero_points),
            OpSchema.FormalParameter("y_scale", "tensor(float)"),
            OpSchema.FormalParameter("y_zero_point", "T", param_option=zero_points),
        ],
        outputs=[OpSchema.FormalParameter("Y", "T")],
        type_constraints=[("T", ["tensor(int8)", "tensor(uint8)"], "")],
        attributes=attributes,
    )


def _flag(name: str) -> OpSchema.Attribute:
    return OpSchema.Attribute(name, helper.make_attribute(name, 0))


# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
_MICROSOFT_SCHEMAS = (
    _quantized(
        "QLinearAveragePool",
        [
            OpSchema.Attribute("auto_pad", helper.make_attribute("auto_pad", "NOTSET")),
            _flag("ceil_mode"),
            _flag("channels_last"),
            _flag("count_include_pad"),
            OpSchema.Attribute("kernel_shape", OpSchema.AttrType.INTS, required=True),
            OpSchema.Attribute("pads", OpSchema.AttrType.INTS, required=False),
            OpSchema.Attribute("strides", OpSchema.AttrType.INTS, required=False),
        ],
        zero_points=OpSchema.FormalParameterOption.Optional,
    ),
    _quantized("QLinearGlobalAveragePool", [_flag("channels_last")], zero_points=OpSchema.FormalParameterOption.Single),
)


@cache
def history(op_type: str, domain: str = ONNX) -> tuple[OpSchema, ...]:
    """Every version of an operator, the oldest first; empty for an operator that the domain does not have."""
    known = (*defs.get_all_schemas_with_history(), *_MICROSOFT_SCHEMAS)
    versions = (schema for schema in known if (schema.name, schema.domain) == (op_type, domain))
    return tuple(sorted(versions, key=lambda schema: schema.since_version))


def at(op_type: str, domain: str, opset: int) -> OpSchema:
    """The version of an operator in this opset of its domain: the newest one that is not younger.

    ValueError for an operator that the domain does not have, or not yet, and for an opset that this onnx does not know.
    """
    versions = history(op_type, domain)
    if not versions:
        raise ValueError(f"{op_type}: unknown operator, got domain={domain or 'ai.onnx'!r}")
    newest = defs.onnx_opset_version()
    if domain == ONNX and opset > newest:
        raise ValueError(f"{op_type}: opset must be known to the installed onnx, up to {newest}, got opset {opset}")
    if opset < versions[0].since_version:
        raise ValueError(f"{op_type}: exists from opset {versions[0].since_version} on, got opset {opset}")
    return [schema for schema in versions if schema.since_version <= opset][-1]


def is_same(op_type: str, domain: str, opset: int, other: int) -> bool:
    """Whether two opsets of a domain have the same version of an operator."""
    try:
        versions = {at(op_type, domain, version).since_version for version in (opset, other)}
    except ValueError:  # an operator that onnx does not know
        versions = {opset, other}
    return len(versions) == 1


def first_opset(op_type: str, domain: str, can_say: Callable[[OpSchema], bool]) -> int | None:
    """The oldest version that can say something: for LpPool, `lambda s: "ceil_mode" in s.attributes` gives 18."""
    return next((schema.since_version for schema in history(op_type, domain) if can_say(schema)), None)


def default(attribute: OpSchema.Attribute, spatial_rank: int) -> Value | None:
    """What leaving the attribute out means, for a kernel with this number of axes; None if it must not be left out."""
    if attribute.default_value.name:
        return value_of(attribute.default_value)
    if attribute.name in _DEFAULTS_IN_PROSE:
        value, elements = _DEFAULTS_IN_PROSE[attribute.name]
        return [value] * (elements * spatial_rank)
    return None


def value_of(attribute: AttributeProto) -> Value:
    """The value of an attribute as plain Python; ValueError if a STRING is not UTF-8."""
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def type_name(dtype: object) -> str:
    """A torch, numpy or onnx element type in the way schemas (and onnxruntime) write it: "tensor(float16)".

    Those of onnx are numbers, of `TensorProto.DataType`.
    """
    name = TensorProto.DataType.Name(dtype) if isinstance(dtype, int) else str(dtype).removeprefix("torch.")
    return f"tensor({_RENAMED_TYPES.get(name.lower(), name.lower())})"


def element_types(schema: OpSchema) -> tuple[str, ...]:
    """The types that X may have, in the way ONNX writes them: "tensor(float16)"."""
    return tuple(sorted(schema.inputs[0].types))
