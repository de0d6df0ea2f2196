"""Gradients: gradcheck where the function is smooth, at kinks the oracle's choice, and the oracle in every type."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from cases import CASES, FLOATS, GLOBAL, LAYOUTS, WINDOWED, Case, cases, fill
from tensors import arrange, call, is_channels_last, largest_window, to_array, to_tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import torch_onnxpool

DIFFERENTIABLE = cases(differentiable=True)

# Smooth where the data are distinct and away from zero. A p-norm with large p is smooth, but finite differences of the
# 64th power are not accurate enough. gradcheck wants elements to move.
SMOOTH = [c for c in DIFFERENTIABLE if c.data == "distinct" and c.attributes.get("p", 2) <= 4 and c.shape[0] > 0]


@pytest.mark.parametrize("case", SMOOTH, ids=str)
def test_gradcheck(case, device):
    x = to_tensor(case.inputs("float64")[0], device).requires_grad_()
    assert gradcheck(lambda x: call(case, [x]), (x,), fast_mode=x.numel() > 200)


@pytest.mark.parametrize("case", [c for c in SMOOTH if c.operator == "MaxPool"], ids=str)
def test_gradcheck_with_indices(case, device):
    """Indices have no gradient and do not stand in the way of Y's."""
    x = to_tensor(case.inputs("float64")[0], device).requires_grad_()
    y, indices = call(case, [x], return_indices=True)
    assert y.requires_grad or x.numel() == 0
    assert not indices.requires_grad
    assert gradcheck(lambda x: call(case, [x], return_indices=True)[0], (x,), fast_mode=x.numel() > 200)


def gradient(case: Case, x: torch.Tensor, grad: torch.Tensor, **more) -> torch.Tensor:
    x = x.detach().requires_grad_()
    y = call(case, [x], **more)
    return torch.autograd.grad(y[0] if isinstance(y, tuple) else y, x, grad)[0]


def grad_output(case: Case, dtype: str, device: str) -> torch.Tensor:
    x = case.inputs(dtype)[0]
    outputs = oracle.FORWARD[case.operator](x, **case.attributes)
    shape = (outputs[0] if case.operator == "MaxPool" else outputs).shape
    return to_tensor(fill("distinct", shape, dtype, np.random.default_rng(0)), device)


def assert_gradient(case: Case, dtype: str, x: torch.Tensor, grad: torch.Tensor, *gradients: torch.Tensor) -> None:
    """Within one ulp for the result's rounding, those of the sum over windows, and that of the Y a norm divides by."""
    g, data = (to_array(t).astype(np.float64) for t in (grad, x))
    formula, norm = oracle.GRADIENT[case.operator], "Lp" in case.operator
    exact = formula(g, data, **case.attributes)
    magnitude = formula(np.abs(g), np.abs(data) if norm else data, **case.attributes)
    info = torch.finfo(x.dtype)
    summed_in_float64 = x.dtype == torch.float64 or (x.dtype == torch.float32 and (norm or x.is_cuda))
    unit_of_sums = 2.0**-53 if summed_in_float64 else 2.0**-24
    bound = info.eps * np.abs(exact) + info.smallest_normal * info.eps
    bound += (2 + largest_window(case)) * unit_of_sums * magnitude
    if norm:
        bound += (case.attributes.get("p", 2) - 1 + 8 * (dtype == "float64")) * info.eps * magnitude
    for actual in gradients:
        assert actual.shape == x.shape
        assert actual.dtype == x.dtype
        error = np.abs(to_array(actual).astype(np.float64) - exact)
        worst = np.argmax(error - bound) if error.size else 0
        assert (error <= bound).all(), f"{to_array(actual).flat[worst]} instead of {exact.flat[worst]}"


CASES_AND_TYPES = [pytest.param(c, dtype, id=f"{c}-{dtype}") for c in DIFFERENTIABLE for dtype in FLOATS]


