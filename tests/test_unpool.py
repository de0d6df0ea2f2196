"""MaxUnpool: the operator with a second input, in all that the other operators are tested for."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import onnx.defs
import oracle
import pytest
import torch
from cases import FLOATS, LAYOUTS, UNPOOL_CASES, Case, fill, unpooled_shape
from tensors import arrange, call, to_array, to_tensor
from test_bad_input import identify, suits_another_rank
from test_forward import assert_layout_follows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

import torch_onnxpool
from torch_onnxpool import MaxUnpool, max_pool, max_unpool

OPS = torch.ops.torch_onnxpool
SMALL = [case for case in UNPOOL_CASES if case.note in ("1d", "2d", "asymmetric pads", "larger")]
every_case = pytest.mark.parametrize("case", UNPOOL_CASES, ids=str)
small_case = pytest.mark.parametrize("case", SMALL, ids=str)


def inputs_of(case: Case, dtype: str, device: str = "cpu") -> list[torch.Tensor]:
    return [to_tensor(array, device) for array in case.inputs(dtype)]


def duplicated(case: Case, dtype: str, device: str = "cpu") -> list[torch.Tensor]:
    """The same with indices of which many are equal."""
    x, indices = inputs_of(case, dtype, device)
    return [x, indices // 3 * 3]


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@every_case
def test_values_and_layouts(case, dtype, device):
    for x, indices in (inputs_of(case, dtype, device), duplicated(case, dtype, device)):
        wanted = oracle.max_unpool(to_array(x), to_array(indices), **case.attributes)
        for layout in LAYOUTS:
            for indices_layout in LAYOUTS:
                arranged = arrange(x, layout)
                y = call(case, [arranged, arrange(indices, indices_layout)])
                assert y.dtype == x.dtype
                np.testing.assert_array_equal(to_array(y).view(np.uint8), wanted.view(np.uint8))
            assert_layout_follows(y, arranged)


@pytest.mark.parametrize("seed", range(10))
def test_random_configurations(seed, device):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        case = random_case(rng)
        dtype, layouts = str(rng.choice(FLOATS)), rng.choice(LAYOUTS, 2)
        try:
            x, indices = inputs_of(case, dtype, device)
            indices = indices if rng.random() < 0.7 else indices // 2
            wanted = oracle.max_unpool(to_array(x), to_array(indices), **case.attributes)
        except ValueError:
            continue
        y = call(case, [arrange(t, str(layout)) for t, layout in zip((x, indices), layouts)])
        np.testing.assert_array_equal(to_array(y).view(np.uint8), wanted.view(np.uint8), err_msg=repr(case))


def random_case(rng: np.random.Generator) -> Case:
    """Of any rank; a configuration with more elements than its output has places for is not allowed."""
    rank = int(rng.integers(1, 5))
    spatial = rng.integers(1, {1: 9, 2: 5, 3: 4, 4: 3}[rank], rank).tolist()
    attributes = {"kernel_shape": rng.integers(1, 4, rank).tolist()}
    if rng.random() < 0.7:
        attributes["strides"] = rng.integers(1, 4, rank).tolist()
    if rng.random() < 0.4:
        attributes["pads"] = rng.integers(0, 2, 2 * rank).tolist()
    shape = (*rng.integers(1, 4, 2).tolist(), *spatial)
    if rng.random() < 0.3:
        attributes["output_shape"] = [*shape[:2], *(n + int(rng.integers(0, 3)) for n in spatial)]
    return Case("MaxUnpool", shape, attributes)


@pytest.mark.parametrize("pooling", [{"kernel_shape": [2, 2], "strides": [2, 2]},
                                     {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [0, 1, 0, 1]}])  # fmt: skip
def test_unpooling_undoes_pooling(pooling, device):
    """Pooling what was unpooled gives the same again, as the operator's text says."""
    x = torch.rand(2, 3, 6, 7, device=device) + 1
    y, indices = max_pool(x, **pooling, return_indices=True)
    unpooled = max_unpool(y, indices, **pooling, output_shape=x.shape)
    assert unpooled.shape == x.shape
    assert torch.equal(max_pool(unpooled, **pooling), y)
    assert torch.equal(unpooled[unpooled != 0], x[unpooled != 0])


