"""The versions that the package claims to know are those of the operators' definitions."""

from __future__ import annotations

import pytest
import torch
from onnx import TensorProto, defs, helper

import torch_onnxpool
from torch_onnxpool.onnx import operators, schemas

VERSIONS = {
    "AveragePool": [1, 7, 10, 11, 19, 22],
    "LpPool": [1, 2, 11, 18, 22],
    "MaxPool": [1, 8, 10, 11, 12, 22],
    "MaxUnpool": [9, 11, 22],
    "GlobalAveragePool": [1, 22],
    "GlobalLpPool": [1, 2, 22],
    "GlobalMaxPool": [1, 22],
}

FIRST_OPSETS = {
    ("AveragePool", "count_include_pad"): 7,
    ("AveragePool", "ceil_mode"): 10,
    ("AveragePool", "dilations"): 19,
    ("LpPool", "ceil_mode"): 18,
    ("LpPool", "dilations"): 18,
    ("MaxPool", "storage_order"): 8,
    ("MaxPool", "ceil_mode"): 10,
    ("MaxPool", "dilations"): 10,
}


@pytest.mark.parametrize("operator", VERSIONS)
def test_versions(operator):
    """A new version in a new onnx is noticed here: its meaning must be read before it is claimed."""
    assert [schema.since_version for schema in schemas.history(operator)] == VERSIONS[operator]
    for opset in range(VERSIONS[operator][0], defs.onnx_opset_version() + 1):
        newest = max(version for version in VERSIONS[operator] if version <= opset)
        assert schemas.at(operator, "", opset).since_version == newest


@pytest.mark.parametrize(("operator", "attribute"), FIRST_OPSETS)
def test_first_opset_of_an_attribute(operator, attribute):
    first = schemas.first_opset(operator, "", lambda schema: attribute in schema.attributes)
    assert first == FIRST_OPSETS[operator, attribute]


@pytest.mark.parametrize(
    ("operator", "type_", "first"),
    [(operator, "bfloat16", 22) for operator in VERSIONS] + [("MaxPool", "int8", 12), ("MaxPool", "uint8", 12)],
)
def test_first_opset_of_a_type(operator, type_, first):
    name = f"tensor({type_})"
    assert schemas.first_opset(operator, "", lambda schema: name in schemas.element_types(schema)) == first


def test_what_no_version_can_say():
    assert schemas.first_opset("AveragePool", "", lambda schema: "storage_order" in schema.attributes) is None


def test_defaults_in_prose():
    attributes = schemas.at("AveragePool", "", 1).attributes
    assert schemas.default(attributes["strides"], 3) == [1, 1, 1]
    assert schemas.default(attributes["pads"], 3) == [0] * 6
    assert schemas.default(attributes["auto_pad"], 3) == "NOTSET"
    assert schemas.default(attributes["kernel_shape"], 3) is None


def test_type_names():
    assert schemas.type_name(torch.float32) == schemas.type_name("float32") == "tensor(float)"
    assert schemas.type_name(torch.bfloat16) == f"tensor({TensorProto.DataType.Name(TensorProto.BFLOAT16).lower()})"
    assert schemas.type_name(torch.float64) == "tensor(double)"
    for number in helper.get_all_tensor_dtypes():
        assert schemas.type_name(number) == f"tensor({TensorProto.DataType.Name(number).lower()})"


def test_every_operator_has_a_layer_an_export_and_a_schema():
    for name, operator in operators.OPERATORS.items():
        overload = getattr(torch.ops.torch_onnxpool, name).default
        newest = schemas.history(operator.op_type, operator.domain)[-1]
        arguments = {argument.name for argument in overload._schema.arguments}
        assert arguments == {*newest.attributes, *(parameter.name for parameter in newest.inputs)}
        assert len(overload._schema.returns) == operator.outputs
        assert hasattr(torch_onnxpool, operator.op_type)
