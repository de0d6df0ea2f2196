"""What is not allowed is refused: a ValueError that names the operator, the rule and the value, before any work."""

from __future__ import annotations

import math
import re
from decimal import Decimal

import numpy as np
import pytest
import torch
from cases import GLOBAL, WINDOWED, Case
from tensors import call

import torch_onnxpool

X = torch.ones(1, 2, 6, 6)
HUGE = 2**62
BEYOND = 2**63  # any integer of 64 bits

# For every attribute of a windowed operator with two spatial axes, what it may not be.
LISTS = [0, -1, HUGE, 2**31, [0, 1], [1, 0], [-3, 1], [HUGE, 1], [1, 2**31], [], [2], [2, 2, 2], "2", "22", 1.5,
         [1.5, 2], ["2", "2"], [None, 2], [[2, 2]], [[2], [2]], {2: 2}, torch.ones(2), BEYOND, [BEYOND, 1], {2, 3},
         b"\2\2", bytearray(b"\2\2"), np.array([2.0, 2.0]), np.array([[2, 2]])]  # fmt: skip
PADS = [-1, HUGE, 2**31, [0, -1, 0, 0], [HUGE, 0, 0, 0], [0, 0, 0, 2**31], [], [1], [1, 1], [1] * 3, [1] * 5, "1111",
        0.5, [0.5, 0, 0, 0], ["1"] * 4, [None] * 4, [[1, 1], [1, 1]], {1: 1}, BEYOND, (), {0, 1, 2, 3}]  # fmt: skip
FLAGS = [-1, 2, HUGE, BEYOND, "1", 0.5, 1.0, 0.0, np.float64(0), Decimal(0), torch.tensor(0.0), torch.tensor([1, 0]),
         np.array([1, 0]), None, [1], [], {}]  # fmt: skip
AUTO_PAD = ["", "SAME", "same_upper", "NOTSET ", "EXPLICIT", 0, 1, HUGE, -1, 1.5, None, ["VALID"], b"VALID", "VALID\0",
            "\ud800"]  # fmt: skip
P = [0, -1, 0.5, 0.999999, math.nan, math.inf, -math.inf, -HUGE, 10**400, -(10**400), "2", None, [2], {},
     Decimal("1.5"), torch.tensor(3), torch.tensor(3.0, requires_grad=True), torch.tensor([3.0]),
     np.array(3.0)]  # fmt: skip
RETURN_INDICES = [2, -1, HUGE, "yes", 0.5, 1.0, 0.0, None, [True], torch.tensor([True, False]),
                  np.array([True, False])]  # fmt: skip

BAD_VALUES = {
    "kernel_shape": [*LISTS, None],
    "strides": LISTS,
    "dilations": LISTS,
    "pads": PADS,
    "auto_pad": AUTO_PAD,
    "ceil_mode": FLAGS,
}
OWN_BAD_VALUES = {
    "AveragePool": {"count_include_pad": FLAGS},
    "LpPool": {"p": P},
    "MaxPool": {"storage_order": FLAGS, "return_indices": RETURN_INDICES},
    "GlobalLpPool": {"p": P},
}

BAD_ATTRIBUTES = [
    (operator, name, value)
    for operator in WINDOWED
    for name, values in (BAD_VALUES | OWN_BAD_VALUES[operator]).items()
    for value in values
] + [("GlobalLpPool", "p", value) for value in P]


def identify(value) -> str:
    return repr(value).replace(" ", "")[:40]


def suits_another_rank(name, value) -> bool:
    """Whether layers take the value, because they do not know yet how many axes the input has."""
    return name == "kernel_shape" and isinstance(value, list) and value in ([2], [2, 2, 2])


