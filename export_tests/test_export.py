"""Our own export: the opset asked for, or an error that names the node in the way."""

from __future__ import annotations

import inspect
import io
import re

import numpy as np
import onnx
import pytest
import torch
from exporting import (
    Together,
    assert_close,
    attributes_of,
    layer_of,
    one_node_model,
    only_node,
    opset_of,
    outputs_of,
    pooling_nodes,
    run_onnxruntime,
    without_defaults,
)
from onnx import helper
from test_opsets import LAYERS, causes, inputs_of

import torch_onnxpool
from torch_onnxpool.onnx import OpsetError, conversion, portable

pytestmark = pytest.mark.filterwarnings("ignore::torch_onnxpool.onnx.PortabilityWarning")

X = torch.linspace(-1, 1, 2 * 3 * 12 * 10).sin().reshape(2, 3, 12, 10)


def export(model, args, opset=None, **options) -> onnx.ModelProto:
    program = torch_onnxpool.onnx.export(model, args, opset_version=opset, verbose=False, **options)
    onnx.checker.check_model(program.model_proto, full_check=True)
    return program.model_proto


class Classifier(torch.nn.Module):
    """A network of ordinary layers around pools whose nodes onnx's converter knows not how to convert."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 40, 3)
        self.norm = torch_onnxpool.LpPool([2, 2], strides=[2, 2])
        self.maximum = torch_onnxpool.MaxPool([2, 2], auto_pad="SAME_LOWER")
        self.average = torch_onnxpool.AveragePool([2, 1], count_include_pad=1, pads=[1, 0, 0, 0])
        self.plane = torch_onnxpool.GlobalAveragePool()
        self.linear = torch.nn.Linear(40, 5)

    def forward(self, x):
        x = torch.relu(self.convolution(x)) + 1
        x = self.plane(self.average(self.maximum(self.norm(x))))
        return self.linear(x.flatten(1)).softmax(1)


@pytest.mark.parametrize("opset", range(1, 29))
def test_every_version_of_every_pool(opset):
    """A model of nothing but pools, so opsets below 7 too. What is sayable is written for the opset asked for."""
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("unknown to this onnx")
    layers = [layer for first, layer in LAYERS.values() if first <= opset]
    inputs = [inputs_of(layer) for layer in layers]
    proto = export(Together(layers, [len(tensors) for tensors in inputs]).eval(), tuple(sum(inputs, ())), opset)
    assert opset_of(proto) == opset
    for layer, tensors, node in zip(layers, inputs, proto.graph.node, strict=True):
        assert node.op_type == type(layer).__name__
        assert attributes_of(node) == without_defaults(layer.onnx_attributes())
        kernel = {"AveragePool": 7, "LpPool": 2, "GlobalLpPool": 2}.get(node.op_type, 1)
        if opset > 26 or opset < kernel or (node.op_type == "GlobalLpPool" and opset >= 22):
            continue  # no kernels in onnxruntime: the newest opsets, and the rows v1-kernels and global-lp-22
        arrays = [tensor.numpy() for tensor in tensors]
        assert_close(run_onnxruntime(one_node_model(node, arrays, opset), arrays), outputs_of(layer, *tensors))


@pytest.mark.parametrize(("operator", "attributes"), [("LpPool", {"kernel_shape": [2, 2]}), ("GlobalLpPool", {})])
def test_fractional_p_of_opset_1(operator, attributes):
    node = only_node(export(layer_of(operator, p=1.5, **attributes), (X,), 1))
    assert attributes_of(node) == {**attributes, "p": 1.5}


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("opset", [None, 11, 12, 13, 16, 17, 18, 20, 22, 25, 26])
def test_a_network(opset, exported, device):
    model, image, sizes = Classifier().eval().to(device), X.to(device), ({0: torch.export.Dim("N", min=1, max=64)},)
    options = {} if exported else {"dynamic_shapes": sizes}
    given = torch.export.export(model, (image,), dynamic_shapes=sizes) if exported else model
    proto = export(given, (image,), opset, input_names=["image"], output_names=["classes"], **options)
    assert opset_of(proto) == (opset or 20)
    assert [node.op_type for node in pooling_nodes(proto)] == ["LpPool", "MaxPool", "AveragePool", "GlobalAveragePool"]
    assert {entry.domain for entry in proto.opset_import} == {""}
    assert [value.name for value in (*proto.graph.input, *proto.graph.output)] == ["image", "classes"]
    x = torch.cat([X, X - 1, X * 2])
    assert_close(run_onnxruntime(proto, [x.numpy()]), outputs_of(model, x.to(device)))


@pytest.mark.parametrize("options", [{}, {"optimize": False}])
def test_pools_on_both_sides_of_the_rest(options):
    class Model(torch.nn.Module):
        def forward(self, x):
            y, indices = torch_onnxpool.max_pool(x, 2, return_indices=True)
            return torch_onnxpool.lp_pool(torch.relu(y) * 2, 2, p=3), indices

    proto = export(Model(), (X,), 11, **options)
    assert opset_of(proto) == 11
    assert_close(run_onnxruntime(proto, [X.numpy()]), outputs_of(Model(), X))


@pytest.mark.parametrize("opset", [1, 7, 10, 17, 18])
def test_only_com_microsoft(opset):
    layer = LAYERS["QLinearGlobalAveragePool"][1]
    proto = export(layer, inputs_of(layer), opset)
    assert opset_of(proto) == opset
    assert opset_of(proto, "com.microsoft") == 1
    assert only_node(proto).domain == "com.microsoft"


class Surroundings(torch.nn.Module):
    """What onnx's converter needs help with."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)
        torch.nn.init.uniform_(self.norm.running_var, 0.5, 2)
        self.linear = torch.nn.Linear(3, 5)
        self.maximum, self.mean = torch.nn.MaxPool2d(2), torch.nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        y = torch_onnxpool.max_pool(x, 2)
        plane = torch_onnxpool.global_average_pool(y)
        return (
            *(self.norm(y), self.linear(plane.flatten(1)), self.maximum(y), self.mean(y)),
            *(y.sum(1), y.sum(-1), y.mean((2, 3)), y.amax(1), y.norm(dim=1), y.var(-1)),
            *(y.unsqueeze(1), y.unsqueeze(-1), y.relu().unsqueeze(-2), torch.cat([y, y], -1)),
            *(y.softmax(-1), plane.softmax(1), plane.log_softmax(1)),
            torch.nn.functional.one_hot((plane.flatten() > 0).long(), 2),
        )


