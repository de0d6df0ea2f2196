"""Layers: ONNX's names and defaults, what they show, keep and load, and that results do not depend on the machine."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import os
import pickle
import subprocess
import sys
import typing
from enum import Enum
from fractions import Fraction

import numpy as np
import onnx.defs
import pytest
import torch
from cases import CASES, FLOATS, GLOBAL, QUANTISATION, WINDOWED, Case, cases
from tensors import arrange, call, to_array, to_tensor

import torch_onnxpool
from torch_onnxpool import functional

LAYERS = [*WINDOWED, *GLOBAL]
NEWEST = 22


def layer_of(case: Case, **more) -> torch.nn.Module:
    return getattr(torch_onnxpool, case.operator)(**case.attributes, **more)


@pytest.mark.parametrize("case", cases(*LAYERS), ids=str)
def test_layers_are_the_functions(case, device):
    x = to_tensor(case.inputs("float32")[0], device)
    layer = layer_of(case)
    assert torch.equal(layer(x), call(case, [x]))
    for name, value in case.attributes.items():
        assert getattr(layer, name) == value


@pytest.mark.parametrize("case", cases("MaxPool")[:3], ids=str)
def test_max_pool_layer_returns_indices(case, device):
    x = to_tensor(case.inputs("float32")[0], device)
    for ours, theirs in zip(layer_of(case, return_indices=True)(x), call(case, [x], return_indices=True), strict=True):
        assert torch.equal(ours, theirs)


# --- ONNX's facts ----------------------------------------------------------------------------------------------------


def onnx_defaults(operator: str) -> dict[str, object]:
    """Attributes of the newest version; None where ONNX has no constant for the default."""
    attributes = onnx.defs.get_schema(operator, NEWEST).attributes
    values = {
        name: onnx.helper.get_attribute_value(a.default_value) for name, a in attributes.items() if not a.required
    }
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()}


def own_defaults(function) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "return_indices"}


@pytest.mark.parametrize("operator", LAYERS)
def test_attributes_and_defaults_are_onnxs(operator):
    onnx_values = {name: v or None if isinstance(v, list) else v for name, v in onnx_defaults(operator).items()}
    function = getattr(functional, Case(operator, ()).function)
    for ours in (own_defaults(getattr(torch_onnxpool, operator)), own_defaults(function)):
        assert ours == onnx_values
        assert {name: type(v) for name, v in ours.items()} == {name: type(v) for name, v in onnx_values.items()}
    required = [n for n, a in onnx.defs.get_schema(operator, NEWEST).attributes.items() if a.required]
    assert required == (["kernel_shape"] if operator in WINDOWED else [])
    if required:
        with pytest.raises(TypeError, match="kernel_shape"):
            getattr(torch_onnxpool, operator)()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is of Python 3.11")
def test_what_checkers_of_types_see_has_all_arguments():
    overloads = typing.get_overloads(functional.max_pool)
    assert len(overloads) == 3
    for overload in overloads:
        assert [*inspect.signature(overload).parameters] == [*inspect.signature(functional.max_pool).parameters]


def test_a_length_zero_default_is_no_default():
    """onnx.defs writes an INTS attribute without a default as an empty attribute."""
    assert onnx.defs.get_schema("MaxPool", NEWEST).attributes["pads"].default_value.ints == []


def test_public_names():
    layers = {
        name
        for name, value in vars(torch_onnxpool).items()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module)
    }
    assert {*LAYERS, "QLinearGlobalAveragePool"} <= layers
    assert set(torch_onnxpool.__all__) >= layers
    for name in torch_onnxpool.__all__:
        assert getattr(torch_onnxpool, name).__doc__


# --- modules ---------------------------------------------------------------------------------------------------------

REPRS = [
    (Case("AveragePool", (), {"kernel_shape": [3, 3]}), "AveragePool(kernel_shape=[3, 3])"),
    (
        Case("AveragePool", (), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        "AveragePool(kernel_shape=[3, 3], auto_pad='SAME_LOWER', strides=[2, 2])",
    ),
    (
        Case("AveragePool", (), {"kernel_shape": 2, "count_include_pad": 1, "pads": [0, 1, 0, 1], "ceil_mode": 1}),
        "AveragePool(kernel_shape=2, ceil_mode=1, count_include_pad=1, pads=[0, 1, 0, 1])",
    ),
    (Case("LpPool", (), {"kernel_shape": [2], "p": 3}), "LpPool(kernel_shape=[2], p=3)"),
    (
        Case("MaxPool", (), {"kernel_shape": (2, 2), "storage_order": 1, "dilations": 2}),
        "MaxPool(kernel_shape=[2, 2], dilations=2, storage_order=1)",
    ),
    (Case("GlobalAveragePool", ()), "GlobalAveragePool()"),
    (Case("GlobalMaxPool", ()), "GlobalMaxPool()"),
    (Case("GlobalLpPool", ()), "GlobalLpPool()"),
    (Case("GlobalLpPool", (), {"p": 1.5}), "GlobalLpPool(p=1.5)"),
]


@pytest.mark.parametrize(("case", "text"), REPRS, ids=[text for _, text in REPRS])
def test_repr_is_in_onnxs_words(case, text):
    """And can be evaluated to the same layer."""
    assert repr(layer_of(case)) == text
    assert repr(eval(text, vars(torch_onnxpool))) == text


def test_repr_says_that_indices_are_returned():
    assert "return_indices=True" in repr(torch_onnxpool.MaxPool(2, return_indices=True))


@pytest.mark.parametrize("operator", LAYERS)
def test_pickle_copy_and_state(operator):
    note = "ceil pads" if operator in WINDOWED else "2d"
    case = next(c for c in CASES if (c.operator, c.note) == (operator, note))
    layer, x = layer_of(case), to_tensor(case.inputs("float32")[0])
    assert layer.state_dict() == {}
    assert list(layer.parameters()) == []
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert repr(twin) == repr(layer)
        assert torch.equal(twin(x), layer(x))
    for mode in (layer.eval(), layer.train()):
        assert torch.equal(mode(x), call(case, [x]))


def test_quantised_pickle_and_state():
    layer = torch_onnxpool.QLinearGlobalAveragePool(0.5, np.uint8(3), 0.25, np.uint8(5), channels_last=1)
    x = torch.randint(0, 255, (1, 3, 4, 2), dtype=torch.uint8)
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert repr(twin) == repr(layer)
        assert torch.equal(twin(x), layer(x))
    assert list(layer.state_dict()) == ["x_scale", "x_zero_point", "y_scale", "y_zero_point"]
    assert all(text in repr(layer) for text in ("x_scale=0.5", "x_zero_point=3", "channels_last=1"))
    assert torch_onnxpool.QLinearGlobalAveragePool().state_dict() == {}


def test_lists_given_to_a_layer_are_its_own():
    kernel_shape = [2, 2]
    layer = torch_onnxpool.MaxPool(kernel_shape)
    kernel_shape[0] = 3
    assert layer(torch.ones(1, 1, 2, 2)).shape == (1, 1, 1, 1)


@pytest.mark.parametrize("operator", WINDOWED)
def test_an_int_stands_for_a_list_at_every_rank(operator):
    layer = getattr(torch_onnxpool, operator)(2, strides=2, pads=1, dilations=1)
    for rank in (1, 2, 3, 4):
        x = torch.randn([1, 2, *[5] * rank])
        lists = getattr(torch_onnxpool, operator)(
            [2] * rank, strides=[2] * rank, pads=[1] * 2 * rank, dilations=[1] * rank
        )
        assert torch.equal(layer(x), lists(x))


@pytest.mark.parametrize("operator", WINDOWED)
def test_integers_of_numpy_are_ints(operator):
    x = torch.randn(1, 2, 5, 5)
    layer = getattr(torch_onnxpool, operator)(np.int64(2), strides=np.int32(2), pads=[np.uint8(1)] * 4)
    plain = getattr(torch_onnxpool, operator)(2, strides=2, pads=[1] * 4)
    assert repr(layer) == repr(plain)
    assert torch.equal(layer(x), plain(x))
    attributes = {"kernel_shape": np.int64(2), "strides": np.int32(2), "pads": 1}
    assert torch.equal(call(Case(operator, (), attributes), [x]), plain(x))


class Padding(str, Enum):
    VALID = "VALID"


SPELLINGS = [
    ("LpPool", "p", value, plain)
    for value, plain in ((np.float64(3), 3.0), (np.float32(1.5), 1.5), (np.int64(3), 3), (Fraction(3, 2), 1.5),
                         (True, 1), (2**63, 2.0**63))
] + [
    ("AveragePool", name, value, plain)
    for name, value, plain in (("ceil_mode", np.int64(1), 1), ("ceil_mode", torch.tensor(1), 1),
                               ("ceil_mode", np.True_, 1), ("count_include_pad", True, 1),
                               ("auto_pad", np.str_("VALID"), "VALID"), ("auto_pad", Padding.VALID, "VALID"),
                               ("strides", np.array([2, 1]), [2, 1]), ("pads", torch.tensor(1), 1),
                               ("pads", (np.uint8(1), torch.tensor(1), 0, True), [1, 1, 0, 1]))
] + [("MaxPool", "return_indices", value, True) for value in (1, np.True_, torch.tensor(True))]  # fmt: skip


@pytest.mark.parametrize(("operator", "name", "value", "plain"), SPELLINGS, ids=repr)
def test_layers_hold_attributes_in_pythons_own_types(operator, name, value, plain):
    """Which compilers and strict exports know; whatever they are written as."""
    layer = getattr(torch_onnxpool, operator)(2, **{name: value})
    held = getattr(layer, name)
    items = held if isinstance(held, list) else [held]
    assert (held, type(held), {*map(type, items)} <= {int, float, str, bool}) == (plain, type(plain), True)
    assert repr(layer) == repr(getattr(torch_onnxpool, operator)(2, **{name: plain}))
    x = torch.randn(1, 2, 5, 5)
    assert_same_results(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))
    assert_same_results(torch.export.export(layer, (x,), strict=True).module()(x), layer(x))


def assert_same_results(ours, theirs) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("operator", LAYERS)
def test_layers_have_hooks_and_stand_in_sequences(operator):
    layer = getattr(torch_onnxpool, operator)(**({"kernel_shape": 2} if operator in WINDOWED else {}))
    seen = []
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), layer)
    assert net(torch.ones(1, 1, 4, 4)).shape == seen[0]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("operator", LAYERS)
def test_saved_programs_compute_the_same(operator, tmp_path):
    """Exported and traced ones; torch.jit.script is not supported."""
    layer = getattr(torch_onnxpool, operator)(**({"kernel_shape": [2, 2]} if operator in WINDOWED else {}))
    x = torch.randn(2, 3, 5, 5)
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "exported.pt2")
    assert torch.equal(torch.export.load(tmp_path / "exported.pt2").module()(x), layer(x))
    torch.jit.save(torch.jit.trace(layer, x), tmp_path / "traced.pt")
    assert torch.equal(torch.jit.load(tmp_path / "traced.pt")(x), layer(x))


# --- what an import loads --------------------------------------------------------------------------------------------


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_loads_only_torch():
    code = """