@pytest.mark.parametrize(("case", "dtype"), CASES_AND_TYPES)
def test_gradients_of_every_type(case, dtype, device):
    """The whole table against the oracle: ties, zeros and wide data included."""
    x, grad = to_tensor(case.inputs(dtype)[0], device), grad_output(case, dtype, device)
    y = call(case, [x])
    if not bool(y.isfinite().all()):
        pytest.skip("the norm overflows the type, and with it its slope")
    assert_gradient(case, dtype, x, grad, gradient(case, x, grad))


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_layouts_of_input_and_gradient(case, device):
    """The gradient has its input's layout, whatever the layouts of input and output gradient are."""
    x, grad = to_tensor(case.inputs("float32")[0], device), grad_output(case, "float32", device)
    plain = gradient(case, x, grad)
    for x_layout in LAYOUTS:
        for grad_layout in LAYOUTS:
            arranged = arrange(x, x_layout)
            result = gradient(case, arranged, arrange(grad, grad_layout))
            torch.testing.assert_close(result, plain, rtol=1e-6, atol=1e-7)
            dense = result.movedim(1, -1) if is_channels_last(arranged) else result
            assert dense.is_contiguous()


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=str)
def test_gradients_are_deterministic(case, device):
    x, grad = to_tensor(case.inputs("float32")[0], device), grad_output(case, "float32", device)
    first = gradient(case, x, grad)
    assert all(torch.equal(gradient(case, x, grad), first) for _ in range(3))


@pytest.mark.parametrize("case", [c for c in CASES if c.operator == "MaxPool"], ids=str)
def test_gradients_are_the_same_with_indices(case, device):
    x, grad = to_tensor(case.inputs("float32")[0], device), grad_output(case, "float32", device)
    assert torch.equal(gradient(case, x, grad, return_indices=True), gradient(case, x, grad))


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_an_expanded_gradient(operator, device):
    """The gradient of sum() is one number with strides 0."""
    case = Case(operator, (2, 3, 5, 6), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    x = to_tensor(case.inputs("float64")[0], device).requires_grad_()
    y = call(case, [x])
    y.sum().backward()
    assert_gradient(case, "float64", x, torch.ones_like(y), x.grad)


# --- kinks -----------------------------------------------------------------------------------------------------------


def test_ties_send_the_whole_gradient_to_the_first(device):
    x = torch.zeros(1, 1, 2, 3, dtype=torch.float64, device=device)
    grad = torch.tensor([[[[1.0, 10.0]]]], dtype=torch.float64, device=device)
    for options in ({}, {"storage_order": 1}):
        case = Case("MaxPool", (1, 1, 2, 3), {"kernel_shape": [2, 2], **options})
        assert gradient(case, x, grad).tolist() == [[[[1, 10, 0], [0, 0, 0]]]]


def test_an_empty_window_sends_its_gradient_nowhere(device):
    x = torch.ones(1, 1, 2, device=device)
    for operator in WINDOWED:
        case = Case(operator, (1, 1, 2), {"kernel_shape": [1], "pads": [2, 2]})
        grad = torch.tensor([[[math.nan, 3.0, 1.0, 2.0, math.inf, 5.0]]], device=device)
        assert gradient(case, x, grad).tolist() == [[[1, 2]]]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 2, 6, 40), (1, 40, 6, 8), (3, 1, 9)], ids=str)
@pytest.mark.parametrize("operator", WINDOWED)
def test_elements_that_no_window_covers_have_no_gradient(operator, shape, dtype, device):
    spatial = len(shape) - 2
    case = Case(operator, shape, {"kernel_shape": [1] * spatial, "strides": [2] * spatial})
    covered = torch.zeros(shape, dtype=torch.bool, device=device)
    covered[(..., *[slice(None, None, 2)] * spatial)] = True
    for value in (math.nan, math.inf, -1.0):
        x = torch.where(covered, 2.0, value).to(getattr(torch, dtype))
        for layout in ("contiguous", "channels_last"):
            slope = gradient(case, arrange(x, layout), torch.ones_like(call(case, [x])))
            assert torch.equal(slope, covered.to(x.dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 64])
def test_a_norm_of_zeros_has_no_slope(p, dtype, device):
    x = torch.zeros(1, 2, 4, dtype=getattr(torch, dtype), device=device)
    for case in (Case("LpPool", (1, 2, 4), {"kernel_shape": [2], "p": p}), Case("GlobalLpPool", (1, 2, 4), {"p": p})):
        assert torch.equal(gradient(case, x, torch.ones_like(call(case, [x]))), x)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_a_zero_among_others_has_no_slope(p, device):
    x = torch.tensor([[[0.0, -0.0, 3.0, -4.0]]], dtype=torch.float64, device=device)
    result = gradient(Case("GlobalLpPool", (1, 1, 4), {"p": p}), x, x.new_ones(1, 1, 1))
    assert result[0, 0, :2].tolist() == [0, 0]
    assert result[0, 0, 2] > 0 > result[0, 0, 3]


