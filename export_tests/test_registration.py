"""The registration with torch's exporters: in fresh processes, since it happens once in each."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

EXPORT_BOTH = """
import io, warnings
def export_both(**options):
    x = torch.randn(1, 2, 5, 5)
    layer = torch_onnxpool.LpPool(3, auto_pad="SAME_LOWER").eval()
    program = torch.onnx.export(layer, (x,), verbose=False, **options)
    torch.onnx.export(layer, (x,), io.BytesIO(), dynamo=False)
    assert [node.op_type for node in program.model_proto.graph.node] == ["LpPool"]
"""


def run(code: str) -> str:
    """Run a program in a new process; what it writes to stderr."""
    program = EXPORT_BOTH + textwrap.dedent(code)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_import_loads_only_torch():
    run("""
        import sys, torch
        before = set(sys.modules)
        import torch_onnxpool
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        assert not loaded & {"onnx", "onnxscript", "onnx_ir", "onnxruntime", "ml_dtypes"}, loaded
        assert "torch.onnx" not in set(sys.modules) - before

        import torch.onnx  # the TorchScript exporter registers here, and needs no onnx yet
        assert "onnx" not in sys.modules
        assert torch_onnxpool.onnx.layer_from_node
        assert "onnx" in sys.modules and "onnxscript" not in sys.modules
    """)


@pytest.mark.parametrize(
    "imports",
    [
        "import torch_onnxpool, torch",
        "import torch.onnx, torch_onnxpool",
        "import torch, torch.onnx._internal.exporter._compat, torch_onnxpool",
        "import torch_onnxpool, torch, torch.onnx._internal.exporter._torchlib._torchlib_registry",
    ],
)
def test_order_of_imports(imports):
    assert "is not registered" not in run(f"{imports}\nexport_both()")


def test_the_hooks_leave_nothing_behind():
    run("""
        import inspect, sys
        import torch, torch_onnxpool
        def hooks():
            return [finder for finder in sys.meta_path if type(finder).__module__.startswith("torch_onnxpool")]
        assert len(hooks()) == 2
        export_both()
        assert not hooks()
        from torch.onnx._internal.exporter import _compat, _core
        assert type(_compat.__loader__) is type(_compat.__spec__.loader) is type(_core.__loader__)
        assert "def export_compat" in inspect.getsource(_compat)
        export_both()
    """)


BREAK_THE_PRIVATE_WAY = """
import torch_onnxpool, torch, pytest
from torch.onnx._internal.exporter._torchlib import _torchlib_registry, ops
def onnx_impl(target):
    raise AssertionError
_torchlib_registry.onnx_impl = onnx_impl
"""


def test_a_failing_registration_warns_and_names_the_public_way():
    stderr = run(
        BREAK_THE_PRIVATE_WAY
        + """
with pytest.raises(torch.onnx.OnnxExporterError):
    export_both()
export_both(custom_translation_table=torch_onnxpool.onnx.translation_table())
"""
    )
    assert "UserWarning: torch_onnxpool is not registered with torch.onnx (TypeError:" in stderr
    assert "custom_translation_table=torch_onnxpool.onnx.translation_table()" in stderr


def test_a_missing_onnxscript_is_told_by_the_exporter():
    run("""
        import sys, pytest, torch, torch_onnxpool
        sys.modules["onnxscript"] = None
        with pytest.raises(ImportError, match="onnxscript"):
            export_both()
    """)


def test_translation_table():
    run("""
        import torch, torch_onnxpool
        table = torch_onnxpool.onnx.translation_table()
        assert {overload.name().partition("::")[0] for overload in table} == {"torch_onnxpool"}
        assert torch.ops.torch_onnxpool.max_pool_with_indices.default in table
        export_both(custom_translation_table=table)
    """)


def test_what_the_package_offers():
    run("""
        import pytest, torch_onnxpool
        assert {"layer_from_node", "translation_table", "ledger", "schemas"} <= set(dir(torch_onnxpool.onnx))
        assert torch_onnxpool.onnx.ledger.ROWS
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            torch_onnxpool.onnx.nothing
    """)


def test_all_names_can_be_imported_without_onnxscript_and_onnxruntime():
    run("""
        import sys, pytest
        sys.modules["onnxscript"] = sys.modules["onnxruntime"] = None
        from torch_onnxpool.onnx import *
        assert issubclass(OpsetError, RuntimeError)
        assert ledger.ROWS
        with pytest.raises(ImportError, match="onnxscript"):
            translation_table()
    """)


def test_modules_are_loaded_when_they_are_asked_for():
    run("""
        import sys, torch_onnxpool
        assert not any(name.startswith("onnx") for name in sys.modules)
        onnx = torch_onnxpool.onnx
        assert (onnx.verify.Model, onnx.models.inlined, onnx.backend.PoolingBackend, onnx.ledger.rows_for)
    """)


def test_looking_for_a_module_is_not_importing_it():
    run("""
        import importlib.util, torch, torch_onnxpool
        assert importlib.util.find_spec("torch.onnx")
        export_both()
    """)


def test_a_missing_torchscript_exporter_breaks_nothing():
    stderr = run("""
        import torch, torch_onnxpool
        from torch_onnxpool.onnx import symbolic
        symbolic.register = lambda: torch.onnx.no_such_function
        import torch.onnx
    """)
    assert "torch_onnxpool is not registered with torch.onnx (AttributeError:" in stderr
    assert "Only torch.onnx.export(..., dynamo=True) will know its operators." in stderr
