"""The backend interface: ONNX's own test suite runs on it, and what that does not ask."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from exporting import make_node
from official_cases import official_cases
from onnx import AttributeProto, TensorProto, helper
from onnx.backend.test import BackendTest

from torch_onnxpool.onnx import backend

DEVICES = ("cpu", "cuda")
POOLING_TESTS = {f"{case.name}_{device}" for case in official_cases() for device in DEVICES}

# ledger: unpool-shape. The failure is a strict one.
SUITE = BackendTest(backend, __name__).xfail("^test_maxunpool_export_with_output_shape_")

for name, tests in SUITE.test_cases.items():
    for other in {test for test in vars(tests) if test.startswith("test_")} - POOLING_TESTS:
        delattr(tests, other)
    globals()[name] = tests


def test_the_whole_suite_of_pooling_tests_is_here():
    here = {test for name in SUITE.test_cases for test in vars(globals()[name]) if test.startswith("test_")}
    assert here == POOLING_TESTS
    assert len(here) >= 2 * 67


# --- models ---

X = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
SHAPE = ["N", "C", "H", "W"]


def model_of(*nodes, outputs=("Y",), stored=(), functions=(), opset=22, domain="") -> onnx.ModelProto:
    infos = {
        "X": helper.make_tensor_value_info("X", TensorProto.FLOAT, SHAPE),
        "Y": helper.make_tensor_value_info("Y", TensorProto.FLOAT, SHAPE),
        "Indices": helper.make_tensor_value_info("Indices", TensorProto.INT64, SHAPE),
    }
    graph = helper.make_graph(nodes, "pools", [infos["X"]], [infos[name] for name in outputs], stored)
    opsets = [helper.make_opsetid(domain, opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def test_model():
    model = model_of(make_node("MaxPool", 2, kernel_shape=[4, 2]), outputs=("Y", "Indices"))
    assert backend.is_compatible(model)
    y, indices = backend.run_model(model, [X])
    np.testing.assert_array_equal(y, X[:, :, 3:, 1:])
    np.testing.assert_array_equal(indices, y.astype(np.int64))
    assert y.dtype == np.float32
    assert indices.dtype == np.int64


def test_a_prepared_model_runs_again_and_again():
    prepared = backend.prepare(model_of(make_node("GlobalAveragePool")))
    for k in range(3):
        (y,) = prepared.run({"X": X + k})
        np.testing.assert_array_equal(y.ravel(), [7.5 + k, 23.5 + k])
    with pytest.raises(ValueError, match=r"^PreparedModel: inputs must be \['X'\], got 2"):
        prepared.run([X, X])


def test_nodes_around_the_pools():
    """An initialiser, other operators, a branch and a function with a pool inside: ours compute all of the pools."""
    same = {"kernel_shape": [3, 3], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}  # ledger: same-dilated
    pads = {"kernel_shape": [3, 3], "dilations": [2, 2], "pads": [2, 2, 2, 2]}
    result = helper.make_tensor_value_info("B", TensorProto.FLOAT, SHAPE)
    branch = helper.make_graph([helper.make_node("AveragePool", ["sum"], ["B"], **same)], "branch", [], [result])
    norm = helper.make_node("LpPool", ["F"], ["G"], **same)
    norm.attribute.append(AttributeProto(name="p", type=AttributeProto.INT, ref_attr_name="p"))
    function = helper.make_function("local", "Norm", ["F"], ["G"], [norm], [helper.make_opsetid("", 22)], ["p"])
    nodes = [
        helper.make_node("Add", ["X", "one"], ["sum"]),
        helper.make_node("If", ["yes"], ["averages"], then_branch=branch, else_branch=branch),
        helper.make_node("Norm", ["averages"], ["Y"], domain="local", p=1),
    ]
    stored = [
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
    ]
    (y,) = backend.run_model(model_of(*nodes, stored=stored, functions=[function]), [X])
    (averages,) = backend.run_node(make_node("AveragePool", **pads), [X + 1])
    (wanted,) = backend.run_node(make_node("LpPool", p=1, **pads), [averages])
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(("written", "p"), [({}, 1), ({"p": 3}, 3)])
def test_defaults_of_functions(written, p):
    """onnx's inliner forgets them."""
    norm = helper.make_node("LpPool", ["X"], ["Y"], kernel_shape=[2, 2])
    norm.attribute.append(AttributeProto(name="p", type=AttributeProto.INT, ref_attr_name="p"))
    defaults = [helper.make_attribute("p", 1)]
    function = helper.make_function("local", "Norm", ["X"], ["Y"], [norm], [helper.make_opsetid("", 22)], [], defaults)
    call = helper.make_node("Norm", ["X"], ["Y"], domain="local", **written)
    (y,) = backend.run_model(model_of(call, functions=[function]), [X])
    (wanted,) = backend.run_node(make_node("LpPool", kernel_shape=[2, 2], p=p), [X])
    np.testing.assert_array_equal(y, wanted)