def test_of_duplicates_the_last_wins(device):
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], device=device)
    indices = torch.tensor([[[5, 1, 1, 5]]], device=device)
    assert max_unpool(x, indices, 2, strides=2).tolist() == [[[0, 3, 0, 0, 0, 4, 0, 0]]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_are_moved_as_they_are(dtype, device):
    x = torch.tensor([[[math.nan, math.inf, -math.inf, -0.0]]], device=device).to(getattr(torch, dtype))
    y = max_unpool(x, torch.tensor([[[3, 2, 1, 0]]], device=device), 1)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    assert torch.equal(y.view(integer), x.flip(2).view(integer))


def test_output_shapes_of_every_kind(device):
    x, indices = torch.ones(1, 1, 2, device=device), torch.tensor([[[0, 8]]], device=device)
    wanted = max_unpool(x, indices, 2, output_shape=[1, 1, 9])
    for shape in ((1, 1, 9), torch.Size([1, 1, 9]), torch.tensor([1, 1, 9])):
        assert torch.equal(max_unpool(x, indices, 2, output_shape=shape), wanted)
        assert torch.equal(MaxUnpool(2)(x, indices, shape), wanted)


# --- gradients -------------------------------------------------------------------------------------------------------


@every_case
def test_gradcheck(case, device):
    if 0 in case.shape:
        pytest.skip("gradcheck wants elements to move")
    for x, indices in (inputs_of(case, "float64", device), duplicated(case, "float64", device)):
        x.requires_grad_()
        assert gradcheck(lambda x, i=indices: call(case, [x, i]), (x,), fast_mode=x.numel() > 100)
        grad = torch.randn(unpooled_shape(case), dtype=torch.float64, device=device, requires_grad=True)
        if x.numel() <= 100:
            assert gradgradcheck(lambda x, i=indices: call(case, [x, i]), (x,), (grad,))


@pytest.mark.parametrize("dtype", FLOATS)
@every_case
def test_gradients_of_every_type_and_layout(case, dtype, device):
    g = fill("distinct", unpooled_shape(case), dtype, np.random.default_rng(0))
    for x, indices in (inputs_of(case, dtype, device), duplicated(case, dtype, device)):
        wanted = oracle.max_unpool_gradient(g.astype(np.float64), to_array(x), to_array(indices), **case.attributes)
        for layout in LAYOUTS:
            leaf = arrange(x, layout).detach().requires_grad_()
            call(case, [leaf, arrange(indices, layout)]).backward(arrange(to_tensor(g, device), layout))
            np.testing.assert_array_equal(to_array(leaf.grad).astype(np.float64), wanted)


@small_case
def test_functional_gradients(case, device):
    x, indices = inputs_of(case, "float64", device)

    def loss(x):
        return call(case, [x, indices]).pow(2).sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    assert torch.equal(torch.func.grad(loss)(x), leaf.grad)


@small_case
def test_forward_mode(case, device):
    x, indices = inputs_of(case, "float64", device)
    grad = torch.randn(unpooled_shape(case), dtype=torch.float64, device=device, requires_grad=True)
    x.requires_grad_()
    assert gradcheck(lambda x: call(case, [x, indices]), (x,), check_forward_ad=True, check_backward_ad=False)
    assert gradgradcheck(lambda x: call(case, [x, indices]), (x,), (grad,), check_fwd_over_rev=True)


def test_the_backward_pass_keeps_indices_only(device):
    x, indices = torch.randn(1, 2, 3, device=device), torch.arange(6, device=device).reshape(1, 2, 3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        y = max_unpool(x.requires_grad_(), indices, 2)
    assert [saved is indices for saved in kept] == [True]
    with torch.no_grad():
        x.fill_(math.nan)
    grad = torch.randn_like(y)
    assert torch.equal(torch.autograd.grad(y, x, grad)[0], grad.flatten()[indices])


def test_no_graph_where_none_is_wanted(device):
    x, indices = inputs_of(SMALL[0], "float32", device)
    assert not call(SMALL[0], [x, indices]).requires_grad
    with torch.no_grad():
        assert not call(SMALL[0], [x.requires_grad_(), indices]).requires_grad


# --- compilers and transforms ----------------------------------------------------------------------------------------


@every_case
def test_opcheck(case, device):
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    checks += ("test_aot_dispatch_dynamic",) if case in SMALL else ()
    x, indices = inputs_of(case, "float32", device)
    opcheck(OPS.max_unpool.default, (x, indices), case.attributes, test_utils=checks)
    opcheck(OPS.max_unpool.default, (x.clone().requires_grad_(), indices), case.attributes, test_utils=checks)
    grad = torch.randn(unpooled_shape(case), device=device)
    opcheck(OPS.max_unpool_backward.default, (grad, x, indices), case.attributes, test_utils=checks)


@every_case
def test_fake_tensors_are_shaped_like_real_ones(case, device):
    for layout in LAYOUTS:
        inputs = [arrange(t, layout) for t in inputs_of(case, "float32", device)]
        real = call(case, inputs)
        with FakeTensorMode() as mode:
            fake = call(case, [mode.from_tensor(t) for t in inputs])
        assert (fake.shape, fake.dtype, fake.device, fake.stride()) == (
            real.shape,
            real.dtype,
            real.device,
            real.stride(),
        )


@pytest.mark.parametrize("attributes", [
    {"kernel_shape": [0, 2]}, {"kernel_shape": [2]}, {"kernel_shape": 2, "pads": [-1] * 4},
    {"kernel_shape": 1, "pads": [2, 0, 2, 0]},
    *({"kernel_shape": 2, "output_shape": shape} for shape in ([5, 5], [1, 1, 5, 5, 5], [2, 1, 5, 5], [1, 2, 5, 5],
                                                               [1, 1, 0, 5], [1, 1, 5, -5], [1, 1, 2**31, 2**31])),
], ids=str)  # fmt: skip
def test_fake_tensors_refuse_what_real_ones_refuse(attributes, device):
    assert_refused_alike(lambda x: max_unpool(x, torch.zeros_like(x, dtype=torch.int64), **attributes), device)


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 1, 4, 3), (1, 1, 1, 4, 4)])
def test_fake_indices_are_refused_like_real_ones(shape, device):
    assert_refused_alike(lambda x: max_unpool(x, x.new_zeros(shape, dtype=torch.int64), 2), device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32, torch.bool])
