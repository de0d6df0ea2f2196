"""What compilers see: opcheck on every operator, fake tensors, torch.compile, torch.export and vmap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases import CASES, GLOBAL, LAYOUTS, UNPOOL_CASES, WINDOWED, Case, cases
from tensors import arrange, call, to_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.export import Dim
from torch.library import opcheck

import torch_onnxpool

OPS = torch.ops.torch_onnxpool

# opcheck's compiler test takes a second: it gets the cases that differ in rank, layout or attributes, not in numbers.
COMPILED = {"1d", "2d", "3d", "4d", "batch 0", "ceil pads", "ceil drops window", "same lower dilations", "large pads",
            "empty windows", "valid ceil", "ceil pads counted", "2d p=3", "2d column major", "ties", "zeros p=2",
            "one element", "1d channels last"}  # fmt: skip
QUICK_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor")
ALL_TESTS = (*QUICK_TESTS, "test_aot_dispatch_dynamic")


def checks_of(case: Case) -> tuple[str, ...]:
    return ALL_TESTS if case.note in COMPILED else QUICK_TESTS


def forward_operators(case: Case) -> list[torch._ops.OpOverload]:
    names = [case.function, f"{case.function}_with_indices"] if "MaxPool" in case.operator else [case.function]
    return [getattr(OPS, name).default for name in names]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_opcheck_forward(case, device):
    dtype = "float32" if case.differentiable else "uint8"
    x, *scalars = (to_tensor(a, device) for a in case.inputs(dtype))
    for operator in forward_operators(case):
        for requires_grad in (False, True) if case.differentiable else (False,):
            arguments = (x.clone().requires_grad_(requires_grad), *scalars)
            opcheck(operator, arguments, dict(case.attributes), test_utils=checks_of(case))


def backward_call(case: Case, tensors: list[torch.Tensor]) -> tuple[torch._ops.OpOverload, list[torch.Tensor]]:
    """The backward operator and what it takes: grad_Y, the inputs, and Y or Indices where its schema has them."""
    results = forward_operators(case)[-1](*tensors, **case.attributes)  # with Indices, where there are any
    y, companion = results if isinstance(results, tuple) else (results, results)
    backward = getattr(OPS, f"{case.function}_backward").default
    operands = sum(isinstance(argument.type, torch.TensorType) for argument in backward._schema.arguments)
    return backward, [torch.randn_like(y), *tensors, companion][:operands]


@pytest.mark.parametrize("case", cases(differentiable=True), ids=str)
def test_opcheck_backward(case, device):
    backward, operands = backward_call(case, [to_tensor(case.inputs("float32")[0], device)])
    opcheck(backward, tuple(operands), dict(case.attributes), test_utils=checks_of(case))


def test_every_operator_is_checked():
    every_case = [*CASES, *UNPOOL_CASES]  # the latter in test_unpool.py
    checked = {operator.name() for case in every_case for operator in forward_operators(case)}
    checked |= {f"torch_onnxpool::{case.function}_backward" for case in every_case if case.differentiable}
    checked |= {f"{name}.eager" for name in checked}
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("torch_onnxpool::")}
    assert checked == registered


# --- the overloads that plain tensors take ---------------------------------------------------------------------------


def assert_same_overloads(operator: torch._ops.OpOverload, tensors: list[torch.Tensor], attributes: dict) -> None:
    """The eager overload is a correct operator, and does what the default one does."""
    eager = operator._overloadpacket.eager
    _, *arguments = torch_onnxpool._C.eager_arguments(eager, tuple(tensors), attributes)
    opcheck(eager, tuple(arguments), test_utils="test_schema")
    torch.testing.assert_close(eager(*arguments), operator(*tensors, **attributes), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", [*CASES, *UNPOOL_CASES], ids=str)
def test_eager_overloads(case, device):
    tensors = [to_tensor(a, device) for a in case.inputs("float32" if case.differentiable else "uint8")]
    attributes = dict(case.attributes)
    for operator in forward_operators(case):
        assert_same_overloads(operator, tensors, attributes)
    if case.differentiable:
        assert_same_overloads(*backward_call(case, tensors), attributes)


def test_texts_that_are_no_attributes(device):
    x = torch.ones(1, 1, 4, 4, device=device)
    lists = ["k", "k2,", "k2,x", "k2*2,", "k2*", "k2*0", "k2*-1", "k*2", "kc1", f"k2*{2**62}", "k" + "1," * 2000 + "1"]
    numbers = ["k2,2c1,1", "k2,2c", "k2,2p99999999999999999999", "k2*1025", "k2*1024b0"]
    for text in (*lists, *numbers, "2,2", "k2,2;", "q2,2", "k2,2aVALID", "k2,2\x00"):
        with pytest.raises(ValueError, match=r"torch_onnxpool|kernel_shape"):
            OPS.average_pool.eager(x, text)


def test_a_text_cannot_be_smuggled_in(device):
    x = torch.ones(1, 1, 4, 4, device=device)
    for auto_pad in ("VALID;c1", "VALID;", ";VALID", "NOTSET;s2,2"):
        with pytest.raises(ValueError, match=f"AveragePool: auto_pad .* got auto_pad={auto_pad}"):
            torch_onnxpool.average_pool(x, [3, 3], auto_pad=auto_pad)
    for kernel_shape in ([1] * 5000, list(range(1, 900))):  # more than a text may say, or longer than one may be
        with pytest.raises(ValueError, match="AveragePool: kernel_shape must have one entry"):
            torch_onnxpool.average_pool(x, kernel_shape)


class Watching:
    """What a mode is told of."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def note(self, function, types, arguments=(), keywords=None):
        self.seen.append(str(function))
        return function(*arguments, **(keywords or {}))


