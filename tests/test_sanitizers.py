"""Random calls of the CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer: see random_calls.cpp.

RANDOM_CALLS=50000 RANDOM_SEED=7 pytest tests/test_sanitizers.py makes other calls, and more of them. They use the best
instruction set of the processor, or what ATEN_CPU_CAPABILITY=avx2 limits it to: each takes minutes to compile."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cuda_emulation.build import COMPILER, SANITIZERS, run

SOURCE = Path(__file__).with_name("random_calls.cpp")
CALLS = int(os.environ.get("RANDOM_CALLS", 2000))
SEED = int(os.environ.get("RANDOM_SEED", 1))

FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-Wno-psabi", *SANITIZERS]
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
INSTRUCTION_SETS = {
    "avx2": AVX2,
    "avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
}

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")


def test_random_calls(tmp_path):
    program = tmp_path / "random_calls"
    instruction_set = torch.backends.cpu.get_cpu_capability().lower()
    run([*FLAGS, *INSTRUCTION_SETS.get(instruction_set, []), str(SOURCE), "-o", str(program)])
    result = subprocess.run([str(program), str(SEED), str(CALLS)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-10000:]
