"""Every operator in every opset that an exporter can write, and clear refusals of what an opset cannot say."""

from __future__ import annotations

import re

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
    outputs_of,
    run_onnxruntime,
    without_defaults,
)

X = torch.linspace(-1, 1, 2 * 3 * 7 * 8).sin().reshape(2, 3, 7, 8)
BYTES = (X * 100 + 120).to(torch.uint8)
SCALARS = (torch.tensor(0.5), torch.tensor(3, dtype=torch.uint8), torch.tensor(0.3), torch.tensor(9, dtype=torch.uint8))

DYNAMO_OPSETS = range(18, 26)  # below and above, torch converts the file afterwards, or silently leaves it
TORCHSCRIPT_OPSETS = range(7, 24)

# Layers, and the first opset that can say them.
LAYERS = {
    "AveragePool": (1, layer_of("AveragePool", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])),
    "AveragePool counted": (7, layer_of("AveragePool", kernel_shape=[3, 2], pads=[1, 1, 1, 1], count_include_pad=1)),
    "AveragePool ceil": (10, layer_of("AveragePool", kernel_shape=[3, 2], strides=[3, 3], ceil_mode=1)),
    "AveragePool dilated": (19, layer_of("AveragePool", kernel_shape=[3, 2], dilations=[2, 3])),
    "LpPool": (2, layer_of("LpPool", kernel_shape=[3, 2], p=3, auto_pad="SAME_LOWER")),
    "LpPool ceil": (18, layer_of("LpPool", kernel_shape=[3, 2], strides=[3, 3], ceil_mode=1)),
    "LpPool dilated": (18, layer_of("LpPool", kernel_shape=[3, 2], dilations=[2, 3], p=1)),
    "MaxPool": (1, layer_of("MaxPool", kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 1])),
    "MaxPool Indices": (8, layer_of("MaxPool", kernel_shape=[3, 2], return_indices=True)),
    "MaxPool column major": (8, layer_of("MaxPool", kernel_shape=[3, 2], storage_order=1, return_indices=True)),
    "MaxPool ceil": (10, layer_of("MaxPool", kernel_shape=[3, 2], strides=[3, 3], ceil_mode=1)),
    "MaxPool dilated": (10, layer_of("MaxPool", kernel_shape=[3, 2], dilations=[2, 3])),
    "MaxUnpool": (9, layer_of("MaxUnpool", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1])),
    "GlobalAveragePool": (1, layer_of("GlobalAveragePool")),
    "GlobalLpPool": (2, layer_of("GlobalLpPool", p=3)),
    "GlobalMaxPool": (1, layer_of("GlobalMaxPool")),
    "QLinearAveragePool": (1, layer_of("QLinearAveragePool", kernel_shape=[3, 2], pads=[1, 0, 1, 1], ceil_mode=1)),
    "QLinearGlobalAveragePool": (1, layer_of("QLinearGlobalAveragePool")),
}

EXPORTABLE = [("dynamo", opset) for opset in DYNAMO_OPSETS] + [("torchscript", opset) for opset in TORCHSCRIPT_OPSETS]


def inputs_of(layer) -> tuple[torch.Tensor, ...]:
    if type(layer).__name__ == "MaxUnpool":
        return X, torch.arange(X.numel()).reshape(X.shape)
    return (BYTES, *SCALARS) if type(layer).__name__.startswith("QLinear") else (X,)


def causes(error: BaseException | None) -> str:
    """An error with everything that led to it; the exporters wrap what translations raise."""
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return "\n".join(texts)


@pytest.mark.parametrize(("exporter", "opset"), EXPORTABLE)
def test_sayable(exporter, opset):
    layers = [layer for first, layer in LAYERS.values() if first <= opset]
    inputs = [inputs_of(layer) for layer in layers]
    for layer, tensors, node in zip(layers, inputs, export_together(layers, inputs, exporter, opset), strict=True):
        assert node.op_type == type(layer).__name__
        assert attributes_of(node) == without_defaults(layer.onnx_attributes())
        if node.op_type == "GlobalLpPool" and opset >= 22:
            continue  # ledger: global-lp-22
        arrays = [tensor.numpy() for tensor in tensors]
        assert_close(run_onnxruntime(one_node_model(node, arrays, opset), arrays), outputs_of(layer, *tensors))