def test_fake_indices_of_another_type_are_refused_like_real_ones(dtype, device):
    assert_refused_alike(lambda x: max_unpool(x, torch.zeros_like(x, dtype=dtype), 2), device)


def assert_refused_alike(unpool: Callable, device: str) -> None:
    with pytest.raises(ValueError, match=r"^MaxUnpool: ") as real:
        unpool(torch.ones(1, 1, 4, 4, device=device))
    with FakeTensorMode(), pytest.raises(ValueError, match=r"^MaxUnpool: ") as fake:
        unpool(torch.ones(1, 1, 4, 4, device=device))
    assert str(fake.value) == str(real.value)


SIZES = [(2, 3, 4, 5), (3, 2, 5, 3), (4, 4, 3, 6)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend, device):
    """One graph for every size, forward and backward; pooling and unpooling in one."""
    torch._dynamo.reset()

    def reconstruct(x):
        y, indices = max_pool(x, 2, return_indices=True)
        return max_unpool(y, indices, 2)

    compiled = torch.compile(reconstruct, fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in SIZES:
            x = torch.randn(size, device=device).requires_grad_()
            same_x = x.detach().clone().requires_grad_()
            y, same = compiled(x), reconstruct(same_x)
            torch.testing.assert_close(y, same, rtol=0, atol=0)
            y.square().sum().backward()
            same.square().sum().backward()
            torch.testing.assert_close(x.grad, same_x.grad, rtol=0, atol=0)


@small_case
@pytest.mark.parametrize("in_dim", [0, 1, -1])
def test_vmap(case, in_dim, device):
    inputs = [torch.stack([t] * 4).movedim(0, in_dim) for t in inputs_of(case, "float32", device)]
    inputs[0] = torch.randn(inputs[0].shape, device=device).requires_grad_()
    mapped = torch.func.vmap(lambda x, i: call(case, [x, i]), in_dims=in_dim)(*inputs)
    slices = [call(case, [x, i]) for x, i in zip(*(t.unbind(in_dim) for t in inputs))]
    assert torch.equal(mapped, torch.stack(slices))
    (grad,) = torch.autograd.grad(mapped.pow(2).sum(), inputs[0])
    (wanted,) = torch.autograd.grad(torch.stack(slices).pow(2).sum(), inputs[0])
    assert torch.equal(grad, wanted)


def test_vmap_of_one_input(device):
    x, indices = torch.randn(4, 1, 2, 3, device=device), torch.tensor([[[0, 2, 4], [7, 9, 11]]], device=device)
    mapped = torch.func.vmap(lambda x: max_unpool(x, indices, 2, strides=2))(x)
    assert torch.equal(mapped, torch.stack([max_unpool(part, indices, 2, strides=2) for part in x]))


# --- what is refused -------------------------------------------------------------------------------------------------

X, I = torch.ones(1, 2, 3, 3), torch.arange(18).reshape(1, 2, 3, 3)  # noqa: E741
HUGE = 2**62
LISTS = [0, -1, HUGE, [0, 1], [-3, 1], [1, 2**31], [], [2], [2, 2, 2], "22", 1.5, [1.5, 2], [None, 2], {2: 2}]
BAD_ATTRIBUTES = [
    *(("kernel_shape", value) for value in [*LISTS, None]),
    *(("strides", value) for value in LISTS),
    *(("pads", value) for value in [-1, HUGE, 2**31, [0, -1, 0, 0], [], [1, 1], [1] * 5, "1111", [0.5, 0, 0, 0]]),
]
BAD_OUTPUT_SHAPES = [[], [8, 8], [1, 2, 8], [1, 2, 8, 8, 8], [2, 2, 8, 8], [1, 1, 8, 8], [1, 2, 0, 8], [1, 2, -8, 8],
                     [1, 2, HUGE, HUGE], 8, "1288", [1, 2, 8.5, 8], {1: 2}, torch.ones(4), torch.tensor(3),
                     torch.tensor([[1, 2, 8, 8]])]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_ATTRIBUTES, ids=identify)
