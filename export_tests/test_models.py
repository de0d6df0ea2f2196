"""Pools inside of models: dynamic sizes, half precision, training mode, nesting, several nodes, constants."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from exporting import (
    EXPORTERS,
    assert_close,
    attributes_of,
    export,
    export_together,
    layer_of,
    one_node_model,
    only_node,
    opset_of,
    outputs_of,
    pooling_nodes,
    run_onnxruntime,
)
from torch import nn

import torch_onnxpool

LAYERS = {
    "AveragePool": layer_of("AveragePool", kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 1, 1], count_include_pad=1),
    "AveragePool same": layer_of("AveragePool", kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    "LpPool ceil": layer_of("LpPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, p=3),
    "MaxPool": layer_of("MaxPool", kernel_shape=[2, 2], dilations=[2, 1], strides=[2, 2], return_indices=True),
    "GlobalAveragePool": layer_of("GlobalAveragePool"),
    "GlobalLpPool": layer_of("GlobalLpPool", p=1),
    "GlobalMaxPool": layer_of("GlobalMaxPool"),
    "QLinearGlobalAveragePool": layer_of(
        "QLinearGlobalAveragePool", 0.5, np.uint8(3), 0.3, np.uint8(9)
    ),
}  # fmt: skip


def data(layer: nn.Module, *shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return (x * 60 + 120).to(torch.uint8) if type(layer).__name__.startswith("QLinear") else x


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_dynamic_batch_height_and_width(layer, exporter):
    if exporter == "torchscript":
        options = {"input_names": ["X"], "dynamic_axes": {"X": {0: "N", 2: "H", 3: "W"}}}
    else:
        # torch.export by itself refuses sizes that are pooled to 1, by built-in pools too; torch.onnx.export does not.
        smallest = {"min": 6} if exporter == "program" else {}
        sizes = {0: torch.export.Dim("N"), 2: torch.export.Dim("H", **smallest), 3: torch.export.Dim("W", **smallest)}
        options = {"dynamic_shapes": (sizes,)}
    proto = export(layer, (data(layer, 2, 3, 9, 10),), exporter, **options)
    only_node(proto)
    named = [bool(size.dim_param) for size in proto.graph.input[0].type.tensor_type.shape.dim]
    assert named == [True, False, True, True]
    assert all(value.type.tensor_type.shape.dim[0].dim_param for value in proto.graph.output)
    for shape in [(2, 3, 9, 10), (1, 3, 6, 7), (3, 3, 13, 8)]:
        x = data(layer, *shape)
        assert_close(run_onnxruntime(proto, [x.numpy()]), outputs_of(layer, x))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16], ids=str)
def test_element_types(dtype, exporter):
    layers = [layer for name, layer in LAYERS.items() if not name.startswith("QLinear")]
    x = data(layers[0], 2, 3, 9, 10).to(dtype)
    for layer, node in zip(layers, export_together(layers, [(x,)] * len(layers), exporter, 22), strict=True):
        has_kernel = dtype == torch.float16 or (dtype == torch.float64 and node.op_type == "MaxPool")
        if has_kernel and node.op_type != "GlobalLpPool":  # ledger: dtypes, global-lp-22
            arrays = [x.numpy()]
            assert_close(run_onnxruntime(one_node_model(node, arrays, 22), arrays), outputs_of(layer, x))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_bytes(dtype, exporter):
    layer, x = LAYERS["MaxPool"], (data(LAYERS["MaxPool"], 2, 3, 9, 10) * 50).to(torch.int32).to(dtype)
    assert_close(run_onnxruntime(export(layer, (x,), exporter), [x.numpy()]), outputs_of(layer, x))


class Block(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        self.pool = pool

    def forward(self, x):
        return self.pool(torch.relu(self.convolution(x)))


class Network(nn.Module):
    """Layers in nested modules, a function, and a pool that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        pool = torch_onnxpool.MaxPool(2, strides=2)
        self.blocks = nn.Sequential(
            Block(pool), Block(torch_onnxpool.LpPool(3, auto_pad="SAME_LOWER", p=3)), Block(pool)
        )

    def forward(self, x):
        x = self.blocks(x)
        return torch_onnxpool.global_lp_pool(torch_onnxpool.average_pool(x, [2, 2], pads=[1, 1, 1, 1]))


