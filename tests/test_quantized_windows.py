"""QLinearAveragePool, bit for bit: onnxruntime on random data, the oracle at the boundaries."""

from __future__ import annotations

import copy
import inspect
import math
import pickle

import numpy as np
import onnxruntime
import oracle
import pytest
import torch
from cases import LAYOUTS, Case, random_attributes
from onnx import helper
from tensors import arrange, call, to_array, to_tensor
from test_bad_input import BAD_INPUTS, BAD_SCALARS, BAD_VALUES, FLAGS, GOOD, identify, on, suits_another_rank
from test_quantized import TYPES, scalars

import torch_onnxpool
from torch_onnxpool import QLinearAveragePool, qlinear_average_pool, qlinear_global_average_pool

NAMES = ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point")


def run(case: Case, inputs: list[np.ndarray], layout: str = "contiguous", device: str = "cpu") -> np.ndarray:
    """Scales and zero points stay on the CPU."""
    x, *arguments = map(to_tensor, inputs)
    y = call(case, [arrange(x.to(device), layout), *arguments])
    assert y.dtype == x.dtype
    return to_array(y)


def assert_equals_oracle(attributes: dict, x: np.ndarray, arguments: list[np.ndarray], device: str) -> None:
    wanted = oracle.qlinear_average_pool(x, *arguments, **attributes)
    for layout in LAYOUTS:
        y = run(Case("QLinearAveragePool", x.shape, attributes), [x, *arguments], layout, device)
        np.testing.assert_array_equal(y, wanted, layout)


# --- onnxruntime -----------------------------------------------------------------------------------------------------


def run_onnxruntime(cases: list[tuple[Case, list[np.ndarray]]]) -> list[np.ndarray]:
    """Many nodes side by side in one model, which costs little more than one."""
    nodes, values, feeds = [], [], {}
    for i, (case, inputs) in enumerate(cases):
        names = [f"{name}_{i}" for name in NAMES]
        feeds |= zip(names, inputs, strict=True)
        nodes.append(helper.make_node(case.operator, names, [f"Y_{i}"], domain="com.microsoft", **case.attributes))
        values.append(helper.make_tensor_value_info(f"Y_{i}", TYPES[str(inputs[0].dtype)], None))
    elements = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    given = [helper.make_tensor_value_info(name, elements[name], array.shape) for name, array in feeds.items()]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "pools", given, values), opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feeds)


def random_case(dtype: str, channels_last: int, rng: np.random.Generator) -> tuple[Case, list[np.ndarray]]:
    """What onnxruntime computes as well: no pads as large as the kernel, no SAME with a stride above it."""
    while True:
        rank = int(rng.integers(1, 4))
        spatial = tuple(rng.integers(1, [20, 9, 6][rank - 1], rank).tolist())
        attributes = random_attributes("QLinearAveragePool", spatial, rng) | {"channels_last": channels_last}
        kernel = attributes["kernel_shape"]
        if rng.random() < 0.15:
            kernel = attributes["kernel_shape"] = list(spatial)
        if "pads" in attributes:
            attributes["pads"] = [min(pad, k - 1) for pad, k in zip(attributes["pads"], kernel * 2)]
        is_same = attributes.get("auto_pad", "").startswith("SAME")
        if is_same and any(stride > k for stride, k in zip(attributes.get("strides", [1] * rank), kernel)):
            continue
        n, c = rng.integers(1, 4, 2).tolist()
        shape = (n, *spatial, c) if channels_last else (n, c, *spatial)
        try:
            oracle.pool_windows((n, c, *spatial), **{k: v for k, v in attributes.items() if k in WINDOW})
        except ValueError:
            continue
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        levels = rng.integers(low, high + 1, 2)
        x_scale = 2.0 ** rng.uniform(-10, 4)
        y_scale = x_scale * rng.choice([2.0 ** rng.uniform(-4, 4), 1.0, 0.5, 2.0, 0.25])
        zero_points = rng.integers(low, high + 1, 2)
        x = rng.integers(min(levels), max(levels) + 1, shape).astype(dtype)
        return Case("QLinearAveragePool", shape, attributes), [
            x, *scalars(dtype, x_scale, zero_points[0], y_scale, zero_points[1])
        ]  # fmt: skip


WINDOW = ("auto_pad", "ceil_mode", "kernel_shape", "pads", "strides")


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(5))
def test_bit_for_bit_with_onnxruntime(dtype, channels_last, seed, device):
    """20 * 300 random cases."""
    rng = np.random.default_rng(seed)
    cases = [random_case(dtype, channels_last, rng) for _ in range(300)]
    for (case, inputs), theirs in zip(cases, run_onnxruntime(cases), strict=True):
        np.testing.assert_array_equal(run(case, inputs, device=device), theirs, repr(case))


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_the_oracle_is_onnxruntimes(dtype, channels_last):
    rng = np.random.default_rng(0)
    cases = [random_case(dtype, channels_last, rng) for _ in range(150)]
    for (case, inputs), theirs in zip(cases, run_onnxruntime(cases), strict=True):
        np.testing.assert_array_equal(oracle.qlinear_average_pool(*inputs, **case.attributes), theirs, repr(case))