class SeenByTorchFunction(Watching, torch.overrides.TorchFunctionMode):
    __torch_function__ = Watching.note


class SeenByTorchDispatch(Watching, torch.utils._python_dispatch.TorchDispatchMode):
    __torch_dispatch__ = Watching.note


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("mode", [SeenByTorchFunction, SeenByTorchDispatch])
def test_modes_see_onnx_attributes(mode, requires_grad, device):
    x = torch.randn(1, 2, 4, 4, device=device, requires_grad=requires_grad)
    with mode() as watching:
        y = torch_onnxpool.average_pool(x, 3, strides=[1, 1])
    assert "torch_onnxpool.average_pool.default" in watching.seen
    assert y.requires_grad == requires_grad
    if requires_grad:
        y.sum().backward()
        assert x.grad is not None


def test_tracers_see_onnx_attributes(device):
    layer, x = torch_onnxpool.AveragePool(3, ceil_mode=1), torch.randn(1, 2, 4, 4, device=device)
    traced = torch.jit.trace(layer, x)
    node = traced.graph.findNode("torch_onnxpool::average_pool")
    assert "ceil_mode" in node.schema()
    x.requires_grad_()
    traced(x).sum().backward()  # unlike the eager overload's, its gradient is known
    assert x.grad is not None
    graph = torch.fx.experimental.proxy_tensor.make_fx(layer)(x.detach()).graph
    assert OPS.average_pool.default in [node.target for node in graph.nodes]


@pytest.mark.parametrize("size", [lambda x: x.shape[2:], lambda x: x.size(2), lambda x: [x.size(2), 3]])
def test_tracing_warns_of_sizes_that_become_constants(size, device):
    x = torch.randn(1, 2, 4, 4, device=device)
    with pytest.warns(torch.jit.TracerWarning, match="^kernel_shape .* becomes a constant of the trace"):
        traced = torch.jit.trace(lambda x: torch_onnxpool.average_pool(x, size(x)), x, check_trace=False)
    assert torch.equal(traced(x), torch_onnxpool.average_pool(x, size(x)))


class PoolAndBack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = torch_onnxpool.MaxPool(2, strides=2, return_indices=True)
        self.unpool = torch_onnxpool.MaxUnpool(2, strides=2)

    def forward(self, x):
        y, indices = self.pool(x)
        return self.unpool(y, indices, x.shape)