def test_bad_attributes(name, value, device):
    attributes = {"kernel_shape": [2, 2]} | {name: value}
    with pytest.raises(ValueError, match=rf"^MaxUnpool: .*{name}") as refusal:
        max_unpool(X.to(device), I.to(device), **attributes)
    assert f"got {name}=" in str(refusal.value)
    if suits_another_rank(name, value):
        return
    with pytest.raises(ValueError, match=rf"^MaxUnpool: .*{name}") as refusal:
        MaxUnpool(**attributes)
    assert f"got {name}=" in str(refusal.value)


@pytest.mark.parametrize("value", BAD_OUTPUT_SHAPES, ids=identify)
def test_bad_output_shapes(value, device):
    x, i = X.to(device), I.to(device)
    for unpool in (lambda: max_unpool(x, i, [2, 2], output_shape=value), lambda: MaxUnpool([2, 2])(x, i, value)):
        with pytest.raises(ValueError, match=r"^MaxUnpool: .*(output_shape|the output must)"):
            unpool()


@pytest.mark.parametrize("index", [16, 17, HUGE, -1, -HUGE])
def test_indices_outside_of_the_output(index, device):
    indices = I.to(device) % 16
    indices[0, 1, 1, 1] = index
    with pytest.raises(ValueError, match=rf"^MaxUnpool: .*got .*{index}\b"):
        max_unpool(torch.ones(1, 2, 3, 3, device=device), indices, [1, 1], output_shape=[1, 2, 2, 4])


@pytest.mark.parametrize("indices", [I.int(), I.float(), I[:, :1], I[..., 0], I[0], I.reshape(1, 2, 9), None, 0, [[0]]],
                         ids=identify)  # fmt: skip
def test_indices_of_another_type_or_shape(indices, device):
    wanted = "have the shape|be of type" if isinstance(indices, torch.Tensor) else "be a tensor, got I="
    with pytest.raises(ValueError, match=rf"^MaxUnpool: I must ({wanted})"):
        max_unpool(X.to(device), indices.to(device) if isinstance(indices, torch.Tensor) else indices, [2, 2])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 0, 4), (1, 2, 0)])
def test_shapes_of_inputs(shape, device):
    with pytest.raises(ValueError, match=rf"^MaxUnpool: .*{re.escape(str(list(shape)))}"):
        max_unpool(torch.ones(shape, device=device), torch.zeros(shape, dtype=torch.int64, device=device), 2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64])
def test_element_types(dtype, device):
    with pytest.raises(ValueError, match=r"^MaxUnpool: X must be of type .*float64.*, got "):
        max_unpool(X.to(device, dtype), I.to(device), 2)


def test_an_empty_output(device):
    with pytest.raises(ValueError, match=r"^MaxUnpool: the output must not be empty, got .*\[1, 2, 0, 3\]"):
        max_unpool(X.to(device), I.to(device), 1, pads=[1, 0, 2, 0])


# --- layers ----------------------------------------------------------------------------------------------------------