@pytest.mark.parametrize(("operator", "name", "value"), BAD_ATTRIBUTES, ids=identify)
def test_functions_refuse_bad_attributes(operator, name, value, device):
    attributes = ({} if operator in GLOBAL else {"kernel_shape": [2, 2]}) | {name: value}
    with pytest.raises(ValueError, match=rf"^{operator}: .*{name}") as refusal:
        call(Case(operator, (1, 2, 6, 6), attributes), [X.to(device)])
    assert f"got {name}=" in str(refusal.value), "the message shows the value"


@pytest.mark.parametrize(("operator", "name", "value"), BAD_ATTRIBUTES, ids=identify)
def test_layers_refuse_bad_attributes_at_construction(operator, name, value):
    """Whatever can be known before there is an input; a list's length must match that of kernel_shape."""
    if suits_another_rank(name, value):
        pytest.skip("legal for inputs of another rank")
    attributes = ({} if operator in GLOBAL else {"kernel_shape": [2, 2]}) | {name: value}
    with pytest.raises(ValueError, match=rf"^{operator}: .*{name}") as refusal:
        getattr(torch_onnxpool, operator)(**attributes)
    assert f"got {name}=" in str(refusal.value), "the message shows the value"


@pytest.mark.parametrize("operator", WINDOWED)
@pytest.mark.parametrize("name", ["dilations", "pads", "strides"])
def test_layers_blame_the_list_that_is_empty(operator, name):
    """Also where no list says how many axes there are, or another than kernel_shape does."""
    for others in ({}, {"strides": [1, 1]}, {"dilations": [1, 1]}, {"pads": [0, 0, 0, 0]}):
        with pytest.raises(ValueError, match=rf"^{operator}: {name} must have .*got {name}=\[\]"):
            getattr(torch_onnxpool, operator)(2, **{**others, name: []})


@pytest.mark.parametrize("operator", WINDOWED)
@pytest.mark.parametrize("attributes", [{"kernel_shape": [2]}, {"kernel_shape": [2, 2, 2]},
                                        {"kernel_shape": 2, "strides": [1]}, {"kernel_shape": 2, "pads": [1, 1]},
                                        {"kernel_shape": 2, "dilations": [1, 1, 1]}])  # fmt: skip
def test_layers_refuse_an_input_of_another_rank(operator, attributes, device):
    layer = getattr(torch_onnxpool, operator)(**attributes)
    with pytest.raises(ValueError, match=rf"^{operator}: .*got .*=\["):
        layer(X.to(device))


# --- contradictions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", WINDOWED)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("pads", [0, 1, [0, 0, 0, 0], [1, 1, 1, 1]])
def test_pads_contradict_auto_pad(operator, auto_pad, pads, device):
    case = Case(operator, (1, 2, 6, 6), {"kernel_shape": [2, 2], "auto_pad": auto_pad, "pads": pads})
    with pytest.raises(ValueError, match=rf"^{operator}: .*auto_pad={auto_pad}.*pads="):
        call(case, [X.to(device)])
    with pytest.raises(ValueError, match=rf"^{operator}: .*auto_pad={auto_pad}.*pads="):
        getattr(torch_onnxpool, operator)(**case.attributes)


@pytest.mark.parametrize("operator", WINDOWED)
@pytest.mark.parametrize("attributes", [{"kernel_shape": [7, 2]}, {"kernel_shape": [2, 7]}, {"kernel_shape": [2, 4],
                                        "dilations": [1, 2]}, {"kernel_shape": [9, 2], "pads": [1, 0, 1, 0]},
                                        {"kernel_shape": [8, 8], "strides": [2, 2], "ceil_mode": 1},
                                        {"kernel_shape": [2, 7], "auto_pad": "VALID"}])  # fmt: skip
def test_windows_that_do_not_fit(operator, attributes, device):
    with pytest.raises(ValueError, match=rf"^{operator}: the window must fit .*input of 6"):
        call(Case(operator, (1, 2, 6, 6), attributes), [X.to(device)])


