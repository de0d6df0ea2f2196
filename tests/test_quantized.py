"""QLinearGlobalAveragePool, bit for bit: the oracle at the boundaries, onnxruntime on random data."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import onnxruntime
import oracle
import pytest
import torch
from cases import LAYOUTS
from onnx import TensorProto, helper
from tensors import arrange, to_array, to_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_onnxpool

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def scalars(dtype: str, x_scale: float, x_zero_point: int, y_scale: float, y_zero_point: int) -> list[np.ndarray]:
    return [
        np.array(x_scale, np.float32),
        np.array(x_zero_point, dtype),
        np.array(y_scale, np.float32),
        np.array(y_zero_point, dtype),
    ]


def ours(x: np.ndarray | torch.Tensor, arguments: list[np.ndarray], channels_last: int = 0, device="cpu") -> np.ndarray:
    """Scales and zero points stay on the CPU."""
    x = x if isinstance(x, torch.Tensor) else to_tensor(x, device)
    y = torch_onnxpool.qlinear_global_average_pool(x, *map(to_tensor, arguments), channels_last=channels_last)
    assert y.dtype == x.dtype
    return to_array(y)


def assert_equals_oracle(x: np.ndarray, arguments: list[np.ndarray], channels_last: int = 0, device="cpu") -> None:
    wanted = oracle.qlinear_global_average_pool(x, *arguments, channels_last=channels_last)
    for layout in LAYOUTS:
        y = ours(arrange(to_tensor(x, device), layout), arguments, channels_last)
        np.testing.assert_array_equal(y, wanted, layout)


@lru_cache
def session(dtype: str, channels_last: int) -> onnxruntime.InferenceSession:
    """One model for every rank, shape, scale and zero point: all of them are inputs."""
    names = ["X", "x_scale", "x_zero_point", "y_scale", "y_zero_point"]
    node = helper.make_node(
        "QLinearGlobalAveragePool", names, ["Y"], domain="com.microsoft", channels_last=channels_last
    )
    byte, shapes = TYPES[dtype], [None, (), (), (), ()]
    types = [byte, TensorProto.FLOAT, byte, TensorProto.FLOAT, byte]
    inputs = [helper.make_tensor_value_info(*input) for input in zip(names, types, shapes, strict=True)]
    graph = helper.make_graph([node], "pool", inputs, [helper.make_tensor_value_info("Y", byte, None)])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # refusals are expected and raise
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_onnxruntime(x: np.ndarray, arguments: list[np.ndarray], channels_last: int = 0) -> np.ndarray:
    model = session(str(x.dtype), channels_last)
    names = [i.name for i in model.get_inputs()]
    return model.run(None, dict(zip(names, [x, *arguments], strict=True)))[0]


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(5))
def test_bit_for_bit_with_onnxruntime(dtype, channels_last, seed, device):
    """20 * 300 random cases."""
    rng = np.random.default_rng(seed)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for _ in range(300):
        rank = int(rng.integers(1, 4))
        shape = rng.integers(1, [4, 9, *[[40, 12, 6][rank - 1]] * rank])
        levels = rng.integers(low, high + 1, 2)
        x = rng.integers(min(levels), max(levels) + 1, shape).astype(dtype)
        x_scale = 2.0 ** rng.uniform(-10, 4)
        arguments = scalars(
            dtype,
            x_scale,
            rng.integers(low, high + 1),
            x_scale * rng.choice([2.0 ** rng.uniform(-4, 4), 1.0, 0.5, 2.0, 0.25]),
            rng.integers(low, high + 1),
        )
        theirs = run_onnxruntime(x, arguments, channels_last)
        np.testing.assert_array_equal(ours(x, arguments, channels_last, device), theirs, f"{shape}, {arguments}")
        np.testing.assert_array_equal(
            oracle.qlinear_global_average_pool(x, *arguments, channels_last=channels_last), theirs
        )


# --- boundaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_halves_go_to_the_even_neighbour(dtype, channels_last, device):
    """Averages n + 1/2 for every n, with odd and even zero points."""
    for value in range(0, 100):
        x = np.array([[[value], [value + 1]]], dtype).reshape(1, 1, 2, 1)
        for zero_point in (0, 1):
            arguments = scalars(dtype, 1, 0, 1, zero_point)
            assert_equals_oracle(x.reshape(1, 2, 1, 1) if channels_last else x, arguments, channels_last, device)
            average = value + 0.5
            even = value if value % 2 == 0 else value + 1
            assert abs(even - average) == 0.5
            y = ours(x.reshape(1, 2, 1, 1) if channels_last else x, arguments, channels_last, device)
            assert y.item() == even + zero_point


# x_scale and y_scale for planes of four elements: the lowest and the largest factor, and some between
LIMITS = [(2.0**-30, 1.0), (1e-35, 1e-35 * 2.0**30), (1023.9999, 1.0), (255.99998, 0.25), (1.0, 1.0), (-0.5, -0.25)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("x_scale", "y_scale"), LIMITS)
def test_saturation_at_every_zero_point(dtype, x_scale, y_scale, device):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([low, low, low + 1, 0, 1, high, high, high], dtype).reshape(1, 2, 4)
    for x_zero_point in (low, low + 1, 0, high):
        for y_zero_point in (low, low + 1, 0, high):
            assert_equals_oracle(x, scalars(dtype, x_scale, x_zero_point, y_scale, y_zero_point), device=device)


REFUSED = [(2.0**-32 * 0.999, 1.0), (1024.0, 1.0), (0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (1.0, -1.0), (1.0, math.inf),
           (math.inf, 1.0), (math.nan, 1.0), (1.0, math.nan), (3e38, 1e-38)]  # fmt: skip


@pytest.mark.parametrize(("x_scale", "y_scale"), REFUSED)
def test_factors_out_of_range_are_refused(x_scale, y_scale, device):
    """Without a NaN, onnxruntime refuses the same ones."""
    x, arguments = np.ones((1, 1, 4), np.uint8), scalars("uint8", x_scale, 0, y_scale, 0)
    with pytest.raises(ValueError, match=r"^QLinearGlobalAveragePool: .*x_scale.*y_scale"):
        ours(x, arguments, device=device)
    if not math.isnan(x_scale + y_scale):
        with pytest.raises(Exception, match="out of computation range"):
            run_onnxruntime(x, arguments)


@pytest.mark.parametrize("dtype", TYPES)
def test_scales_that_float32_rounds(dtype, device):
    """The order of the roundings shows: x_scale / (y_scale * n), each step in float32."""
    rng = np.random.default_rng(7)
    for _ in range(500):
        x = rng.integers(0, 128, (1, 2, int(rng.integers(1, 60)))).astype(dtype)
        assert_equals_oracle(x, scalars(dtype, rng.uniform(0.01, 3), 3, rng.uniform(0.01, 0.1), 1), device=device)


def large(dtype: str, value: int, spatial: tuple[int, ...], device: str) -> torch.Tensor:
    """One element seen many times: a large plane in one byte of memory."""
    return torch.tensor(value, dtype=getattr(torch, dtype), device=device).expand(1, 1, *spatial)


@pytest.mark.parametrize(("value", "zero_point", "n"), [(255, 0, 2**24 - 1), (255, 0, 8421505), (255, 0, 8421504),
                                                        (0, 255, 8421505), (0, 255, 2**24 - 1)])  # fmt: skip
def test_sums_wrap_modulo_2_to_the_32(value, zero_point, n, device):
    """255 * 8,421,505 is the first sum beyond int32."""
    x, arguments = large("uint8", value, (n,), device), scalars("uint8", 0.5, zero_point, 0.5, 128)
    plane = np.broadcast_to(np.uint8(value), (1, 1, n))
    wanted = oracle.qlinear_global_average_pool(plane, *arguments)
    assert ours(x, arguments).item() == wanted.item()
    assert (wanted.item() == 128 + value - zero_point) or abs((value - zero_point) * n) > 127


def test_a_wrapped_sum_equals_onnxruntimes():
    x = np.full((1, 1, 8421505), 255, np.uint8)
    arguments = scalars("uint8", 0.5, 0, 0.5, 128)
    theirs = run_onnxruntime(x, arguments)
    assert ours(x, arguments).item() == theirs.item()


@pytest.mark.parametrize("channels_last", [0, 1])
def test_planes_of_2_to_the_24_elements_are_refused(channels_last, device):
    x = torch.zeros((), dtype=torch.uint8, device=device).expand(1, 1, 2**12, 2**12)
    x = x.movedim(1, -1) if channels_last else x
    arguments = [to_tensor(a) for a in scalars("uint8", 1, 0, 1, 0)]
    with pytest.raises(ValueError, match=r"^QLinearGlobalAveragePool: .*2\^24 elements, got X of shape"):
        torch_onnxpool.qlinear_global_average_pool(x, *arguments, channels_last=channels_last)


@pytest.mark.parametrize("dtype", TYPES)
def test_scalars_of_shape_one(dtype, device):
    x = np.arange(24).astype(dtype).reshape(1, 2, 3, 4)
    plain = scalars(dtype, 0.5, 3, 0.25, 5)
    np.testing.assert_array_equal(ours(x, [a.reshape(1) for a in plain], device=device), ours(x, plain, device=device))


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_layer_keeps_what_it_was_given(dtype, channels_last):
    x = np.random.default_rng(0).integers(0, 100, (2, 3, 4, 5)).astype(dtype)
    arguments = [to_tensor(a) for a in scalars(dtype, 0.5, 3, 0.25, 5)]
    names = ["x_scale", "x_zero_point", "y_scale", "y_zero_point"]
    wanted = torch_onnxpool.qlinear_global_average_pool(to_tensor(x), *arguments, channels_last=channels_last)
    for given in range(16):
        kept = {name: a for bit, (name, a) in enumerate(zip(names, arguments, strict=True)) if given >> bit & 1}
        passed = [a for name, a in zip(names, arguments, strict=True) if name not in kept]
        layer = torch_onnxpool.QLinearGlobalAveragePool(**kept, channels_last=channels_last)
        assert set(layer.state_dict()) == set(kept) == {name for name, _ in layer.named_buffers()}
        assert torch.equal(layer(to_tensor(x), *passed), wanted)
        for wrong in (arguments[: len(passed) + 1], passed[:-1]):
            if len(wrong) != len(passed):
                with pytest.raises((ValueError, TypeError), match=r"QLinearGlobalAveragePool|forward"):
                    layer(to_tensor(x), *wrong)


def test_buffers_are_loaded_and_moved():
    one = torch_onnxpool.QLinearGlobalAveragePool(0.5, torch.tensor(3, dtype=torch.uint8), 0.25, np.uint8(5))
    assert [b.dtype for _, b in one.named_buffers()] == [torch.float32, torch.uint8, torch.float32, torch.uint8]
    assert all(b.shape == () for _, b in one.named_buffers())
    other = torch_onnxpool.QLinearGlobalAveragePool(1.0, np.uint8(0), 1.0, np.uint8(0))
    other.load_state_dict(one.state_dict())
    x = torch.randint(0, 255, (1, 2, 3, 4), dtype=torch.uint8)
    assert torch.equal(one(x), other(x))


def test_numbers_are_scales():
    layer = torch_onnxpool.QLinearGlobalAveragePool(2, np.uint8(3), np.float64(0.5), np.uint8(5))
    assert (layer.x_scale.item(), layer.y_scale.item()) == (2, 0.5)
    assert layer.x_scale.dtype == layer.y_scale.dtype == torch.float32


def test_scales_and_zero_points_keep_their_types():
    """Whatever a model is converted to, with or without values."""
    layer = torch_onnxpool.QLinearGlobalAveragePool(0.1, np.uint8(3), 0.3, np.uint8(5))
    x = torch.randint(0, 255, (1, 2, 3, 4), dtype=torch.uint8)
    wanted = layer(x)
    half, double = torch.nn.Module.half, torch.nn.Module.double
    for convert in (half, double, lambda m: m.to(torch.bfloat16), lambda m: m.type(torch.float16)):
        assert torch.equal(convert(torch.nn.Sequential(layer))(x), wanted)
        assert layer.x_scale.dtype == layer.y_scale.dtype == torch.float32


def test_layers_without_data():
    with torch.device("meta"):
        layer = torch_onnxpool.QLinearGlobalAveragePool(0.5, np.uint8(3), 0.25, np.uint8(5))
    assert "x_scale=?" in repr(layer)
    full = torch_onnxpool.QLinearGlobalAveragePool(0.5, np.uint8(3), 0.25, np.uint8(5))
    layer = layer.to_empty(device="cpu")
    layer.load_state_dict(full.state_dict())
    assert repr(layer) == repr(full)
    fake = FakeTensorMode()
    for name in ("x_scale", "x_zero_point"):
        setattr(full, name, fake.from_tensor(getattr(full, name)))
    assert "x_scale=?, x_zero_point=?, y_scale=0.25" in repr(full)
    assert "y_zero_point=?" in repr(full.to("meta"))


def test_zero_points_of_two_types_are_refused():
    with pytest.raises(ValueError, match=r"^QLinearGlobalAveragePool: zero points .* got .*uint8 .*int8"):
        torch_onnxpool.QLinearGlobalAveragePool(0.5, np.uint8(3), 0.25, np.int8(5))


def test_a_zero_point_that_has_no_type_is_refused_with_one_that_has():
    text = r"x_zero_point must be .*such as torch\.tensor\(128, dtype=torch\.uint8\), got x_zero_point=128$"
    with pytest.raises(ValueError, match=text):
        torch_onnxpool.QLinearGlobalAveragePool(0.5, 128, 0.25, np.uint8(5))


def test_zero_points_of_another_type_are_not_loaded():
    """-3 would become 253."""
    layer = torch_onnxpool.QLinearGlobalAveragePool(0.5, np.uint8(3), 0.25, np.uint8(5))
    state = {**layer.state_dict(), "x_zero_point": torch.tensor(-3, dtype=torch.int8)}
    with pytest.raises(RuntimeError, match=r"x_zero_point must be of type torch.uint8, got torch.int8"):
        layer.load_state_dict(state)