ZERO_POINT = torch.tensor(3, dtype=torch.uint8)
MODELS = [
    *(getattr(torch_onnxpool, operator)(2, strides=[2, 1]) for operator in WINDOWED),
    *(getattr(torch_onnxpool, operator)() for operator in GLOBAL),
    torch_onnxpool.QLinearAveragePool([2, 2], 0.5, ZERO_POINT, 0.25, ZERO_POINT),
    torch_onnxpool.QLinearGlobalAveragePool(0.5, ZERO_POINT, 0.25, ZERO_POINT, channels_last=1),
    PoolAndBack(),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_symbolic_traces(model, device):
    """torch.fx sees a call of the function, for inputs of any rank and with whatever gradient."""
    model = torch.nn.Sequential(model).to(device)
    graph = torch.fx.symbolic_trace(model)
    functions = torch_onnxpool.functional.__name__
    calls = [node.target for node in graph.graph.nodes if getattr(node.target, "__module__", "") == functions]
    assert calls
    assert all(call in vars(torch_onnxpool).values() for call in calls)
    for shape in ((2, 3, 6, 7), (1, 2, 5, 4)):
        x = torch.randint(0, 255, shape, dtype=torch.uint8, device=device)
        if not type(model[0]).__name__.startswith("QLinear"):
            x = x.float().requires_grad_()
        y = graph(x)
        assert torch.equal(y, model(x))
        assert y.requires_grad == x.requires_grad


def test_symbolic_traces_leave_p_open():
    x = torch.randn(1, 2, 5, 5)
    for function in (
        lambda x, p: torch_onnxpool.lp_pool(x, [2, 2], p=p),
        lambda x, p: torch_onnxpool.global_lp_pool(x, p=p),
    ):
        graph = torch.fx.symbolic_trace(function)
        for p in (1, 2.5):
            assert torch.equal(graph(x, p), function(x, p))


# --- fake tensors ----------------------------------------------------------------------------------------------------


def assert_alike(fake: torch.Tensor, real: torch.Tensor) -> None:
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
    assert fake.stride() == real.stride()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fake_tensors_are_shaped_like_real_ones(case, device):
    more = {"return_indices": True} if case.operator == "MaxPool" else {}
    for dtype in case.dtypes:
        for layout in LAYOUTS:
            x, *scalars = (to_tensor(a, device) for a in case.inputs(dtype))
            inputs = [arrange(x, layout), *scalars]
            real = call(case, inputs, **more)
            with FakeTensorMode() as mode:
                fake = call(case, [mode.from_tensor(t) for t in inputs], **more)
            for f, r in zip(*((t if more else (t,)) for t in (fake, real)), strict=True):
                assert_alike(f, r)


@pytest.mark.parametrize("case", cases(differentiable=True), ids=str)
def test_fake_gradients_are_shaped_like_real_ones(case, device):
    for layout in LAYOUTS:
        x = arrange(to_tensor(case.inputs("float32")[0], device), layout)
        for grad_layout in LAYOUTS:
            real_x = x.detach().requires_grad_()
            y = call(case, [real_x])
            grad = arrange(torch.randn_like(y), grad_layout)
            y.backward(grad)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake_x = mode.from_tensor(x).requires_grad_()
                call(case, [fake_x]).backward(mode.from_tensor(grad))
            assert_alike(fake_x.grad, real_x.grad)


def test_fake_strides_of_any_layout():
    """Axes of one element make a layout ambiguous: both sides must read it the same way."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        order = rng.permutation(rng.integers(3, 6))
        x = torch.zeros(rng.choice([1, 1, 2, 3], len(order)).tolist()).permute(*order.tolist())
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(x)
            fakes = [torch_onnxpool.max_pool(fake, 1, strides=2), torch_onnxpool.global_average_pool(fake)]
        for f, real in zip(
            fakes, [torch_onnxpool.max_pool(x, 1, strides=2), torch_onnxpool.global_average_pool(x)], strict=True
        ):
            assert_alike(f, real)


def test_meta_tensors():
    x = torch.empty(2, 3, 8, 9, device="meta")
    assert torch_onnxpool.average_pool(x, 3, strides=2).shape == (2, 3, 3, 4)
    assert torch_onnxpool.global_lp_pool(x, p=3).shape == (2, 3, 1, 1)


REFUSED = {
    "type": lambda x: torch_onnxpool.average_pool(x.int(), 2),
    "type of bytes": lambda x: torch_onnxpool.global_max_pool(x.byte()),
    "rank": lambda x: torch_onnxpool.global_average_pool(x[0, 0]),
    "too many dimensions": lambda x: torch_onnxpool.max_pool(x.reshape([1] * 62 + [1, 4, 4]), 1),
    "no channels": lambda x: torch_onnxpool.lp_pool(x[:, :0], 2),
    "empty plane": lambda x: torch_onnxpool.global_max_pool(x[..., :0]),
    "p": lambda x: torch_onnxpool.global_lp_pool(x, p=0.5),
    "quantised type": lambda x: torch_onnxpool.qlinear_global_average_pool(x, *scalars_like(x)),
    "quantised rank": lambda x: torch_onnxpool.qlinear_average_pool(
        x[0, 0].byte(), *scalars_like(x), 2, channels_last=1
    ),
    "scales": lambda x: torch_onnxpool.qlinear_global_average_pool(x.byte(), x[0, 0, 0], *scalars_like(x)[1:]),
    "type of a scale": lambda x: torch_onnxpool.qlinear_global_average_pool(
        x.byte(), x.new_ones(1).double(), *scalars_like(x)[1:]
    ),
    "type of a zero point": lambda x: torch_onnxpool.qlinear_global_average_pool(
        x.byte(), x.new_ones(1), x.new_zeros(1).char(), *scalars_like(x)[2:]
    ),
    "flag": lambda x: torch_onnxpool.qlinear_average_pool(x.byte(), *scalars_like(x), 2, channels_last=7),
    "unpooled type": lambda x: torch_onnxpool.max_unpool(x.byte(), x.long(), 2),
    "indices": lambda x: torch_onnxpool.max_unpool(x, x, 2),
}


def scalars_like(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.new_ones(1), x.new_zeros(1).byte()] * 2


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_tensors_without_data_are_refused_like_real_ones(refused, device):
    with pytest.raises(ValueError, match=r"^\w+: ") as real:
        refused(torch.ones(1, 1, 4, 4, device=device))
    with pytest.raises(ValueError, match=r"^\w+: ") as meta:
        refused(torch.ones(1, 1, 4, 4, device="meta"))
    with FakeTensorMode(), pytest.raises(ValueError, match=r"^\w+: ") as fake:
        refused(torch.ones(1, 1, 4, 4, device=device))
    assert str(meta.value) == str(fake.value) == str(real.value)


@pytest.mark.parametrize("name", ["x_scale", "x_zero_point", "y_scale", "y_zero_point"])
def test_scalars_without_data(name, device):
    x = torch.ones(1, 1, 4, dtype=torch.uint8, device=device)
    given = dict(zip(("x_scale", "x_zero_point", "y_scale", "y_zero_point"), scalars_like(x.float()), strict=True))
    with pytest.raises(ValueError, match=f"^QLinearGlobalAveragePool: {name} must be on the CPU or on the device of X"):
        torch_onnxpool.qlinear_global_average_pool(x, **given | {name: given[name].to("meta")})


@pytest.mark.parametrize("attributes", [{"kernel_shape": [0, 2]}, {"kernel_shape": [9, 9]}, {"kernel_shape": [2]},
                                        {"kernel_shape": [2, 2], "pads": [0, 0, -1, 0]}])  # fmt: skip
def test_fake_tensors_refuse_what_real_ones_refuse(attributes):
    with pytest.raises(ValueError, match=r"^MaxPool: ") as real:
        torch_onnxpool.max_pool(torch.ones(1, 1, 4, 4), **attributes)
    with FakeTensorMode(), pytest.raises(ValueError, match=r"^MaxPool: ") as fake:
        torch_onnxpool.max_pool(torch.ones(1, 1, 4, 4), **attributes)
    assert str(fake.value) == str(real.value)


# --- torch.compile ---------------------------------------------------------------------------------------------------

SMALL = [
    Case(
        "AveragePool", (2, 3, 8, 9), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 2], "ceil_mode": 1}
    ),
    Case("LpPool", (2, 3, 8, 9), {"kernel_shape": [3, 2], "auto_pad": "SAME_LOWER", "p": 3}),
    Case("MaxPool", (2, 3, 8, 9), {"kernel_shape": [2, 2], "dilations": [2, 2], "storage_order": 1}),
    *(Case(operator, (2, 3, 8, 9)) for operator in GLOBAL),
]
SIZES = [(2, 3, 8, 9), (3, 4, 7, 11), (4, 2, 12, 6)]


def assert_compiles(case: Case, backend: str, device: str) -> None:
    """One graph for every size, forward and backward, without a graph break."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: call(case, [x]), fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in SIZES:
            x = torch.randn(size, device=device).requires_grad_()
            same_x = x.detach().clone().requires_grad_()
            y, same = compiled(x), call(case, [same_x])
            torch.testing.assert_close(y, same, rtol=0, atol=0)
            grad = torch.randn_like(y)
            y.backward(grad)
            same.backward(grad)
            torch.testing.assert_close(x.grad, same_x.grad, rtol=0, atol=0)


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.operator)
def test_compile(case, device):
    assert_compiles(case, "aot_eager", device)


