"""Registration with torch's exporters, put off until a program loads them."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

TORCHSCRIPT_EXPORTER = "torch.onnx"
# The exporter's registry imports in a circle and is half initialised when its own module has run. After this module all
# is whole; torch.onnx.export loads it on its first call.
DYNAMO_EXPORTER = "torch.onnx._internal.exporter._compat"


def install() -> None:
    """Make plain `torch.onnx.export` know the operators of torch_onnxpool. Loads neither onnx nor onnxscript."""
    remedy = "Only torch.onnx.export(..., dynamo=True) will know its operators."
    _after_import(TORCHSCRIPT_EXPORTER, partial(_register, "symbolic", remedy))
    table = "torch_onnxpool.onnx.translation_table()"
    remedy = f"Hand its operators over: torch.onnx.export(..., custom_translation_table={table})"
    _after_import(DYNAMO_EXPORTER, partial(_register, "translation", remedy))


def _register(module: str, remedy: str) -> None:
    """Let a module of this package register its operators. A failure is a warning: an export may well do without."""
    try:
        importlib.import_module(f"{__package__}.{module}").register()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        warnings.warn(f"torch_onnxpool is not registered with torch.onnx ({reason}). {remedy}", stacklevel=2)


def _after_import(name: str, action: Callable[[], None]) -> None:
    """Call the action once: at once if the module is there, otherwise when it has been imported."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module the way all others do, calls an action after it has run, and goes."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, fullname: str, path=None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._finish)
        return spec

    def _finish(self) -> None:
        sys.meta_path.remove(self)
        self._action()


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, finish: Callable[[], None]) -> None:
        self._loader = loader
        self._finish = finish

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps the loader that it would have: inspect, for one, asks it for the source.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finish()
