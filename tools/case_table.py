"""The case table of the tests, forwards and backwards, and nothing else on the GPU: what compute-sanitizer watches.

python tools/case_table.py [--device DEVICE]

Results are not looked at, tests do that. Tensors are filled and arranged on the CPU, so that all kernels are ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]
import harness  # noqa: E402
from cases import CASES, FLOATS, WINDOWED, Case  # noqa: E402
from tensors import arrange, call, to_tensor  # noqa: E402
from test_variants import WINDOWS  # noqa: E402

DTYPES = ("float32", "bfloat16", "uint8")  # with accumulators of 8, 4 and 1 bytes
LAYOUTS = ("contiguous", "channels_last", "sliced")


def calls() -> Iterator[tuple[Case, str]]:
    """Beside the table, windows that are large enough for blocks, tiles and vectors."""
    large = [Case(operator, shape, attributes) for operator in WINDOWED for shape, attributes in WINDOWS]
    for case in [*CASES, *large]:
        yield from ((case, dtype) for dtype in DTYPES if dtype in case.dtypes)


def to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """With the same strides."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((max(size, 0) if tensor.numel() else 0,), (1,)).to(device)
    return memory.as_strided(tensor.shape, tensor.stride())


def run(case: Case, dtype: str, device: str) -> None:
    x, *scalars = (to_tensor(array) for array in case.inputs(dtype))
    for layout in LAYOUTS:
        inputs = [to_device(arrange(x, layout), device).requires_grad_(dtype in FLOATS), *scalars]
        results = [call(case, inputs)]
        if case.operator == "MaxPool":
            results.append(call(case, inputs, return_indices=True)[0])
        for y in results:
            if y.requires_grad:
                grad_y = to_device(arrange(torch.ones(y.shape, dtype=y.dtype), layout), device)
                torch.autograd.grad(y, inputs[0], grad_y)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    np.seterr(all="ignore")
    with harness.progress_bar() as progress:
        for case, dtype in progress.track(list(calls())):
            run(case, dtype, options.device)
    if options.device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
