"""Exact ONNX pooling for PyTorch: layers and functions with ONNX's names, defaults and numbers.

``torch.onnx.export`` writes each of them as the one matching ONNX node; ``torch_onnxpool.onnx.layer_from_node`` goes
the way back. Importing this package loads torch and nothing else.
"""

import torch

__version__ = "0.1.0"

try:
    from torch_onnxpool import functional, layers
except (AttributeError, ImportError) as error:
    module = error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", None)
    if str(module).split(".")[0] != "torch":  # what this package brings itself, or another one, is missing
        raise
    raise ImportError(
        f"torch_onnxpool {__version__} has been tested with torch 2.10, 2.11 and 2.13, and torch {torch.__version__} "
        f"lacks something that it needs: {error}"
    ) from error
from torch_onnxpool.functional import (
    average_pool,
    global_average_pool,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
    max_unpool,
    qlinear_average_pool,
    qlinear_global_average_pool,
)
from torch_onnxpool.layers import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
    MaxUnpool,
    QLinearAveragePool,
    QLinearGlobalAveragePool,
)
from torch_onnxpool.onnx import _hooks

__all__ = [
    "AveragePool",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "average_pool",
    "functional",
    "global_average_pool",
    "global_lp_pool",
    "global_max_pool",
    "layers",
    "lp_pool",
    "max_pool",
    "max_unpool",
    "qlinear_average_pool",
    "qlinear_global_average_pool",
]

_hooks.install()  # torch.onnx.export learns the operators when it is first used
