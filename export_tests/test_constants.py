"""Pools of constants: what an exporter computes beforehand is what the layer computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxscript.optimizer
import pytest
import torch
from exporting import EXPORTERS, assert_close, export, layer_of, outputs_of, run_onnxruntime
from onnx import helper, numpy_helper

import torch_onnxpool

TABLE = torch.linspace(-3, 3, 2 * 3 * 6 * 7).sin().reshape(2, 3, 6, 7)
BYTES = (TABLE * 100 + 120).to(torch.uint8)

# On many of these onnx's reference evaluator is wrong, or fails.
POOLS = {
    "LpPool ceil": layer_of("LpPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "LpPool range": layer_of("LpPool", kernel_shape=[2, 2], p=64),
    "MaxPool SAME_LOWER": layer_of("MaxPool", kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
    "MaxPool pads": layer_of("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "MaxPool Indices": layer_of(
        "MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], return_indices=True, storage_order=1
    ),
    "AveragePool SAME": layer_of("AveragePool", kernel_shape=[2, 3], auto_pad="SAME_UPPER", dilations=[2, 2]),
    "AveragePool ceil": layer_of("AveragePool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1),
    "GlobalMaxPool": layer_of("GlobalMaxPool"),
    "GlobalLpPool": layer_of("GlobalLpPool", p=3),
    "QLinearGlobalAveragePool": layer_of("QLinearGlobalAveragePool", 0.5, np.uint8(3), 0.3, np.uint8(9)),
}


class OnBuffer(torch.nn.Module):
    """A pool of a buffer, and one of what is computed from it, beside the input."""

    def __init__(self, pool: torch.nn.Module, table: torch.Tensor, further) -> None:
        super().__init__()
        self.pool, self.further = pool, further
        self.register_buffer("table", table)

    def forward(self, x):
        results = []
        for table in (self.table, self.further(self.table)):
            outputs = self.pool(table)
            results += outputs if isinstance(outputs, tuple) else [outputs]
        return (x + 1, *results)


def model_of(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    if name.startswith("QLinear"):
        return OnBuffer(POOLS[name], BYTES, lambda table: table.clone()).eval(), torch.zeros(2)
    return OnBuffer(POOLS[name], TABLE, lambda table: (table - 1).relu() * 3).eval(), torch.zeros(2)


def assert_right(proto: onnx.ModelProto, model, x) -> None:
    assert_close(run_onnxruntime(proto, [x.numpy()]), outputs_of(model, x))


@pytest.mark.filterwarnings("ignore::torch_onnxpool.onnx.PortabilityWarning")
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", POOLS)
def test_plain_export(name, exporter):
    model, x = model_of(name)
    proto = export(model, (x,), exporter, full_check=False)
    pools = [node for node in proto.graph.node if node.op_type == type(POOLS[name]).__name__]
    if exporter != "torchscript":
        assert not pools, "computed beforehand"
    elif name in ("LpPool range", "AveragePool SAME"):
        return  # written as nodes, on which onnxruntime is wrong: the ledger's rows lp-range and same-dilated
    assert_right(proto, model, x)


@pytest.mark.parametrize("opset", [11, 20])
def test_our_export(opset):
    """It computes no pool beforehand."""
    model, x = model_of("MaxPool SAME_LOWER")
    program = torch_onnxpool.onnx.export(model, (x,), opset_version=opset, verbose=False)
    assert [node.op_type for node in program.model_proto.graph.node].count("MaxPool") == 2
    assert_right(program.model_proto, model, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_element_types(dtype):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", TABLE.to(dtype))

        def forward(self, x):
            return x + torch_onnxpool.lp_pool(self.table, 2, ceil_mode=1, strides=[5, 5]).float()

    proto = export(Model(), (torch.zeros(1),), opset=22)
    assert "LpPool" not in [node.op_type for node in proto.graph.node]
    assert_right(proto, Model(), torch.zeros(1))


def test_pools_of_others():
    """Of whatever writes a pool, it is right."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", TABLE)

        def forward(self, x):
            return x + torch.nn.functional.max_pool2d(self.table, 3, 2, 1, ceil_mode=True)

    x = torch.zeros(1)
    assert_right(export(Model(), (x,)), Model(), x)


def test_outputs_without_a_name():
    pool = helper.make_node("MaxPool", ["table"], ["Y", ""], kernel_shape=[2, 2])
    y = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([pool], "pool", [], [y], [numpy_helper.from_array(TABLE.numpy(), "table")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    optimized = onnxscript.optimizer.optimize(model)
    assert "MaxPool" not in [node.op_type for node in optimized.graph.node]
    assert_close(run_onnxruntime(optimized, []), outputs_of(layer_of("MaxPool", kernel_shape=[2, 2]), TABLE))


@pytest.mark.parametrize("exporter", [exporter for exporter in EXPORTERS if exporter != "torchscript"])
@pytest.mark.parametrize("pool", [lambda x: torch_onnxpool.max_pool(x, 2), torch.nn.MaxPool2d(2, 1)])
def test_pools_in_branches(pool, exporter):
    """A subgraph does not say which opsets its model imports."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", TABLE)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + pool(self.table), lambda x: x - 1, (x,))

    x = torch.ones(2, 3, 5, 6)
    proto = export(Model().eval(), (x,), exporter)
    for other in (x, -x):
        assert_right(proto, Model(), other)
