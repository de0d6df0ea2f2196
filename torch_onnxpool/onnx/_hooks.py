"""Registration with torch's exporters, put off until a program loads them."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Callable
from types import ModuleType

TORCHSCRIPT_EXPORTER = "torch.onnx"
# The exporter's registry imports in a circle and is half initialised when its own module has run. After this module all
# is whole; torch.onnx.export loads it on its first call.
DYNAMO_EXPORTER = "torch.onnx._internal.exporter._compat"


def install() -> None:
    """Make plain `torch.onnx.export` know the operators of torch_onnxpool. Imports neither onnx nor onnxscript."""
    _after_import(TORCHSCRIPT_EXPORTER, _register_symbolics)
    _after_import(DYNAMO_EXPORTER, _register_translations)


def _register_symbolics() -> None:
    from . import symbolic

    symbolic.register()


def _register_translations() -> None:
    # This goes through a private function of torch: it must never break an export that does not need it.
    try:
        from . import translation

        translation.register()
    except Exception as error:
        warnings.warn(
            "torch_onnxpool could not register itself with torch.onnx.export "
            f"({type(error).__name__}: {error}). Pass the operators by hand: "
            "torch.onnx.export(..., custom_translation_table=torch_onnxpool.onnx.translation_table())",
            stacklevel=2,
        )


def _after_import(name: str, action: Callable[[], None]) -> None:
    """Call the action once: at once if the module is there, otherwise when it has been imported."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _OneShotFinder(name, action))


class _OneShotFinder(importlib.abc.MetaPathFinder):
    """Finds one module the way everybody else does, and calls an action after its code has run."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, self._action)
        return spec


class _ActingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, so that inspect and pickle find what they always find there.
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action()