def test_files_that_do_not_say_their_opset():
    model = model_of(make_node("LpPool", kernel_shape=[2, 2], p=1.5))
    model.ir_version = 2
    del model.opset_import[:]
    (y,) = backend.run_model(model, [X])
    (wanted,) = backend.run_node(make_node("LpPool", kernel_shape=[2, 2], p=1.5), [X], opset_version=1)
    np.testing.assert_array_equal(y, wanted)


def in_function(*nodes, opset, name="Pooled", imports=("local", 1)) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(*imports)]
    return helper.make_function("local", name, ["X"], ["Y"], nodes, opsets)


@pytest.mark.parametrize(
    ("opset", "imports", "outer_opset"), [(22, ("local", 1), 23), (23, ("local", 1), 22), (23, ("local", 2), 24)]
)
def test_functions_that_import_another_opset(opset, imports, outer_opset):
    """Ours compute their pools as well: onnx's evaluator counts the overhang (ledger: lp-ceil)."""
    pool = make_node("LpPool", kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)
    call = helper.make_node("Pooled", ["X"], ["Y"], domain="local")
    outer = helper.make_node("Outer", ["X"], ["Y"], domain="local")
    functions = [in_function(pool, opset=opset), in_function(call, opset=outer_opset, name="Outer", imports=imports)]
    (wanted,) = backend.run_node(pool, [X])
    for node in (call, outer):
        (y,) = backend.run_model(model_of(node, functions=functions), [X])
        np.testing.assert_array_equal(y, wanted)


def test_functions_may_import_what_the_model_does_not():
    averaged = helper.make_node(
        "QLinearAveragePool", ["q", "s", "z", "s", "z"], ["p"], domain="com.microsoft", kernel_shape=[4, 4]
    )
    nodes = [
        helper.make_node("Constant", [], ["s"], value=helper.make_tensor("", TensorProto.FLOAT, [], [0.5])),
        helper.make_node("Constant", [], ["z"], value=helper.make_tensor("", TensorProto.UINT8, [], [3])),
        helper.make_node("QuantizeLinear", ["X", "s", "z"], ["q"]),
        averaged,
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["Y"]),
    ]
    function = in_function(*nodes, opset=22, imports=("com.microsoft", 1))
    call = helper.make_node("Pooled", ["X"], ["Y"], domain="local")
    (y,) = backend.run_model(model_of(call, functions=[function]), [X])
    assert y.ravel().tolist() == [7.5, 23.5]


