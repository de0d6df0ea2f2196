"""The two geometries, C++ and Python, over tens of thousands of cases: equal to each other and to the rules."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import oracle
import pytest

from torch_onnxpool._geometry import output_sizes, resolve_axes


def cpp_sizes(spatial, kernel_shape, **attributes):
    return [axis.output for axis in resolve_axes("MaxPool", [1, 1, *spatial], kernel_shape, **attributes)]


def sizes_or_error(compute, *arguments, **attributes):
    try:
        return compute(*arguments, **attributes)
    except ValueError:
        return "does not fit"


def oracle_sizes(spatial, kernel_shape, **attributes):
    return [len(axis) for axis in oracle.pool_windows((1, 1, *spatial), kernel_shape, **attributes)]


def assert_equal_everywhere(spatial, attributes, wanted):
    cpp = sizes_or_error(cpp_sizes, spatial, **attributes)
    assert cpp == wanted, f"C++ {cpp} instead of {wanted}: input {spatial}, {attributes}"
    if wanted != "does not fit":  # the Python geometry is asked after validation only
        python = output_sizes(spatial, **attributes)
        assert python == wanted, f"Python {python} instead of {wanted}: input {spatial}, {attributes}"


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_every_small_axis_with_pads(kernel, ceil_mode):
    """43,200 axes in all."""
    for n, dilation, stride, begin, end in itertools.product(
        range(1, 13), (1, 2, 3), (1, 2, 3, 4, 5), range(6), range(6)
    ):
        if kernel == 1 and dilation > 1:
            continue
        attributes = {
            "kernel_shape": [kernel],
            "dilations": [dilation],
            "strides": [stride],
            "pads": [begin, end],
            "ceil_mode": ceil_mode,
        }
        assert_equal_everywhere([n], attributes, sizes_or_error(oracle_sizes, [n], **attributes))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_every_small_axis_with_auto_pad(auto_pad):
    """5,184 axes in all."""
    for n, kernel, dilation, stride, ceil_mode in itertools.product(
        range(1, 13), (1, 2, 3, 5), (1, 2, 3), (1, 2, 3, 4, 5, 14), (0, 1)
    ):
        attributes = {
            "kernel_shape": [kernel],
            "dilations": [dilation],
            "strides": [stride],
            "auto_pad": auto_pad,
            "ceil_mode": ceil_mode,
        }
        assert_equal_everywhere([n], attributes, sizes_or_error(oracle_sizes, [n], **attributes))


def size_in_words(n, kernel, dilation, stride, begin, end, auto_pad, ceil_mode):
    """The rules with exact numbers, for sizes whose taps nobody can list."""
    if auto_pad.startswith("SAME"):
        return math.ceil(Fraction(n, stride))
    span = Fraction(n + begin + end - (kernel - 1) * dilation - 1)
    if span <= -stride or (span < 0 and not ceil_mode):
        return None
    if not ceil_mode:
        return math.floor(span / stride) + 1
    out = math.ceil(span / stride) + 1
    return out - 1 if (out - 1) * stride >= n + begin else out


def log_uniform(rng, limit) -> int:
    return int(min(limit, 2 ** rng.uniform(0, math.log2(limit) + 0.01)))


@pytest.mark.parametrize("seed", range(5))
def test_random_axes_of_any_size(seed):
    """5 * 6,000 axes with attributes up to 2^31 - 1 and sizes up to 2^40: float arithmetic would be off by one."""
    rng, largest = np.random.default_rng(seed), 2**31 - 1
    for _ in range(6000):
        n, kernel, dilation, stride = (log_uniform(rng, limit) for limit in (2**40, largest, largest, largest))
        dilation = 1 if rng.random() < 0.5 else dilation
        auto_pad = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
        begin, end = (log_uniform(rng, largest) if rng.random() < 0.5 else 0 for _ in range(2))
        attributes = {
            "kernel_shape": [kernel],
            "dilations": [dilation],
            "strides": [stride],
            "auto_pad": auto_pad,
            "ceil_mode": int(rng.integers(0, 2)),
        }
        if auto_pad == "NOTSET":
            attributes["pads"] = [begin, end]
        else:
            begin = end = 0
        size = size_in_words(n, kernel, dilation, stride, begin, end, auto_pad, attributes["ceil_mode"])
        assert_equal_everywhere([n], attributes, "does not fit" if size is None else [size])


@pytest.mark.parametrize("seed", range(4))
def test_several_axes(seed):
    """4 * 1,000 inputs: axes do not mix, and begins come before ends in pads."""
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        rank = int(rng.integers(1, 6))
        spatial = rng.integers(1, 10, rank).tolist()
        attributes = {
            "kernel_shape": rng.integers(1, 4, rank).tolist(),
            "strides": rng.integers(1, 4, rank).tolist(),
            "dilations": rng.integers(1, 3, rank).tolist(),
            "pads": rng.integers(0, 4, 2 * rank).tolist(),
            "ceil_mode": int(rng.integers(0, 2)),
        }
        assert_equal_everywhere(spatial, attributes, sizes_or_error(oracle_sizes, spatial, **attributes))


@pytest.mark.parametrize(
    ("auto_pad", "pads"),
    [("SAME_UPPER", [(1, 1), (0, 1), (1, 2), (0, 0)]), ("SAME_LOWER", [(1, 1), (1, 0), (2, 1), (0, 0)])],
)
def test_where_same_puts_its_padding(auto_pad, pads):
    """Effective kernels of 3, 2, 4 and 1; the odd element goes to the end or to the beginning."""
    axes = resolve_axes(
        "MaxPool", [1, 1, 5, 5, 5, 5], [3, 2, 2, 1], auto_pad=auto_pad, dilations=[1, 1, 3, 1], strides=[1, 1, 1, 2]
    )
    assert [(axis.pad_begin, axis.pad_end) for axis in axes] == pads


def test_the_size_that_float32_misses():
    n = 2**24 + 3
    attributes = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    assert_equal_everywhere([n], attributes, [2**23 + 2])


def test_an_output_beyond_any_memory_is_refused():
    with pytest.raises(ValueError, match="MaxPool: the output must be addressable"):
        cpp_sizes([3, 3], [1, 1], pads=[2**31 - 1] * 4)


@pytest.mark.parametrize(("spatial", "kernel_shape"), [([7], [8]), ([7, 7], [2, 9])])
def test_a_window_that_does_not_fit_names_its_axis(spatial, kernel_shape):
    with pytest.raises(ValueError, match=rf"MaxPool: the window must fit .*axis {len(spatial) - 1}.* input of 7"):
        cpp_sizes(spatial, kernel_shape)