@pytest.mark.parametrize("opset", [9, 10, 11, 12, 13, 17])
def test_what_surrounds_a_pool(opset):
    model = Surroundings().eval()
    proto = export(model, (X,), opset)
    assert opset_of(proto) == opset
    assert_close(run_onnxruntime(proto, [X.numpy()]), outputs_of(model, X))
    if opset < 11:
        assert all(axis >= 0 for node in proto.graph.node for axis in axes_of(node))


def axes_of(node: onnx.NodeProto) -> list[int]:
    attributes = attributes_of(node)
    return [*attributes.get("axes", []), *([attributes["axis"]] if "axis" in attributes else [])]


def test_negative_axes_of_unknown_rank():
    graph = helper.make_graph([helper.make_node("Concat", ["a", "b"], ["y"], "joined", axis=-1)], "graph", [], [])
    with pytest.raises(OpsetError, match=r"^cannot write opset 9: the node 'joined' \(Concat\) has axis=-1, .* rank "):
        conversion._count_axes_from_the_front(graph, {}, 9)


@pytest.mark.parametrize("opset", [7, 8])
def test_layers_of_torch_in_the_oldest_opsets(opset):
    layers = torch_onnxpool.LpPool(2), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(60, 5)
    model = torch.nn.Sequential(*layers).eval()
    proto = export(model, (X,), opset)
    assert opset_of(proto) == opset
    assert_close(run_onnxruntime(proto, [X.numpy()]), outputs_of(model, X))


