"""torch.onnx.export with one promise more: the file has the opset asked for."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import torch
import torch.onnx.verification

from . import portability
from .operators import checked_opset


def export(
    model: Any,
    args: tuple[Any, ...] = (),
    f: str | os.PathLike | io.BytesIO | None = None,
    *,
    portable: bool = False,
    opset_version: int | None = None,
    dynamo: bool = True,
    **options: Any,
) -> torch.onnx.ONNXProgram | None:
    """`torch.onnx.export`, with all of its arguments, that writes the opset asked for or raises.

    torch.onnx.export makes a file of opset 18 to 25 and has it converted. Where that fails, as it does for LpPool below
    18, for AveragePool and MaxPool below 10 and for Relu below 14, it leaves the file at opset 18 and says so in a log
    only. This function writes every opset from 7 on that the installed onnx knows (with dynamo=False from 1 to 23), if
    the operators of the model can be said in it; a model of nothing but pools, from 1 on.

    Pools on constants are written as nodes, not computed beforehand. A report (`report=True`) is about the model before
    its conversion.

    Args:
        portable: as within `with torch_onnxpool.onnx.portable():`, write equivalents that run everywhere for nodes on
            which other engines differ. Without it, such nodes bring a `PortabilityWarning`.
        model, args, f, opset_version, dynamo, options: as for torch.onnx.export.

    Raises:
        ValueError: for an opset_version that is not an int, and for options that the dynamo exporter's `io.BytesIO`
            would lose.
        OpsetError: if another node of the model cannot be converted; names it.
        torch.onnx.OnnxExporterError: from torch.onnx.export; a `ValueError` about a pool that the opset cannot say, as
            its cause.
    """
    if opset_version is not None:
        opset_version = checked_opset("export", opset_version)
    with portability.portable() if portable else contextlib.nullcontext():
        if not dynamo and not isinstance(model, torch.export.ExportedProgram):
            return torch.onnx.export(model, args, f, opset_version=opset_version, dynamo=False, **options)
        return _export(model, args, f, opset_version, **options)


# For help() and editors.
export.__signature__ = inspect.signature(torch.onnx.export).replace(
    parameters=[
        *inspect.signature(torch.onnx.export).parameters.values(),
        inspect.signature(export).parameters["portable"],
    ]
)


def translation_table() -> dict[torch._ops.OpOverload, Callable]:
    """The operators for `torch.onnx.export(..., custom_translation_table=translation_table())`.

    Only needed where the automatic registration at `import torch_onnxpool` has failed, which says so in a warning.
    """
    from . import translation  # needs onnxscript

    return translation.table()


def _export(
    model: Any,
    args: tuple[Any, ...],
    f: str | os.PathLike | io.BytesIO | None,
    opset_version: int | None,
    *,
    verify: bool = False,
    external_data: bool = True,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    **options: Any,
) -> torch.onnx.ONNXProgram:
    """With the dynamo exporter. What concerns the file is done here, once the model has its opset."""
    from . import conversion, translation  # need onnxscript

    if isinstance(f, io.BytesIO) and (not export_params or keep_initializers_as_inputs):
        rule = "export_params=False and keep_initializers_as_inputs=True need a file"
        raise ValueError(f"export: {rule}, got f={f!r}")
    native = translation.NATIVE_OPSETS
    first = opset_version and min(max(opset_version, native.start), native.stop - 1)
    with translation.hidden_nodes(opset_version) as hiding:
        program = torch.onnx.export(model, args, opset_version=first, dynamo=True, **options)
    if hiding.opset is not None:
        conversion.finish(program.model, hiding.opset)
    if verify:
        _verify(program)
    if isinstance(f, io.BytesIO):
        onnx.save(program.model_proto, f)
    elif f is not None:
        program.save(
            f,
            include_initializers=export_params,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
            external_data=external_data,
        )
    return program


def _verify(program: torch.onnx.ONNXProgram) -> None:
    """Compare with the program in onnxruntime, as torch.onnx.export does."""
    onnx.checker.check_model(program.model_proto)
    for result in torch.onnx.verification.verify_onnx_program(program):
        if result.max_abs_diff >= 5e-3 or result.max_rel_diff >= 1e-1:
            how = f"{result.max_abs_diff:g} absolutely, {result.max_rel_diff:g} relatively"
            warnings.warn(f"output {result.name!r} differs in onnxruntime: by {how}", stacklevel=4)
    program.release()