@pytest.mark.parametrize(
    ("name", "exporter", "opset"),
    [(name, *how) for name, (first, _) in LAYERS.items() for how in EXPORTABLE if how[1] < first],
)
def test_not_sayable(name, exporter, opset):
    first, layer = LAYERS[name]
    rule = rf"{type(layer).__name__}: (\w+ can be said|exists) from opset {first} on, got (.* at )?opset {opset}$"
    assert_refused(rule, layer, inputs_of(layer), exporter, opset)


@pytest.mark.parametrize(
    ("exporter", "opset", "dtype", "layer", "rule"),
    [
        # The dynamo exporter itself writes opset 18 and converts afterwards: what was asked for counts.
        (
            "dynamo",
            17,
            torch.float32,
            LAYERS["LpPool ceil"][1],
            "ceil_mode can be said from opset 18 on, got ceil_mode=1",
        ),
        ("dynamo", 9, torch.float32, LAYERS["MaxPool dilated"][1], "dilations can be said from opset 10 on"),
        (
            "dynamo",
            7,
            torch.float32,
            LAYERS["MaxPool Indices"][1],
            "Indices can be said from opset 8 on, got 2 outputs",
        ),
        *(
            (
                exporter,
                opset,
                torch.bfloat16,
                LAYERS[name][1],
                r"X of type tensor\(bfloat16\) can be said from opset 22 on",
            )
            for name in ("AveragePool", "LpPool", "MaxPool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
            for exporter, opset in (("dynamo", 20), ("program", 21), ("torchscript", 21))
        ),
        ("torchscript", 11, torch.int8, LAYERS["MaxPool"][1], r"X of type tensor\(int8\) can be said from opset 12 on"),
        *(
            (exporter, 20, torch.float32, layer, "p must be an integer of 64 bits from opset 2 on, got p=1.5")
            for layer in (layer_of("LpPool", kernel_shape=[2, 2], p=1.5), layer_of("GlobalLpPool", p=1.5))
            for exporter in EXPORTERS
        ),
        ("dynamo", 20, torch.float32, layer_of("GlobalLpPool", p=1e19), "p must be an integer of 64 bits"),
        ("dynamo", 99, torch.float32, LAYERS["GlobalMaxPool"][1], "opset must be known to the installed onnx"),
    ],
)
def test_refused(exporter, opset, dtype, layer, rule):
    assert_refused(f"{type(layer).__name__}: {rule}", layer, (X.to(dtype),), exporter, opset)


@pytest.mark.parametrize("p", [1.5, 2.5])
@pytest.mark.parametrize(("operator", "attributes"), [("LpPool", {"kernel_shape": [3, 2]}), ("GlobalLpPool", {})])
def test_opset_1_says_fractional_p(operator, attributes, p):
    node = only_node(export(layer_of(operator, p=p, **attributes), (X,), "torchscript", 1))
    assert attributes_of(node) == {**attributes, "p": p}


@pytest.mark.parametrize("opset", [5, 6])
def test_opsets_below_7(opset):
    """What the TorchScript exporter writes besides 7 to 23."""
    node = only_node(export(LAYERS["AveragePool"][1], (X,), "torchscript", opset))
    assert attributes_of(node) == {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}


@pytest.mark.parametrize("opset", [1, 7, 8, 20])
def test_indices_that_nobody_reads_need_no_opset_8(opset):
    class OnlyY(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = layer_of("MaxPool", kernel_shape=[2, 2], return_indices=True)

        def forward(self, x):
            return self.pool(x)[0]

    assert len(only_node(export(OnlyY(), (X,), "torchscript", opset)).output) == 1


def assert_refused(rule: str, layer, inputs, exporter: str, opset: int) -> None:
    with pytest.raises(Exception) as error:  # noqa: PT011, the dynamo exporter wraps the ValueError
        export(layer, inputs, exporter, opset)
    assert re.search(f"^ValueError: {rule}", causes(error.value), re.MULTILINE)
