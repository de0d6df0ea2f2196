"""What only GPUs have: streams, graphs, a device beside the current one, operands elsewhere, and their sizes.

That the numbers are right on them, is what all other tests say."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from cases import CASES, UNPOOL_CASES, Case
from tensors import call, to_tensor

from torch_onnxpool import _libraries

OPS = torch.ops.torch_onnxpool
on_gpu = pytest.mark.parametrize("device", ["cuda"], indirect=True)

# One of each operator, whichever the table has first.
EVERY_OPERATOR = list({case.operator: case for case in reversed([*CASES, *UNPOOL_CASES])}.values())
every_operator = pytest.mark.parametrize("case", EVERY_OPERATOR, ids=lambda case: case.operator)


def inputs_of(case: Case, device: str) -> list[torch.Tensor]:
    """Scales and zero points stay on the CPU."""
    x, *others = (to_tensor(array) for array in case.inputs(case.dtypes[0]))
    return [x.to(device), *(tensor.to(device) if tensor.dim() > 1 else tensor for tensor in others)]


def results_of(case: Case, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """All that an operator computes: its result, indices if it has some, and its gradient."""
    with_indices = {"return_indices": True} if case.operator == "MaxPool" else {}
    if not case.differentiable:
        return [call(case, inputs)]
    x = inputs[0].detach().requires_grad_()
    y, *indices = result if isinstance(result := call(case, [x, *inputs[1:]], **with_indices), tuple) else [result]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return [y.detach(), *indices, gradient]


def assert_equal(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(results) == len(wanted)
    for ours, theirs in zip(results, wanted):
        assert torch.equal(ours.cpu(), theirs.cpu())


@on_gpu
@every_operator
def test_work_is_enqueued_on_the_current_stream(case, device):
    inputs = inputs_of(case, device)
    wanted = results_of(case, inputs)
    late = [torch.zeros_like(inputs[0]), *inputs[1:]]
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)
        late[0].copy_(inputs[0])
        results = results_of(case, late)
        torch.cuda.current_stream().synchronize()
    assert_equal(results, wanted)


@on_gpu
@every_operator
def test_graphs_capture_every_operator(case, device):
    inputs = inputs_of(case, device)
    wanted = results_of(case, inputs)
    held = [torch.ones_like(inputs[0]), *inputs[1:]]
    with torch.cuda.stream(torch.cuda.Stream()):  # as CUDA graphs want it, once before the capture
        results_of(case, held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = results_of(case, held)
    held[0].copy_(inputs[0])
    graph.replay()
    assert_equal(results, wanted)


@on_gpu
def test_graphs_need_scales_on_the_cpu(device):
    case = next(case for case in EVERY_OPERATOR if case.operator == "QLinearGlobalAveragePool")
    inputs = [tensor.to(device) for tensor in inputs_of(case, device)]
    call(case, inputs)
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match=r"scales .* must be on the CPU"):
        call(case, inputs)


@on_gpu
@every_operator
def test_another_device_than_the_current_one(case, device):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    wanted = results_of(case, inputs_of(case, "cuda:0"))
    with torch.cuda.device(0):
        results = results_of(case, inputs_of(case, "cuda:1"))
        assert torch.cuda.current_device() == 0
    assert all(result.device == torch.device("cuda:1") for result in results)
    assert_equal(results, wanted)


@on_gpu
def test_operands_elsewhere_are_refused(device):
    x, y = torch.ones(1, 2, 6, 6, device=device), torch.ones(1, 2, 5, 5, device=device)
    indices = torch.zeros_like(y, dtype=torch.int64)
    scale, byte = torch.tensor(0.5), torch.tensor(3, dtype=torch.uint8)
    for refused in (
        lambda: OPS.average_pool_backward(y.cpu(), x, [2, 2]),
        lambda: OPS.average_pool_backward(y, x.cpu(), [2, 2]),
        lambda: OPS.lp_pool_backward(y, x, y.cpu(), [2, 2]),
        lambda: OPS.max_pool_backward(y, x, indices.cpu(), [2, 2]),
        lambda: OPS.max_unpool(y, indices.cpu(), [2, 2]),
        lambda: OPS.qlinear_global_average_pool(x.cpu().byte(), scale.to(device), byte, scale, byte),
    ):
        with pytest.raises(ValueError, match=r"must be on .*the device of X, (cuda:\d|cpu), got \w+ on (cpu|cuda:\d)"):
            refused()


# --- sizes -----------------------------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("shape", [(70_000, 1, 2, 3), (1, 70_000, 2, 3), (3, 1, 70_000, 2), (2, 1, 2, 70_000)])
def test_more_than_a_grid_of_two_or_three_dimensions_holds(shape, device):
    x = torch.randn(shape)
    for case in (Case("MaxPool", shape, {"kernel_shape": [2, 2]}), Case("GlobalMaxPool", shape)):
        assert torch.equal(call(case, [x.to(device)]).cpu(), call(case, [x]))


@on_gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("operator", ["AveragePool", "LpPool", "MaxPool"])
def test_more_elements_than_32_bits_count(operator, layout, device):
    """The gradient too: of 2 x 2 windows, of which only the last has data that are not 0."""
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free memory on the GPU")
    shape = (1, 4, 2**14 + 2, 2**15)
    x = torch.zeros(shape, dtype=torch.float16, device=device).contiguous(memory_format=layout)
    x[..., -2:, -2:] = 2
    x.requires_grad_()
    y = call(Case(operator, shape, {"kernel_shape": [2, 2], "strides": [2, 2]}), [x])
    last = {"AveragePool": 2, "LpPool": 4, "MaxPool": 2}[operator]
    assert y.count_nonzero() == shape[1]
    assert bool((y[..., -1, -1] == last).all())
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    slopes = {"AveragePool": [0.25] * 4, "LpPool": [0.5] * 4, "MaxPool": [1, 0, 0, 0]}[operator]
    assert gradient[0, -1, -2:, -2:].flatten().tolist() == slopes


# --- without a GPU ---------------------------------------------------------------------------------------------------

LOADS_LAZILY = """
import ctypes, os
import torch
from torch_onnxpool import _libraries

# What a torch without CUDA lacks, is not asked for before the first call.
ctypes.CDLL(str(_libraries.CUDA), os.RTLD_LAZY)

names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("torch_onnxpool::")]
assert len(names) > 10
for name in names:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA"), name
"""


@pytest.mark.skipif(not _libraries.CUDA.exists(), reason="built without kernels for GPUs")
def test_every_operator_has_kernels_for_gpus():
    finished = subprocess.run([sys.executable, "-c", LOADS_LAZILY], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