@pytest.mark.parametrize(("dtype", "values"), [("float32", [3e30, -4e30]), ("float32", [3e-40, -4e-40]),
                                               ("float64", [3e200, -4e200]), ("float64", [3e-310, -4e-310]),
                                               ("bfloat16", [3e30, -4e30]), ("float16", [3e-5, -4e-5])])  # fmt: skip
def test_slopes_at_the_limits_of_the_type(dtype, values, device):
    """The slope depends on ratios alone: squares that would overflow or vanish do not matter."""
    x = torch.tensor([[values]], dtype=torch.float64).to(device, getattr(torch, dtype))
    result = gradient(Case("GlobalLpPool", (1, 1, 2), {"p": 2}), x, x.new_ones(1, 1, 1))
    tolerance = 0.03 if dtype in ("float16", "bfloat16") else 1e-5
    assert result.flatten().tolist() == pytest.approx([0.6, -0.8], rel=tolerance)


@pytest.mark.parametrize("p", [1.0000001, 1.25, 1.5])
def test_slopes_of_vanishing_ratios(p, device):
    """|x| / y is subnormal, or 0, where its power is not."""
    data = [5e-84, 3e-260, 1.5e230, -2e-80]
    x = torch.tensor([[data]], dtype=torch.float64, device=device)
    result = gradient(Case("GlobalLpPool", (1, 1, 4), {"p": p}), x, x.new_ones(1, 1, 1))
    logs = [math.log(abs(value)) for value in data]
    exact = [math.copysign(math.exp((p - 1) * (log - max(logs))), value) for log, value in zip(logs, data)]
    assert result.flatten().tolist() == pytest.approx(exact, rel=1e-12, abs=0)


SCALES = {
    "float16": ([-10, 0, 10], [-10, 0, 5]),
    "bfloat16": ([-120, -40, 0, 20, 60, 120], [-110, -40, 0, 60, 115]),
    "float32": ([-120, -40, 0, 20, 60, 120], [-110, -40, 0, 60, 115]),
    "float64": ([-900, 0, 900], [-900, 0, 900]),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [4, 3], "strides": [3, 2]},
        {"kernel_shape": [9, 9], "pads": [4, 4, 4, 4]},
        {"kernel_shape": [10, 12]},
        {"kernel_shape": [2], "strides": [2]},
        {"kernel_shape": [3], "pads": [1, 1]},
        {"kernel_shape": [3, 3, 3], "strides": [2, 1, 1]},
    ],
    ids=str,
)
def test_slopes_of_norms_in_the_whole_range(attributes, dtype, device):
    """Channels of all magnitudes, with gradients of all magnitudes: their ratios may be out of the type's range."""
    scales = torch.tensor([(x, g) for x in SCALES[dtype][0] for g in SCALES[dtype][1]], dtype=torch.float64).T
    channels = -(-scales.shape[1] // 8) * 8
    scales = F.pad(scales, (0, channels - scales.shape[1])).exp2()
    sizes = (5, 10, 12)[-len(attributes["kernel_shape"]) :]
    case = Case("LpPool", (1, channels, *sizes), {**attributes, "p": 2})
    of_data, of_gradients = scales.reshape(2, channels, *[1] * len(sizes))
    random = torch.Generator().manual_seed(0)
    x = torch.rand(case.shape, generator=random, dtype=torch.float64) + 0.25
    x = (x * of_data).to(device, getattr(torch, dtype))
    grad = torch.randn(call(case, [x]).shape, generator=random, dtype=torch.float64)
    grad = (grad * of_gradients).to(x)
    of_layouts = (
        gradient(case, arrange(x, layout), arrange(grad, layout)) for layout in ("contiguous", "channels_last")
    )
    assert_gradient(case, dtype, x, grad, *of_layouts)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_in_a_maximum_receives_its_gradient(dtype, device):
    x = torch.tensor([[[1.0, math.nan, 3.0, 4.0]]], dtype=getattr(torch, dtype), device=device)
    result = gradient(Case("MaxPool", (1, 1, 4), {"kernel_shape": [2]}), x, x.new_tensor([[[1, 2, 4]]]))
    assert result.tolist() == [[[0, 3, 0, 4]]]


# --- autograd --------------------------------------------------------------------------------------------------------


SMALL_AND_SMOOTH = [
    case
    for case in SMOOTH
    if case.note in ("2d", "ceil pads", "2d column major", "3d", "empty windows", "same lower dilations", "large pads")
    or "p=" in case.note
]


@pytest.mark.parametrize("case", SMALL_AND_SMOOTH, ids=str)
def test_second_derivatives(case, device):
    x = to_tensor(case.inputs("float64")[0], device).requires_grad_()
    grad = grad_output(case, "float64", device).requires_grad_()
    assert gradgradcheck(lambda x: call(case, [x]), (x,), (grad,), fast_mode=x.numel() > 100)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_second_derivatives_of_zeros(p, device):
    """Where a norm has no slope it has no curvature."""
    x = torch.zeros(1, 1, 4, dtype=torch.float64, device=device)
    x[..., 2:] = torch.tensor([3.0, -4.0])
    x.requires_grad_()
    (slope,) = torch.autograd.grad(torch_onnxpool.lp_pool(x, 2, p=p).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.pow(2).sum(), x)
    assert curvature.isfinite().all()
    assert curvature[..., 0].item() == 0


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_functional_hessian(p, device):
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, device=device)

    def hessian(norm):
        return torch.func.jacrev(torch.func.jacrev(lambda x: norm(x).pow(4).sum()))(x)

    ours = hessian(lambda x: torch_onnxpool.lp_pool(x, 2, p=p))
    torch.testing.assert_close(ours, hessian(lambda x: (4 * F.avg_pool2d(x.abs().pow(p), 2, 1)).pow(1 / p)))