@pytest.mark.parametrize("operator", WINDOWED)
def test_an_output_beyond_any_memory_is_refused(operator, device):
    with pytest.raises(ValueError, match=rf"^{operator}: .*64 bits.*\[1, 2, 6, 6\]"):
        call(Case(operator, (1, 2, 6, 6), {"kernel_shape": 1, "pads": 2**31 - 1}), [X.to(device)])


# --- inputs ----------------------------------------------------------------------------------------------------------

EVERY_OPERATOR = [*(Case(o, (), {"kernel_shape": 1}) for o in WINDOWED), *(Case(o, ()) for o in GLOBAL)]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_inputs_without_spatial_axes(case, shape, device):
    with pytest.raises(ValueError, match=rf"^{case.operator}: .*at least 3 dimensions.*{re.escape(str(list(shape)))}"):
        call(case, [torch.ones(shape, device=device)])


@pytest.mark.parametrize("shape", [(1, 0, 4, 4), (1, 2, 0, 4), (1, 2, 4, 0), (0, 0, 4), (0, 2, 0)])
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_empty_channels_and_planes(case, shape, device):
    with pytest.raises(ValueError, match=rf"^{case.operator}: .*{re.escape(str(list(shape)))}"):
        call(case, [torch.ones(shape, device=device)])


@pytest.mark.parametrize("rank", [65, 2000])
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_more_dimensions_than_torch_usually_has(case, rank, device):
    with pytest.raises(ValueError, match=rf"^{case.operator}: the number of spatial axes must be .*got {rank - 2}"):
        call(case, [torch.ones([1] * rank, device=device)])


@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_sizes_beyond_any_memory(case, device):
    x = torch.ones(1, 1, 1, device=device).expand(1, 1, 2**62)
    with pytest.raises(ValueError, match=rf"^{case.operator}: .*{2**62}"):
        call(case, [x])


NOT_DENSE = {"sparse": torch.Tensor.to_sparse, "mkldnn": torch.Tensor.to_mkldnn,
             "quantized": lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.quint8),
             "nested": lambda x: torch.nested.nested_tensor(list(x))}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*(quantize|nested)")
@pytest.mark.parametrize(("kind", "convert"), NOT_DENSE.items())
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_tensors_that_are_not_dense(case, kind, convert):
    with pytest.raises(ValueError, match=rf"^{case.operator}: X must be a dense tensor, got X that is .*{kind}"):
        call(case, [convert(torch.ones(2, 2, 4, 4))])


NO_TYPE = [torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", [*NO_TYPE, torch.int8, torch.uint8])
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_element_types(case, dtype, device):
    if case.operator == "MaxPool" and dtype not in NO_TYPE:
        pytest.skip("MaxPool takes bytes")
    got = f"got X of type {str(dtype).removeprefix('torch.')}"
    with pytest.raises(ValueError, match=rf"^{case.operator}: X must be of type .*float64.*, {got}$"):
        call(case, [torch.zeros(1, 2, 4, 4, device=device).to(dtype)])


@pytest.mark.parametrize("dtype", [torch.bits8, torch.float4_e2m1fn_x2])
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_element_types_that_only_torch_can_name(case, dtype):
    with pytest.raises(ValueError, match=rf"^{case.operator}: X must be of type .*float64.*, got "):
        call(case, [torch.empty(1, 2, 4, 4, dtype=dtype)])


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, lambda shape: shape.to("meta")], ids=["sparse", "meta"])
def test_output_shapes_without_data(convert):
    x, indices = torch.ones(1, 1, 2), torch.zeros(1, 1, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^MaxUnpool: output_shape must be a list of integers .*, got "):
        torch_onnxpool.max_unpool(x, indices, 2, output_shape=convert(torch.tensor([1, 1, 4])))


def test_a_copy_beyond_any_memory():
    with pytest.raises((MemoryError, RuntimeError), match=r"bad_alloc|allocate memory"):  # the second is ATen's
        torch_onnxpool.average_pool(torch.zeros(1, 1, 1, 1).expand(1, 1, 2**21, 2**21), 2)


@pytest.mark.parametrize("x", [None, 1.0, [[[1.0]]], "X", torch.ones(1, 1, 1).numpy()], ids=identify)
@pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda c: c.operator)
def test_inputs_that_are_no_tensors(case, x):
    with pytest.raises(ValueError, match=rf"^{case.operator}: .*[Tt]ensor"):
        call(case, [x])


