"""MaxUnpool, whose output_shape is an attribute of ours and an input in ONNX: export, import and back."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from cases import UNPOOL_CASES, Case
from exporting import (
    EXPORTERS,
    assert_close,
    attributes_of,
    export,
    export_together,
    layer_of,
    make_node,
    one_node_model,
    opset_of,
    outputs_of,
    pooling_nodes,
    run_onnxruntime,
    run_reference,
    without_defaults,
)
from tensors import to_tensor

import torch_onnxpool
from torch_onnxpool.onnx import layer_from_node, ledger

INPUTS = ("X", "I", "output_shape")
SHAPED = [case for case in UNPOOL_CASES if "output_shape" in case.attributes]
INFERRED = [case for case in UNPOOL_CASES if case not in SHAPED]
WRITERS = [*(("torchscript", opset) for opset in range(9, 24)), *(("dynamo", opset) for opset in range(18, 26))]


class Unpool(torch.nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        attributes = dict(case.attributes)
        self.output_shape = attributes.pop("output_shape", None)
        self.layer = layer_of("MaxUnpool", **attributes)

    def forward(self, x, indices):
        return self.layer(x, indices, self.output_shape)


def tensors_of(case: Case, dtype: str = "float32") -> tuple[torch.Tensor, ...]:
    return tuple(map(to_tensor, case.inputs(dtype)))


def rows(node, opset, arrays):
    engine = {"engine": ledger.ONNXRUNTIME, "engine_version": onnxruntime.__version__}
    return ledger.rows_for(node, opset, values=arrays[0], **engine)


# --- export ---


@pytest.mark.parametrize(("exporter", "opset"), WRITERS)
def test_every_opset(exporter, opset):
    """Nodes that infer their size; onnxruntime has the same numbers."""
    models, inputs = [Unpool(case) for case in INFERRED], [tensors_of(case) for case in INFERRED]
    nodes = export_together(models, inputs, exporter, opset)
    for case, model, tensors, node in zip(INFERRED, models, inputs, nodes, strict=True):
        assert (node.op_type, len(node.input)) == ("MaxUnpool", 2)
        assert attributes_of(node) == without_defaults(case.attributes)
        arrays = [tensor.numpy() for tensor in tensors]
        if opset < 24 and not rows(node, opset, arrays):
            assert_close(run_onnxruntime(one_node_model(node, arrays, opset), arrays), outputs_of(model, *tensors))


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("case", SHAPED, ids=str)
def test_output_shape_is_a_constant_input(case, exporter):
    model, tensors = Unpool(case), tensors_of(case)
    proto = export(model, tensors, exporter, 20)
    (node,) = pooling_nodes(proto)
    assert len(node.input) == 3
    assert attributes_of(node) == without_defaults({k: v for k, v in case.attributes.items() if k != "output_shape"})
    assert len(proto.graph.input) == 2
    if case.note == "larger":  # onnxruntime takes no smaller shapes, and no pads as large as the kernel
        assert_close(run_onnxruntime(proto, [t.numpy() for t in tensors]), outputs_of(model, *tensors))


@pytest.mark.parametrize("opset", [9, 10, 11, 17, 22, 26])
def test_our_export(opset):
    tensors = tensors_of(SHAPED[0])
    program = torch_onnxpool.onnx.export(Unpool(SHAPED[0]), tensors, opset_version=opset, verbose=False)
    proto = program.model_proto
    onnx.checker.check_model(proto, full_check=True)
    assert opset_of(proto) == opset
    assert [node.op_type for node in pooling_nodes(proto)] == ["MaxUnpool"]
    assert_close(run_onnxruntime(proto, [t.numpy() for t in tensors]), outputs_of(Unpool(SHAPED[0]), *tensors))


class Reconstruct(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = torch_onnxpool.MaxPool([2, 2], strides=[2, 2], return_indices=True)
        self.unpool = torch_onnxpool.MaxUnpool([2, 2], strides=[2, 2])

    def forward(self, x):
        return self.unpool(*self.pool(x))


@pytest.mark.parametrize("exporter", ["dynamo", "program"])
def test_dynamic_sizes(exporter):
    x, sizes = torch.randn(2, 3, 8, 10), {0: torch.export.Dim("N"), 2: torch.export.Dim("H") * 2}
    proto = export(Reconstruct(), (x,), exporter, dynamic_shapes=(sizes,))
    assert [node.op_type for node in proto.graph.node] == ["MaxPool", "MaxUnpool"]
    for other in (x, torch.randn(5, 3, 12, 10)):
        assert_close(run_onnxruntime(proto, [other.numpy()]), outputs_of(Reconstruct(), other))


class Reshape(Reconstruct):
    """To the size of the input, or to one that comes as a tensor."""

    def forward(self, x, output_shape=None):
        return self.unpool(*self.pool(x), x.shape if output_shape is None else output_shape)


@pytest.mark.parametrize("exporter", ["dynamo", "program"])
def test_dynamic_output_shape(exporter):
    x, sizes = torch.randn(2, 3, 8, 10), {0: torch.export.Dim("N"), 2: torch.export.Dim("H", min=4)}
    proto = export(Reshape(), (x,), exporter, dynamic_shapes=(sizes,))
    assert [node.op_type for node in pooling_nodes(proto)] == ["MaxPool", "MaxUnpool"]
    for other in (x, torch.randn(5, 3, 13, 10)):
        assert_close(run_onnxruntime(proto, [other.numpy()]), outputs_of(Reshape(), other))


@pytest.mark.parametrize("exporter", ["dynamo", "program"])
def test_output_shape_from_outside(exporter):
    x, shape = torch.randn(2, 3, 8, 10), torch.tensor([2, 3, 9, 11])
    proto = export(Reshape(), (x, shape), exporter)
    assert [node.op_type for node in pooling_nodes(proto)] == ["MaxPool", "MaxUnpool"]
    for other in (shape, torch.tensor([2, 3, 8, 12])):
        assert_close(run_onnxruntime(proto, [x.numpy(), other.numpy()]), outputs_of(Reshape(), x, other))


def test_tracing_warns_of_a_constant_output_shape():
    with pytest.warns(torch.jit.TracerWarning, match="output_shape .* becomes a constant of the trace"):
        export(Reshape(), (torch.randn(2, 3, 8, 10),), "torchscript")


@pytest.mark.parametrize(("exporter", "dtype", "opset", "rule"), [
    ("torchscript", torch.float32, 8, "exists from opset 9 on, got opset 8"),
    ("dynamo", torch.float32, 8, "exists from opset 9 on, got opset 8"),
    ("torchscript", torch.bfloat16, 21, r"X of type tensor\(bfloat16\) can be said from opset 22 on"),
])  # fmt: skip
def test_not_sayable(exporter, dtype, opset, rule):
    x, indices = tensors_of(INFERRED[0])
    with pytest.raises(Exception) as error:  # noqa: PT011, the dynamo exporter wraps the ValueError
        export(Unpool(INFERRED[0]), (x.to(dtype), indices), exporter, opset)
    raised = error.value
    while raised.__cause__ is not None:
        raised = raised.__cause__
    with pytest.raises(ValueError, match=f"^MaxUnpool: {rule}"):
        raise raised


@pytest.mark.parametrize(("case", "row"), [
    (Case("MaxUnpool", (1, 1, 2, 2, 2, 2), {"kernel_shape": [1] * 4}), "rank"),
    (Case("MaxUnpool", (1, 1, 5), {"kernel_shape": [1], "pads": [1, 1]}), "large-pads"),
])  # fmt: skip
def test_portability_warnings(case, row):
    tensors = tensors_of(Case("MaxUnpool", case.shape, {"kernel_shape": case.attributes["kernel_shape"]}))
    tensors = tensors[0], tensors[1] // 2
    with pytest.warns(torch_onnxpool.onnx.PortabilityWarning, match=rf"ledger: {row}\).*none is known for MaxUnpool"):
        proto = torch_onnxpool.onnx.export(Unpool(case).eval(), tensors, verbose=False).model_proto
    with pytest.raises(Exception, match="MaxUnpool"):
        run_onnxruntime(proto, [tensor.numpy() for tensor in tensors])


# --- import ---


def test_layer_takes_the_inputs_of_its_node():
    x, indices = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0, 3]]])
    node = make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2], strides=[2])
    layer = layer_from_node(node, 11)
    assert layer(x, indices, torch.tensor([1, 1, 5])).tolist() == [[[1, 0, 0, 2, 0]]]
    for names in (("X", "I"), ("X", "I", "")):
        layer = layer_from_node(make_node("MaxUnpool", 1, names, kernel_shape=[2], strides=[2]), 11)
        assert layer(x, indices).tolist() == [[[1, 0, 0, 2]]]


@pytest.mark.parametrize(("node", "opset", "rule"), [
    (make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2]), 8, "exists from opset 9 on, got opset 8"),
    (make_node("MaxUnpool", 1, ("X",), kernel_shape=[2]), 22, r"inputs must be \['X', 'I', 'output_shape'\], got"),
    (make_node("MaxUnpool", 1, ("X", "", "S"), kernel_shape=[2]), 22, "inputs must be"),
    (make_node("MaxUnpool", 1, INPUTS), 22, "kernel_shape is required"),
    (make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2], auto_pad="VALID"), 22, "auto_pad is no attribute of it"),
    (make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2], output_shape=[1, 1, 2]), 22, "output_shape is no attribute"),
    (make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2], pads=[1]), 22, "pads"),
    (make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2], strides=[0]), 22, "strides"),
    (make_node("MaxUnpool", 2, INPUTS, kernel_shape=[2]), 22, r"outputs must be \['output'\]"),
])  # fmt: skip
def test_refused(node, opset, rule):
    with pytest.raises(ValueError, match=f"^MaxUnpool: {rule}"):
        layer_from_node(node, opset)


# --- and back ---


@pytest.mark.parametrize(("exporter", "opset"), [("torchscript", 9), ("torchscript", 11), ("dynamo", 22)])
def test_round_trip(exporter, opset):
    rng = np.random.default_rng(opset)
    nodes, layers, inputs = [], [], []
    for rank, lists in itertools.product((1, 2, 3), itertools.product([False, True], repeat=2)):
        attributes = {"kernel_shape": rng.integers(2, 5, rank).tolist()}
        attributes |= {"strides": rng.integers(1, 4, rank).tolist()} if lists[0] else {}
        attributes |= {"pads": rng.integers(0, 2, 2 * rank).tolist()} if lists[1] else {}
        nodes.append(make_node("MaxUnpool", 1, INPUTS[:2], **attributes))
        layers.append(layer_from_node(nodes[-1], opset))
        inputs.append((torch.randn(1, 2, *[3] * rank), torch.arange(2 * 3**rank).reshape(1, 2, *[3] * rank)))
    for given, result in zip(nodes, export_together(layers, inputs, exporter, opset), strict=True):
        assert attributes_of(result) == without_defaults(attributes_of(given))
        assert (result.op_type, result.domain, len(result.input)) == ("MaxUnpool", "", 2)


# --- ledger: unpool-shape ---


def official_with_output_shape() -> tuple[list[np.ndarray], list]:
    x, indices = np.arange(5, 9, dtype=np.float32).reshape(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])
    return [x, indices, np.array([1, 1, 5, 5])], make_node("MaxUnpool", 1, INPUTS, kernel_shape=[2, 2], strides=[2, 2])


def test_onnxruntime_reads_output_shape_as_we_do():
    arrays, node = official_with_output_shape()
    ours = outputs_of(layer_from_node(node, 22), *map(to_tensor, arrays))
    assert_close(run_onnxruntime(one_node_model(node, arrays, 22), arrays), ours)
    assert [row.id for row in ledger.rows_for(node, 22, values=arrays[0])] == ["unpool-shape"]
    assert rows(node, 22, arrays) == ()


@pytest.mark.xfail(strict=True, reason="unpool-shape")
def test_the_reference_evaluator_differs():
    arrays, node = official_with_output_shape()
    ours = outputs_of(layer_from_node(node, 22), *map(to_tensor, arrays))
    assert_close(run_reference(one_node_model(node, arrays, 22), arrays), ours)