@pytest.mark.parametrize("count_include_pad", [0, 1])
def test_averages_in_segments_whose_rows_are_alike(count_include_pad, device):
    """Few channels of long volumes go in segments, and divisors count data that lie in other ones."""
    x = torch.randn(1, 3, 800, 12, 33, dtype=torch.float64, device=device)
    for layout in (torch.contiguous_format, torch.channels_last_3d):
        leaf = x.clone(memory_format=layout).requires_grad_()
        y = torch_onnxpool.average_pool(
            leaf, 3, strides=[2, 3, 3], pads=[1, 0, 0, 1, 0, 0], count_include_pad=count_include_pad
        )
        grad = torch.randn(y.shape, dtype=torch.float64, device=device).to(memory_format=layout)
        y.backward(grad)
        same = x.clone().requires_grad_()
        F.avg_pool3d(same, 3, [2, 3, 3], [1, 0, 0], count_include_pad=bool(count_include_pad)).backward(grad)
        torch.testing.assert_close(leaf.grad, same.grad)


@pytest.mark.parametrize("operator", WINDOWED)
def test_windows_far_apart(operator, device):
    """Strides and dilations of any size: the windows that have an element are found without trying all of them."""
    for n, stride, dilation in itertools.product((1, 150), (1, 6, 64, 97), (4, 96, 97, 5000)):
        case = Case(operator, (1, 2, n), {"kernel_shape": [3], "strides": [stride], "dilations": [dilation],
                                          "pads": [dilation, 2 * dilation]})  # fmt: skip
        x = to_tensor(case.inputs("float64")[0], device)
        grad = torch.ones_like(call(case, [x]))
        assert_gradient(case, "float64", x, grad, gradient(case, x, grad))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_maxima_of_few_elements(layout, device):
    """Strides greater than windows: no window looks at the elements between them, nor at the last ones."""
    for height in range(1, 60):
        x = torch.randn(1, 64, height, 9, device=device).to(memory_format=layout).requires_grad_()
        torch_onnxpool.max_pool(x, 1, strides=[5, 5]).sum().backward()
        expected = torch.zeros_like(x)
        expected[:, :, ::5, ::5] = 1
        assert torch.equal(x.grad, expected), height


MAX_POOLS = {
    "function": lambda x: torch_onnxpool.max_pool(x, 2),
    "function with indices": lambda x: torch_onnxpool.max_pool(x, 2, return_indices=True)[0],
    "operator": lambda x: torch.ops.torch_onnxpool.max_pool_with_indices(x, [2, 2])[0],
}


