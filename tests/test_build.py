"""What setup.py decides: which extensions are built, and which files are compiled again."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READ_SETUP = "import runpy, sys; sys.argv = ['setup.py', '--version']; setup = runpy.run_path('setup.py'); "


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Some code, after setup.py, as `setup`, has read the environment and built nothing."""
    environment = {name: value for name, value in os.environ.items() if "ONNXPOOL" not in name} | environment
    return subprocess.run(
        [sys.executable, "-c", READ_SETUP + code], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_kernels_that_cannot_be_built_are_an_error():
    refused = run("", TORCH_ONNXPOOL_CUDA="1", CUDA_HOME="/nowhere")
    assert refused.returncode != 0
    assert "TORCH_ONNXPOOL_CUDA=1 asks for the kernels for NVIDIA GPUs, but no nvcc was found" in refused.stderr


@pytest.mark.parametrize("variable", ["TORCH_ONNXPOOL_CUDA", "TORCH_ONNXPOOL_ABI"])
def test_other_choices_are_refused(variable):
    refused = run("", **{variable: "yes"})
    assert refused.returncode != 0
    assert f"torch_onnxpool: {variable} must be " in refused.stderr
    assert "got yes" in refused.stderr


def test_a_missing_torch_is_told_with_the_environment():
    code = "extensions = setup['extensions']; extensions.__globals__['site_folders'] = lambda: []; extensions()"
    refused = run(code)
    assert refused.returncode != 0
    assert f"building needs torch >= 2.10 in {sys.prefix}; install it first" in refused.stderr
    assert "--no-build-isolation" in refused.stderr


def test_no_kernels_where_none_are_wanted():
    finished = run("print([e.name for e in setup['extensions']()])", TORCH_ONNXPOOL_CUDA="0", CUDA_HOME="/nowhere")
    libraries = "['torch_onnxpool._C', 'torch_onnxpool.libtorch_onnxpool']"
    assert finished.stdout.splitlines()[-1] == libraries, finished.stderr


def test_machine_code_is_made_for_each_architecture():
    finished = run("print(setup['cuda_code'](['75', '86', '90a', '120']))", TORCH_ONNXPOOL_CUDA="0")
    assert finished.stdout.splitlines()[-1] == "{75: ['sm_75'], 80: ['sm_86', 'sm_90a', 'sm_120', 'compute_80']}"
    for unknown in ("70", "ninety", ""):
        refused = run(f"setup['cuda_code'](['{unknown}'])", TORCH_ONNXPOOL_CUDA="0")
        assert f"must name architectures from 75 on, got '{unknown}'" in refused.stderr


def test_what_knows_nothing_of_torch_is_compiled_once_for_both_abis():
    code = "print([(u.object_file, u.flags) for e in setup['extensions']() for u in e.units])"
    finished = [run(code, TORCH_ONNXPOOL_ABI=abi, TORCH_ONNXPOOL_CUDA="0") for abi in ("stable", "aten")]
    units = [ast.literal_eval(one.stdout.splitlines()[-1]) for one in finished]
    stable, aten = map(dict, units)
    assert len(stable) == len(units[0]), "two units have the same object file"
    shared = stable.keys() & aten.keys()
    assert all(stable[name] == aten[name] for name in shared)
    assert {name.split(".")[-2] for name in stable.keys() - shared} == {"stable"}
    assert {name.split(".")[-2] for name in aten.keys() - shared} == {"aten"}
    assert any("kernels_avx512" in name for name in shared)


def test_an_object_is_current_until_something_changes(tmp_path):
    source, header, output = tmp_path / "a file.cu", tmp_path / "header.cuh", tmp_path / "object.o"
    for path in (source, header, output):
        path.write_text("")
    output.with_suffix(".d").write_text(f"{output} : {tmp_path}/a\\ file.cu \\\n  {header}\n")
    output.with_suffix(".command").write_text("nvcc -c 'a file.cu'")

    def is_current(*command: str) -> bool:
        finished = run(
            f"from pathlib import Path; print(setup['is_current'](Path({str(output)!r}), {list(command)!r}))"
        )
        return {"True": True, "False": False}[finished.stdout.splitlines()[-1]]

    assert is_current("nvcc", "-c", "a file.cu")
    assert not is_current("nvcc", "-O3", "-c", "a file.cu")
    os.utime(header, (time.time() + 60,) * 2)
    assert not is_current("nvcc", "-c", "a file.cu")
    header.unlink()
    assert not is_current("nvcc", "-c", "a file.cu")