# --- quantised -------------------------------------------------------------------------------------------------------

BYTES = torch.ones(1, 2, 3, 4, dtype=torch.uint8)
GOOD = {
    "x_scale": torch.tensor(0.5),
    "x_zero_point": torch.tensor(3, dtype=torch.uint8),
    "y_scale": torch.tensor(0.25),
    "y_zero_point": torch.tensor(5, dtype=torch.uint8),
}
BAD_SCALES = [*(torch.tensor(s) for s in (0.0, -1.0, math.nan, math.inf)), torch.ones(2), torch.ones(1, 1),
              torch.ones(0), torch.ones((), dtype=torch.float64), torch.tensor(1), torch.tensor(1.0).half(), 1.0,
              None]  # fmt: skip
BAD_ZERO_POINTS = [torch.tensor(0, dtype=torch.int8), torch.tensor(0), torch.tensor(0.0),
                   *(torch.zeros(s, dtype=torch.uint8) for s in ((2,), (1, 1), (0,))), 0, None]  # fmt: skip
BAD_SCALARS = [(n, v) for n in ("x_scale", "y_scale") for v in BAD_SCALES] + [
    (n, v) for n in ("x_zero_point", "y_zero_point") for v in BAD_ZERO_POINTS
]


def on(device: str, arguments: dict) -> dict:
    return {name: a.to(device) if isinstance(a, torch.Tensor) else a for name, a in arguments.items()}


@pytest.mark.parametrize(("name", "value"), BAD_SCALARS, ids=identify)
def test_quantised_scalars(name, value, device):
    with pytest.raises(ValueError, match=f"^QLinearGlobalAveragePool: .*{name}"):
        torch_onnxpool.qlinear_global_average_pool(BYTES.to(device), **on(device, GOOD | {name: value}))


@pytest.mark.parametrize("value", FLAGS, ids=identify)
def test_quantised_channels_last(value, device):
    for build in (
        lambda: torch_onnxpool.qlinear_global_average_pool(BYTES.to(device), **GOOD, channels_last=value),
        lambda: torch_onnxpool.QLinearGlobalAveragePool(channels_last=value),
    ):
        with pytest.raises(ValueError, match=r"^QLinearGlobalAveragePool: channels_last .*got channels_last="):
            build()


BAD_INPUTS = {
    "float32": torch.ones(1, 2, 3),
    "int32": torch.ones(1, 2, 3).int(),
    "rank 2": BYTES[0, 0],
    "empty in channels or plane": BYTES[:, :0],
    "empty in plane or channels": BYTES[..., :0],
    "no tensor": [[[1]]],
}


@pytest.mark.parametrize("x", BAD_INPUTS.values(), ids=BAD_INPUTS)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_quantised_inputs(x, channels_last, device):
    with pytest.raises(ValueError, match=r"^QLinearGlobalAveragePool: "):
        torch_onnxpool.qlinear_global_average_pool(**on(device, {"X": x} | GOOD), channels_last=channels_last)


@pytest.mark.parametrize("name", ["x_scale", "y_scale"])
@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, 10**400, "1", [1.0, 2.0]])
def test_quantised_layers_refuse_bad_scales(name, value):
    with pytest.raises(ValueError, match=f"^QLinearGlobalAveragePool: .*{name}"):
        torch_onnxpool.QLinearGlobalAveragePool(**{name: value})