@pytest.mark.parametrize(("opset", "version"), [(7, 4), (9, 4), (10, 5), (11, 6), (13, 7), (17, 8), (18, 10)])
def test_old_opsets_stand_in_old_files(opset, version):
    """As far as onnx allows, but for versions below 4; what torch writes directly is as torch writes it."""
    assert export(LAYERS["MaxPool"][1], (X,), opset).ir_version == version


def test_a_model_without_our_pools():
    assert opset_of(export(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(2)), (X,), 13)) == 13


class InTheWay(torch.nn.Module):
    def __init__(self, rest) -> None:
        super().__init__()
        self.pool, self.rest = torch_onnxpool.LpPool([2, 2]), rest

    def forward(self, x):
        return self.rest(self.pool(x))


@pytest.mark.parametrize(
    ("rest", "opset", "text"),
    [
        (lambda y: torch.nn.functional.gelu(y.cumsum(0).triu()), 9, r"\(\w+\) cannot be converted: "),
        (torch.nn.functional.hardswish, 13, r"\(HardSwish\) cannot be converted: .*No Previous Version"),
        (lambda y: y.softmax(1), 12, r"\(Softmax\) takes all axes from its own on for one, below opset 13$"),
        (lambda y: y.log_softmax(-2), 11, r"\(LogSoftmax\) takes all axes from its own on for one, below opset 13$"),
    ],
)
def test_the_error_names_the_node(rest, opset, text):
    with pytest.raises(OpsetError, match=rf"(?s)^cannot write opset {opset}: the node '\w+' {text}"):
        export(InTheWay(rest), (X,), opset)


@pytest.mark.parametrize("opset", [True, 13.0, "13"])
def test_an_opset_is_an_int(opset):
    with pytest.raises(ValueError, match=rf"^export: opset_version must be an int, got opset_version={opset!r}$"):
        torch_onnxpool.onnx.export(LAYERS["LpPool"][1], (X,), opset_version=opset)
    assert opset_of(export(LAYERS["LpPool"][1], (X,), np.int64(13))) == 13


class Branches(torch.nn.Module):
    def forward(self, x):
        def pooled(x):
            return torch.relu(torch_onnxpool.lp_pool(x, 2))

        def other(x):
            return torch.relu(torch_onnxpool.average_pool(x, 2))

        return torch.cond(x.sum() > 0, pooled, other, (x,))


def test_branches():
    proto = export(Branches(), (X,), 17)
    assert opset_of(proto) == 17
    for x in (X + 1, X - 1):
        assert_close(run_onnxruntime(proto, [x.numpy()]), outputs_of(Branches(), x))
    with pytest.raises(OpsetError, match=r"^cannot write opset 13: the node '\w+' \(Relu\) .* in a branch"):
        export(Branches(), (X,), 13)


@pytest.mark.parametrize(
    ("name", "opset", "rule"),
    [
        ("AveragePool dilated", 18, "dilations can be said from opset 19 on"),
        ("LpPool ceil", 17, "ceil_mode can be said from opset 18 on"),
        ("MaxPool Indices", 7, "Indices can be said from opset 8 on"),
    ],
)
def test_what_the_opset_cannot_say(name, opset, rule):
    layer = LAYERS[name][1]
    with pytest.raises(torch.onnx.OnnxExporterError) as error:
        export(layer, (X,), opset)
    assert re.search(f"^ValueError: {type(layer).__name__}: {rule}", causes(error.value), re.MULTILINE)


@pytest.mark.filterwarnings("ignore:You are using the legacy", "ignore::DeprecationWarning")
def test_torchscript():
    file = io.BytesIO()
    torch_onnxpool.onnx.export(LAYERS["LpPool"][1], (X,), file, dynamo=False, opset_version=9)
    assert opset_of(onnx.load_from_string(file.getvalue())) == 9


