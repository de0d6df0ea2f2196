"""Our operators in the dynamo exporter, the default of `torch.onnx.export`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import torch
from onnxscript import evaluator, ir

from . import nodes, schemas
from .operators import OPERATORS


def translation_table() -> dict[torch._ops.OpOverload, Callable]:
    """The operators for `torch.onnx.export(..., custom_translation_table=translation_table())`.

    Only needed where the automatic registration at `import torch_onnxpool` has failed, which says so in a warning.
    """
    overloads = {operator: getattr(torch.ops.torch_onnxpool, operator).default for operator in OPERATORS}
    return {overload: _translation(operator, overload) for operator, overload in overloads.items()}


def register() -> None:
    """Register every operator with the exporter, through the private function that its own operators use."""
    from torch.onnx._internal.exporter._torchlib._torchlib_registry import onnx_impl

    for overload, translation in translation_table().items():
        onnx_impl(overload, no_compile=True)(translation)


def _requested_opset(written: int) -> int:
    """The opset that torch.onnx.export was asked for. Translations are not told; the call that they run in knows."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "export_compat":
        frame = frame.f_back
    return written if frame is None else frame.f_locals.get("opset_version", written)


def _translation(operator: str, overload: torch._ops.OpOverload) -> Callable:
    parameters = overload._schema.arguments
    # torch.export drops arguments that are equal to their defaults.
    defaults = {parameter.name: parameter.default_value for parameter in parameters if parameter.has_default_value()}

    def translation(*args, **kwargs):
        given = {parameter.name: value for parameter, value in zip(parameters, args)}
        arguments = {**defaults, **given, **kwargs}
        recorder = evaluator.default()
        dtype = arguments["X"].dtype
        element_type = None if dtype is None else schemas.type_name(dtype)
        # Below 18 the exporter writes opset 18 and converts the file afterwards: both must be able to say it.
        for opset in (_requested_opset(recorder.opset.version), recorder.opset.version):
            composed = nodes.compose(operator, arguments, opset, element_type)
        node = ir.node(
            composed.op_type,
            [arguments[name] for name in composed.inputs],
            dict(composed.attributes),
            domain=composed.domain,
            num_outputs=len(composed.outputs),
            # Without a version the node goes through the exporter's opset conversion as it is.
            version=composed.version if composed.domain else None,
        )
        # Not recorder.eval(): that drops attributes unknown to the exporter's own opset.
        recorder.nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    translation.__name__ = operator
    return translation
