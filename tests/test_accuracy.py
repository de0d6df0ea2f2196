"""float32 results are at least as close to the exact value as onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnxruntime
import oracle
import pytest
from cases import Case
from onnx import TensorProto, helper
from tensors import call, to_array, to_tensor


def onnxruntime_result(case: Case, x: np.ndarray) -> np.ndarray:
    node = helper.make_node(case.operator, ["X"], ["Y"], **case.attributes)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "XY"]
    graph = helper.make_graph(
        [node], "pool", [helper.make_tensor_value_info("X", TensorProto.FLOAT, x.shape)], value[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
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
    *(Case("LpPool", shape, options | {"p": p}) for shape, options in WINDOWS for p in (1, 2, 3)),
    *(Case("GlobalAveragePool", shape) for shape, _ in PLANES),
    *(Case("GlobalLpPool", shape, {"p": p}) for shape, _ in PLANES for p in (1, 2, 3)),
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