@pytest.mark.parametrize("case", [SMALL[0], SMALL[2]], ids=lambda c: c.operator)
def test_compile_with_inductor(case, device):
    assert_compiles(case, "inductor", device)


def loss(case: Case, x: torch.Tensor) -> torch.Tensor:
    return call(case, [x]).pow(3).sum()


TRANSFORMED = {
    "jvp": lambda case, x: torch.func.jvp(lambda x: call(case, [x]), (x,), (x.sin(),))[1],
    "jacfwd": lambda case, x: torch.func.jacfwd(lambda x: call(case, [x]))(x),
    "jacrev": lambda case, x: torch.func.jacrev(lambda x: call(case, [x]))(x),
    "grad": lambda case, x: torch.func.grad(lambda x: loss(case, x))(x),
    "hessian": lambda case, x: torch.func.hessian(lambda x: loss(case, x))(x),
    "grad of vmap": lambda case, x: torch.func.vmap(torch.func.grad(lambda sample: loss(case, sample[None])))(x),
}


@pytest.mark.parametrize("transformed", TRANSFORMED.values(), ids=TRANSFORMED)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("operator", ["AveragePool", "LpPool", "MaxPool"])
def test_compile_transforms(operator, backend, transformed, device):
    torch._dynamo.reset()
    case = Case(operator, (2, 1, 4, 3), {"kernel_shape": [2, 2], **({"p": 3} if operator == "LpPool" else {})})
    x = torch.randn(case.shape, dtype=torch.float64, device=device)
    compiled = torch.compile(lambda x: transformed(case, x), backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(compiled, transformed(case, x))


WAYS = {
    "operator": lambda layer, x: lambda x: torch.ops.torch_onnxpool.lp_pool(x, [2, 2], p=3),
    "exported": lambda layer, x: torch.export.export(layer, (x,)).module(),
    "traced": torch.jit.trace,
    "compiled": lambda layer, x: torch.compile(layer, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_tangents_by_every_way(way, device):
    """None of them may give zeros."""
    torch._dynamo.reset()
    x, tangent = torch.randn(2, 1, 1, 4, 3, dtype=torch.float64, device=device)
    layer = torch_onnxpool.LpPool(2, p=3)
    _, expected = torch.func.jvp(layer, (x,), (tangent,))
    called = WAYS[way](layer, x)
    with forward_ad.dual_level():
        torch.testing.assert_close(forward_ad.unpack_dual(called(forward_ad.make_dual(x, tangent))).tangent, expected)
    if way != "compiled":  # torch wants its transforms to be compiled too
        torch.testing.assert_close(torch.func.jvp(called, (x,), (tangent,))[1], expected)


def test_compile_max_pool_with_indices(device):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def pool(x):
        y, indices = torch_onnxpool.max_pool(x, 2, strides=2, return_indices=True)
        return y * 2, indices + 1

    for size in SIZES:
        x = torch.randn(size, device=device)
        y, indices = torch_onnxpool.max_pool(x, 2, strides=2, return_indices=True)
        torch.testing.assert_close(pool(x), (y * 2, indices + 1))


@pytest.mark.parametrize("attributes", [{}, {"kernel_shape": [3, 2], "strides": [2, 1], "ceil_mode": 1}], ids=len)
def test_compile_quantised(attributes, device):
    torch._dynamo.reset()
    zero_points = (torch.tensor(z, dtype=torch.uint8) for z in (3, 5))
    scalars = zip(("x_scale", "y_scale", "x_zero_point", "y_zero_point"), (0.5, 0.25, *zero_points))
    operator = "QLinearAveragePool" if attributes else "QLinearGlobalAveragePool"
    layer = getattr(torch_onnxpool, operator)(**attributes, **dict(scalars)).to(device)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in SIZES:
        x = torch.randint(0, 255, size, dtype=torch.uint8, device=device)
        assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compile_keeps_layouts(layout, device):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: torch_onnxpool.average_pool(x, 2), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    x = arrange(torch.randn(2, 3, 4, 5, device=device), layout)
    assert compiled(x).stride() == torch_onnxpool.average_pool(x, 2).stride()


# --- torch.export ----------------------------------------------------------------------------------------------------


class Pool(torch.nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.case = case

    def forward(self, x):
        return call(self.case, [x])


@pytest.mark.parametrize("case", [c for c in cases(*WINDOWED, *GLOBAL) if len(c.shape) == 4], ids=str)
def test_export_with_dynamic_sizes(case, device):
    """Named dimensions would fail the export if a fake kernel had asked about a size. Every window fits into 16."""
    size = (4, 3, 29, 31)
    dynamic = {0: Dim("N"), 2: Dim("H", min=16), 3: Dim("W", min=16)}
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        program = torch.export.export(Pool(case), (torch.randn(size, device=device),), dynamic_shapes=(dynamic,))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [getattr(OPS, case.function).default]
    for other in (size, (2, 3, 17, 40), (5, 3, 40, 18)):
        x = torch.randn(other, device=device)
        torch.testing.assert_close(program.module()(x), call(case, [x]), rtol=0, atol=0)


# --- vmap ------------------------------------------------------------------------------------------------------------


def assert_maps(function, x: torch.Tensor, in_dim: int) -> None:
    mapped = torch.func.vmap(function, in_dims=in_dim)(x)
    slices = [function(part) for part in x.unbind(in_dim)]
    if isinstance(mapped, tuple):
        for results, parts in zip(mapped, zip(*slices, strict=True), strict=True):
            assert torch.equal(results, torch.stack(parts))
    else:
        assert torch.equal(mapped, torch.stack(slices))


VMAPPED = [
    *SMALL,
    Case("QLinearGlobalAveragePool", (2, 3, 8, 9), scalars=(0.5, 3, 0.25, 5)),
    Case("QLinearAveragePool", (2, 3, 8, 9), {"kernel_shape": [3, 2], "pads": [1, 0, 0, 1]}, scalars=(0.5, 3, 0.25, 5)),
]


@pytest.mark.parametrize("in_dim", [0, 1, 3, -1])
@pytest.mark.parametrize("case", VMAPPED, ids=lambda c: c.operator)
def test_vmap(case, in_dim, device):
    _, *scalars = (to_tensor(a, device) for a in case.inputs("uint8" if not case.differentiable else "float32"))
    shape = list(case.shape)
    shape.insert(in_dim % 5, 4)
    x = torch.randn(shape, device=device) if case.differentiable else torch.randint(0, 255, shape).byte().to(device)
    assert_maps(lambda x: call(case, [x, *scalars]), x, in_dim)


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize("in_dim", [0, 2])
def test_vmap_indices(in_dim, storage_order, device):
    """Indices are flat over the tensor that the mapped function sees, not over the batch of them; -1 stays -1."""
    x = torch.randn(2, 3, 4, 5, 3, device=device)
    assert_maps(
        lambda x: torch_onnxpool.max_pool(
            x, 1, pads=[1, 0, 0, 1], strides=2, storage_order=storage_order, return_indices=True
        ),
        x,
        in_dim,
    )


@pytest.mark.parametrize("case", VMAPPED, ids=lambda c: c.operator)
def test_nested_vmap(case, device):
    _, *scalars = (to_tensor(a, device) for a in case.inputs("uint8" if not case.differentiable else "float32"))
    shape = (2, 3, *case.shape)
    x = torch.randn(shape, device=device) if case.differentiable else torch.randint(0, 255, shape).byte().to(device)

    def function(x):
        return call(case, [x, *scalars])

    mapped = torch.func.vmap(torch.func.vmap(function), in_dims=0)(x)
    assert torch.equal(mapped, torch.stack([torch.stack([function(b) for b in a]) for a in x]))


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.operator)
def test_gradient_of_vmap(case, device):
    x = torch.randn(4, *case.shape, device=device).requires_grad_()
    same_x = x.detach().clone().requires_grad_()
    torch.func.vmap(lambda x: call(case, [x]))(x).pow(2).sum().backward()
    torch.stack([call(case, [part]) for part in same_x]).pow(2).sum().backward()
    assert torch.equal(x.grad, same_x.grad)


def test_vmap_of_empty_batches(device):
    for samples, batch in ((4, 0), (0, 4), (0, 0)):
        x = torch.randn(samples, batch, 2, 3, 3, device=device)
        assert torch.func.vmap(lambda x: torch_onnxpool.average_pool(x, 2))(x).shape == (samples, batch, 2, 2, 2)
        results = torch.func.vmap(lambda x: torch_onnxpool.max_pool(x, 2, return_indices=True))(x)
        assert [result.shape for result in results] == [(samples, batch, 2, 2, 2)] * 2


@pytest.mark.parametrize("case", [c for c in VMAPPED if not c.differentiable], ids=lambda c: c.operator)
def test_vmap_over_scales_is_refused(case, device):
    x = torch.randint(0, 255, (4, 2, 3, 4, 5), dtype=torch.uint8, device=device)
    zero, scale = torch.tensor(3, dtype=torch.uint8, device=device), torch.tensor(0.5, device=device)
    with pytest.raises(ValueError, match=rf"^{case.operator}: .*vmap"):
        torch.func.vmap(lambda x, x_scale: call(case, [x, x_scale, zero, scale, zero]))(x, scale.expand(4))