@every_case
def test_layer_is_the_function(case, device):
    attributes = dict(case.attributes)
    output_shape = attributes.pop("output_shape", None)
    x, indices = inputs_of(case, "float32", device)
    layer = MaxUnpool(**attributes)
    for twin in (layer, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(twin(x, indices, output_shape), call(case, [x, indices]))
        assert repr(twin) == repr(eval(repr(layer), vars(torch_onnxpool)))
    assert layer.onnx_attributes() == attributes
    assert layer.state_dict() == {}


def test_attributes_and_defaults_are_onnxs():
    names = set(onnx.defs.get_schema("MaxUnpool", 22).attributes)
    parameters = inspect.signature(MaxUnpool).parameters
    assert set(parameters) == names
    assert {name: p.default for name, p in parameters.items() if name != "kernel_shape"} == dict.fromkeys(
        names - {"kernel_shape"}
    )
    assert repr(MaxUnpool([2, 2], strides=2)) == "MaxUnpool(kernel_shape=[2, 2], strides=2)"


@pytest.mark.parametrize("index", [4, 5, 7, 8, 2**40])
def test_samples_do_not_reach_into_each_other(index, device):
    """Under vmap samples are one batch, in which an index outside of its own sample may be inside another one."""
    x = torch.ones(3, 1, 1, 2, device=device)
    for sample in range(3):
        indices = torch.tensor([0, 1], device=device).repeat(3, 1, 1, 1)
        indices[sample, 0, 0, 1] = index
        with pytest.raises(ValueError, match=r"^MaxUnpool: I must name elements of the output"):
            torch.func.vmap(lambda x, i: max_unpool(x, i, 2, strides=2))(x, indices)


def as_large_as(x: torch.Tensor) -> torch.Tensor:
    y, indices = max_pool(x, 2, strides=2, return_indices=True)
    return max_unpool(y, indices, 2, strides=2, output_shape=x.shape)


def test_an_output_as_large_as_an_input_of_any_size(device):
    """One graph for all sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(as_large_as, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in ((2, 3, 8, 9), (3, 2, 11, 5), (4, 5, 6, 7)):
            x = torch.randn(size, device=device, requires_grad=True)
            same_x = x.detach().clone().requires_grad_()
            for y in (compiled(x), as_large_as(same_x)):
                assert y.shape == size
                y.pow(2).sum().backward()
            assert torch.equal(x.grad, same_x.grad)


def test_the_other_tensor_without_data(device):
    x, indices = torch.ones(1, 1, 2, device=device), torch.zeros(1, 1, 2, dtype=torch.int64, device="meta")
    for tensors in ((x, indices), (x.to("meta"), indices.new_zeros(1, 1, 2, device=device))):
        with pytest.raises(ValueError, match=r"^MaxUnpool: I must be on the device of X, .*, got I on "):
            max_unpool(*tensors, 2)


class Asked(torch.Tensor):
    """Notes what it is asked about."""

    functions: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        cls.functions.append(str(function))
        return super().__torch_function__(function, types, arguments, keywords or {})


def test_indices_decide_who_is_asked(device):
    """A plain X beside indices that are not."""
    x, indices = max_pool(torch.randn(1, 2, 4, 4, device=device), 2, strides=2, return_indices=True)
    Asked.functions.clear()
    y = max_unpool(x, indices.as_subclass(Asked), 2, strides=2)
    assert "torch_onnxpool.max_unpool.default" in Asked.functions
    assert torch.equal(y.as_subclass(torch.Tensor), max_unpool(x, indices, 2, strides=2))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake_indices = mode.from_tensor(indices)
    assert max_unpool(x, fake_indices, 2, strides=2).shape == y.shape


def test_a_trace_of_indices(device):
    x, indices = max_pool(torch.randn(1, 2, 4, 4, device=device), 2, strides=2, return_indices=True)

    class Unpool(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("x", x)

        def forward(self, indices):
            return max_unpool(self.x, indices, 2, strides=2)

    assert torch.equal(torch.fx.symbolic_trace(Unpool())(indices), max_unpool(x, indices, 2, strides=2))


def test_sizes_beyond_64_bits(device):
    x = torch.ones(1, 1, 1, device=device).expand(1, 1, 2**34)
    indices = torch.zeros(1, 1, 1, dtype=torch.int64, device=device).expand(1, 1, 2**34)
    with pytest.raises(ValueError, match=r"^MaxUnpool: the output must be addressable in 64 bits, got strides"):
        max_unpool(x, indices, 2, strides=2**31 - 1)
