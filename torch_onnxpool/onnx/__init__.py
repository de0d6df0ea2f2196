"""Layers from ONNX nodes, and nodes from layers.

Plain `torch.onnx.export` needs nothing from here: importing torch_onnxpool is enough. Everything is loaded on first
use, so that `import torch_onnxpool` loads neither onnx nor onnxscript.
"""

from __future__ import annotations

import importlib

_HOME = {
    "OpsetError": "operators",
    "PortabilityWarning": "portability",
    "export": "exporter",
    "layer_from_node": "importer",
    "portable": "portability",
    "translation_table": "exporter",
}
_MODULES = (
    "backend",
    "conversion",
    "emission",
    "exporter",
    "folding",
    "importer",
    "ledger",
    "models",
    "nodes",
    "operators",
    "portability",
    "schemas",
    "symbolic",
    "translation",
    "verify",
)

__all__ = [*_HOME, "ledger", "schemas"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
