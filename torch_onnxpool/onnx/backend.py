"""ONNX's backend interface, `onnx.backend.base`, for models with pooling nodes.

Pooling nodes are computed by their layers, all others by onnx's reference evaluator.

    from torch_onnxpool.onnx import backend

    outputs = backend.run_model(onnx.load("pool.onnx"), [x])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep, Device, DeviceType
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import nn

from .importer import layer_from_node
from .models import canonical, has_layer, inlined, walk
from .operators import LAYERS, MICROSOFT, MICROSOFT_VERSION

__all__ = ["PoolingBackend", "PreparedModel", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]


class PoolingBackend(Backend):
    """Runs models on numpy arrays; the functions of this module are its methods."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Check a model and build its layers. ValueError for a pooling node that is not legal, or for the device."""
        target = _torch_device(device)
        super().prepare(canonical(model), device, **kwargs)
        return PreparedModel(model, target)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Sequence[np.ndarray] | dict[str, np.ndarray],
        device: str = "CPU",
        outputs_info: Any = None,
        *,
        opset_version: int | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Run one pooling node on its inputs: those that it names, by name or in their order.

        `opset_version` is that of the node's domain; without one it is the newest that the installed onnx knows.
        """
        if opset_version is None:
            opset_version = MICROSOFT_VERSION if node.domain == MICROSOFT else onnx.defs.onnx_opset_version()
        layer, names = layer_from_node(node, opset_version), [name for name in node.input if name]
        _check_inputs(node.op_type, names, inputs)
        in_order = [inputs[name] for name in names] if isinstance(inputs, dict) else inputs
        return _run_layer(layer, in_order, _torch_device(device))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there are kernels, and a device to run them: for "CPU" always, for "CUDA" or "CUDA:1" perhaps."""
        try:
            wanted = Device(device)
        except (AttributeError, ValueError):
            return False
        if wanted.type == DeviceType.CUDA:
            has_kernels = torch._C._dispatch_has_kernel_for_dispatch_key("torch_onnxpool::max_pool", "CUDA")
            return has_kernels and wanted.device_id < torch.cuda.device_count()
        return wanted.type == DeviceType.CPU


class PreparedModel(BackendRep):
    """A model that is ready to run."""

    def __init__(self, model: ModelProto, device: torch.device) -> None:
        model = inlined(model)
        # The evaluator would not hand our operators on to the bodies of functions.
        left = [function.name for function in model.functions if any(has_layer(node) for _, node in walk(function))]
        if left:
            rule = "where local functions pool, operators in functions must have the versions of those in the model"
            raise ValueError(f"PreparedModel: {rule}, got pooling nodes in {left}")
        operators = [_operator(op_type, domain, device) for domain, op_type in sorted(LAYERS)]
        self._evaluator = ReferenceEvaluator(model, new_ops=operators)
        stored = {initializer.name for initializer in model.graph.initializer}
        self._inputs = [name for name in self._evaluator.input_names if name not in stored]

    def run(self, inputs: Sequence[np.ndarray] | dict[str, np.ndarray], **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The outputs of the model for its inputs, which are given by name or in the model's order."""
        _check_inputs("PreparedModel", self._inputs, inputs)
        by_name = inputs if isinstance(inputs, dict) else dict(zip(self._inputs, inputs))
        return tuple(self._evaluator.run(None, by_name))


def _operator(op_type: str, domain: str, device: torch.device) -> type[OpRun]:
    """A pooling operator in the form that the reference evaluator wants; it goes by the name of the class."""

    class Operator(OpRun):
        op_domain = domain
        op_schema = None  # it is the layer that knows what the attributes mean

        def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
            super().__init__(onnx_node, run_params, schema)
            self._layer = layer_from_node(onnx_node, run_params["opsets"][domain])

        def _run(self, *inputs: np.ndarray | None, **attributes: Any) -> tuple[np.ndarray, ...]:
            return _run_layer(self._layer, inputs, device)

    Operator.__name__ = op_type
    return Operator


def _check_inputs(owner: str, names: list[str], inputs: Sequence[np.ndarray] | dict[str, np.ndarray]) -> None:
    if isinstance(inputs, dict):
        fit, got = inputs.keys() >= set(names), list(inputs)
    elif isinstance(inputs, Sequence):
        fit, got = len(inputs) == len(names), f"{len(inputs)} of them"
    else:  # an array is no list of its rows
        fit, got = False, type(inputs).__name__
    if not fit:
        raise ValueError(f"{owner}: inputs must be {names}, got {got}")


def _run_layer(layer: nn.Module, inputs: Sequence[np.ndarray | None], device: torch.device) -> tuple[np.ndarray, ...]:
    """Inputs that are None are left out, as the layer expects it of those that the node does not name."""
    with torch.no_grad():
        outputs = layer.to(device)(*(_to_tensor(array).to(device) for array in inputs if array is not None))
    return tuple(map(_to_array, outputs if isinstance(outputs, tuple) else (outputs,)))


def _torch_device(device: str) -> torch.device:
    if not PoolingBackend.supports_device(device):
        raise ValueError(f"PoolingBackend: device must be CPU, or CUDA where it is available, got device={device!r}")
    wanted = Device(device)
    return torch.device("cuda", wanted.device_id) if wanted.type == DeviceType.CUDA else torch.device("cpu")


def _to_tensor(array: np.ndarray) -> torch.Tensor:
    array = np.array(array, order="C")  # a copy: torch wants to be able to write
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise ValueError(f"PoolingBackend: inputs must have an element type of torch, got {array.dtype}") from None


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes  # whoever has bfloat16 arrays has it

        return tensor.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


is_compatible = PoolingBackend.is_compatible
prepare = PoolingBackend.prepare
run_model = PoolingBackend.run_model
run_node = PoolingBackend.run_node
supports_device = PoolingBackend.supports_device