@pytest.mark.parametrize("max_pool", MAX_POOLS.values(), ids=MAX_POOLS)
def test_no_zeros_are_made_for_the_gradient_of_indices(max_pool, device):
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    y = max_pool(x)
    grad_y = torch.ones_like(y)
    with torch.profiler.profile() as profile:
        torch.autograd.grad(y, x, grad_y)
    names = {event.key for event in profile.key_averages()}
    assert any("max_pool" in name for name in names)
    assert not any("zero" in name or "fill" in name for name in names)


class Discard(torch.autograd.Function):
    """Its gradient is None, which stands for zeros."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("max_pool", MAX_POOLS.values(), ids=MAX_POOLS)
def test_no_gradient_comes_and_none_goes(max_pool, device):
    x = torch.randn(2, 3, 8, 8, device=device, requires_grad=True)
    (grad_x,) = torch.autograd.grad(Discard.apply(max_pool(x)).sum(), x, allow_unused=True)
    assert grad_x is None or not grad_x.any()


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_no_graph_where_none_is_wanted(operator, device):
    case = Case(operator, (1, 2, 4, 4), {"kernel_shape": [2, 2]} if operator in WINDOWED else {})
    x = torch.randn(case.shape, device=device)
    assert not call(case, [x]).requires_grad
    x.requires_grad_()
    with torch.no_grad():
        assert not call(case, [x]).requires_grad
    with torch.inference_mode():
        assert not call(case, [x]).requires_grad
    assert call(case, [x]).grad_fn is not None


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_functional_gradients(operator, device):
    """torch.func.grad, and vmap over it, are the plain gradient."""
    case = Case(operator, (2, 3, 5, 6), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    x = torch.randn(case.shape, device=device)

    def loss(x):
        return call(case, [x]).pow(2).sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    assert torch.equal(torch.func.grad(loss)(x), leaf.grad)
    assert torch.equal(torch.func.vmap(torch.func.grad(lambda sample: loss(sample[None])))(x), leaf.grad)


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_batched_gradients(operator, device):
    """Of a graph that knows nothing of vmap, and of one made where no gradients are recorded."""
    case = Case(operator, (2, 3, 5, 6), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    x = torch.randn(case.shape, device=device, requires_grad=True)
    y = call(case, [x])
    grads = torch.randn(4, *y.shape, device=device)

    def gradient(grad):
        return torch.autograd.grad(y, x, grad, retain_graph=True)[0]

    assert torch.equal(torch.vmap(gradient)(grads), torch.stack([gradient(grad) for grad in grads]))
    unit_grads = torch.eye(y.numel(), device=device).reshape(-1, *y.shape)
    wanted = torch.stack([gradient(grad) for grad in unit_grads]).reshape(*y.shape, *x.shape)
    with torch.no_grad():
        assert torch.equal(torch.func.jacrev(lambda x: call(case, [x]))(x.detach()), wanted)


@pytest.mark.parametrize("case", SMALL_AND_SMOOTH, ids=str)
def test_forward_mode(case, device):
    """Tangents, forward and of the gradient, for those whose data move."""
    x = to_tensor(case.inputs("float64")[0], device).requires_grad_()
    grad = grad_output(case, "float64", device).requires_grad_()
    fast = x.numel() > 100
    assert gradcheck(lambda x: call(case, [x]), (x,), fast_mode=fast, check_forward_ad=True, check_backward_ad=False)
    assert gradgradcheck(
        lambda x: call(case, [x]),
        (x,),
        (grad,),
        fast_mode=fast,
        check_fwd_over_rev=True,
        check_rev_over_rev=False,
        check_undefined_grad=False,
    )


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_functional_tangents(operator, device):
    """Of both modes of differentiation, and of one over the other."""
    case = Case(operator, (1, 2, 4, 3), {"kernel_shape": [2, 2]} if operator in WINDOWED else {})
    x = torch.randn(case.shape, dtype=torch.float64, device=device)

    def function(x):
        return call(case, [x])

    def loss(x):
        return function(x).pow(2).sum()

    torch.testing.assert_close(torch.func.jacfwd(function)(x), torch.func.jacrev(function)(x))
    over_reverse = torch.func.jacfwd(torch.func.grad(loss))(x)
    torch.testing.assert_close(over_reverse, torch.func.jacrev(torch.func.grad(loss))(x))
    with forward_ad.dual_level():  # of what comes back only
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        (grad,) = torch.autograd.grad(y, leaf, forward_ad.make_dual(torch.ones_like(y), y.detach()))
        tangent = forward_ad.unpack_dual(grad).tangent
    torch.testing.assert_close(tangent, torch.func.vjp(function, x)[1](y.detach())[0])


def loss_by_torch(x: torch.Tensor, p: float) -> torch.Tensor:
    """Of lp_pool(x, 2, p=p), for an input of [N, C, D1, D2]."""
    windows = x.unfold(2, 2, 1).unfold(3, 2, 1)
    return windows.abs().pow(p).sum((-2, -1)).pow(1 / p).pow(3).sum()


MODES = (torch.func.jacfwd, torch.func.jacrev)
ORDERS = [*itertools.product(MODES, repeat=2), *itertools.product(MODES, repeat=3)]


@pytest.mark.parametrize("modes", ORDERS, ids=lambda modes: " of ".join(mode.__name__ for mode in modes))
@pytest.mark.parametrize("p", [1, 1.5, 2, 2.7, 3])
def test_derivatives_of_derivatives(p, modes, device):
    """In all combinations of modes; called by either way."""
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)

    def derivative(function):
        return functools.reduce(lambda function, mode: mode(function), reversed(modes), function)(x)

    expected = derivative(lambda x: loss_by_torch(x, p))
    for lp_pool in (torch_onnxpool.lp_pool, torch.ops.torch_onnxpool.lp_pool):
        actual = derivative(lambda x, lp_pool=lp_pool: lp_pool(x, [2, 2], p=p).pow(3).sum())
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("p", "dtype", "scale"), [(64, torch.float32, 1e6), (64, torch.float64, 1e-200),
                                                    (3, torch.float64, 1e200), (3, torch.float64, 1e-200),
                                                    (1.5, torch.float64, 1e300)])  # fmt: skip
def test_derivatives_of_norms_of_any_magnitude(p, dtype, scale, device):
    """Slopes are those of the same data of another scale, and curvatures are divided by it."""
    x = torch.tensor([[[3.9, 4.0, -3.8], [4e-5, -3.7e-5, 3.9e-5]]], dtype=torch.float64, device=device)

    def norms(x):
        return torch_onnxpool.lp_pool(x, 2, p=p)

    def assert_alike(derivative, order):
        actual, expected = derivative((x * scale).to(dtype)), derivative(x)
        assert expected.isfinite().all()
        tolerance = 1e-3 if dtype == torch.float32 else 1e-9  # the roundings of X and Y count p times
        torch.testing.assert_close(actual, (expected / scale**order).to(dtype), rtol=tolerance, atol=0)

    assert_alike(torch.func.jacfwd(norms), 0)
    assert_alike(torch.func.jacrev(torch.func.grad(lambda x: norms(x).sum())), 1)
    assert_alike(torch.func.jacfwd(torch.func.grad(lambda x: norms(x).sum())), 1)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_windows_beside_ones_that_are_not_finite(value, device):
    x = torch.tensor([[[3.0, 4.0, 0.0, value]]], dtype=torch.float64, device=device)
    _, tangent = torch.func.jvp(lambda x: torch_onnxpool.lp_pool(x, 2), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent[..., :2], tangent.new_tensor([[[1.4, 1.0]]]))


def test_forward_over_forward(device):
    x = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64, device=device)
    v = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64, device=device)

    def slope(x):
        return torch.func.jvp(torch_onnxpool.global_lp_pool, (x,), (v,))[1]

    assert torch.func.jvp(slope, (x,), (v,))[1].item() == pytest.approx(16 / 125)


def test_tangents_beside_indices(device):
    x = torch.randn(1, 2, 4, 4, device=device)
    (y, indices), (tangent, _) = torch.func.jvp(
        lambda x: torch_onnxpool.max_pool(x, 2, return_indices=True), (x,), (x * 3,)
    )
    assert torch.equal(tangent, y * 3)
    assert torch.equal(indices, torch_onnxpool.max_pool(x, 2, return_indices=True)[1])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_what_the_backward_pass_keeps(operator, compiled, device):
    """Nothing for averages, Indices for maxima, X and Y for norms."""
    case = Case(operator, (2, 3, 5, 6), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    x = torch.randn(case.shape, device=device, requires_grad=True)

    def function(x):
        return call(case, [-x])

    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        y = function(x)
    if "Average" in operator:
        assert kept == []
    elif "Max" in operator:
        assert [(saved.shape, saved.dtype) for saved in kept] == [(y.shape, torch.int64)]
    else:
        assert all(torch.equal(*pair) for pair in zip(kept, (-x, y), strict=True))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("operator", [operator for operator in WINDOWED + GLOBAL if "Lp" not in operator])
def test_data_that_nobody_needs_may_change_after_the_forward_pass(operator, compiled, device):
    case = Case(operator, (2, 3, 5, 6), {"kernel_shape": [2, 3]} if operator in WINDOWED else {})
    for layout in LAYOUTS:
        x = arrange(torch.randn(case.shape, device=device), layout)
        grad = torch.randn_like(call(case, [x]))
        wanted = gradient(case, x, grad)
        x.requires_grad_()
        torch._dynamo.reset()
        y = (torch.compile(call, backend="aot_eager") if compiled else call)(case, [x])
        with torch.no_grad():
            x.fill_(math.nan)
        (actual,) = torch.autograd.grad(y, x, grad)
        assert torch.equal(actual, wanted)
        assert actual.stride() == wanted.stride()


def test_gradients_without_data_have_the_layout_of_those_with(device):
    """Axes of one element make a layout ambiguous: it must be read in the same way."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        order = rng.permutation(rng.integers(3, 6))
        x = torch.zeros(rng.choice([1, 1, 2, 3], len(order)).tolist(), device=device).permute(*order.tolist())
        x = x[rng.integers(0, 2) :, ..., :: rng.integers(1, 3)].requires_grad_()
        y = torch_onnxpool.global_average_pool(x)
        grad = torch.ones_like(y)
        with_data = torch.ops.torch_onnxpool.global_average_pool_backward(grad, x)
        assert torch.autograd.grad(y, x, grad)[0].stride() == with_data.stride(), (x.shape, x.stride())


