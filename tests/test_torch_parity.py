"""torch.nn.functional, wherever it can say the same thing; and a named test for each case where it cannot.

The named tests are strict expected failures: each states ONNX's answer as torch would have to give it, under the id of
the divergence. A torch that learns one turns the suite red, and the test moves up into the parity tests.
"""

from __future__ import annotations

import math

import oracle
import pytest
import torch
import torch.nn.functional as F
from tensors import to_array

import torch_onnxpool

AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
MAXIMUM = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
NORM = {1: F.lp_pool1d, 2: F.lp_pool2d, 3: F.lp_pool3d}

SHAPES = {1: (2, 3, 13), 2: (2, 3, 8, 9), 3: (1, 2, 5, 6, 7)}
ALSO_LONG = [*SHAPES.values(), (2, 2, 12007), (1, 2, 8, 12001)]  # rows that are done in segments

# kernel, stride, symmetric padding
WINDOWS = [(2, 2, 0), (3, 1, 1), (3, 2, 1), (2, 3, 1), (4, 3, 2), (1, 2, 0)]


def leaves(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(device, dtype)
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def assert_same(ours, theirs, our_x, their_x, exact: bool = False) -> None:
    """Forward and backward."""
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(ours, theirs, **tolerance)
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0), dtype=ours.dtype).to(ours.device)
    ours.backward(grad)
    theirs.backward(grad)
    torch.testing.assert_close(our_x.grad, their_x.grad, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("shape", ALSO_LONG, ids=str)
def test_avg_pool(shape, kernel, stride, padding, ceil_mode, count_include_pad, dtype, device):
    rank = len(shape) - 2
    x, its_x = leaves(shape, dtype, device)
    ours = torch_onnxpool.average_pool(
        x, kernel, strides=stride, pads=padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad
    )
    theirs = AVERAGE[rank](its_x, kernel, stride, padding, bool(ceil_mode), bool(count_include_pad))
    assert_same(ours, theirs, x, its_x)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("kernel", "stride", "padding"), WINDOWS)
@pytest.mark.parametrize("shape", ALSO_LONG, ids=str)
def test_max_pool(shape, kernel, stride, padding, dilation, ceil_mode, device):
    rank = len(shape) - 2
    x, its_x = leaves(shape, torch.float32, device)
    ours, indices = torch_onnxpool.max_pool(
        x, kernel, strides=stride, pads=padding, dilations=dilation, ceil_mode=ceil_mode, return_indices=True
    )
    theirs, its_indices = MAXIMUM[rank](
        its_x, kernel, stride, padding, dilation, ceil_mode=bool(ceil_mode), return_indices=True
    )
    plane = math.prod(x.shape[2:])
    assert torch.equal(indices % plane, its_indices)
    first_of_plane = plane * torch.arange(x.shape[0] * x.shape[1], device=device).view(*x.shape[:2], *[1] * rank)
    assert torch.equal(indices, its_indices + first_of_plane)
    assert_same(ours, theirs, x, its_x, exact=True)


def test_one_partial_window_above_the_input(device):
    x, its_x = leaves(SHAPES[1], torch.float32, device)
    assert_same(
        torch_onnxpool.average_pool(x, 20, strides=9, ceil_mode=1), F.avg_pool1d(its_x, 20, 9, 0, True), x, its_x
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_max_pool_of_bytes(dtype):
    x = torch.randint(0, 100, (2, 3, 6, 7)).to(dtype)
    assert torch.equal(torch_onnxpool.max_pool(x, 3, strides=2, pads=1), F.max_pool2d(x, 3, 2, 1))


@pytest.mark.parametrize("p", [1.5, 2, 3, 5])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_lp_pool(rank, kernel, stride, p, device):
    """On data above zero and without a partial window."""
    x, its_x = leaves(SHAPES[rank], torch.float64, device)
    x.data, its_x.data = x.data.abs() + 0.1, its_x.data.abs() + 0.1
    ours = torch_onnxpool.lp_pool(x, kernel, strides=stride, p=p)
    theirs = NORM[rank](its_x, p, kernel, stride)
    assert_same(ours, theirs, x, its_x)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_pools_to_one_element(rank, device):
    average = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}[rank]
    maximum = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}[rank]
    x, its_x = leaves(SHAPES[rank], torch.float32, device)
    assert_same(torch_onnxpool.global_average_pool(x), average(its_x, 1), x, its_x)
    x, its_x = leaves(SHAPES[rank], torch.float32, device)
    assert_same(torch_onnxpool.global_max_pool(x), maximum(its_x, 1), x, its_x, exact=True)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_vector_norm(p, device):
    x, its_x = leaves(SHAPES[2], torch.float64, device)
    theirs = torch.linalg.vector_norm(its_x, p, dim=(2, 3), keepdim=True)
    assert_same(torch_onnxpool.global_lp_pool(x, p=p), theirs, x, its_x)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_formats(memory_format, device):
    x, its_x = leaves(SHAPES[2], torch.float32, device)
    x, its_x = (t.detach().to(memory_format=memory_format).requires_grad_() for t in (x, its_x))
    ours, theirs = torch_onnxpool.max_pool(x, 3, strides=2, pads=1), F.max_pool2d(its_x, 3, 2, 1)
    assert ours.stride() == theirs.stride()
    assert_same(ours, theirs, x, its_x, exact=True)
    x.grad = its_x.grad = None
    assert_same(torch_onnxpool.average_pool(x, 2), F.avg_pool2d(its_x, 2, 1), x, its_x)


def test_nan_and_infinities_of_maxima(device):
    x = torch.tensor([[[1.0, math.nan, 3.0, -math.inf, -math.inf, math.inf]]], device=device)
    ours, indices = torch_onnxpool.max_pool(x, 2, return_indices=True)
    theirs, its_indices = F.max_pool1d(x, 2, 1, return_indices=True)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert torch.equal(indices, its_indices)


