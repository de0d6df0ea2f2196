"""What all tests share: the devices, and one thread for each of several workers."""

from __future__ import annotations

import os

import pytest
import torch

from torch_onnxpool import _libraries

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

torch.backends.cudnn.allow_tf32 = False  # convolutions of float32 that deserve the name

NEEDS_GPU = "needs an NVIDIA GPU, and the package built for it"
HAS_GPU = torch.cuda.is_available() and _libraries.CUDA.exists()


def pytest_addoption(parser):
    parser.addoption("--device", choices=["cpu", "cuda"], help="only the tests that know devices, and only on this one")


def pytest_configure(config):
    if config.getoption("device") == "cuda" and not HAS_GPU:
        raise pytest.UsageError(f"--device cuda {NEEDS_GPU}")


def device_of(item) -> str | None:
    return item.callspec.params.get("device") if hasattr(item, "callspec") else None


def pytest_collection_modifyitems(config, items):
    chosen = config.getoption("device")
    if chosen:
        items[:] = [item for item in items if device_of(item) == chosen]
    for item in items:  # before their fixtures: there are thousands
        if device_of(item) == "cuda" and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason=NEEDS_GPU))


@pytest.fixture(params=["cpu", "cuda"])
def device(request) -> str:
    return request.param
