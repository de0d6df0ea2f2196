"""The oracle itself, against the official ONNX tests of its operators and a few values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import onnx
import oracle
import pytest
from official_cases import official_cases, official_parameters

FOUR_DIGITS = {"test_averagepool_2d_ceil_last_window_starts_on_pad"}  # as many as its expected output has


def run_model(model: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """A model of pooling nodes, and of the Unsqueeze and Squeeze that PyTorch once wrote around 1-D pools."""
    values = dict(zip([i.name for i in model.graph.input], inputs, strict=True))
    for node in model.graph.node:
        arguments = [values[name] for name in node.input]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        results = run_node(node.op_type, arguments, attributes)
        values.update(zip(node.output, results, strict=False))
    return [values[o.name] for o in model.graph.output]


def run_node(operator: str, arguments: list[np.ndarray], attributes: dict) -> tuple[np.ndarray, ...]:
    if operator == "Unsqueeze":
        return (np.expand_dims(*arguments, tuple(attributes["axes"])),)
    if operator == "Squeeze":
        return (np.squeeze(*arguments, tuple(attributes["axes"])),)
    attributes = {name: v.decode() if isinstance(v, bytes) else v for name, v in attributes.items()}
    if operator == "MaxUnpool":
        x, indices, *output_shape = arguments
        arguments, attributes["output_shape"] = [x, indices], output_shape[0].tolist() if output_shape else None
    results = oracle.FORWARD[operator](*arguments, **attributes)
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("case", official_parameters())
def test_official_onnx_tests(case):
    for actual, expected in zip(run_model(case.model, case.inputs), case.outputs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3 if case.name in FOUR_DIGITS else 2e-6, atol=1e-7)


def test_every_official_test_is_there():
    names = {case.name for case in official_cases()}
    assert len(names) >= 67
    assert {"test_maxpool_with_argmax_2d_precomputed_strides", "test_lppool_2d_dilations", "test_AvgPool1d"} <= names


def row(*values, dtype=np.float32):
    return np.array(values, dtype=dtype)[None, None]


@pytest.mark.parametrize(
    ("p", "expected"),
    [(1, 7.0), (2, 5.0), (3, 91 ** (1 / 3)), (1.5, (3**1.5 + 4**1.5) ** (1 / 1.5)), (64, 4.000000000629)],
)
def test_norm_of_three_and_minus_four(p, expected):
    assert oracle.global_lp_pool(row(3, -4), p=p).item() == pytest.approx(expected, rel=1e-12)


def test_norms_neither_overflow_nor_underflow():
    x = row(3e-300, 4e-300, dtype=np.float64)
    assert oracle.global_lp_pool(x, p=2).item() == pytest.approx(5e-300, rel=1e-15, abs=0)
    assert oracle.global_lp_pool(1 / x, p=2).item() == pytest.approx(math.hypot(1 / 3, 1 / 4) * 1e300, rel=1e-15, abs=0)


def test_average_is_exact():
    x = row(1e300, 1.0, -1e300, dtype=np.float64)
    assert oracle.global_average_pool(x).item() == 1 / 3


def test_average_divisors():
    """Three taps, one pad on the left, and with ceil_mode a last window that reaches past the declared padding."""
    x, kernel = row(6, 6, 6, 6, 6), [3]
    pool = {"pads": [1, 0], "strides": [2]}
    np.testing.assert_array_equal(oracle.average_pool(x, kernel, **pool), row(6, 6))
    np.testing.assert_array_equal(oracle.average_pool(x, kernel, **pool, count_include_pad=1), row(4, 6))
    np.testing.assert_array_equal(
        oracle.average_pool(x, kernel, **pool, count_include_pad=1, ceil_mode=1), row(4, 6, 6)
    )


def test_a_window_without_data():
    x = row(1, 2)
    pads = {"pads": [3, 3], "strides": [3]}
    np.testing.assert_array_equal(oracle.average_pool(x, [2], **pads), row(0, 1.5, 0))
    np.testing.assert_array_equal(oracle.lp_pool(x, [2], p=1, **pads), row(0, 3, 0))
    y, indices = oracle.max_pool(x, [2], **pads)
    np.testing.assert_array_equal(y, row(np.finfo(np.float32).min, 2, np.finfo(np.float32).min))
    np.testing.assert_array_equal(indices, row(-1, 1, -1))


def test_indices_in_both_storage_orders():
    x = np.arange(2 * 3 * 4, dtype=np.float32).reshape(1, 2, 3, 4)
    assert oracle.max_pool(x, [3, 4])[1].ravel().tolist() == [11, 23]
    assert oracle.max_pool(x, [2, 4], storage_order=1)[1].ravel().tolist() == [10, 11, 22, 23]


@pytest.mark.parametrize(
    ("n", "attributes", "expected"),
    [
        (5, {"kernel_shape": [2], "strides": [2]}, 2),
        (5, {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}, 3),
        (
            5,
            {"kernel_shape": [1], "strides": [3], "pads": [0, 2], "ceil_mode": 1},
            2,
        ),  # the third starts in the padding
        (7, {"kernel_shape": [9], "strides": [3], "ceil_mode": 1}, 1),
        (5, {"kernel_shape": [3], "strides": [2], "dilations": [2], "auto_pad": "SAME_LOWER"}, 3),
        (5, {"kernel_shape": [2], "strides": [4], "auto_pad": "SAME_UPPER"}, 2),
        (5, {"kernel_shape": [2], "strides": [2], "auto_pad": "VALID", "ceil_mode": 1}, 3),
    ],
)
def test_output_size(n, attributes, expected):
    assert oracle.output_shape((1, 1, n), oracle.pool_windows((1, 1, n), **attributes)) == (1, 1, expected)


@pytest.mark.parametrize(("ceil_mode", "kernel"), [(0, 8), (1, 10)])
def test_a_window_that_does_not_fit(ceil_mode, kernel):
    with pytest.raises(ValueError, match="does not fit"):
        oracle.pool_windows((1, 1, 7), [kernel], strides=[3], ceil_mode=ceil_mode)


@pytest.mark.parametrize("operator", oracle.GRADIENT)
@pytest.mark.parametrize("p", [1, 1.5, 3])
def test_gradients_are_the_derivatives(operator, p):
    rng = np.random.default_rng(0)
    x, step = rng.permutation(24).reshape(1, 2, 3, 4) - 11.5, 2.0**-20
    options = {} if operator.startswith("Global") else {"kernel_shape": [2, 3], "pads": [1, 1, 0, 2], "strides": [2, 1]}
    if "Lp" in operator:
        options["p"] = p

    def forward(x):
        y = oracle.FORWARD[operator](x, **options)
        return y[0] if operator == "MaxPool" else y

    g = rng.standard_normal(forward(x).shape)
    gradient = oracle.GRADIENT[operator](g, x, **options)
    for t in np.ndindex(x.shape):
        bump = np.zeros(x.shape)
        bump[t] = step
        difference = (forward(x + bump) - forward(x - bump)) / (2 * step)
        assert gradient[t] == pytest.approx((g * difference).sum(), abs=1e-8)


def byte(value, dtype=np.uint8):
    return np.array(value, dtype)


@pytest.mark.parametrize(
    ("values", "y_scale", "zero_points", "expected"),
    [
        ([1, 2], 1, (0, 0), 2),  # 1.5 goes to the even 2
        ([2, 3], 1, (0, 0), 2),  # 2.5 goes to the even 2
        ([2, 3], 1, (0, 1), 3),  # the zero point is added after rounding
        ([255, 255], 0.5, (0, 0), 255),
        ([0, 0], 1, (9, 3), 0),
    ],
)
def test_quantised_average(values, y_scale, zero_points, expected):
    x = row(*values, dtype=np.uint8)
    scales = np.float32(1), np.float32(y_scale)
    y = oracle.qlinear_global_average_pool(x, scales[0], byte(zero_points[0]), scales[1], byte(zero_points[1]))
    assert y.item() == expected
