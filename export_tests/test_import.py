"""layer_from_node: the official tests of ONNX, every version's attributes and defaults, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import torch
from exporting import (
    attributes_of,
    make_node,
    one_node_model,
    opset_of,
    outputs_of,
    run_reference,
    without_defaults,
)
from official_cases import OPERATORS, official_cases, official_parameters
from onnx import AttributeProto, TensorProto, helper
from tensors import to_tensor

from torch_onnxpool.onnx import layer_from_node, operators, schemas


@pytest.mark.parametrize("case", official_parameters())
def test_official_test(case):
    graph = case.model.graph
    values = dict(zip([value.name for value in graph.input], case.inputs, strict=True))
    for node in graph.node:
        arrays = [values[name] for name in node.input]
        run = run_layer if node.op_type in OPERATORS else run_other  # two models have a Squeeze around their pool
        values.update(zip(node.output, run(node, arrays, opset_of(case.model)), strict=True))
    for output, expected in zip(graph.output, case.outputs, strict=True):
        result = values[output.name]
        assert result.dtype == expected.dtype
        assert result.shape == expected.shape
        tolerance = 1e-3 if case.name in FOUR_DIGITS else 1e-5
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=1e-7)


# Expected outputs that onnx has typed in with four digits.
FOUR_DIGITS = {"test_averagepool_2d_ceil_last_window_starts_on_pad"}


def run_layer(node, arrays, opset):
    return outputs_of(layer_from_node(node, opset), *map(to_tensor, arrays))


def run_other(node, arrays, opset):
    return run_reference(one_node_model(node, arrays, opset), arrays)


def test_official_tests_are_all_there():
    """Every pooling test that the installed onnx ships, under the names it had in 1.23."""
    names = {case.name for case in official_cases()}
    assert len(names) >= 60
    for name in ("test_averagepool_2d_ceil_last_window_starts_on_pad", "test_AvgPool3d_stride1_pad0_gpu_input"):
        assert name in names
    assert {"test_MaxPool1d_stride_padding_dilation", "test_operator_maxpool", "test_lppool_2d_dilations"} <= names


# --- every version ---

# One value for each attribute that is no default.
VALUES = {
    "auto_pad": "SAME_LOWER",
    "ceil_mode": 1,
    "channels_last": 1,
    "count_include_pad": 1,
    "dilations": [2, 1],
    "kernel_shape": [3, 2],
    "p": 3,
    "pads": [1, 0, 0, 1],
    "storage_order": 1,
    "strides": [2, 3],
}
VERSIONS = [schema for domain, name in sorted(operators.LAYERS) for schema in schemas.history(name, domain)]


def node_of(schema, outputs=1, **attributes):
    if "p" in attributes and schema.attributes["p"].type.name == "FLOAT":
        attributes["p"] = float(attributes["p"])
    inputs = tuple(parameter.name for parameter in schema.inputs)
    return make_node(schema.name, outputs, inputs, schema.domain, **attributes)


def title(schema) -> str:
    return f"{schema.name}-{schema.since_version}"


def required(schema) -> dict:
    return {"kernel_shape": [3, 2]} if "kernel_shape" in schema.attributes else {}


@pytest.mark.parametrize("schema", VERSIONS, ids=title)
def test_attributes_of_every_version(schema):
    for name in schema.attributes:
        attributes = required(schema) | {name: VALUES[name]}
        layer = layer_from_node(node_of(schema, **attributes), schema.since_version)
        assert type(layer).__name__ == schema.name
        assert layer.onnx_attributes() == attributes


@pytest.mark.parametrize("schema", VERSIONS, ids=title)
def test_defaults_of_every_version(schema):
    """A layer's defaults mean what every version's schema says."""
    layer = layer_from_node(node_of(schema, **required(schema)), schema.since_version)
    assert without_defaults(layer.onnx_attributes()) == required(schema)
    for name, attribute in schema.attributes.items():
        if name != "kernel_shape" and attribute.default_value.name:
            assert getattr(layer, name) == schemas.default(attribute, 2)


@pytest.mark.parametrize("schema", VERSIONS, ids=title)
def test_younger_attributes_are_refused(schema):
    newest = schemas.history(schema.name, schema.domain)[-1]
    for name in newest.attributes.keys() - schema.attributes.keys():
        first = schemas.first_opset(schema.name, schema.domain, lambda version, name=name: name in version.attributes)
        for value in (VALUES[name], schemas.default(newest.attributes[name], 2)):  # even the default
            node = node_of(newest, **required(schema), **{name: value})
            rule = f"{schema.name}: {name} can be said from opset {first} on, got {name}={value!r} at opset {first - 1}"
            assert_refused(rule, node, first - 1)


def test_maximum_with_indices():
    layer = layer_from_node(make_node("MaxPool", 2, kernel_shape=[2], storage_order=1), 8)
    assert layer.return_indices
    assert_refused("MaxPool: Indices can be said from opset 8 on", make_node("MaxPool", 2, kernel_shape=[2]), 7)


def test_an_indices_output_without_a_name_is_left_out():
    node = helper.make_node("MaxPool", ["X"], ["Y", ""], kernel_shape=[2])
    assert not layer_from_node(node, 22).return_indices


def test_version_1_takes_a_real_p():
    for operator, attributes in (("LpPool", {"kernel_shape": [2]}), ("GlobalLpPool", {})):
        assert layer_from_node(make_node(operator, p=1.5, **attributes), 1).p == 1.5


def test_quantised_layer_takes_the_inputs_of_its_node():
    (schema,) = schemas.history("QLinearGlobalAveragePool", "com.microsoft")
    layer = layer_from_node(node_of(schema), 1)
    zero_point = torch.tensor(128, dtype=torch.uint8)
    x = torch.full((1, 2, 3, 3), 138, dtype=torch.uint8)
    result = layer(x, torch.tensor(0.5), zero_point, torch.tensor(0.25), zero_point)
    assert result.tolist() == torch.full((1, 2, 1, 1), 148).tolist()


def test_zero_pads_beside_auto_pad_say_the_same_twice():
    for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        node = make_node("AveragePool", kernel_shape=[3, 2], auto_pad=auto_pad, pads=[0, 0, 0, 0])
        assert layer_from_node(node, 22).pads is None


def test_ai_onnx_is_the_default_domain():
    assert layer_from_node(make_node("GlobalMaxPool", domain="ai.onnx"), 22)


# --- refusals ---


def assert_refused(rule: str, node, opset) -> None:
    with pytest.raises(ValueError, match=re.escape(rule)):
        layer_from_node(node, opset)


def typed(name: str, type_: int, **value) -> AttributeProto:
    return AttributeProto(name=name, type=type_, **value)


def pool_with(*attributes: AttributeProto, operator: str = "AveragePool", kernel_shape=(2, 2)):
    node = make_node(operator, **({} if kernel_shape is None else {"kernel_shape": list(kernel_shape)}))
    node.attribute.extend(attributes)
    return node


REFUSED = {
    "an unknown attribute": (
        "AveragePool: kernel is no attribute of it in any opset, got kernel=[2, 2] at opset 22",
        make_node("AveragePool", kernel_shape=[2, 2], kernel=[2, 2]),
    ),
    "another operator's attribute": (
        "MaxPool: count_include_pad is no attribute of it in any opset",
        make_node("MaxPool", kernel_shape=[2, 2], count_include_pad=0),
    ),
    "an attribute of a global operator": (
        "GlobalMaxPool: kernel_shape is no attribute of it",
        make_node("GlobalMaxPool", kernel_shape=[2]),
    ),
    "no kernel_shape": (
        "MaxPool: kernel_shape is required, got attributes ['strides']",
        make_node("MaxPool", strides=[2]),
    ),
    "an attribute twice": (
        "AveragePool: an attribute is written once, got kernel_shape twice",
        pool_with(helper.make_attribute("kernel_shape", [2, 2])),
    ),
    "INT for INTS": (
        "MaxPool: kernel_shape must be INTS in opset 22, got kernel_shape=2 (INT)",
        make_node("MaxPool", kernel_shape=2),
    ),
    "INTS for INT": ("got ceil_mode=[1] (INTS)", make_node("MaxPool", kernel_shape=[2], ceil_mode=[1])),
    "FLOAT for INT": ("p must be INT in opset 22, got p=2.0 (FLOAT)", make_node("GlobalLpPool", p=2.0)),
    "FLOATS for INTS": ("got strides=[1.0] (FLOATS)", make_node("LpPool", kernel_shape=[2], strides=[1.0])),
    "STRING for INT": ("ceil_mode must be INT in opset 22", make_node("MaxPool", kernel_shape=[2], ceil_mode="1")),
    "INT for STRING": ("auto_pad must be STRING in opset 22", make_node("MaxPool", kernel_shape=[2], auto_pad=0)),
    "TENSOR for INTS": (
        "kernel_shape must be INTS in opset 22",
        make_node("MaxPool", kernel_shape=helper.make_tensor("k", TensorProto.INT64, [1], [2])),
    ),
    "no type": ("MaxPool: ceil_mode must be INT", pool_with(typed("ceil_mode", 0, i=1), operator="MaxPool")),
    "a reference": (
        "AveragePool: ceil_mode must be a value, got a reference to 'outer'",
        pool_with(typed("ceil_mode", AttributeProto.INT, ref_attr_name="outer")),
    ),
    "bytes that are no text": (
        r"AveragePool: auto_pad must be UTF-8, got auto_pad=b'\xff'",
        pool_with(typed("auto_pad", AttributeProto.STRING, s=b"\xff")),
    ),
    "an unknown padding": ("AveragePool: auto_pad", pool_with(helper.make_attribute("auto_pad", "SAME"))),
    "pads beside auto_pad": (
        "AveragePool: ",
        make_node("AveragePool", kernel_shape=[2, 2], auto_pad="VALID", pads=[0, 1, 0, 0]),
    ),
    "zero pads of the wrong length beside auto_pad": (
        "AveragePool: ",
        make_node("AveragePool", kernel_shape=[2, 2], auto_pad="VALID", pads=[0, 0]),
    ),
    "negative pads": ("AveragePool: pads", make_node("AveragePool", kernel_shape=[2], pads=[0, -1])),
    "lists of different ranks": ("MaxPool: ", make_node("MaxPool", kernel_shape=[2, 2], strides=[1])),
    "a stride of 0": ("MaxPool: strides", make_node("MaxPool", kernel_shape=[2], strides=[0])),
    "an empty kernel": (
        "MaxPool: kernel_shape",
        pool_with(typed("kernel_shape", AttributeProto.INTS), operator="MaxPool", kernel_shape=None),
    ),
    "a huge kernel": ("MaxPool: kernel_shape", make_node("MaxPool", kernel_shape=[2**62])),
    "a flag of 2": ("AveragePool: ceil_mode", make_node("AveragePool", kernel_shape=[2], ceil_mode=2)),
    "p below 1": ("LpPool: p", make_node("LpPool", kernel_shape=[2], p=0)),
    "no input": ("MaxPool: inputs must be ['X'], got []", make_node("MaxPool", 1, (), kernel_shape=[2])),
    "an input without a name": (
        "MaxPool: inputs must be ['X'], got ['']",
        make_node("MaxPool", 1, ("",), kernel_shape=[2]),
    ),
    "two inputs": ("GlobalMaxPool: inputs must be ['X'], got ['X', 'Z']", make_node("GlobalMaxPool", 1, ("X", "Z"))),
    "no output": ("GlobalMaxPool: outputs must be ['Y'], got []", make_node("GlobalMaxPool", 0)),
    "two outputs": (
        "AveragePool: outputs must be ['Y'], got ['Y', 'Indices']",
        make_node("AveragePool", 2, kernel_shape=[2]),
    ),
    "three outputs": (
        "MaxPool: outputs must be ['Y', 'Indices'], got ['Y', 'I', 'J']",
        helper.make_node("MaxPool", ["X"], ["Y", "I", "J"], kernel_shape=[2]),
    ),
    "only Indices": (
        "MaxPool: outputs must be ['Y', 'Indices'], got ['', 'I']",
        helper.make_node("MaxPool", ["X"], ["", "I"], kernel_shape=[2]),
    ),
    "missing scales": (
        "inputs must be ['X', 'x_scale', 'x_zero_point', 'y_scale', 'y_zero_point'], got ['X']",
        make_node("QLinearGlobalAveragePool", domain="com.microsoft"),
    ),
    "no pooling": ("Conv: must be one of AveragePool, GlobalAveragePool, ", make_node("Conv")),
    "an unknown domain": (
        "AveragePool: must be one of ",
        make_node("AveragePool", domain="org.example", kernel_shape=[2]),
    ),
    "the wrong domain": ("MaxPool: must be one of ", make_node("MaxPool", domain="com.microsoft", kernel_shape=[2])),
    "no domain": ("QLinearGlobalAveragePool: must be one of ", make_node("QLinearGlobalAveragePool")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    assert_refused(*REFUSED[what], 22 if REFUSED[what][1].domain == "" else 1)


@pytest.mark.parametrize(
    ("opset", "rule"),
    [
        (0, "MaxPool: exists from opset 1 on, got opset 0"),
        (-3, "MaxPool: exists from opset 1 on, got opset -3"),
        (onnx.defs.onnx_opset_version() + 1, "MaxPool: opset must be known to the installed onnx"),
        ("22", "layer_from_node: opset_version must be an int, got opset_version='22'"),
        (None, "layer_from_node: opset_version must be an int"),
        (22.0, "layer_from_node: opset_version must be an int"),
        (True, "layer_from_node: opset_version must be an int, got opset_version=True"),
        (np.True_, "layer_from_node: opset_version must be an int"),
    ],
)
def test_refused_opsets(opset, rule):
    assert_refused(rule, make_node("MaxPool", kernel_shape=[2]), opset)


def test_opsets_of_numpy():
    assert layer_from_node(make_node("MaxPool", kernel_shape=[2]), np.int64(22)).kernel_shape == [2]


def test_version_1_needs_a_kernel_shape_too():
    """LpPool-1 calls it optional and says nothing about what a missing one means."""
    assert_refused("LpPool: kernel_shape is required", make_node("LpPool"), 1)


def test_integer_p_in_version_1():
    assert_refused("GlobalLpPool: p must be FLOAT in opset 1, got p=2 (INT)", make_node("GlobalLpPool", p=2), 1)


@pytest.mark.parametrize("node", [None, "MaxPool", helper.make_graph([], "graph", [], [])])
def test_something_that_is_no_node(node):
    assert_refused("layer_from_node: node must be an onnx.NodeProto", node, 22)


def test_attributes_in_the_words_of_the_node():
    node = make_node("AveragePool", kernel_shape=[3, 2], strides=[2, 3], auto_pad="SAME_UPPER")
    assert layer_from_node(node, 19).onnx_attributes() == attributes_of(node)
