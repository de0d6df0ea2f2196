"""The libraries that hold the operators. They know nothing of Python: programs in C++ load the same ones."""

from pathlib import Path

import torch

CPU = Path(__file__).with_name("libtorch_onnxpool.so")
CUDA = Path(__file__).with_name("libtorch_onnxpool_cuda.so")  # not in every build


def load() -> None:
    torch.ops.load_library(CPU)
    if torch.version.cuda and CUDA.exists():  # it needs what only such a torch has
        torch.ops.load_library(CUDA)