# --- where torch cannot ----------------------------------------------------------------------------------------------


def torch_differs(row: str):
    """A strict expected failure under the id of a divergence."""
    return pytest.mark.xfail(
        strict=True, raises=(AssertionError, RuntimeError, TypeError, NotImplementedError), reason=row
    )


X1, X2 = torch.arange(1.0, 7.0).view(1, 1, 6), torch.arange(1.0, 31.0).view(1, 1, 5, 6)


def assert_torch(theirs: torch.Tensor, wanted) -> None:
    torch.testing.assert_close(theirs, torch.as_tensor(wanted, dtype=theirs.dtype), equal_nan=True)


@torch_differs("same-dilated: torch pools have no automatic padding")
def test_same_dilated():
    wanted = oracle.max_pool(to_array(X2), [2, 2], dilations=[2, 2], auto_pad="SAME_UPPER")[0]
    assert_torch(F.max_pool2d(X2, 2, 1, "same", 2), wanted)


@torch_differs("same-negative: torch pools have no automatic padding")
def test_same_with_a_stride_above_the_kernel():
    assert_torch(
        F.avg_pool2d(X2, 2, 4, "same"), oracle.average_pool(to_array(X2), [2, 2], strides=[4, 4], auto_pad="SAME_LOWER")
    )


@torch_differs("large-pads: torch refuses more than half a kernel")
@pytest.mark.parametrize("pool", ["average_pool", "max_pool"])
def test_large_pads(pool):
    wanted = getattr(oracle, pool)(to_array(X1), [2], pads=[2, 2])
    theirs = (F.max_pool1d if pool == "max_pool" else F.avg_pool1d)(X1, 2, 1, 2)
    assert_torch(theirs, wanted[0] if pool == "max_pool" else wanted)


@torch_differs("asymmetric pads: torch has one number for both sides")
def test_asymmetric_pads():
    assert_torch(
        F.avg_pool1d(X1, 3, 1, (0, 1)), oracle.average_pool(to_array(X1), [3], pads=[0, 1], count_include_pad=1)
    )


@torch_differs("torch dilates maxima only")
def test_dilated_averages():
    assert_torch(F.avg_pool1d(X1, 2, 1, dilation=2), oracle.average_pool(to_array(X1), [2], dilations=[2]))


@torch_differs("lp-abs: torch raises signed data to odd powers")
def test_lp_of_signed_data():
    assert_torch(F.lp_pool1d(-X1, 3, 2, 2), oracle.lp_pool(to_array(-X1), [2], p=3, strides=[2]))


@torch_differs("lp-ceil: torch rescales a partial window")
def test_lp_with_a_partial_window():
    wanted = oracle.lp_pool(to_array(X1), [4], strides=[4], ceil_mode=1)
    assert_torch(F.lp_pool1d(X1, 2, 4, 4, ceil_mode=True), wanted)


@torch_differs("lp-range: squares overflow in float32")
def test_lp_of_large_data():
    assert_torch(F.lp_pool1d(X1 * 1e20, 2, 2, 2), oracle.lp_pool(to_array(X1 * 1e20), [2], strides=[2]))


@torch_differs("lp-range: squares vanish in float32")
def test_lp_of_small_data():
    theirs = F.lp_pool1d(X1 * 1e-30, 2, 2, 2)
    wanted = torch.as_tensor(oracle.lp_pool(to_array(X1 * 1e-30), [2], strides=[2]), dtype=torch.float32)
    assert (theirs / wanted - 1).abs().max() < 1e-5


@torch_differs("lp pads: torch pads no norms")
def test_lp_with_pads():
    assert_torch(F.lp_pool1d(X1, 2, 3, 1, padding=1), oracle.lp_pool(to_array(X1), [3], pads=[1, 1]))


@torch_differs("empty-window: torch gives -inf and an index into the plane")
def test_empty_window():
    """A dilated window whose taps all lie in the padding, within torch's limit on pads."""
    x = torch.ones(1, 1, 1)
    theirs, its_indices = F.max_pool1d(x, 2, 1, 1, 2, return_indices=True)
    wanted, indices = oracle.max_pool(to_array(x), [2], pads=[1, 1], dilations=[2])
    assert_torch(theirs, wanted)
    assert its_indices.tolist() == indices.tolist()


@torch_differs("rank: torch stops at three spatial axes")
@pytest.mark.parametrize("pool", ["avg_pool", "max_pool"])
def test_four_spatial_axes(pool):
    getattr(F, f"{pool}3d")(torch.ones(1, 1, 2, 2, 2, 2), 2)


@torch_differs("max-indices: torch counts within a plane")
def test_flat_indices():
    x = torch.randn(2, 2, 4)
    assert (
        F.max_pool1d(x, 2, return_indices=True)[1].tolist()
        == oracle.max_pool(to_array(x), [2], strides=[2])[1].tolist()
    )


@torch_differs("storage_order: torch counts row by row only")
def test_column_major_indices():
    indices = oracle.max_pool(to_array(X2), [2, 2], strides=[2, 2], storage_order=1)[1]
    assert F.max_pool2d(X2, 2, return_indices=True)[1].tolist() == indices.tolist()


@torch_differs("cip-overhang: torch agrees, but cannot count padding of one side only")
def test_overhang_of_asymmetric_pads():
    wanted = oracle.average_pool(to_array(X1), [4], strides=[3], pads=[0, 1], ceil_mode=1, count_include_pad=1)
    assert_torch(F.avg_pool1d(X1, 4, 3, (0, 1), True, True), wanted)
