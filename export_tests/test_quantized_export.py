"""QLinearAveragePool: optional zero points, round trips and refusals."""

from __future__ import annotations

import itertools
import re

import numpy as np
import oracle
import pytest
import torch
from exporting import (
    assert_close,
    attributes_of,
    export,
    export_together,
    make_node,
    one_node_model,
    outputs_of,
    pooling_nodes,
    run_onnxruntime,
    without_defaults,
)
from tensors import to_tensor

from torch_onnxpool.onnx import backend, layer_from_node, ledger

NAMES = ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point")
X = {
    dtype: np.random.default_rng(0).integers(0, 100, (2, 3, 4, 5)).astype(dtype) for dtype in ("uint8", "int8")
}  # fmt: skip


def node_of(*names: str, **attributes):
    attributes = {"kernel_shape": [2, 3], "strides": [2, 1]} | attributes
    return make_node("QLinearAveragePool", 1, names or NAMES, "com.microsoft", **attributes)


def inputs_of(dtype: str) -> dict[str, np.ndarray]:
    values = (X[dtype], np.float32(0.5), np.array(3, dtype), np.float32(0.25), np.array(9, dtype))
    return {name: np.asarray(value) for name, value in zip(NAMES, values, strict=True)}


def given(names, dtype) -> list[np.ndarray]:
    return [inputs_of(dtype)[name] for name in names if name]


# --- zero points that a node leaves out ---

LEFT_OUT = [
    ("X", "x_scale", "", "y_scale", "y_zero_point"),
    ("X", "x_scale", "x_zero_point", "y_scale", ""),
    ("X", "x_scale", "x_zero_point", "y_scale"),
    ("X", "x_scale", "", "y_scale", ""),
    ("X", "x_scale", "", "y_scale"),
]


@pytest.mark.parametrize("dtype", X)
@pytest.mark.parametrize("names", LEFT_OUT, ids=str)
def test_zero_points_left_out_are_zero(names, dtype):
    layer = layer_from_node(node_of(*names), 1)
    arrays = given(names, dtype)
    zeros = {"x_zero_point": np.array(0, dtype), "y_zero_point": np.array(0, dtype)}
    whole = inputs_of(dtype) | {name: zero for name, zero in zeros.items() if name not in names}
    wanted = oracle.qlinear_average_pool(*whole.values(), **attributes_of(node_of()))
    np.testing.assert_array_equal(outputs_of(layer, *map(to_tensor, arrays))[0], wanted)
    np.testing.assert_array_equal(backend.run_node(node_of(*names), arrays)[0], wanted)
    assert repr(layer) == repr(layer_from_node(node_of(), 1))
    assert layer.state_dict() == {}
    for wrong in (arrays[:-1], [*arrays, arrays[-1]]):
        with pytest.raises(ValueError, match=r"^QLinearAveragePool: the call must give X, x_scale"):
            layer(*map(to_tensor, wrong))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("dtype", X)
def test_zero_points_left_out_are_written(exporter, dtype):
    """As initialisers: onnxruntime, which refuses the original, has the layer's numbers."""
    names = ("X", "x_scale", "", "y_scale")
    layer, arrays = layer_from_node(node_of(*names), 1).eval(), given(names, dtype)
    proto = export(layer, tuple(map(to_tensor, arrays)), exporter, 20)
    (node,) = pooling_nodes(proto)
    assert len(node.input) == 5
    assert attributes_of(node) == attributes_of(node_of())
    assert_close(run_onnxruntime(proto, arrays), outputs_of(layer, *map(to_tensor, arrays)))


@pytest.mark.parametrize(
    "names",
    [pytest.param(names, marks=pytest.mark.xfail(strict=True, reason="empty-zero-point")) for names in LEFT_OUT[::3]],
    ids=str,
)
def test_onnxruntime_refuses_a_node_without_x_zero_point(names):
    assert [row.id for row in ledger.rows_for(node_of(*names), 1)] == ["empty-zero-point"]
    node = node_of(*names)
    model = one_node_model(node_of(*filter(None, names)), given(names, "uint8"), 20)
    model.graph.node[0].CopyFrom(node)
    run_onnxruntime(model, given(names, "uint8"))


