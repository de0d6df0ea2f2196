"""Programs in C++ that know nothing of Python run saved models, with the operators' libraries alone."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from cuda_emulation.build import COMPILER, TORCH, run

import torch_onnxpool

SOURCE = Path(__file__).parents[1] / "examples" / "serve.cpp"
PACKAGE = Path(torch_onnxpool.__file__).parent

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")


@pytest.fixture(scope="module")
def serve(tmp_path_factory) -> Path:
    program = tmp_path_factory.mktemp("serve") / "serve"
    include, libraries = TORCH / "include", TORCH / "lib"
    headers = ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    run(["-std=c++20", "-O0", "-Wall", *headers, str(SOURCE), *linked, "-o", str(program)])
    return program


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch_onnxpool.MaxPool([3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
        torch.nn.ReLU(),
        torch_onnxpool.AveragePool([2, 2], dilations=[2, 2], pads=[0, 1, 1, 0], count_include_pad=1),
        torch_onnxpool.LpPool([2, 2], p=3, ceil_mode=1),
        torch_onnxpool.GlobalLpPool(),
    ).eval()


def saved_by_aot_inductor(network: torch.nn.Module, x: torch.Tensor, folder: Path) -> str:
    exported = torch.export.export(network, (x,))
    return torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "m.pt2"))


def saved_by_torchscript(network: torch.nn.Module, x: torch.Tensor, folder: Path) -> str:
    path = str(folder / "m.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(network, x).save(path)
    return path


@pytest.mark.parametrize("save", [saved_by_aot_inductor, saved_by_torchscript])
def test_cpp_serves_what_python_saved(save, serve, tmp_path):
    network, x = model(), torch.randn(2, 4, 23, 30)
    with torch.no_grad():
        expected = network(x)
        path = save(network, x, tmp_path)
    torch.save(x, tmp_path / "x.pt")
    command = [serve, PACKAGE, path, tmp_path / "x.pt", tmp_path / "y.pt"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert torch.equal(torch.load(tmp_path / "y.pt"), expected)


def test_without_the_library_there_are_no_operators(serve, tmp_path):
    path = saved_by_torchscript(model(), torch.randn(2, 4, 23, 30), tmp_path)
    command = [serve, tmp_path, path, "x.pt", "y.pt"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 1
    assert "libtorch_onnxpool.so: cannot open shared object file" in finished.stderr
