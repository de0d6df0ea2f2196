"""Random calls of the CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer: see random_calls.cpp.

RANDOM_CALLS=50000 RANDOM_SEED=7 pytest tests/test_sanitizers.py makes other calls, and more of them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cuda_emulation.build import COMPILER, SANITIZERS, run

SOURCE = Path(__file__).with_name("random_calls.cpp")
CALLS = int(os.environ.get("RANDOM_CALLS", 2000))
SEED = int(os.environ.get("RANDOM_SEED", 1))

# Without optimisation: the calls take less long than the compiler. x86 checks itself whether vectors are aligned that
# have to be, and nothing else has to.
FLAGS = ["-std=c++17", "-O0", "-ffp-contract=off", "-w", "-Wno-psabi", *SANITIZERS, "-fno-sanitize=alignment"]
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
INSTRUCTION_SETS = {
    "baseline": [],
    "avx2": AVX2,
    "avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
}
# Each takes minutes to compile. On x86-64, what the baseline has of its own is AVX2's with shorter vectors.
CHECKED = ["avx2", "avx512"] if platform.machine() in ("x86_64", "AMD64") else ["baseline"]

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")


@pytest.mark.parametrize("instruction_set", CHECKED)
def test_random_calls(instruction_set, tmp_path):
    best = torch.backends.cpu.get_cpu_capability().lower()
    if instruction_set != "baseline" and best not in ("avx512", instruction_set):
        pytest.skip(f"this processor has no {instruction_set}")
    program = tmp_path / "random_calls"
    run([*FLAGS, *INSTRUCTION_SETS[instruction_set], str(SOURCE), "-o", str(program)])
    result = subprocess.run([str(program), str(SEED), str(CALLS)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-10000:]
