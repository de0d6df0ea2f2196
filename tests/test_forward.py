"""Every case of the table, in every element type and layout, against the oracle."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import oracle
import pytest
import torch
from cases import CASES, FLOATS, GLOBAL, LAYOUTS, WINDOWED, Case, cases, numpy_type
from tensors import (
    allowed_ulps,
    arrange,
    assert_value,
    call,
    expected,
    is_channels_last,
    rounded,
    to_array,
    to_tensor,
    ulps,
)

import torch_onnxpool

NAN, INF = math.nan, math.inf
CASES_AND_TYPES = [pytest.param(case, dtype, id=f"{case}-{dtype}") for case in CASES for dtype in case.dtypes]


@pytest.mark.parametrize(("case", "dtype"), CASES_AND_TYPES)
def test_values_and_layouts(case, dtype, device):
    exact, *_ = expected(case, dtype)
    x, *scalars = (to_tensor(a, device) for a in case.inputs(dtype))
    for layout in LAYOUTS:
        arranged = arrange(x, layout)
        y = call(case, [arranged, *scalars])
        assert y.dtype == x.dtype
        assert y.device == x.device
        assert_value(case, dtype, y, exact, layout)
        assert_layout_follows(y, arranged)
        assert torch.equal(arranged.nan_to_num(), x.nan_to_num()), "the input was written to"


def assert_layout_follows(y: torch.Tensor, x: torch.Tensor) -> None:
    """A channels_last input gives a channels_last output, every other input a contiguous one."""
    dense = y.movedim(1, -1) if is_channels_last(x) else y
    assert dense.is_contiguous(), f"strides {y.stride()} from {x.stride()}"


@pytest.mark.parametrize(("case", "dtype"), [p for p in CASES_AND_TYPES if p.values[0].operator == "MaxPool"])
def test_indices(case, dtype, device):
    exact, exact_indices = expected(case, dtype)
    x = to_tensor(case.inputs(dtype)[0], device)
    for layout in LAYOUTS:
        arranged = arrange(x, layout)
        y, indices = call(case, [arranged], return_indices=True)
        assert y.dtype == x.dtype
        assert indices.dtype == torch.int64
        assert_value(case, dtype, y, exact, layout)
        np.testing.assert_array_equal(to_array(indices), exact_indices, err_msg=layout)
        assert_layout_follows(y, arranged)
        assert_layout_follows(indices, arranged)


@pytest.mark.parametrize(
    ("operator", "dtype"),
    [
        *(("AveragePool", dtype) for dtype in ("float16", "bfloat16")),
        *(
            (operator, dtype)
            for operator in ("LpPool", "GlobalAveragePool", "GlobalLpPool")
            for dtype in ("float16", "bfloat16", "float32")
        ),
    ],
)
def test_results_are_nearly_always_correctly_rounded(operator, dtype, device):
    """One ulp is the bound; the exact value rounded once is the rule. (AveragePool adds float32 in float32, as
    onnxruntime does: see test_accuracy.py.)"""
    right = total = 0
    for case in cases(operator):
        exact, *_ = expected(case, dtype)
        y = call(case, [to_tensor(case.inputs(dtype)[0], device)])
        right += int((ulps(y, rounded(exact, y.dtype)) == 0).sum())
        total += exact.size
    assert right >= (0.999 if dtype == "float32" else 0.98) * total


# --- layouts that the table does not have ----------------------------------------------------------------------------


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_expanded_input(operator, axis, device):
    x = torch.randn(2, 3, 4, 5, device=device).narrow(axis, 0, 1).expand(*(2, 3, 4, 5))
    case = Case(operator, tuple(x.shape), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    assert x.stride()[axis] == 0
    assert torch.equal(call(case, [x]), call(case, [x.contiguous()]))


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_input_with_an_offset(operator, device):
    storage = torch.randn(2, 5, 6, 7, device=device)
    x = storage[1:, 2:, 3:, 1:6]
    case = Case(operator, tuple(x.shape), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    assert torch.equal(call(case, [x]), call(case, [x.contiguous()]))


def test_torch_channels_last(device):
    """torch.channels_last is recognised by its strides, with one channel and with planes of one element as well."""
    for shape in [(2, 3, 4, 5), (1, 8, 2, 2), (2, 1, 4, 4), (2, 4, 1, 1)]:
        x = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
        y = torch_onnxpool.max_pool(x, 1)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(y, x)
    x = torch.randn(2, 3, 4, 5, 6, device=device).contiguous(memory_format=torch.channels_last_3d)
    assert torch_onnxpool.average_pool(x, 2).is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_only_elements_far_apart_are_copied(operator, layout):
    """Where rows or channels are next to each other, the only memory that a call allocates is its result's."""
    x = arrange(torch.randn(2, 16, 20, 21), layout)
    case = Case(operator, tuple(x.shape), {"kernel_shape": [3, 2]} if operator in WINDOWED else {})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        y = call(case, [x])
    copies = [event for event in profile.events() if event.name == "aten::copy_"]
    if layout in ("transposed", "sliced"):
        assert len(copies) == 1
    else:
        assert not copies
        allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
        assert allocated == y.numel() * y.element_size()


