"""What all tests share: the devices, and one thread for each of several workers."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

torch.backends.cudnn.allow_tf32 = False  # convolutions of float32 that deserve the name

NEEDS_GPU = "needs an NVIDIA GPU, and the package built for it"
HAS_GPU = torch.cuda.is_available() and importlib.util.find_spec("torch_onnxpool._cuda") is not None


def pytest_addoption(parser):
    parser.addoption("--device", choices=["cpu", "cuda"], help="only the tests that know devices, and only on this one")


def pytest_configure(config):
    if config.getoption("device") == "cuda" and not HAS_GPU:
        raise pytest.UsageError(f"--device cuda {NEEDS_GPU}")


def pytest_collection_modifyitems(config, items):
    chosen = config.getoption("device")
    if chosen:
        items[:] = [i for i in items if hasattr(i, "callspec") and i.callspec.params.get("device") == chosen]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_GPU, reason=NEEDS_GPU))])
def device(request) -> str:
    return request.param
