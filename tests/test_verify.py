"""`python -m torch_onnxpool verify`: what it finds, what it says, and its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from torch_onnxpool.__main__ import main
from torch_onnxpool.onnx import verify
from torch_onnxpool.onnx.importer import layer_from_node

LIGHT_MODELS = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/light_*.onnx"))
IMAGE = [1, 2, 7, 7]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def save(
    path, nodes, *, shape=IMAGE, opset=21, initializers=(), functions=(), element_type=TensorProto.FLOAT, **options
):
    """A model from X to all outputs of its last node."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("X", element_type, shape)],
        [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in dict(initializers).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("local", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10), path, **options)
    return str(path)


def max_pool(**attributes):
    return helper.make_node("MaxPool", ["X"], ["Y"], kernel_shape=[2, 2], **attributes)


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = main(["verify", *map(str, arguments)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("path", LIGHT_MODELS, ids=lambda path: path.stem)
def test_real_architectures(path):
    model = verify.Model(path)
    reports = list(model.compare())
    assert reports
    assert not model.others
    for report in reports:
        assert not report.mismatch
        assert not report.explained_by
        assert set(report.differences) == {"model", "random"}


def test_there_are_nine_real_architectures():
    assert len(LIGHT_MODELS) == 9


def test_unpooling_and_quantised_windows(tmp_path, capsys):
    pooled = helper.make_node("MaxPool", ["X"], ["P", "I"], kernel_shape=[2, 2], strides=[2, 2])
    unpooled = helper.make_node("MaxUnpool", ["P", "I"], ["Y"], kernel_shape=[2, 2], strides=[2, 2])
    names = ["X", "scale", "zero", "scale", "zero"]
    averaged = helper.make_node("QLinearAveragePool", names, ["Y"], domain="com.microsoft", kernel_shape=[2, 2])
    scalars = {"scale": np.float32(0.5), "zero": np.uint8(3)}
    floats = save(tmp_path / "floats.onnx", [pooled, unpooled], shape=[1, 2, 6, 6])
    quantised = save(tmp_path / "bytes.onnx", [averaged], initializers=scalars, element_type=TensorProto.UINT8)
    code, out, _ = run(capsys, floats, quantised)
    assert code == 0
    assert "3 pooling nodes compared, 0 mismatches" in out


def test_every_operator(tmp_path, capsys):
    nodes = [
        helper.make_node("Neg", ["X"], ["a"]),
        helper.make_node(
            "AveragePool", ["a"], ["b"], kernel_shape=[3, 3], dilations=[2, 2], pads=[1, 2, 2, 1], count_include_pad=1
        ),
        helper.make_node("LpPool", ["b"], ["c"], kernel_shape=[2, 2], p=3, pads=[0, 0, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["d", "indices"], kernel_shape=[2, 2], storage_order=1),
        helper.make_node("GlobalMaxPool", ["d"], ["e"]),
        helper.make_node("GlobalAveragePool", ["c"], ["f"]),
        helper.make_node("GlobalLpPool", ["d"], ["g"], p=1),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["h"]),
        helper.make_node(
            "QLinearGlobalAveragePool", ["h", "scale", "zero", "scale", "zero"], ["i"], domain="com.microsoft"
        ),
        helper.make_node("MaxPool", ["h"], ["j"], kernel_shape=[2, 2]),
        helper.make_node("Add", ["f", "g"], ["Y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, initializers={"scale": np.float32(0.02), "zero": np.uint8(7)})
    code, out, _ = run(capsys, path)
    assert code == 0, out
    assert "8 pooling nodes compared, 0 mismatches" in out
    for shown in ("AveragePool-19", "LpPool-18", "MaxPool-12", "GlobalLpPool-2", "dilations 2 2", "1×2×7×7", "uint8"):
        assert shown in out


@pytest.mark.parametrize("factor", [1 + 1e-5, 2.0, float("nan")])
@pytest.mark.parametrize("op_type", ["AveragePool", "LpPool", "MaxPool"])
def test_a_wrong_layer_is_a_mismatch(tmp_path, capsys, monkeypatch, op_type, factor):
    class Wrong(torch.nn.Module):
        def __init__(self, right):
            super().__init__()
            self.right, self.kernel_shape, self.p = right, right.kernel_shape, getattr(right, "p", 1)

        def forward(self, x):
            return self.right(x) * factor

    Wrong.__name__ = op_type
    monkeypatch.setattr(verify, "layer_from_node", lambda *node: Wrong(layer_from_node(*node)))
    path = save(tmp_path / "m.onnx", [helper.make_node(op_type, ["X"], ["Y"], kernel_shape=[2, 2])])
    code, out, _ = run(capsys, path)
    assert code == 1
    assert "MISMATCH" in out
    assert ("model nan" in out) == np.isnan(factor)


def test_a_refused_node_is_a_mismatch(tmp_path, capsys, monkeypatch):
    def refuse(*node):
        raise ValueError("MaxPool: not today")

    monkeypatch.setattr(verify, "layer_from_node", refuse)
    code, out, _ = run(capsys, save(tmp_path / "m.onnx", [max_pool()]))
    assert code == 1
    assert "not today" in out


@pytest.mark.parametrize(("first", "row"), [(-np.inf, "max-neginf"), (np.nan, "max-nan")])
def test_a_row_of_the_ledger_is_no_mismatch(tmp_path, capsys, first, row):
    path = save(tmp_path / "m.onnx", [helper.make_node("GlobalMaxPool", ["X"], ["Y"])])
    x = np.full(IMAGE, -np.inf, np.float32)
    x[..., 0] = first
    np.savez(tmp_path / "x.npz", X=x)
    code, out, _ = run(capsys, path, "--input", tmp_path / "x.npz")
    assert code == 0, out
    assert f"differs (ledger: {row})" in out


def test_what_no_row_explains_is_a_mismatch_beside_what_one_does(tmp_path, capsys, monkeypatch):
    """The row about windows of -inf excuses those windows, not the others."""

    class Wrong(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.max_pool2d(x, 2, 1).clamp(max=0)

    Wrong.__name__ = "MaxPool"
    monkeypatch.setattr(verify, "layer_from_node", lambda *node: Wrong())
    x = np.ones(IMAGE, np.float32)
    x[..., :3] = -np.inf
    np.savez(tmp_path / "x.npz", X=x)
    code, out, _ = run(capsys, save(tmp_path / "m.onnx", [max_pool()]), "--input", tmp_path / "x.npz")
    assert code == 1, out


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (lambda y: [y[..., :2, :2]], "shape [1, 2, 6, 6], onnxruntime [1, 2, 2, 2]"),
        (lambda y: verify.VerificationError("no kernel"), "no kernel"),
    ],
)
def test_rows_about_values_excuse_neither_a_size_nor_a_refusal(tmp_path, theirs, text):
    model = verify.Model(save(tmp_path / "m.onnx", [max_pool()]))
    (node,), x = model.nodes, np.full(IMAGE, np.nan, np.float32)
    y = layer_from_node(node, model.opset_version(node))(torch.from_numpy(x)).numpy()
    assert model._difference(node, [x], theirs(y)) == verify.Difference(agrees=False, text=text)
    assert model._difference(node, [x], [np.zeros_like(y)]).explained_by == ("max-nan",)


def test_pools_that_cannot_be_compared_are_named(tmp_path, capsys):
    def branch(name):
        pool = helper.make_node("MaxPool", ["X"], [f"{name}_y"], name=f"{name}_pool", kernel_shape=[2, 2])
        return helper.make_graph([pool], name, [], [helper.make_empty_tensor_value_info(f"{name}_y")])

    nodes = [
        helper.make_node("GlobalMaxPool", ["X"], ["g"]),
        helper.make_node("MaxRoiPool", ["X", "rois"], ["r"], name="regions", pooled_shape=[1, 1]),
        helper.make_node("ReduceMax", ["g"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["condition"], to=TensorProto.BOOL),
        helper.make_node(
            "If", ["condition"], ["Y"], name="choose", then_branch=branch("yes"), else_branch=branch("no")
        ),
    ]
    path = save(tmp_path / "m.onnx", nodes, initializers={"rois": np.zeros((1, 5), np.float32)})
    code, out, _ = run(capsys, path)
    assert code == 0, out
    assert "1 pooling nodes compared" in out
    for name in ("choose/yes_pool", "choose/no_pool", "regions"):
        assert name in out
    assert out.count("not compared") == 3


def test_pools_in_local_functions_are_compared(tmp_path, capsys):
    body = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])]
    function = helper.make_function("local", "Pooled", ["x"], ["y"], body, [helper.make_opsetid("", 21)])
    node = helper.make_node("Pooled", ["X"], ["Y"], domain="local")
    code, out, _ = run(capsys, save(tmp_path / "m.onnx", [node], functions=[function]))
    assert code == 0, out
    assert "1 pooling nodes compared" in out


def local_function(name, *nodes, opset, local=1):
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", local)]
    return helper.make_function("local", name, ["X"], ["Y"], nodes, opsets)


@pytest.mark.parametrize(("opset", "outer", "local"), [(18, 21, 1), (21, 18, 1), (21, 21, 2)])
def test_pools_in_local_functions_that_import_another_opset(tmp_path, capsys, opset, outer, local):
    call = helper.make_node("Inner", ["X"], ["Y"], domain="local")
    norm = helper.make_node("LpPool", ["X"], ["Y"], kernel_shape=[2, 2], strides=[4, 4], ceil_mode=1)
    functions = [local_function("Inner", norm, opset=opset), local_function("Outer", call, opset=outer, local=local)]
    node = helper.make_node("Outer", ["X"], ["Y"], domain="local")
    code, out, _ = run(capsys, save(tmp_path / "m.onnx", [node], functions=functions))
    assert code == 0, out
    assert "1 pooling nodes compared, 0 mismatches" in out
    assert "LpPool-18" in out


def test_pools_in_local_functions_of_other_operators_are_named(tmp_path):
    """Also those of functions that only such a function calls."""
    norm = helper.make_node("GlobalLpPool", ["X"], ["n"])
    call = helper.make_node("Inner", ["X"], ["m"], domain="local")
    add = helper.make_node("Add", ["n", "m"], ["Y"])
    functions = [local_function("Inner", max_pool(), opset=21), local_function("Outer", norm, call, add, opset=22)]
    node = helper.make_node("Outer", ["X"], ["Y"], domain="local")
    model = verify.Model(save(tmp_path / "m.onnx", [node], functions=functions))
    assert [(other.name, other.operator) for other in model.others] == [
        ("Inner/Y", "MaxPool-12"),
        ("Outer/n", "GlobalLpPool-22"),
    ]
    assert all("inside a local function" in other.not_compared for other in model.others)
    assert not model.nodes


def test_what_comes_behind_a_local_function_of_other_operators_is_compared(tmp_path, capsys):
    function = local_function("Odd", helper.make_node("Identity", ["X"], ["Y"]), opset=18)
    nodes = [
        helper.make_node("Odd", ["X"], ["y"], domain="local"),
        helper.make_node("MaxPool", ["y"], ["Y"], kernel_shape=[2, 2]),
    ]
    code, out, err = run(capsys, save(tmp_path / "m.onnx", nodes, functions=[function]))
    assert code == 0, err
    assert "1 pooling nodes compared, 0 mismatches" in out


def test_open_dimensions_and_nodes_behind_the_last_pool(tmp_path, capsys):
    """What no pool needs is not run: the Gemm's shapes do not fit."""
    nodes = [max_pool(), helper.make_node("Gemm", ["Y", "w"], ["Z"])]
    path = save(tmp_path / "m.onnx", nodes, shape=["N", 3, "H", "W"], initializers={"w": np.zeros((5, 5), np.float32)})
    code, out, _ = run(capsys, path)
    assert code == 0, out
    assert "1×3×224×224" in out


def test_a_size_of_minus_one_is_open(tmp_path, capsys):
    code, out, _ = run(capsys, save(tmp_path / "m.onnx", [max_pool()], shape=[-1, 3, -1, -1]))
    assert code == 0, out
    assert "1×3×224×224" in out


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_windows_of_padding_in_float16(tmp_path, capsys):
    """They are its lowest finite number here, and -inf in onnxruntime."""
    pool = max_pool(pads=[1] * 4, dilations=[3, 3])
    path = save(tmp_path / "m.onnx", [pool], shape=[1, 2, 2, 4], element_type=TensorProto.FLOAT16)
    code, out, _ = run(capsys, path)
    assert code == 0
    assert "empty-window" in out


def test_an_empty_input_compares_nothing(tmp_path, capsys):
    code, _, err = run(capsys, save(tmp_path / "m.onnx", [max_pool()], shape=[0, 3, 8, 8]))
    assert code == 2
    assert "input 'X' is empty: its shape is [0, 3, 8, 8]" in err


def test_external_weights(tmp_path, capsys):
    nodes = [
        helper.make_node("Conv", ["X", "w"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["Y"], kernel_shape=[2, 2]),
    ]
    weights = {"w": np.ones((3, 2, 3, 3), np.float32)}
    (tmp_path / "folder").mkdir()
    path = save(
        tmp_path / "folder" / "m.onnx", nodes, initializers=weights, save_as_external_data=True, size_threshold=0
    )
    assert run(capsys, path)[0] == 0


def test_seed(tmp_path):
    path = save(tmp_path / "m.onnx", [helper.make_node("AveragePool", ["X"], ["Y"], kernel_shape=[7, 7])])
    first, same, other = ([r.differences for r in verify.Model(path).compare(seed=seed)] for seed in (1, 1, 2))
    assert first == same
    assert first != other


@pytest.mark.parametrize("seed", ["-1", "0.5", "x"])
def test_seeds_are_not_negative(tmp_path, capsys, seed):
    with pytest.raises(SystemExit) as stopped:
        run(capsys, save(tmp_path / "m.onnx", [max_pool()]), f"--seed={seed}")
    assert stopped.value.code == 2
    assert "must be an integer >= 0" in capsys.readouterr().err


def test_no_pools(tmp_path, capsys):
    code, out, _ = run(capsys, save(tmp_path / "m.onnx", [helper.make_node("Relu", ["X"], ["Y"])]))
    assert code == 0
    assert "no pooling nodes" in out


def test_what_onnxruntime_cannot_run_names_the_row(tmp_path, capsys):
    path = save(tmp_path / "m.onnx", [helper.make_node("GlobalLpPool", ["X"], ["Y"], name="last")], opset=22)
    code, _, err = run(capsys, path)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "last: global-lp-22" in err


@pytest.mark.parametrize(
    ("element_type", "shape", "hint"),
    [
        (TensorProto.DOUBLE, IMAGE, "(ledger: Y: dtypes, Y: dtypes)"),
        (TensorProto.DOUBLE, None, "(ledger: Y: dtypes, Y: dtypes)"),
        (TensorProto.FLOAT, IMAGE, ""),
        (TensorProto.UNDEFINED, IMAGE, ""),
    ],
)
def test_types_are_only_blamed_if_they_are_refused(tmp_path, capsys, element_type, shape, hint):
    """onnxruntime refuses all of these models, which have two nodes of one name."""
    nodes = [
        helper.make_node("AveragePool", ["X"], ["P"], kernel_shape=[2, 2], name="Y"),
        helper.make_node("GlobalMaxPool", ["P"], ["Y"], name="Y"),
    ]
    np.savez(tmp_path / "x.npz", X=np.zeros(IMAGE, np.float32))
    path = save(tmp_path / "m.onnx", nodes, element_type=element_type, shape=shape)
    code, _, err = run(capsys, path, "--input", tmp_path / "x.npz")
    assert code == 2
    assert "onnxruntime cannot run it" in err
    assert err.strip().endswith(hint)
    assert ("ledger" in err) == bool(hint)


@pytest.mark.parametrize("element_type", [TensorProto.UNDEFINED, 99, TensorProto.STRING])
def test_inputs_of_no_number_must_be_given(tmp_path, capsys, element_type):
    code, _, err = run(capsys, save(tmp_path / "m.onnx", [max_pool()], element_type=element_type))
    assert code == 2
    assert "input 'X' is not a tensor of numbers: give it with --input" in err


@pytest.mark.parametrize(("inputs", "outputs"), [([], ["Y"]), (["X"], []), ([], []), ([""], ["Y"]), (["X"], [""])])
@pytest.mark.parametrize("op_type", ["MaxPool", "GlobalMaxPool"])
def test_a_malformed_node(tmp_path, capsys, op_type, inputs, outputs):
    attributes = {"kernel_shape": [2, 2]} if op_type == "MaxPool" else {}
    node = helper.make_node(op_type, inputs, outputs, **attributes)
    bad, good = save(tmp_path / "bad.onnx", [node]), save(tmp_path / "good.onnx", [max_pool()])
    code, out, err = run(capsys, bad, good)
    assert code == 2
    assert "1 pooling nodes compared, 0 mismatches, 1 files not verified" in out
    assert len(err.splitlines()) == 1
    assert "bad.onnx: onnxruntime cannot run it" in err


def test_an_illegal_node_keeps_no_other_file_from_it(tmp_path, capsys):
    bad = save(tmp_path / "bad.onnx", [max_pool(strides=[0, 0], ceil_mode=1)])
    code, out, err = run(capsys, bad, save(tmp_path / "good.onnx", [max_pool()]))
    assert code == 2
    assert "1 pooling nodes compared, 0 mismatches, 1 files not verified" in out
    assert "bad.onnx: onnxruntime cannot run it" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"", "not an ONNX model"),
        (b"MZ\x90\x00\x03", "not an ONNX model"),
        (b"hello\n", "not an ONNX model"),
    ],
)
def test_a_file_that_is_no_model(tmp_path, capsys, content, said):
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    code, _, err = run(capsys, tmp_path / "m.onnx")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "m.onnx" in err
    assert said in err


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"Z": np.zeros(IMAGE, np.float32)}, "missing inputs ['X'], given are ['Z']"),
        ({"X": np.zeros(IMAGE, np.int64)}, "Unexpected input data type"),
        ({"X": np.zeros([1, 2, 7], np.float32)}, "Invalid rank for input: X"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path, capsys, arrays, said):
    np.savez(tmp_path / "x.npz", **arrays)
    code, _, err = run(capsys, save(tmp_path / "m.onnx", [max_pool()]), "--input", tmp_path / "x.npz")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert said in err


