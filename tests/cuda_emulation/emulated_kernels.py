"""A pytest plugin: all tests of the session run on the emulated CUDA kernels, from the library that the environment
variable EMULATED_KERNELS names. KERNELS_LAUNCHED names a file for the kernels that ran."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

import torch_onnxpool  # noqa: F401 (its own CPU kernels come first)

torch.set_num_threads(1)  # an emulated grid runs in one: others would only wait for work, busily
library_path = os.environ["EMULATED_KERNELS"]
torch.ops.load_library(library_path)
library = ctypes.CDLL(library_path)
library.emulation_launched_kernels.restype = ctypes.c_char_p
library.emulation_run_backwards(int(os.environ.get("EMULATION_BACKWARDS", "0")))


def pytest_sessionfinish() -> None:
    if "KERNELS_LAUNCHED" in os.environ:
        with Path(os.environ["KERNELS_LAUNCHED"]).open("a") as log:  # of several workers
            log.write(library.emulation_launched_kernels().decode())
