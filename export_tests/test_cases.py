"""Every case of the table through every exporter: one node, its attributes, the same numbers in onnxruntime."""

from __future__ import annotations

import itertools

import onnxruntime
import pytest
from cases import CASES, Case
from exporting import (
    EXPORTERS,
    assert_close,
    attributes_of,
    export_together,
    layer_of,
    one_node_model,
    outputs_of,
    run_onnxruntime,
    without_defaults,
)
from tensors import to_tensor

from torch_onnxpool.onnx import ledger

OPSET = 20  # the exporters' default; the newest that has a GlobalLpPool in onnxruntime

SAYABLE = [case for case in CASES if float(case.attributes.get("p", 2)).is_integer()]
GROUPS = {name: list(group) for name, group in itertools.groupby(SAYABLE, key=lambda case: case.operator)}
GROUPS["MaxPool with Indices"] = [case for case in SAYABLE if case.operator == "MaxPool"]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("group", GROUPS)
def test_one_node_and_the_same_numbers(group, exporter, device):
    cases = GROUPS[group]
    more = {"return_indices": True} if group == "MaxPool with Indices" else {}
    layers = [layer_of(case.operator, **case.attributes, **more) for case in cases]
    inputs = [tuple(to_tensor(array, device) for array in arrays_of(case)) for case in cases]
    nodes = export_together(layers, inputs, exporter, OPSET)
    for case, layer, tensors, node in zip(cases, layers, inputs, nodes, strict=True):
        assert_node(case, node, outputs_of(layer, *tensors))


def arrays_of(case: Case):
    return case.inputs("uint8" if case.operator.startswith("QLinear") else "float32")


def assert_node(case, node, ours):
    assert node.op_type == case.operator
    assert attributes_of(node) == without_defaults(case.attributes), case
    assert len(node.output) == len(ours)
    arrays = arrays_of(case)
    opset = OPSET if node.domain == "" else 1
    differs = {"engine": ledger.ONNXRUNTIME, "engine_version": onnxruntime.__version__}
    if not ledger.rows_for(node, opset, values=arrays[0], **differs):
        assert_close(run_onnxruntime(one_node_model(node, arrays, OPSET), arrays), ours)