def test_onnxruntime_takes_a_node_that_ends_before_y_zero_point():
    names = LEFT_OUT[2]
    assert ledger.rows_for(node_of(*names), 1) == ()
    model = one_node_model(node_of(*names), given(names, "uint8"), 20)
    ours = outputs_of(layer_from_node(node_of(*names), 1), *map(to_tensor, given(names, "uint8")))
    assert_close(run_onnxruntime(model, given(names, "uint8")), ours)


# --- round trip ---

CHOICES = {
    "auto_pad": ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"],
    "ceil_mode": [0, 1],
    "channels_last": [0, 1],
    "count_include_pad": [0, 1],
    "strides": [[1, 1], [2, 2]],
}


@pytest.mark.parametrize("opset", [18, 20, 22])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_round_trip(exporter, opset):
    nodes = [node_of(**dict(zip(CHOICES, values))) for values in itertools.product(*CHOICES.values())]
    nodes += [node_of(pads=pads) for pads in ([0, 0, 0, 0], [1, 0, 0, 2])]
    layers = [layer_from_node(node, 1) for node in nodes]
    inputs = [tuple(map(to_tensor, inputs_of("int8").values()))] * len(nodes)
    for node, result in zip(nodes, export_together(layers, inputs, exporter, opset), strict=True):
        assert (result.domain, result.op_type, len(result.input)) == (node.domain, node.op_type, 5)
        assert attributes_of(result) == without_defaults(attributes_of(node))


# --- ledger and refusals ---


@pytest.mark.parametrize(
    ("attributes", "rows"),
    [
        ({"kernel_shape": [2] * 4}, ["rank"]),
        ({"pads": [2, 0, 0, 0]}, ["large-pads"]),
        ({"kernel_shape": [1, 1], "strides": [3, 3], "auto_pad": "SAME_UPPER"}, ["same-negative"]),
        ({"kernel_shape": [2, 2], "ceil_mode": 1, "count_include_pad": 1, "strides": [2, 2]}, []),
    ],
)
def test_rows(attributes, rows):
    for channels_last in (0, 1):
        rank = len(attributes.get("kernel_shape", [2, 3]))
        shape = (1, *[5] * rank, 2) if channels_last else (1, 2, *[5] * rank)
        strides = {"strides": [1] * rank} if rank > 2 else {}
        node = node_of(**attributes | strides, channels_last=channels_last)
        found = ledger.rows_for(node, 1, input_shape=shape, element_type="tensor(uint8)", engine=ledger.ONNXRUNTIME)
        assert [row.id for row in found] == rows


@pytest.mark.parametrize(
    ("node", "rule"),
    [
        (
            node_of("X", "x_scale", "x_zero_point"),
            f"inputs must be {list(NAMES)}, got ['X', 'x_scale', 'x_zero_point']",
        ),
        (node_of("X", "", "x_zero_point", "y_scale"), f"inputs must be {list(NAMES)}"),
        (node_of(*NAMES, "more"), f"inputs must be {list(NAMES)}"),
        (node_of(dilations=[1, 1]), "dilations is no attribute of it in any opset, got dilations=[1, 1]"),
        (node_of(storage_order=0), "storage_order is no attribute of it"),
        (node_of(channels_last=2), "channels_last must be 0 or 1, got channels_last=2"),
        (node_of(ceil_mode=2), "ceil_mode must be 0 or 1, got ceil_mode=2"),
        (node_of(strides=[1]), ""),
        (node_of(pads=[-1, 0, 0, 0]), "pads must be >= 0, got pads=[-1, 0, 0, 0]"),
        (node_of(auto_pad="SAME"), "auto_pad"),
        (make_node("QLinearAveragePool", 1, NAMES, "com.microsoft"), "kernel_shape is required"),
        (make_node("QLinearAveragePool", 1, NAMES, kernel_shape=[2]), "must be one of "),
    ],
)
def test_refused(node, rule):
    with pytest.raises(ValueError, match=f"^QLinearAveragePool: {re.escape(rule)}"):
        layer_from_node(node, 1)


def test_scales_and_zero_points_of_a_layer_are_initialisers():
    layer = layer_from_node(node_of(), 1).eval()
    stored = type(layer)(**layer.onnx_attributes(), x_scale=0.5, x_zero_point=np.uint8(3), y_scale=0.25,
                         y_zero_point=np.uint8(9))  # fmt: skip
    x = torch.from_numpy(X["uint8"])
    proto = export(stored, (x,))
    assert len(proto.graph.initializer) == 4
    assert_close(run_onnxruntime(proto, [X["uint8"]]), outputs_of(stored, x))