NODES = [
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("LpPool", {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "p": 3}),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("AveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
    ("GlobalLpPool", {}),
]


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("exporter", ["dynamo", "program"])
def test_network(exporter, optimize):
    assert_network(exporter, Network().eval(), optimize=optimize)


def test_network_torchscript():
    assert_network("torchscript", Network().eval())


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_network_that_is_training(exporter):
    options = {"training": torch.onnx.TrainingMode.TRAINING} if exporter == "torchscript" else {}
    with pytest.warns(UserWarning, match="in training mode") if exporter == "dynamo" else contextlib.nullcontext():
        assert_network(exporter, Network().train(), **options)


def assert_network(exporter, network, **options):
    x = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(1), requires_grad=network.training)
    proto = export(network, (x,), exporter, **options)
    assert [(node.op_type, attributes_of(node)) for node in pooling_nodes(proto)] == NODES
    assert_close(run_onnxruntime(proto, [x.detach().numpy()]), outputs_of(network, x))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_channels_last_input(exporter):
    layer = LAYERS["AveragePool"]
    x = data(layer, 2, 3, 9, 10).to(memory_format=torch.channels_last)
    proto = export(layer, (x,), exporter)
    only_node(proto)
    assert_close(run_onnxruntime(proto, [x.contiguous().numpy()]), outputs_of(layer, x))


def test_branches():
    """A pool inside of torch.cond becomes a node of the branch."""

    class Either(nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0,
                lambda x: torch_onnxpool.max_pool(x, [2, 2], strides=[2, 2]),
                lambda x: torch_onnxpool.average_pool(x, [2, 2], strides=[2, 2]),
                (x,),
            )

    x = torch.randn(1, 2, 4, 4).abs()
    proto = export(Either().eval(), (x,), full_check=False)
    for sign in (1, -1):
        assert_close(run_onnxruntime(proto, [sign * x.numpy()]), outputs_of(Either(), sign * x))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_quantised_layer_keeps_its_scalars(exporter):
    layer, x = LAYERS["QLinearGlobalAveragePool"], data(LAYERS["QLinearGlobalAveragePool"], 2, 3, 4, 5)
    proto = export(layer, (x,), exporter)
    assert len(proto.graph.input) == 1
    assert len(proto.graph.initializer) == 4
    assert list(only_node(proto).input[1:]) == [tensor.name for tensor in sorted_as_inputs(proto)]


def sorted_as_inputs(proto):
    order = list(only_node(proto).input)
    return sorted(proto.graph.initializer, key=lambda tensor: order.index(tensor.name))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_quantised_layer_in_between(exporter):
    """Channels last, after a transposition, with scalars that are inputs of the model."""

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = torch_onnxpool.QLinearGlobalAveragePool(channels_last=1)

        def forward(self, x, *scalars):
            return self.pool(x.permute(0, 2, 3, 1), *scalars) + 1

    scalars = (
        torch.tensor(0.5),
        torch.tensor(3, dtype=torch.int8),
        torch.tensor(0.3),
        torch.tensor(9, dtype=torch.int8),
    )
    inputs = (torch.randint(-128, 128, (2, 3, 4, 5), dtype=torch.int8), *scalars)
    proto = export(Quantised().eval(), inputs, exporter)
    (node,) = pooling_nodes(proto)
    assert attributes_of(node) == {"channels_last": 1}
    assert_close(run_onnxruntime(proto, [tensor.numpy() for tensor in inputs]), outputs_of(Quantised(), *inputs))


@pytest.mark.parametrize("opset", [26, 28])
def test_opsets_that_the_exporter_converts_to_afterwards(opset):
    """Above 25 onnx's converter takes over; the pool arrives as it was written."""
    layer, x = LAYERS["AveragePool"], data(LAYERS["AveragePool"], 2, 3, 9, 10)
    proto = export(layer, (x,), opset=opset)
    assert opset_of(proto) == opset
    assert attributes_of(only_node(proto)) == attributes_of(only_node(export(layer, (x,))))


@pytest.mark.parametrize("name", ["AveragePool", "MaxPool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"])
def test_opset_13_from_the_dynamo_exporter(name):
    layer = LAYERS[name]
    x = data(layer, 2, 3, 9, 10)
    proto = export(layer, (x,), opset=13)
    only_node(proto)
    assert_close(run_onnxruntime(proto, [x.numpy()]), outputs_of(layer, x))