def test_inputs_in_the_place_of_initializers(tmp_path):
    path = save(tmp_path / "m.onnx", [max_pool()], initializers={"X": np.zeros(IMAGE, np.float32)})
    (report,) = verify.Model(path).compare({"X": np.full(IMAGE, -np.inf, np.float32)})
    assert "max-neginf" in report.ledger_rows


@pytest.mark.parametrize("content", [b"hello", b"", b"\x93NUMPY\x01\x00", None])
def test_an_input_file_that_is_none(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "x.npz").write_bytes(content)
    code, _, err = run(capsys, save(tmp_path / "m.onnx", [max_pool()]), "--input", tmp_path / "x.npz")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "x.npz" in err


def test_several_files(tmp_path, capsys):
    """One that cannot be verified does not keep the others from it."""
    good = save(tmp_path / "good.onnx", [max_pool()])
    code, out, err = run(capsys, good, tmp_path / "none.onnx", good)
    assert code == 2
    assert "2 pooling nodes compared, 0 mismatches, 1 files not verified" in out
    assert "none.onnx" in err


@pytest.mark.parametrize("package", ["rich", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(package, tmp_path):
    program = f"import sys; sys.modules[{package!r}] = None; from torch_onnxpool.__main__ import main; sys.exit(main())"
    finished = subprocess.run(
        [sys.executable, "-c", program, "verify", "m.onnx"], cwd=tmp_path, capture_output=True, text=True
    )
    assert finished.returncode == 2
    assert len(finished.stderr.splitlines()) == 1
    assert package in finished.stderr
    assert "torch_onnxpool[verify]" in finished.stderr
