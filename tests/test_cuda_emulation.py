"""The CUDA kernels, compiled by g++ against an emulation of CUDA, run the tests of the package: no GPU is needed.

Each group of tests runs in a Python process of its own, in which the emulated kernels replace the CPU's: see
cuda_emulation/. Threads and blocks run in either order, since no result may depend on it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_emulation.build import COMPILER, FLAGS, HERE, build, run

TESTS = Path(__file__).parent

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")


def build_once(tmp_path_factory, name: str, **options) -> Path:
    """The workers of a session share what the first of them builds."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        libraries = list(folder.glob("*.so"))
        return libraries[0] if libraries else build(folder, **options)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return build_once(tmp_path_factory, "emulated_kernels")


@pytest.fixture(scope="module")
def sanitized_library(tmp_path_factory) -> Path:
    return build_once(tmp_path_factory, "sanitized_kernels", sanitize=True)


def run_tests(library: Path, *arguments: str, **environment: str) -> None:
    """pytest on the emulated kernels."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "emulated_kernels", "--device=cpu"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    search_path = os.pathsep.join([str(TESTS / "cuda_emulation"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [*command, *arguments],
        cwd=TESTS,
        env=inherited | {"EMULATED_KERNELS": str(library), "PYTHONPATH": search_path} | environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-10000:] + result.stderr[-10000:]


def test_dividing_by_multiplying(tmp_path):
    program = tmp_path / "dividers"
    run([*FLAGS, f"-I{HERE}", str(HERE / "dividers.cpp"), "-o", str(program)])
    result = subprocess.run([str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("backwards", [False, True])
def test_every_kernel_runs_and_is_right(library, backwards, tmp_path):
    """test_variants.py reaches all kernels in all of their element types."""
    log = tmp_path / "launched"
    run_tests(library, "test_variants.py", KERNELS_LAUNCHED=str(log), EMULATION_BACKWARDS=str(int(backwards)))
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    # void onnxpool::cuda::forward_...<...>(long, ...)
    kernels = re.findall(r" (_ZN8onnxpool4cuda\d+(?:forward|backward|combine)_[a-z_]+I\S+Evl\S*)", symbols.stdout)
    assert len(kernels) > 200
    assert not set(kernels) - set(log.read_text().split())


@pytest.mark.parametrize(
    ("tests", "backwards"),
    [
        ("test_random.py", True),
        ("test_forward.py test_accuracy.py", False),
        ("test_gradients.py", True),
        ("test_quantized.py test_quantized_windows.py test_unpool.py test_bad_input.py", False),
    ],
)
def test_the_package_on_emulated_kernels(library, tests, backwards):
    run_tests(library, *tests.split(), EMULATION_BACKWARDS=str(int(backwards)))


def test_nothing_is_accessed_out_of_bounds(sanitized_library):
    """AddressSanitizer knows the bounds of tensors and of shared memory, UndefinedBehaviorSanitizer alignments."""
    runtimes = [
        subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libstdc++.so")
    ]
    run_tests(
        sanitized_library,
        "-s",  # what a sanitizer says before it ends the process
        "test_variants.py",
        "test_random.py",
        "test_unpool.py",
        "-k",
        "not 31 and not test_large and (bfloat16 or uint8 or unpool or cpu-1)",
        ONLY_ADDRESSES_MATTER="1",
        LD_PRELOAD=" ".join(runtime.strip() for runtime in runtimes),
        ASAN_OPTIONS="detect_leaks=0:use_sigaltstack=0",
    )
