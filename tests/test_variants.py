"""Kernels for special sizes and layouts compute what the one for any layout does, which other tests hold against the
oracle: tensors large enough for blocks, tiles, vectors and their remainders, and data that start anywhere."""

from __future__ import annotations

import math
import os
from itertools import product

import numpy as np
import pytest
import torch
from cases import BYTES, FLOATS, GLOBAL, WINDOWED, Case, fill
from tensors import arrange, call, to_tensor


def unaligned(x: torch.Tensor) -> torch.Tensor:
    """The same values, one element behind a boundary of 16 bytes."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """Channels last, with unused elements behind every row."""
    large = x.new_zeros(x.shape[0], *x.shape[2:-1], x.shape[-1] + 1, x.shape[1])
    view = large[..., :-1, :].movedim(-1, 1)
    view.copy_(x)
    return view


def with_gaps_between_rows(x: torch.Tensor) -> torch.Tensor:
    large = x.new_zeros(*x.shape[:-1], x.shape[-1] + 1)
    view = large[..., :-1]
    view.copy_(x)
    return view


PLANES = [
    (3, 5, 7, 7),
    (2, 37, 3, 3),
    (40, 8, 7, 7),
    (2, 64, 4, 4),
    (1, 3, 33, 31),
    (2, 8, 28, 28),
    (1, 1, 100, 101),
    (1, 16, 70, 70),
    (1, 2, 20011),
    (5, 24, 1, 1),
    (2, 150, 3, 5),
    (1, 530, 4, 3),
    (3, 32, 5),
    (2, 16, 3, 5, 7),
    (1, 2, 3, 2, 3, 2),
]

WINDOWS = [
    ((2, 3, 20, 24), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((2, 16, 37, 41), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 16, 32), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((9, 32, 14, 14), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((3, 7, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [4, 1, 1, 1]}),
    ((1, 16, 5, 30), {"kernel_shape": [3, 3], "pads": [4, 1, 4, 4]}),
    ((2, 5, 12, 55), {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [0, 2, 1, 2]}),
    ((1, 3, 5, 64), {"kernel_shape": [3, 5], "dilations": [1, 3], "pads": [1, 6, 1, 6]}),
    ((2, 3, 4, 127), {"kernel_shape": [3, 3], "strides": [1, 2], "pads": [1, 1, 1, 1]}),
    ((2, 4, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [2, 3, 0, 1], "ceil_mode": 1}),
    ((1, 2, 40, 48), {"kernel_shape": [31, 31], "pads": [15, 15, 15, 15]}),
    ((1, 16, 33, 30), {"kernel_shape": [16, 12], "strides": [3, 2], "pads": [20, 3, 0, 5], "dilations": [2, 2]}),
    ((1, 1, 100, 90), {"kernel_shape": [64, 3], "strides": [1, 2], "pads": [1, 1, 1, 1]}),
    ((1, 1, 20, 40), {"kernel_shape": [16, 3], "strides": [500000000, 1]}),
    ((1, 40, 30, 31), {"kernel_shape": [11, 13], "pads": [5, 6, 5, 6]}),
    ((3, 24, 20, 19), {"kernel_shape": [19, 9], "pads": [9, 4, 8, 3]}),
    ((1, 33, 5, 36), {"kernel_shape": [1, 13], "pads": [1, 6, 1, 6]}),
    ((1, 6, 21, 20), {"kernel_shape": [13, 12], "pads": [6, 6, 6, 5]}),
    ((2, 21, 25, 9), {"kernel_shape": [9, 5], "strides": [1, 2], "pads": [4, 2, 4, 2]}),
    ((1, 70, 90, 88), {"kernel_shape": [9, 9], "pads": [4, 4, 4, 4]}),
    ((20, 7, 13, 6), {"kernel_shape": [9, 5], "pads": [4, 2, 4, 2]}),
    ((70, 3, 17, 2), {"kernel_shape": [9, 2], "pads": [4, 0, 4, 1]}),
    ((2, 9, 13, 13), {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}),
    ((5, 7, 14, 14), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 12, 18, 40), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ((2, 130, 9, 12), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 600, 5, 6), {"kernel_shape": [2, 3], "pads": [1, 0, 0, 2]}),
    ((1, 270, 7, 9), {"kernel_shape": [5, 3], "strides": [2, 1], "pads": [2, 0, 1, 1]}),
    ((1, 140, 9, 23), {"kernel_shape": [2, 3], "strides": [2, 3], "dilations": [1, 2]}),
    ((2, 27, 23, 20), {"kernel_shape": [8, 2], "strides": [1, 2], "dilations": [1, 3], "pads": [0, 1, 1, 2]}),
    ((1, 9, 16, 12), {"kernel_shape": [5, 2], "strides": [1, 2], "dilations": [1, 3], "pads": [1, 1, 0, 2]}),
    ((1, 75, 12, 11), {"kernel_shape": [7, 7], "pads": [3, 3, 3, 3]}),
    ((1, 20, 9, 35), {"kernel_shape": [3, 2], "strides": [3, 2], "dilations": [1, 3]}),
    ((1, 5, 17, 71), {"kernel_shape": [3, 12], "strides": [1, 2], "pads": [3, 22, 3, 1], "dilations": [2, 3]}),
    ((1, 2, 40, 3000), {"kernel_shape": [12, 9], "dilations": [2, 1]}),
    ((1, 1, 5, 300), {"kernel_shape": [2, 17], "strides": [1, 3], "dilations": [1, 2]}),
    ((1, 2, 9000), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((2, 3, 11003), {"kernel_shape": [5], "strides": [2], "dilations": [3], "pads": [7, 4], "ceil_mode": 1}),
    ((1, 2, 3, 10900), {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}),
    ((1, 1, 2600, 130), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 0]}),
    ((1, 1, 30000, 9), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((3, 4, 30, 47), {"kernel_shape": [4, 5], "strides": [3, 5], "pads": [1, 2, 1, 2]}),
    ((2, 3, 16, 90), {"kernel_shape": [2, 4], "strides": [2, 4]}),
    ((2, 5, 24, 33), {"kernel_shape": [6, 3], "strides": [6, 2], "pads": [0, 1, 0, 1]}),
    ((1, 3, 5, 16, 20), {"kernel_shape": [2, 4, 3], "strides": [1, 4, 5]}),
    ((2, 3, 17, 58), {"kernel_shape": [3, 3], "strides": [3, 3]}),
    ((2, 3, 23, 130), {"kernel_shape": [5, 8], "strides": [5, 8]}),
    ((2, 3, 12, 100), {"kernel_shape": [7, 7], "strides": [4, 6], "pads": [3, 3, 3, 3]}),
    ((1, 4, 9, 11, 90), {"kernel_shape": [2, 4, 5], "strides": [3, 4, 5]}),
    ((1, 1, 8, 9000), {"kernel_shape": [4, 3], "strides": [4, 2]}),
    ((2, 3, 16, 130), {"kernel_shape": [3, 3], "strides": [7, 6], "dilations": [1, 2]}),
    ((2, 3, 170), {"kernel_shape": [9], "strides": [7], "pads": [3, 5]}),
    ((2, 3, 170), {"kernel_shape": [8], "strides": [8]}),
    ((2, 3, 17, 250), {"kernel_shape": [2, 4], "strides": [3, 4], "pads": [1, 0, 3, 0], "ceil_mode": 1}),
    ((1, 4, 5, 6, 191), {"kernel_shape": [2, 3, 3], "strides": [1, 3, 3], "ceil_mode": 1}),
    ((1, 2, 9000), {"kernel_shape": [3], "strides": [3]}),
    ((2, 5, 500), {"kernel_shape": [4], "strides": [4]}),
    ((2, 3, 20, 60), {"kernel_shape": [10, 10], "strides": [10, 10]}),
    ((1, 2, 9, 150), {"kernel_shape": [2, 12], "strides": [2, 9], "pads": [1, 5, 0, 2], "ceil_mode": 1}),
    ((2, 3, 6, 90), {"kernel_shape": [1, 5], "strides": [2, 5], "pads": [2, 0, 1, 0]}),
    ((1, 2, 700), {"kernel_shape": [20], "strides": [10], "pads": [5, 9]}),
    ((2, 3, 9, 233), {"kernel_shape": [3, 7], "strides": [2, 5], "pads": [1, 2, 0, 3]}),
    ((1, 3, 6, 763), {"kernel_shape": [2, 8], "strides": [2, 8], "ceil_mode": 1}),
    ((1, 2, 8, 401), {"kernel_shape": [4, 9], "strides": [3, 6], "pads": [0, 4, 2, 1]}),
    ((2, 3, 32), {"kernel_shape": [11], "dilations": [3], "pads": [4, 4]}),
    ((2, 12, 9), {"kernel_shape": [5], "dilations": [2], "pads": [1, 0]}),
    ((1, 20, 6, 33), {"kernel_shape": [2, 9], "dilations": [1, 4], "pads": [0, 3, 0, 0]}),
    ((1, 2, 700), {"kernel_shape": [13], "dilations": [3], "pads": [40, 40]}),
    ((1, 1, 90, 200), {"kernel_shape": [7, 7], "strides": [1, 1], "dilations": [3, 1]}),
    ((1, 2, 6, 7, 180), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ((1, 3, 9, 225), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ((2, 16, 20, 24), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 5, 19, 24), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
    ((2, 16, 9, 24), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((2, 4, 7, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((2, 3, 17, 24), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ((2, 16, 9, 11), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ((2, 3, 12, 15), {"kernel_shape": [5, 5], "pads": [4, 0, 1, 3]}),
    ((2, 32, 9, 10), {"kernel_shape": [3, 2], "strides": [2, 1]}),
    ((2, 3, 5, 12, 16), {"kernel_shape": [1, 3, 3], "strides": [2, 2, 2], "pads": [0, 1, 1, 0, 1, 1]}),
    ((1, 16, 7, 12, 16), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "pads": [1, 1, 1, 1, 1, 1]}),
    ((2, 3, 6, 10, 12), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    ((2, 16, 7, 8, 9), {"kernel_shape": [3, 2, 2], "strides": [2, 2, 2], "pads": [1, 0, 1, 1, 0, 0]}),
    ((1, 3, 6, 30, 21), {"kernel_shape": [3, 10, 9], "strides": [2, 1, 1], "pads": [1, 12, 4, 1, 4, 4]}),
    ((1, 16, 8, 5, 6), {"kernel_shape": [3, 3, 3], "dilations": [2, 1, 1], "pads": [2, 1, 1, 2, 1, 1]}),
    ((1, 3, 6, 7, 8), {"kernel_shape": [3, 3, 3], "pads": [1, 1, 1, 1, 1, 1]}),
    ((1, 3, 6, 9, 12), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2]}),
    ((1, 3, 5, 8, 9), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2], "pads": [1, 1, 1, 1, 1, 1]}),
    ((1, 8, 6, 20, 24), {"kernel_shape": [3, 3, 3], "strides": [2, 1, 2], "pads": [1, 1, 1, 0, 1, 1]}),
    ((1, 3, 5, 8, 12), {"kernel_shape": [2, 3, 3], "strides": [4, 2, 2], "pads": [2, 1, 1, 1, 1, 1]}),
    ((1, 1, 13, 14, 15), {"kernel_shape": [12, 13, 14], "pads": [3, 3, 3, 3, 3, 3]}),
    ((1, 2, 3, 4, 3, 5), {"kernel_shape": [2, 3, 2, 3], "pads": [1] * 8}),
    ((2, 3, 9, 12), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 12), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
    ((3, 5, 64), {"kernel_shape": [2], "strides": [2]}),
    ((3, 5, 64), {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}),
    ((3, 5, 63), {"kernel_shape": [2], "strides": [2], "pads": [1, 0]}),
    ((3, 5, 64), {"kernel_shape": [3], "pads": [1, 1]}),
    ((2, 7, 61), {"kernel_shape": [3], "pads": [1, 1]}),
    ((2, 7, 62), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((2, 7, 64), {"kernel_shape": [3], "strides": [2], "pads": [0, 1]}),
    ((1, 1, 37, 300), {"kernel_shape": [17, 33], "strides": [1, 2], "pads": [8, 16, 8, 16]}),
    ((1, 3, 5, 30, 21), {"kernel_shape": [3, 10, 9], "strides": [1, 2, 1], "pads": [1, 4, 4, 1, 4, 4]}),
    ((2, 3, 9, 97), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 2, 5, 110), {"kernel_shape": [3, 2], "strides": [3, 2], "dilations": [2, 1], "pads": [3, 1, 6, 1]}),
    ((1, 2, 4, 140), {"kernel_shape": [2, 4], "strides": [2, 2], "pads": [0, 9, 0, 0]}),
    ((2, 3, 9, 69), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [9, 1, 0, 0]}),
    ((2, 3, 9, 70), {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [0, 0, 9, 1]}),
]


ARRANGEMENTS = {
    "contiguous": lambda x: arrange(x, "contiguous"),
    "channels_last": lambda x: arrange(x, "channels_last"),
    "unaligned": unaligned,
    "unaligned_channels_last": lambda x: unaligned(x.movedim(1, -1)).movedim(-1, 1),
    "with_gaps": with_gaps,
}


def assert_same(actual: torch.Tensor, expected: torch.Tensor, where: str) -> None:
    """Equal, but for sums in another order."""
    if actual.dtype == expected.dtype and torch.equal(actual, expected):  # most are: this takes less long
        return
    exact = actual.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    eps = 0 if exact else torch.finfo(actual.dtype).eps * (64 if actual.dtype == torch.float64 else 2)
    torch.testing.assert_close(
        actual, expected, rtol=eps, atol=eps, equal_nan=True, msg=lambda text: f"{where}: {text}"
    )


def visited_taps(case: Case, y: torch.Tensor) -> int:
    return y.numel() * math.prod(case.attributes["kernel_shape"])


def check(case: Case, dtype: str, device: str, kinds: tuple[str, ...] = ("distinct",)) -> None:
    """Results and gradients in all arrangements."""
    indexed = case.operator == "MaxPool"
    sees_addresses_only = "ONLY_ADDRESSES_MATTER" in os.environ and not indexed  # Indices make addresses of data
    for kind in kinds[:1] if sees_addresses_only else kinds:
        x = to_tensor(fill(kind, case.shape, dtype, np.random.default_rng(0)), device)
        differentiable = dtype in FLOATS
        general = arrange(x, "sliced").requires_grad_(differentiable)
        more = {"return_indices": True} if indexed else {}
        expected = call(case, [general], **more)
        y = expected[0] if indexed else expected
        if indexed and "EMULATED_KERNELS" in os.environ and visited_taps(case, y) > 5e6:
            pytest.skip("an emulated GPU needs too long for all taps of all windows")
        if differentiable:
            grad = to_tensor(fill("distinct", tuple(y.shape), dtype, np.random.default_rng(1)), device)
            y.backward(arrange(grad, "sliced"))
            assert kind != "distinct" or bool(general.grad.isfinite().all())
        for name, arrangement in ARRANGEMENTS.items():
            where = f"{name} {kind}"
            arranged = arrangement(x.detach()).requires_grad_(differentiable)
            result = call(case, [arranged], **more)
            if indexed:
                assert torch.equal(result[1], expected[1]), where
                result = result[0]
                assert_same(call(case, [arranged.detach()]), y.detach(), f"{where} without Indices")
            assert_same(result.detach(), y.detach(), where)
            if differentiable:
                result.backward(arrangement(grad))
                assert_same(arranged.grad, general.grad, f"gradient of {where}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", PLANES, ids=str)
@pytest.mark.parametrize("operator", GLOBAL)
def test_planes(operator, shape, dtype, device):
    kinds = ("distinct", "special") if operator == "GlobalMaxPool" else ("distinct",)
    check(Case(operator, shape), dtype, device, kinds)


@pytest.mark.parametrize(
    ("operator", "dtype"), [*product(GLOBAL, FLOATS), *product(["QLinearGlobalAveragePool"], BYTES)]
)
def test_planes_with_gaps_between_rows(operator, dtype, device):
    case = Case(operator, (2, 5, 6, 7), scalars=(0.25, 3, 0.03, 7))
    x, *scalars = (to_tensor(array, device) for array in case.inputs(dtype))
    assert_same(call(case, [with_gaps_between_rows(x), *scalars]), call(case, [x, *scalars]), "with gaps between rows")


@pytest.mark.parametrize("dtype", FLOATS + BYTES)
@pytest.mark.parametrize("shape", PLANES, ids=str)
def test_windows_that_are_planes(shape, dtype, device):
    """MaxPool has Indices and bytes as well."""
    check(Case("MaxPool", shape, {"kernel_shape": list(shape[2:])}), dtype, device, ("distinct", "ties"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_norms_of_any_exponent(dtype, device):
    for shape in PLANES:
        check(Case("GlobalLpPool", shape, {"p": 2.5}), dtype, device)
    for shape, attributes in WINDOWS[:5]:
        check(Case("LpPool", shape, attributes | {"p": 3}), dtype, device)


@pytest.mark.parametrize("p", [1, 2, 2.5])
def test_norms_of_planes_that_overflow(p, device):
    for shape in PLANES[2:8]:
        check(Case("GlobalLpPool", shape, {"p": p}), "float64", device, ("wide",))


@pytest.mark.parametrize(
    ("dtype", "p", "tiny"),
    [("float16", 4, 1e-5), ("bfloat16", 2, 1e-30), ("float32", 9, 1e-40), ("float64", 2, 1e-200)],
)
@pytest.mark.parametrize("shape", PLANES, ids=str)
def test_norms_of_planes_of_zeros(shape, dtype, p, tiny, device):
    """And of planes with one datum, whose power vanishes."""
    size = math.prod(shape[2:])
    x = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
    for number in (0, size // 2, size - 1):
        x.flatten(2)[:, ::3] = 0
        x.flatten(2)[:, ::3, number] = tiny
        for name, arrangement in ARRANGEMENTS.items():
            y = call(Case("GlobalLpPool", shape, {"p": p}), [arrangement(x)])
            assert torch.equal(y.flatten(), x.flatten(2).sum(2).flatten()), f"{name} {number}"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS, ids=str)
@pytest.mark.parametrize("operator", WINDOWED)
def test_windows(operator, shape, attributes, dtype, device):
    is_linear = operator == "AveragePool"  # to which no values are special
    check(Case(operator, shape, attributes), dtype, device, ("distinct",) if is_linear else ("distinct", "ties"))


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS, ids=str)
def test_windows_of_bytes(shape, attributes, dtype, device):
    check(Case("MaxPool", shape, attributes), dtype, device, ("distinct", "ties"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("shape", "attributes"), WINDOWS[:7], ids=str)
@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("LpPool", "special"),
        ("LpPool", "wide"),
        ("MaxPool", "special"),
        ("MaxPool", "wide"),
        ("AveragePool", "special"),
    ],
)
def test_windows_of_unusual_data(operator, kind, shape, attributes, dtype, device):
    """Among them windows with nothing but zeros."""
    case = Case(operator, shape, attributes)
    x = to_tensor(fill(kind, shape, dtype, np.random.default_rng(0)), device)
    x[..., : shape[-1] // 2] = 0
    expected = call(case, [arrange(x, "sliced")])
    for name, arrangement in ARRANGEMENTS.items():
        assert_same(call(case, [arrangement(x)]), expected, name)
    if operator == "MaxPool":
        _, expected_indices = call(case, [arrange(x, "sliced")], return_indices=True)
        for name, arrangement in ARRANGEMENTS.items():
            y, indices = call(case, [arrangement(x)], return_indices=True)
            assert_same(y, expected, f"{name} with Indices")
            assert torch.equal(indices, expected_indices), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("shape", "attributes"), [row for row in WINDOWS if sum(row[1].get("pads", [0])) in range(1, 11)], ids=str
)
def test_padding_is_no_maximum(shape, attributes, dtype, device):
    """Where all data of a window are -inf, its first datum is."""
    case = Case("MaxPool", shape, attributes)
    x = torch.full(shape, -math.inf, dtype=getattr(torch, dtype), device=device)
    expected = call(case, [arrange(x, "sliced")], return_indices=True)
    for name, arrangement in ARRANGEMENTS.items():
        y, indices = call(case, [arrangement(x)], return_indices=True)
        assert_same(y, expected[0], name)
        assert torch.equal(indices, expected[1]), name


# As large as results that are written past the caches, if lines of memory hold whole positions: not those of the second
# one, of which some channels at a time are reduced along one axis after the other.
LARGE = [
    ("float32", (1, 96, 75, 80), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    ("float32", (1, 72, 200, 160), {"kernel_shape": [9, 9], "pads": [4, 4, 4, 4]}),
    ("float32", (1, 96, 75, 80), {"kernel_shape": [9, 9], "pads": [4, 4, 4, 4]}),
    (
        "float32",
        (1, 544, 45, 47),
        {"kernel_shape": [3, 2], "strides": [2, 2], "dilations": [1, 2], "pads": [1, 0, 1, 2]},
    ),
    ("float16", (1, 64, 31, 40, 21), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 1]}),
    # Few channels: an image of which segments become planes, the same of one row, and images that do so together.
    ("float32", (1, 3, 500, 450), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("bfloat16", (2, 2, 330000), {"kernel_shape": [5], "strides": [2], "pads": [3, 1]}),
    ("float64", (900, 5, 6, 7), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize(("dtype", "shape", "attributes"), LARGE, ids=str)
@pytest.mark.parametrize("operator", WINDOWED)
def test_large_results(operator, dtype, shape, attributes, device):
    check(Case(operator, shape, attributes), dtype, device)


@pytest.mark.parametrize("operator", GLOBAL)
def test_large_planes(operator, device):
    check(Case(operator, (1, 160, 80, 90), {}), "float32", device)


def random_window(rng: np.random.Generator) -> tuple[tuple[int, ...], dict[str, list[int]]]:
    """Strides, dilations and pads along all axes; rows and channels enough for vectors."""
    rank = int(rng.integers(1, 4))
    spatial = rng.integers(10, 13 if rank == 3 else 25, rank).tolist()
    attributes = {
        "kernel_shape": (1, 5, rank),
        "strides": (1, 4, rank),
        "dilations": (1, 4, rank),
        "pads": (0, 3, 2 * rank),
    }
    channels = int(rng.choice([3, 9, 20, 40]))
    return (1, channels, *spatial), {name: rng.integers(*bounds).tolist() for name, bounds in attributes.items()}


@pytest.mark.parametrize("seed", range(20))
def test_random_windows(seed, device):
    """Gradients as well."""
    rng = np.random.default_rng(seed)
    for _ in range(10):
        shape, attributes = random_window(rng)
        for operator in WINDOWED:
            try:
                check(Case(operator, shape, attributes), "float64", device)
            except Exception as error:
                raise AssertionError(f"{operator} {shape} {attributes}") from error


def test_counted_padding(device):
    for shape, attributes in WINDOWS:
        if "pads" in attributes:
            check(Case("AveragePool", shape, attributes | {"count_include_pad": 1}), "float64", device)


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_one_number_for_all_elements(operator, device):
    """Strides of 0."""
    shape = (2, 16, 14, 14)
    case = Case(operator, shape, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]} if operator in WINDOWED else {})
    x = torch.full((1,), 1.5, device=device).expand(shape)
    assert_same(call(case, [x]), call(case, [x.contiguous()]), "expanded")


QUANTISED = [
    *(("QLinearGlobalAveragePool", shape, {}) for shape in PLANES),
    *(("QLinearAveragePool", shape, options) for shape, options in WINDOWS if "dilations" not in options),
]


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(("operator", "shape", "attributes"), QUANTISED, ids=str)
def test_quantised(operator, shape, attributes, dtype, device):
    case = Case(operator, shape, attributes, scalars=(0.25, 3, 0.03, 7))
    x, *scalars = (to_tensor(a, device) for a in case.inputs(dtype))
    expected = call(case, [arrange(x, "sliced"), *scalars])
    for name, arrangement in ARRANGEMENTS.items():
        assert torch.equal(call(case, [arrangement(x), *scalars]), expected), name


@pytest.mark.parametrize(
    "strides", [(2**31 + 16, 16, 4, 1), (16, 2**31 + 16, 4, 1), (32, 16, 2**29, 1), (2**31 + 64, 1, 8, 2)], ids=str
)
def test_offsets_beyond_int32(strides, device):
    """Two gigabytes, of which nearly all stay untouched."""
    shape = (2, 2, 4, 4)
    offsets = sum(torch.arange(n).reshape(-1, *[1] * (3 - d)) * strides[d] for d, n in enumerate(shape))
    values = torch.arange(offsets.numel(), dtype=torch.int8, device=device).reshape(shape)
    storage = torch.empty(int(offsets.max()) + 1, dtype=torch.int8, device=device)
    x = storage.as_strided(shape, strides)
    x.copy_(values)
    for kernel_shape in ([2, 2], [4, 4]):
        case = Case("MaxPool", shape, {"kernel_shape": kernel_shape})
        assert torch.equal(call(case, [x]), call(case, [values]))
        for actual, expected in zip(*(call(case, [t], return_indices=True) for t in (x, values)), strict=True):
            assert torch.equal(actual, expected)


def test_paddings_beyond_int32(device):
    """Rows so far apart that windows begin two gigabytes before the first one."""
    storage = torch.empty(430_000_000, dtype=torch.int8, device=device)
    x = storage.as_strided((1, 1, 2, 16), (1, 1, 429_496_700, 1))
    x.copy_(torch.arange(32, dtype=torch.int8).reshape(x.shape))
    case = Case("MaxPool", tuple(x.shape), {"kernel_shape": [31, 16], "pads": [15, 1, 15, 1]})
    assert torch.equal(call(case, [x]), call(case, [x.contiguous()]))