@pytest.mark.parametrize("name", ["x_zero_point", "y_zero_point"])
@pytest.mark.parametrize(
    "value", [0.5, torch.tensor(0.0), torch.tensor(300), torch.zeros(2, dtype=torch.uint8), "0"], ids=identify
)
def test_quantised_layers_refuse_bad_zero_points(name, value):
    with pytest.raises(ValueError, match=f"^QLinearGlobalAveragePool: .*{name}"):
        torch_onnxpool.QLinearGlobalAveragePool(**{name: value})


# --- the dispatcher's operators --------------------------------------------------------------------------------------

OPS = torch.ops.torch_onnxpool


def test_the_dispatchers_operators_refuse_by_themselves(device):
    """Exported programs call them without the functions around them."""
    x = X.to(device)
    with pytest.raises(ValueError, match=r"^AveragePool: kernel_shape must be >= 1, got kernel_shape="):
        OPS.average_pool(x, [0, 1])
    with pytest.raises(ValueError, match=r"^LpPool: p must be .*got p=0.5"):
        OPS.lp_pool(x, [1, 1], p=0.5)
    with pytest.raises(ValueError, match=r"^MaxPool: storage_order must be 0 or 1, got storage_order=2"):
        OPS.max_pool_with_indices(x, [1, 1], storage_order=2)
    with pytest.raises(ValueError, match=r"^GlobalMaxPool: X must be of type"):
        OPS.global_max_pool(x.int())


@pytest.mark.parametrize("grad_shape", [(1, 2, 6, 5), (1, 2, 6), (1, 1, 5, 5), (2, 2, 5, 5), (0, 2, 5, 5)])
def test_backward_operators_check_their_operands(grad_shape, device):
    x, grad, y = (torch.ones(shape, device=device) for shape in (X.shape, grad_shape, (1, 2, 5, 5)))
    indices = torch.zeros_like(y, dtype=torch.int64)
    for refused in (
        lambda: OPS.average_pool_backward(grad, x, [2, 2]),
        lambda: OPS.lp_pool_backward(grad, x, y, [2, 2]),
        lambda: OPS.lp_pool_backward(y, x, grad, [2, 2]),
        lambda: OPS.max_pool_backward(grad, x, indices, [2, 2]),
        lambda: OPS.max_pool_backward(y, x, grad.long(), [2, 2]),
        lambda: OPS.max_pool_backward(y, x, indices.int(), [2, 2]),
        lambda: OPS.average_pool_backward(y.double(), x, [2, 2]),
        lambda: OPS.global_average_pool_backward(grad, x),
    ):
        with pytest.raises(ValueError, match=r"^(Global)?(Average|Lp|Max)Pool: .* must "):
            refused()


def test_unknown_attributes_are_a_type_error():
    with pytest.raises(TypeError, match="count_include_pad"):
        torch_onnxpool.max_pool(X, 2, count_include_pad=1)
    with pytest.raises(TypeError, match="p"):
        torch_onnxpool.AveragePool(2, p=2)


# --- what is allowed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", WINDOWED)
def test_spellings_of_the_same_attributes(operator, device):
    """An int for a list, a tuple, torch.Size, array or tensor for a list, a bool for 0 and 1."""
    plain = {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [1, 1], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    x = X.to(device)
    wanted = call(Case(operator, (), plain), [x])
    for other in (
        {"kernel_shape": 2, "strides": 2, "dilations": 1, "pads": 1, "ceil_mode": True},
        {"kernel_shape": (2, 2), "strides": torch.Size([2, 2]), "dilations": (1, 1), "pads": (1,) * 4, "ceil_mode": 1},
        {"kernel_shape": np.array([2, 2]), "strides": torch.tensor([2, 2]), "pads": np.ones(4, int), "ceil_mode": 1},
        {"kernel_shape": 2, "strides": np.uint8(2), "pads": [np.True_] * 4, "ceil_mode": np.True_},
    ):
        assert torch.equal(call(Case(operator, (), other), [x]), wanted)
        assert torch.equal(getattr(torch_onnxpool, operator)(**other)(x), wanted)