def test_files(tmp_path):
    model = Classifier().eval()
    torch_onnxpool.onnx.export(model, (X,), tmp_path / "a.onnx", opset_version=13, verbose=False)
    torch_onnxpool.onnx.export(model, (X,), tmp_path / "b.onnx", opset_version=13, verbose=False, external_data=False)
    torch_onnxpool.onnx.export(
        model, (X,), tmp_path / "c.onnx", opset_version=13, verbose=False, keep_initializers_as_inputs=True
    )
    file = io.BytesIO()
    torch_onnxpool.onnx.export(model, (X,), file, opset_version=13, verbose=False)
    protos = [onnx.load(tmp_path / name) for name in ("a.onnx", "b.onnx", "c.onnx")]
    protos.append(onnx.load_from_string(file.getvalue()))
    for proto in protos:
        assert opset_of(proto) == 13
    assert len(protos[2].graph.input) == 1 + len(protos[2].graph.initializer)
    assert_close(run_onnxruntime(protos[0], [X.numpy()]), outputs_of(model, X))


@pytest.mark.parametrize("option", [{"export_params": False}, {"keep_initializers_as_inputs": True}])
def test_options_that_need_a_file(option):
    with pytest.raises(ValueError, match=r"^export: export_params=False and keep_initializers_as_inputs=True need a f"):
        torch_onnxpool.onnx.export(Classifier().eval(), (X,), io.BytesIO(), verbose=False, **option)


def test_verify(recwarn):
    export(Classifier().eval(), (X,), 13, verify=True)
    assert not [warning for warning in recwarn if "differs in onnxruntime" in str(warning.message)]
    with pytest.warns(UserWarning, match="output '.*' differs in onnxruntime: by inf"):
        export(layer_of("LpPool", kernel_shape=[2, 2]), (X * 1e25,), 13, verify=True)


def test_custom_translation_table():
    table = torch_onnxpool.onnx.translation_table()
    assert opset_of(export(LAYERS["LpPool"][1], (X,), 9, custom_translation_table=table)) == 9


def test_signature():
    ours, torchs = (inspect.signature(f).parameters for f in (torch_onnxpool.onnx.export, torch.onnx.export))
    assert list(ours) == [*torchs, "portable"]


# --- plain torch.onnx.export ---


@pytest.mark.parametrize(
    ("name", "opset"),
    [("LpPool", 17), ("LpPool", 7), ("MaxPool", 9), ("AveragePool", 9), ("MaxPool", 8)],
)
def test_plain_export_warns_of_a_conversion_that_will_fail(name, opset):
    layer, text = LAYERS[name][1], rf"^{name}: .* leave the file at opset 18 .* opset {opset} .*onnx\.export can\.$"
    with pytest.warns(UserWarning, match=text):
        proto = torch.onnx.export(layer, (X,), opset_version=opset, verbose=False).model_proto
    assert opset_of(proto) == 18


@pytest.mark.parametrize(
    ("layer", "opset"),
    [
        (layer_of("AveragePool", kernel_shape=[2, 2], pads=[2, 2, 2, 2]), 13),
        (layer_of("MaxPool", kernel_shape=[2, 2], pads=[2, 2, 2, 2]), 11),
    ],
)
def test_plain_export_warns_of_portable_forms_likewise(layer, opset):
    """The nodes themselves could be converted."""
    text = rf"^{type(layer).__name__}: .* leave the file at opset 18 .* opset {opset} "
    with portable(), pytest.warns(UserWarning, match=text):
        proto = torch.onnx.export(layer, (X,), opset_version=opset, verbose=False).model_proto
    assert opset_of(proto) == 18


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        ("LpPool", 18),
        ("MaxPool", 10),
        ("AveragePool", 10),
        ("GlobalAveragePool", 7),
        ("GlobalMaxPool", 9),
        ("LpPool", 26),
    ],
)
def test_plain_export_does_not_warn_of_one_that_succeeds(name, opset, recwarn):
    proto = torch.onnx.export(LAYERS[name][1], (X,), opset_version=opset, verbose=False).model_proto
    assert opset_of(proto) == opset
    assert not [warning for warning in recwarn if "leave the file" in str(warning.message)]