# --- boundaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_halves_go_to_the_even_neighbour_after_the_zero_point(dtype, channels_last, device):
    """Unlike in the global operator, the zero point is added before the rounding."""
    for value in range(100):
        for zero_point in (0, 1):
            x = np.array([value, value + 1, 0], dtype).reshape((1, 3, 1) if channels_last else (1, 1, 3))
            attributes = {"kernel_shape": [2], "channels_last": channels_last}
            arguments = scalars(dtype, 1, 0, 1, zero_point)
            assert_equals_oracle(attributes, x, arguments, device)
            y = run(Case("QLinearAveragePool", x.shape, attributes), [x, *arguments], device=device)
            assert y.flat[0] == round(value + 0.5 + zero_point)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("x_scale", "y_scale"), [(1.0, 1.0), (1e3, 1e-3), (1e-3, 1e3), (-0.5, -0.25), (0.5, -0.25),
                                                  (1e-40, 1e-39)])  # fmt: skip
def test_saturation_at_every_zero_point(dtype, x_scale, y_scale, device):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([low, low, low + 1, 0, 1, high, high, high], dtype).reshape(1, 2, 4)
    for x_zero_point in (low, low + 1, 0, high):
        for y_zero_point in (low, low + 1, 0, high):
            arguments = scalars(dtype, x_scale, x_zero_point, y_scale, y_zero_point)
            assert_equals_oracle({"kernel_shape": [2]}, x, arguments, device)


def test_the_divisor_counts_overhang_too(device):
    """Of windows of 3 taps over five data, the first has one tap in the padding and the last has one beyond the end."""
    x = torch.full((1, 1, 5), 60, dtype=torch.uint8, device=device)
    arguments = [to_tensor(a) for a in scalars("uint8", 1, 0, 1, 0)]
    attributes = {"kernel_shape": [3], "strides": [2], "pads": [1, 0], "ceil_mode": 1}
    assert qlinear_average_pool(x, *arguments, **attributes).tolist() == [[[60, 60, 60]]]
    counted = {"count_include_pad": 1}
    assert qlinear_average_pool(x, *arguments, **attributes, **counted).tolist() == [[[40, 60, 40]]]
    assert torch_onnxpool.average_pool(x.float(), **attributes, **counted).tolist() == [[[40, 60, 60]]]


@pytest.mark.parametrize("dtype", TYPES)
def test_scalars_of_shape_one(dtype, device):
    """As in the global operator; onnxruntime refuses them here, where it knows their shapes."""
    x, plain = np.arange(24).astype(dtype).reshape(1, 2, 3, 4), scalars(dtype, 0.5, 3, 0.25, 5)
    case = Case("QLinearAveragePool", x.shape, {"kernel_shape": [2, 2]})
    of_shape_one = run(case, [x, *(a.reshape(1) for a in plain)], device=device)
    np.testing.assert_array_equal(of_shape_one, run(case, [x, *plain], device=device))


@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_a_window_without_data_is_zero(count_include_pad, device):
    x, arguments = np.full((1, 1, 2), 9, np.int8), scalars("int8", 0.5, 3, 0.25, -7)
    attributes = {"kernel_shape": [1], "pads": [1, 2], "count_include_pad": count_include_pad}
    assert_equals_oracle(attributes, x, arguments, device)
    y = run(Case("QLinearAveragePool", x.shape, attributes), [x, *arguments], device=device)
    assert y.tolist() == [[[-7, 5, 5, -7, -7]]]


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_window_over_the_plane_is_the_global_operator(dtype, count_include_pad, device):
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.integers(0, 128, (2, 3, *rng.integers(1, 8, 2))).astype(dtype)
        arguments = scalars(dtype, rng.uniform(0.01, 3), rng.integers(0, 128), rng.uniform(0.01, 3), 1)
        wanted = qlinear_global_average_pool(to_tensor(x), *map(to_tensor, arguments))
        attributes = {"kernel_shape": list(x.shape[2:]), "count_include_pad": count_include_pad, "strides": [3, 3]}
        y = run(Case("QLinearAveragePool", x.shape, attributes), [x, *arguments], device=device)
        np.testing.assert_array_equal(y, wanted)