def test_data_changed_after_the_forward_pass_are_noticed(device):
    x = torch.randn(1, 1, 4, device=device, requires_grad=True)
    changed = x * 1
    y = torch_onnxpool.lp_pool(changed, 2)
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor], ids=lambda convert: convert.__name__)
def test_lists_changed_after_the_forward_pass_do_not_matter(convert, device):
    x = torch.randn(1, 1, 6, 6, device=device, requires_grad=True)
    kernel, strides, pads = convert([2, 2]), convert([2, 2]), convert([1, 0, 0, 0])
    y = torch_onnxpool.average_pool(x, kernel, strides=strides, pads=pads, count_include_pad=1)
    grad = torch.randn_like(y)
    (wanted,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    kernel[0], strides[0], pads[0], pads[2] = 1, 1, 0, 1
    assert torch.equal(torch.autograd.grad(y, x, grad)[0], wanted)


def test_bytes_have_no_gradient(device):
    x = torch.ones(1, 1, 4, dtype=torch.uint8, device=device)
    y, indices = torch_onnxpool.max_pool(x, 2, return_indices=True)
    assert not y.requires_grad
    assert not indices.requires_grad


@pytest.mark.parametrize("operator", WINDOWED + GLOBAL)
def test_autocast_runs_in_the_type_of_the_input(operator, device):
    """Pools are safe in half precision: autocast neither widens nor narrows them."""
    case = Case(operator, (1, 2, 4, 4), {"kernel_shape": [2, 2]} if operator in WINDOWED else {})
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(case.shape).to(device, dtype)
        with torch.autocast(device, torch.bfloat16):
            assert call(case, [x]).dtype == dtype


def test_a_training_step(device):
    """A pool in a small network: weights before and after it learn."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch_onnxpool.LpPool(3, p=3, strides=2, auto_pad="SAME_LOWER"),
        torch.nn.Conv2d(4, 4, 3, padding=1),
        torch_onnxpool.MaxPool(2, strides=2, ceil_mode=1),
        torch_onnxpool.AveragePool(2, pads=[1, 0, 0, 1], count_include_pad=1),
        torch_onnxpool.GlobalLpPool(p=2),
    ).to(device)
    x, wanted = torch.randn(8, 1, 12, 12, device=device), torch.rand(8, 4, 1, 1, device=device)
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (net(x) - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