import sys, torch
before = set(sys.modules)
import torch_onnxpool
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""
    assert set(run_python(code).split()) <= {"torch_onnxpool", "torch"}


def test_import_is_possible_before_torch_onnx_is_used():
    """A first export imports what it needs by itself."""
    code = "import torch_onnxpool, sys; print([m for m in ('onnx', 'onnxscript', 'onnxruntime') if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_what_a_torch_lacks_is_told_with_those_that_do_not():
    code = """
import torch
del {name}
try:
    import torch_onnxpool
except ImportError as error:
    print(error)
"""
    for name in ("torch._C._is_tracing", "torch._functorch.utils.enable_single_level_autograd_function"):
        text = run_python(code.format(name=name))
        assert "has been tested with torch 2.10, " in text
        assert name.rpartition(".")[2] in text


def test_a_missing_library_is_told_as_it_is():
    code = """
import sys, torch
sys.modules["torch_onnxpool._C"] = None
try:
    import torch_onnxpool
except ImportError as error:
    print(error)
"""
    assert "torch 2.10" not in run_python(code)


# --- the same bits everywhere ----------------------------------------------------------------------------------------


WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


def fingerprint(threads: int | None = None) -> str:
    """A digest of all results and gradients over the table and over tensors that threads share."""
    if threads:
        torch.set_num_threads(threads)
    digest = hashlib.sha256()
    large = [
        Case("AveragePool", (4, 6, 40, 41), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        Case("LpPool", (4, 6, 40, 41), {"kernel_shape": [2, 3], "strides": [2, 2]}),
        Case("LpPool", (2, 6, 40, 41), {"kernel_shape": [2, 3], "p": 1.5, "ceil_mode": 1}),
        Case("MaxPool", (4, 6, 40, 41), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
        *(Case(operator, (4, 40, 33, 31)) for operator in GLOBAL),
        # Rows that fill some registers, or a part of one.
        *(
            Case(operator, (2, 5, 6, width), WINDOW | {"strides": [1, stride]}, scalars=QUANTISATION)
            for operator in (*WINDOWED, "QLinearAveragePool")
            for width in (3, 7, 8, 13, 16, 17, 33, 64, 65, 128)
            for stride in (1, 2, 3)
        ),
    ]
    for case in [*CASES, *large]:
        for dtype in case.dtypes:
            x, *scalars = (to_tensor(a) for a in case.inputs(dtype))
            layouts = [x, x.movedim(1, -1).contiguous().movedim(-1, 1)]
            for x in layouts:
                y = call(case, [x, *scalars])
                digest.update(to_array(y).tobytes())
                if case.differentiable and x.is_floating_point():
                    x = x.detach().requires_grad_()
                    call(case, [x, *scalars]).backward(y)
                    digest.update(to_array(x.grad).tobytes())
    return digest.hexdigest()


PRINT_FINGERPRINT = "import test_layers; print(test_layers.fingerprint({threads}))"


@pytest.fixture(scope="module")
def own_fingerprint() -> str:
    return fingerprint()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_do_not_depend_on_the_number_of_threads(threads, own_fingerprint):
    assert run_python(PRINT_FINGERPRINT.format(threads=threads)).strip() == own_fingerprint


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_results_do_not_depend_on_the_instruction_set(capability, own_fingerprint):
    result = run_python(PRINT_FINGERPRINT.format(threads=2), ATEN_CPU_CAPABILITY=capability)
    assert result.strip() == own_fingerprint


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("operator", WINDOWED)
def test_planes_that_keep_their_size_are_the_same_in_both_layouts(operator, seed):
    """Results and gradients, of NaN and infinities too: kernels for the layouts have little in common."""
    rng = np.random.default_rng(seed)
    rank = rng.integers(1, 3)
    kernel, dilations = rng.integers(1, 8, rank), rng.integers(1, 4, rank)
    if rng.random() < 0.7:
        kernel[:] = rng.choice([2, 3, 5])
    reach = (kernel - 1) * dilations
    before = np.where(rng.random(rank) < 0.5, kernel // 2, rng.integers(0, kernel)) * dilations
    attributes = {
        "kernel_shape": kernel.tolist(),
        "dilations": dilations.tolist(),
        "pads": [*before.tolist(), *(reach - before).tolist()],
    }
    if operator == "LpPool":
        attributes["p"] = [1, 2, 3][seed % 3]
    shape = (2, int(rng.integers(1, 40)), *rng.integers(1, 400 if rank == 1 else 60, rank).tolist())
    x = torch.from_numpy(rng.standard_normal(shape)).to([torch.float32, torch.float64, torch.bfloat16][seed % 3])
    for value in (math.nan, math.inf, -math.inf, -0.0) * (seed % 2):
        x.view(-1)[rng.integers(x.numel())] = value
    results = []
    for layout in ("contiguous", "channels_last"):
        x = arrange(x, layout).detach().requires_grad_()
        y = call(Case(operator, shape, attributes), [x])
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
        results.append((y, gradient))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [2, 8, 31, 200])
def test_sums_of_negative_zeros_stay_negative(width, dtype):
    """As they are in IEEE arithmetic; padding adds nothing."""
    x = torch.full((2, 17, 5, width), -0.0, dtype=getattr(torch, dtype))
    for case in (Case("AveragePool", tuple(x.shape), WINDOW), Case("GlobalAveragePool", tuple(x.shape))):
        for layout in ("contiguous", "channels_last", "sliced"):
            assert torch.signbit(call(case, [arrange(x, layout)])).all(), (case.operator, layout)


def test_concurrent_calls_do_not_disturb_each_other():
    from concurrent.futures import ThreadPoolExecutor

    case = Case("LpPool", (2, 3, 30, 30), {"kernel_shape": [3, 3], "p": 3})
    x = to_tensor(case.inputs("float32")[0])
    wanted = call(case, [x])
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(y, wanted) for y in pool.map(lambda _: call(case, [x]), range(64)))