# --- the range of norms ----------------------------------------------------------------------------------------------

# element type, data, p, true value
NORMS_AT_THE_LIMITS = [
    ("float32", [1e20, 1e20], 2, math.sqrt(2) * 1e20),
    ("float32", [1e-30, 1e-30], 2, math.sqrt(2) * 1e-30),
    ("float32", [3e38, 1e38], 3, 3e38 * (1 + 1 / 27) ** (1 / 3)),
    ("float32", [4.0, 4.0], 64, 4 * 2 ** (1 / 64)),
    ("float32", [1e-45, 0.0], 2, 1.401298464324817e-45),
    ("float32", [1e-45, 0.0], 7.5, 1.401298464324817e-45),
    ("float32", [1e-10, 1e10], 1.5, 1e10),
    ("float32", [3e38, 3e38], 2, math.inf),
    ("float64", [1e200, 1e200], 2, math.sqrt(2) * 1e200),
    ("float64", [1e-200, 1e-200], 2, math.sqrt(2) * 1e-200),
    ("float64", [1e-200, 1e-200], 3, 2 ** (1 / 3) * 1e-200),
    ("float64", [5e-324, 0.0], 2, 5e-324),
    ("float64", [5e-324, 5e-324], 1, 1e-323),
    ("float64", [1.5e308, 1e300], 2, 1.5e308),
    ("float64", [4.0, 4.0], 1000, 4 * 2 ** (1 / 1000)),
    ("float64", [1.7e308, 1.7e308], 1, math.inf),
    ("float16", [300.0, 400.0], 2, 500.0),
    ("float16", [60000.0, 20000.0], 2, math.hypot(60000, 20000)),
    ("float16", [60000.0, 60000.0], 1, math.inf),
    ("float16", [6e-8, 0.0], 3, 2.0**-24),
    ("bfloat16", [1e30, 1e30], 4, 2**0.25 * 1e30),
    ("bfloat16", [1e-38, 1e-38], 2, math.sqrt(2) * 1e-38),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "data", "p", "value"), NORMS_AT_THE_LIMITS)
def test_norms_are_true_wherever_they_are_representable(dtype, data, p, value, device):
    x = torch.tensor([[data]], dtype=torch.float64).to(getattr(torch, dtype)).to(device)
    relative = {"float64": 1e-15, "float32": 1e-7, "float16": 1e-3, "bfloat16": 2e-2}[dtype]
    for y in (torch_onnxpool.global_lp_pool(x, p=p), torch_onnxpool.lp_pool(x, [2], p=p)):
        assert y.double().item() == pytest.approx(value, rel=relative, abs=0)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 64])
@pytest.mark.parametrize("exponent", [-37, -30, -10, 0, 10, 30, 37])
def test_norms_scale_with_their_data(p, exponent, device):
    """float32 over all magnitudes, in windows of mixed magnitudes as well."""
    rng = np.random.default_rng(exponent + 40)
    x = (rng.standard_normal((1, 2, 6, 6)) * 10.0 ** (exponent - rng.integers(0, 4, (1, 2, 6, 6)))).astype(np.float32)
    case = Case("LpPool", x.shape, {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "p": p})
    exact = oracle.lp_pool(x, **case.attributes)
    y = call(case, [to_tensor(x, device)])
    assert int(ulps(y, rounded(exact, y.dtype)).max()) <= 1


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 4, 64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_at_every_magnitude(dtype, p, device):
    """Three elements of about every power of two that the type has, subnormal numbers included."""
    info = ml_dtypes.finfo(numpy_type(dtype))
    exponents = np.arange(info.minexp - info.nmant, info.maxexp - 1)
    rng = np.random.default_rng(0)
    x = (rng.uniform(0.5, 1, (1, len(exponents), 3)) * 2.0 ** exponents[:, None]).astype(numpy_type(dtype))
    case = Case("GlobalLpPool", x.shape, {"p": p})
    y = call(case, [to_tensor(x, device)])
    exact = rounded(oracle.global_lp_pool(x, p=p), y.dtype)
    assert int(ulps(y, exact).max()) <= allowed_ulps(case, dtype)


# --- half precision, exhaustively ------------------------------------------------------------------------------------