def test_a_window_over_the_plane_has_the_limits_of_the_global_operator(device):
    x, arguments = (
        torch.ones(1, 1, 4, dtype=torch.uint8, device=device),
        map(to_tensor, scalars("uint8", 1024.0, 0, 1.0, 0)),
    )
    with pytest.raises(ValueError, match=r"^QLinearAveragePool: .*x_scale.*y_scale.*\[2\^-32, 256\)"):
        qlinear_average_pool(x, *arguments, 4)


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_layer_keeps_what_it_was_given(dtype, channels_last):
    x = to_tensor(np.random.default_rng(0).integers(0, 100, (2, 3, 4, 5)).astype(dtype))
    arguments = [to_tensor(a) for a in scalars(dtype, 0.5, 3, 0.25, 5)]
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1], "channels_last": channels_last}
    wanted = qlinear_average_pool(x, *arguments, **attributes)
    for given in range(16):
        kept = {name: a for bit, (name, a) in enumerate(zip(NAMES[1:], arguments, strict=True)) if given >> bit & 1}
        passed = [a for name, a in zip(NAMES[1:], arguments, strict=True) if name not in kept]
        layer = QLinearAveragePool(**attributes, **kept)
        assert set(layer.state_dict()) == set(kept)
        for twin in (layer, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
            assert torch.equal(twin(x, *passed), wanted)
            assert repr(twin) == repr(layer)
        with pytest.raises(ValueError, match=r"^QLinearAveragePool: the call must give X"):
            layer(x, *passed, arguments[0])


def test_layer_shows_itself_in_onnxs_words():
    layer = QLinearAveragePool([2, 2], 0.5, np.uint8(3), strides=2, channels_last=1)
    assert repr(layer).startswith("QLinearAveragePool(kernel_shape=[2, 2], channels_last=1, strides=2")
    assert "x_scale=0.5" in repr(layer)
    assert "x_zero_point=3" in repr(layer)
    assert layer.onnx_attributes() == {"kernel_shape": [2, 2], "channels_last": 1, "strides": 2}


def test_defaults_of_layer_and_function_are_the_same():
    layer, function = (inspect.signature(f).parameters for f in (QLinearAveragePool, qlinear_average_pool))
    defaults = {name: p.default for name, p in layer.items() if p.kind is p.KEYWORD_ONLY}
    assert defaults == {name: p.default for name, p in function.items() if p.kind is p.KEYWORD_ONLY}
    assert defaults == {
        "auto_pad": "NOTSET", "ceil_mode": 0, "channels_last": 0, "count_include_pad": 0, "pads": None, "strides": None
    }  # fmt: skip


# --- what is refused -------------------------------------------------------------------------------------------------

X = torch.ones(1, 2, 6, 6, dtype=torch.uint8)
BAD_ATTRIBUTES = [
    (name, value)
    for name, values in (BAD_VALUES | {"channels_last": FLAGS, "count_include_pad": FLAGS}).items()
    if name != "dilations"
    for value in values
]


@pytest.mark.parametrize(("name", "value"), BAD_ATTRIBUTES, ids=identify)
def test_bad_attributes(name, value, device):
    attributes = {"kernel_shape": [2, 2]} | {name: value}
    with pytest.raises(ValueError, match=rf"^QLinearAveragePool: .*{name}") as refusal:
        qlinear_average_pool(X.to(device), **GOOD, **attributes)
    assert f"got {name}=" in str(refusal.value)
    if suits_another_rank(name, value):
        return
    with pytest.raises(ValueError, match=rf"^QLinearAveragePool: .*{name}") as refusal:
        QLinearAveragePool(**attributes)
    assert f"got {name}=" in str(refusal.value)


@pytest.mark.parametrize(("name", "value"), BAD_SCALARS, ids=identify)
def test_bad_scalars(name, value, device):
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype == torch.float32 and value.item() < 0:
        pytest.skip("a negative scale is odd, but onnxruntime computes with it")
    with pytest.raises(ValueError, match=f"^QLinearAveragePool: .*{name}"):
        qlinear_average_pool(X.to(device), **on(device, GOOD | {name: value}), kernel_shape=2)


@pytest.mark.parametrize("x", BAD_INPUTS.values(), ids=BAD_INPUTS)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_bad_inputs(x, channels_last, device):
    kernel_shape = [1] * (max(1, x.dim() - 2) if isinstance(x, torch.Tensor) else 1)
    with pytest.raises(ValueError, match=r"^QLinearAveragePool: "):
        qlinear_average_pool(**on(device, {"X": x} | GOOD), kernel_shape=kernel_shape, channels_last=channels_last)


@pytest.mark.parametrize("attributes", [{"kernel_shape": [7, 2]}, {"kernel_shape": [2, 7], "auto_pad": "VALID"},
                                        {"kernel_shape": [8, 8], "strides": [2, 2], "ceil_mode": 1}])  # fmt: skip
def test_windows_that_do_not_fit(attributes, device):
    first = X.to(device)
    for x, channels_last in ((first, 0), (first.movedim(1, -1), 1)):
        with pytest.raises(ValueError, match=r"^QLinearAveragePool: the window must fit .*input of 6"):
            qlinear_average_pool(x, **GOOD, **attributes, channels_last=channels_last)


def test_there_are_no_dilations():
    with pytest.raises(TypeError, match="dilations"):
        torch_onnxpool.QLinearAveragePool(2, dilations=1)


def test_scales_of_nan_are_refused():
    for scale in (math.nan, math.inf, 0.0):
        with pytest.raises(ValueError, match=r"^QLinearAveragePool: .*y_scale"):
            QLinearAveragePool(2, y_scale=scale)
