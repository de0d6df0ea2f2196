"""float32 results are at least as close to the exact value as onnxruntime's, gradients as torch's."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnxruntime
import oracle
import pytest
import torch
import torch.nn.functional as F
from cases import Case
from onnx import TensorProto, helper
from tensors import arrange, call, to_array, to_tensor


def onnxruntime_result(case: Case, x: np.ndarray, opset: int = 21, layouts: bool = True) -> np.ndarray:
    """`layouts`: whether it may rearrange channels for kernels that depend on the processor."""
    node = helper.make_node(case.operator, ["X"], ["Y"], **case.attributes)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "XY"]
    graph = helper.make_graph(
        [node], "pool", [helper.make_tensor_value_info("X", TensorProto.FLOAT, x.shape)], value[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = onnxruntime.SessionOptions()
    if not layouts:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"X": x})[0]


WINDOWS = [
    ((1, 4, 20, 20), {"kernel_shape": [3, 3]}),
    ((2, 3, 24, 24), {"kernel_shape": [7, 7], "strides": [3, 3], "pads": [3, 3, 3, 3]}),
    ((1, 3, 200), {"kernel_shape": [50], "strides": [7]}),
    ((1, 2, 9, 9, 9), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2]}),
]
PLANES = [((2, 8, 14, 14), {}), ((1, 3, 60, 60), {}), ((1, 2, 3001), {}), ((1, 2, 12, 12, 12), {})]

CASES = [
    *(Case("AveragePool", shape, options) for shape, options in WINDOWS),
    *(Case("LpPool", shape, options | {"p": p}) for shape, options in WINDOWS for p in (1, 2, 3, 5)),
    *(Case("GlobalAveragePool", shape) for shape, _ in PLANES),
    *(Case("GlobalLpPool", shape, {"p": p}) for shape, _ in PLANES for p in (1, 2, 3, 5)),
]


@pytest.mark.parametrize("kind", ["normal", "positive", "offset"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.operator}-{c.shape}-p{c.attributes.get('p', '')}")
def test_error_is_not_above_onnxruntimes(case, kind):
    rng = np.random.default_rng(0)
    x = {
        "normal": rng.standard_normal(case.shape),
        "positive": rng.random(case.shape),
        "offset": rng.standard_normal(case.shape) + 100,
    }[kind].astype(np.float32)
    exact = oracle.FORWARD[case.operator](x, **case.attributes)
    ours = np.abs(to_array(call(case, [to_tensor(x)])) - exact)
    theirs = np.abs(onnxruntime_result(case, x) - exact)
    assert ours.max() <= theirs.max()
    assert ours.mean() <= theirs.mean()


@pytest.mark.parametrize("operator", ["LpPool", "GlobalLpPool"])
@pytest.mark.parametrize("p", [1, 1.1, 1.7, 2, 2.5, 3, 4, 7.3, 30])
def test_float32_norms_are_rounded_once(operator, p):
    """Powers, sums and roots are float64, or as good as makes no difference: what remains is half a unit in the last
    place."""
    attributes = {"p": p} | ({"kernel_shape": [3, 3], "strides": [2, 2]} if operator == "LpPool" else {})
    case = Case(operator, (2, 5, 13, 14), attributes)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(case.shape) * 10 ** rng.uniform(-3, 3, (2, 5, 1, 1))).astype(np.float32)
    exact = oracle.FORWARD[operator](x.astype(np.float64), **attributes)
    error = np.abs(to_array(call(case, [to_tensor(x)])) - exact)
    assert (error / np.spacing(exact.astype(np.float32))).max() < 0.51


SAME_ORDER = [
    ((3, 5, 40), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((2, 3, 60), {"kernel_shape": [5]}),
    ((2, 8, 30, 31), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 20, 30, 30), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((2, 20, 30, 30), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((2, 3, 50, 64), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ((1, 7, 14, 14), {"kernel_shape": [7, 5], "strides": [3, 2], "pads": [3, 0, 2, 1]}),
    ((1, 2, 9, 10, 33), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2]}),
    ((1, 20, 6, 7, 8), {"kernel_shape": [2, 3, 2], "pads": [0, 1, 0, 0, 1, 0]}),
]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("shape", "attributes"), SAME_ORDER, ids=str)
def test_small_windows_are_added_in_onnxruntimes_order(shape, attributes, layout):
    """Rows first, then along the row: until opset 18 onnxruntime has the same bits, but for channels in blocks of 8 or
    16, where the processor has vectors of as many."""
    case = Case("AveragePool", shape, attributes)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    ours = to_array(call(case, [arrange(to_tensor(x), layout)]))
    np.testing.assert_array_equal(ours, onnxruntime_result(case, x, opset=18, layouts=False))


GRADIENTS = [
    ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", {"kernel_shape": [31, 31]}),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3]}),
]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("operator", "attributes"), GRADIENTS, ids=str)
def test_error_of_gradients_is_not_above_torchs(operator, attributes, layout):
    """float32 gradients of averages and maxima are added up in float32, as torch does."""
    case = Case(operator, (1, 6, 34, 37), attributes)
    rng = np.random.default_rng(0)
    x = arrange(to_tensor(rng.standard_normal(case.shape).astype(np.float32)), layout).requires_grad_()
    ours = call(case, [x])
    grad = to_tensor(rng.standard_normal(ours.shape).astype(np.float32))
    window = attributes["kernel_shape"], attributes.get("strides", 1), attributes.get("pads", [0])[0]
    peer = F.max_pool2d if operator == "MaxPool" else partial(F.avg_pool2d, count_include_pad=False)
    theirs = peer(x, *window)
    exact = oracle.GRADIENT[operator](to_array(grad), to_array(x.detach()), **attributes)
    errors = [np.abs(to_array(torch.autograd.grad(y, x, grad)[0]) - exact) for y in (ours, theirs)]
    assert errors[0].mean() <= errors[1].mean()
    assert errors[0].max() <= errors[1].max()