def all_numbers(dtype: str) -> torch.Tensor:
    """Every bit pattern."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_survives(dtype, device):
    numbers = all_numbers(dtype)[None, None].to(device)
    for y in (torch_onnxpool.average_pool(numbers, 1), torch_onnxpool.max_pool(numbers, 1)):
        torch.testing.assert_close(y, numbers, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(torch_onnxpool.lp_pool(numbers, 1), numbers.abs(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_middle_of_two_neighbours_goes_to_the_even_one(dtype, device):
    """The average of every finite number and the next one is exact in float32, and a tie."""
    numbers = all_numbers(dtype)[2**15 :]
    numbers = numbers[numbers.isfinite() & (numbers < torch.finfo(numbers.dtype).max / 2)]
    pairs = torch.stack([numbers[:-1], numbers[1:]], dim=1).reshape(1, 1, -1)
    even = numbers[:-1].view(torch.int16) % 2 == 0
    wanted = torch.where(even, numbers[:-1], numbers[1:])
    for sign in (1, -1):
        y = torch_onnxpool.average_pool(sign * pairs.to(device), 2, strides=2)
        assert torch.equal(y.flatten().cpu(), sign * wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_maximum_of_any_number_and_some_others(dtype, device):
    """NaNs of both signs among them."""
    numbers = all_numbers(dtype)
    info = torch.finfo(numbers.dtype)
    positive = torch.tensor([0.0, info.tiny, 1.5, info.max, INF, NAN], dtype=numbers.dtype)
    others = torch.cat([positive, (positive.view(torch.int16) | -(2**15)).view(numbers.dtype)])
    pairs = torch.stack(torch.broadcast_tensors(numbers, others[:, None]), dim=-1).to(device)  # others, numbers, 2
    wanted = torch.maximum(pairs[..., :1], pairs[..., 1:])
    for x in (pairs, pairs.transpose(1, 2).contiguous().transpose(1, 2), pairs.flip(-1)):
        for y in (torch_onnxpool.max_pool(x, 2), torch_onnxpool.global_max_pool(x)):
            torch.testing.assert_close(y, wanted, rtol=0, atol=0, equal_nan=True)


# --- NaN and infinities ----------------------------------------------------------------------------------------------


def row(*values, dtype="float32", device="cpu"):
    return torch.tensor(values, dtype=getattr(torch, dtype), device=device)[None, None]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
@pytest.mark.parametrize("position", range(9))
def test_nan_propagates_from_every_position(operator, dtype, position, device):
    values = [0.0, 5.0, INF, -1.0, 3.0, -2.0, 7.0, 1.0, -INF]
    values[position] = NAN
    x = row(*values, dtype=dtype, device=device)
    case = Case(operator, (1, 1, 9), {"kernel_shape": [9]} if operator in WINDOWED else {})
    assert call(case, [x]).isnan().all()
    if operator == "MaxPool":
        assert call(case, [x], return_indices=True)[1].item() == position


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_index_of_nan_is_that_of_the_first(dtype, device):
    x = row(1, NAN, 9, NAN, 2, dtype=dtype, device=device)
    y, indices = torch_onnxpool.max_pool(x, [3], return_indices=True)
    assert y.isnan().all()
    assert indices.tolist() == [[[1, 1, 3]]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_stays_in_its_windows(dtype, device):
    x = row(1, 2, NAN, 4, 5, 6, dtype=dtype, device=device)
    for y in (torch_onnxpool.average_pool(x, 2), torch_onnxpool.lp_pool(x, 2), torch_onnxpool.max_pool(x, 2)):
        assert y.isnan().tolist() == [[[False, True, True, False, False]]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities(dtype, device):
    x = row(INF, 1, -INF, -INF, -INF, INF, dtype=dtype, device=device)
    assert torch_onnxpool.average_pool(x, 2)[..., :4].tolist() == [[[INF, -INF, -INF, -INF]]]
    assert torch_onnxpool.average_pool(x, 2)[..., 4].isnan().all()
    for p in (1, 1.5, 2, 3, 64):
        assert torch_onnxpool.lp_pool(x, 2, p=p).tolist() == [[[INF, INF, INF, INF, INF]]]
    y, indices = torch_onnxpool.max_pool(x, 2, return_indices=True)
    assert y.tolist() == [[[INF, 1, -INF, -INF, INF]]]
    assert indices.tolist() == [[[0, 1, 2, 3, 5]]]
    assert torch_onnxpool.max_pool(x, 2).tolist() == y.tolist()
    assert torch_onnxpool.global_max_pool(x[..., 2:5]).tolist() == [[[-INF]]]


@pytest.mark.parametrize("dtype", Case("MaxPool", (1, 1, 1)).dtypes)
def test_an_empty_window_is_the_lowest_value_without_an_index(dtype, device):
    x = torch.ones(1, 2, 2, dtype=getattr(torch, dtype), device=device)
    lowest = (torch.finfo if x.is_floating_point() else torch.iinfo)(x.dtype).min
    y, indices = torch_onnxpool.max_pool(x, 1, pads=[1, 0], strides=2, return_indices=True)
    assert y.tolist() == [[[lowest, 1], [lowest, 1]]]
    assert indices.tolist() == [[[-1, 1], [-1, 3]]]
    assert torch.equal(torch_onnxpool.max_pool(x, 1, pads=[1, 0], strides=2), y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_empty_window_is_zero_even_beside_nan(dtype, device):
    x = row(NAN, NAN, dtype=dtype, device=device)
    for y in (
        torch_onnxpool.average_pool(x, 1, pads=[1, 1]),
        torch_onnxpool.average_pool(x, 1, pads=[1, 1], count_include_pad=1),
        torch_onnxpool.lp_pool(x, 1, pads=[1, 1]),
    ):
        assert y[0, 0, 0] == 0
        assert y[0, 0, 3] == 0
        assert y[0, 0, 1:3].isnan().all()


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", WINDOWED)
@pytest.mark.parametrize("attributes", [{"kernel_shape": [2**31 - 1], "ceil_mode": 1, "strides": [2**31 - 1]},
                                        {"kernel_shape": [2**31 - 1], "auto_pad": "SAME_UPPER"},
                                        {"kernel_shape": [2], "dilations": [2**31 - 1], "auto_pad": "SAME_LOWER"},
                                        {"kernel_shape": [1], "strides": [2**31 - 1]},
                                        {"kernel_shape": [1], "strides": [2**30], "pads": [0, 2**31 - 4]},
                                        {"kernel_shape": [2**31 - 1], "pads": [2**30, 2**30 - 2]}])  # fmt: skip
def test_the_largest_attributes_are_quick(operator, attributes, device):
    """Taps outside the input are never visited."""
    x = torch.ones(1, 1, 3, device=device, requires_grad=True)
    y = call(Case(operator, (1, 1, 3), attributes), [x])
    assert y.numel() <= 3
    assert bool(y.isfinite().all())
    y.sum().backward()
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_divisors_beyond_int64(rank, device):
    """One datum in the middle of padding that counts."""
    kernel = 2**31 - 1
    x = torch.ones([1, 1, *[1] * rank], dtype=torch.float64, device=device)
    y = torch_onnxpool.average_pool(x, kernel, pads=2**30 - 1, count_include_pad=1)
    assert y.item() == pytest.approx(1 / kernel**rank, rel=1e-15, abs=0)


def test_indices_beyond_int32():
    """Four images of 2^30 elements each, in one byte of memory."""
    x = torch.zeros((), dtype=torch.int8).expand(4, 1, 2**30)
    indices = torch_onnxpool.max_pool(x, 1, strides=2**29, return_indices=True)[1]
    assert indices.flatten().tolist() == [i * 2**29 for i in range(8)]


@pytest.mark.parametrize("dtype", Case("MaxPool", (1, 1, 1)).dtypes)
def test_padding_never_competes(dtype, device):
    lowest = (torch.finfo if dtype in FLOATS else torch.iinfo)(getattr(torch, dtype)).min
    for value in (lowest, 0 if dtype == "uint8" else -7):
        x = torch.full((1, 2, 3, 3), value, dtype=getattr(torch, dtype), device=device)
        y, indices = torch_onnxpool.max_pool(x, 3, pads=1, strides=2, return_indices=True)
        assert torch.equal(y, x[..., :2, :2])
        assert indices[0].tolist() == [[[0, 1], [3, 4]], [[9, 10], [12, 13]]]


def test_more_dimensions_than_anyone_needs(device):
    x = torch.randn([1, 2, *[2] * 8], device=device)
    case = Case("MaxPool", tuple(x.shape), {"kernel_shape": [2] * 8})
    assert torch.equal(call(case, [x]).flatten(), x.flatten(2).max(2).values.flatten())
    torch.testing.assert_close(torch_onnxpool.global_average_pool(x).flatten(), x.flatten(2).mean(2).flatten())


@pytest.mark.parametrize("operator", WINDOWED)
def test_images_that_overlap_in_memory(operator, device):
    """The last channels of one image begin where the first ones of the next one do."""
    shape, strides = (2, 600, 3, 3), (512, 1, 6000, 2000)
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    x = torch.randn(elements, device=device).as_strided(shape, strides)
    case = Case(operator, shape, {"kernel_shape": [2, 2]})
    assert torch.equal(call(case, [x]), call(case, [x.contiguous()]))