def test_functions_whose_operators_have_other_versions_are_refused():
    """Of operators in subgraphs, onnx's checker does not ask it."""
    pool = helper.make_node("LpPool", ["X"], ["B"], kernel_shape=[2, 2])
    branch = helper.make_graph([pool], "branch", [], [helper.make_tensor_value_info("B", TensorProto.FLOAT, SHAPE)])
    nodes = [
        helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["yes"], ["Y"], then_branch=branch, else_branch=branch),
    ]
    call = helper.make_node("Pooled", ["X"], ["Y"], domain="local")
    model = model_of(call, functions=[in_function(*nodes, opset=18)], opset=17)
    onnx.checker.check_model(model)
    with pytest.raises(ValueError, match=r"^PreparedModel: .* got pooling nodes in \['Pooled'\]"):
        backend.prepare(model)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_ai_onnx_is_the_default_domain(domain):
    node = make_node("GlobalMaxPool", domain=domain)
    model = model_of(node, domain="ai.onnx")
    (y,) = backend.run_model(model, [X])
    assert y.ravel().tolist() == [15, 31]
    assert model == model_of(node, domain="ai.onnx")  # which others may hold


@pytest.mark.parametrize("inputs", [{}, {"Y": X}])
def test_inputs_by_other_names(inputs):
    node = make_node("GlobalMaxPool")
    with pytest.raises(ValueError, match=r"^PreparedModel: inputs must be \['X'\], got \["):
        backend.run_model(model_of(node), inputs)
    with pytest.raises(ValueError, match=r"^GlobalMaxPool: inputs must be \['X'\], got \["):
        backend.run_node(node, inputs)


def test_an_illegal_model():
    with pytest.raises(onnx.checker.ValidationError):
        backend.prepare(model_of(make_node("MaxPool")))


# --- nodes ---


def test_node():
    (y,) = backend.run_node(make_node("AveragePool", kernel_shape=[4, 4]), [X])
    assert y.ravel().tolist() == [7.5, 23.5]


def test_node_with_inputs_by_name():
    (y,) = backend.run_node(make_node("GlobalAveragePool"), {"X": X, "other": X})
    assert y.ravel().tolist() == [7.5, 23.5]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], r"^GlobalMaxPool: inputs must be \['X'\], got 0 of them$"),
        ([X, X], r"^GlobalMaxPool: inputs must be \['X'\], got 2 of them$"),
        (X, r"^GlobalMaxPool: inputs must be \['X'\], got ndarray$"),
        ([X.astype(np.int32)], "^GlobalMaxPool: X must be of type .*, got X of type int32$"),
        ([X.astype(str)], "^PoolingBackend: inputs must have an element type of torch, got <U32$"),
    ],
)
def test_inputs_that_a_node_cannot_take(inputs, said):
    with pytest.raises(ValueError, match=said):
        backend.run_node(make_node("GlobalMaxPool"), inputs)


def test_node_of_an_opset():
    node = make_node("LpPool", kernel_shape=[1, 1], p=1.5)
    (y,) = backend.run_node(node, [-X], opset_version=1)
    np.testing.assert_allclose(y, X, rtol=1e-6)
    with pytest.raises(ValueError, match=r"^LpPool: p must be INT in opset 22"):
        backend.run_node(node, [X], opset_version=22)


def test_bfloat16():
    x = X.astype(ml_dtypes.bfloat16)
    (y,) = backend.run_node(make_node("GlobalMaxPool"), [x])
    assert y.dtype == ml_dtypes.bfloat16
    assert y.ravel().tolist() == [15, 31]


def test_inputs_are_neither_kept_nor_changed():
    x = np.broadcast_to(np.float32(3), (1, 1, 5))  # read-only
    (y,) = backend.run_node(make_node("MaxPool", kernel_shape=[1]), [x])
    y[...] = 0
    assert (x == 3).all()


# --- devices ---


def test_devices():
    assert backend.supports_device("CPU")
    if not torch.cuda.is_available():
        assert not backend.supports_device("CUDA")
    for nothing in ("TPU", "cpu", "", "CUDA:x", "CUDA:99"):
        assert not backend.supports_device(nothing)


@pytest.mark.parametrize("run", [backend.prepare, lambda m, device: backend.run_node(m.graph.node[0], [X], device)])
def test_an_unknown_device(run):
    model = model_of(make_node("GlobalMaxPool"))
    with pytest.raises(ValueError, match=r"^PoolingBackend: device must be CPU, .*got device='TPU'"):
        run(model, "TPU")
