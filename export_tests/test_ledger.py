"""The ledger: every row has a node that falls under it and on which the other engine still differs, and one beside it.

The other engines' results are strict expected failures, named by their row: an engine that is repaired turns them red.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
import torch
from cases import GLOBAL, WINDOWED, numpy_type, random_case
from exporting import (
    assert_close,
    make_node,
    one_node_model,
    outputs_of,
    run_onnxruntime,
    run_reference,
)
from tensors import to_tensor
from torch.nn import functional as F

from torch_onnxpool.onnx import layer_from_node, ledger
from torch_onnxpool.onnx.ledger import ONNXRUNTIME, REFERENCE, SHAPE_INFERENCE, TORCH
from torch_onnxpool.onnx.nodes import PoolNode

ROW_IDS = [row.id for row in ledger.ROWS]


def ramp(*shape: int, dtype: str = "float32", factor: float = 1.0) -> np.ndarray:
    return (np.arange(1, np.prod(shape) + 1).reshape(shape) * factor).astype(numpy_type(dtype))


def row_of(*values: float) -> np.ndarray:
    return np.array(values, np.float32).reshape(1, 1, -1)


@dataclasses.dataclass
class Example:
    row: str
    engine: str
    operator: str
    x: np.ndarray
    attributes: dict[str, Any]
    opset: int = 21
    outputs: int = 1

    def __str__(self) -> str:
        return f"{self.row}-{self.engine}-{self.operator}-{self.opset}-{self.x.dtype}"

    @property
    def node(self) -> onnx.NodeProto:
        return make_node(self.operator, self.outputs, **self.attributes)

    @property
    def model(self) -> onnx.ModelProto:
        return one_node_model(self.node, [self.x], self.opset)

    def ours(self) -> list[np.ndarray]:
        return outputs_of(layer_from_node(self.node, self.opset), to_tensor(self.x))

    def theirs(self) -> list[np.ndarray]:
        return {ONNXRUNTIME: run_onnxruntime, REFERENCE: run_reference, TORCH: run_torch}[self.engine](
            self.model, [self.x]
        )

    def rows(self, **more: Any) -> list[str]:
        return [row.id for row in ledger.rows_for(self.node, self.opset, values=self.x, **more)]


def run_torch(model: onnx.ModelProto, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """torch's own pool, for nodes with one spatial axis."""
    (node,) = model.graph.node
    value = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    kernel, stride = value["kernel_shape"], value.get("strides", [1])
    begin, end = value.get("pads", [0, 0])
    assert begin == end, "torch pads both sides alike"
    x, ceil_mode = to_tensor(inputs[0]), bool(value.get("ceil_mode", 0))
    if node.op_type == "LpPool":
        outputs = F.lp_pool1d(x, value.get("p", 2), kernel[0], stride[0], ceil_mode)
    elif node.op_type == "MaxPool":
        dilations = value.get("dilations", [1])
        outputs = F.max_pool1d(x, kernel, stride, [begin], dilations, ceil_mode, len(node.output) == 2)
    else:
        outputs = F.avg_pool1d(x, kernel, stride, [begin], ceil_mode, bool(value.get("count_include_pad", 0)))
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


INF, NAN = np.inf, np.nan
SAME_DILATED = {"kernel_shape": [2], "dilations": [2], "auto_pad": "SAME_UPPER"}
SAME_NEGATIVE = {"kernel_shape": [1], "strides": [3], "auto_pad": "SAME_UPPER"}
LARGE_PADS = {"kernel_shape": [2], "pads": [2, 2], "strides": [2]}
OVERHANG = {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}
VALID_CEIL = OVERHANG | {"auto_pad": "VALID"}
WITHOUT_DATUM = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
WHOLE = {"kernel_shape": [3]}
RANK_4 = {"kernel_shape": [2, 2, 2, 2]}
COUNTED = {"count_include_pad": 1}
# What onnxruntime has kernels for in opset 5.
OF_OPSET_5 = [("LpPool", WHOLE), ("MaxPool", WHOLE), *((operator, {}) for operator in GLOBAL)]
LONG = np.zeros((1, 1, 2**24 + 3), np.float32)

EXAMPLES = [
    *(Example("same-dilated", ONNXRUNTIME, operator, ramp(1, 1, 5), SAME_DILATED) for operator in WINDOWED),
    *(
        Example("same-dilated", REFERENCE, operator, ramp(1, 1, 5), SAME_DILATED)
        for operator in ("AveragePool", "LpPool")
    ),
    *(
        Example("same-negative", engine, operator, ramp(1, 1, 6), SAME_NEGATIVE)
        for operator in WINDOWED
        for engine in (ONNXRUNTIME, REFERENCE)
    ),
    *(
        Example("large-pads", engine, operator, ramp(1, 1, 5), LARGE_PADS)
        for operator in WINDOWED
        for engine in (ONNXRUNTIME, TORCH)
        if (operator, engine) != ("LpPool", TORCH)  # torch's has no padding at all
    ),
    Example("ceil-float32", ONNXRUNTIME, "MaxPool", LONG, {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}),
    *(Example("valid-ceil", REFERENCE, operator, ramp(1, 1, 6), VALID_CEIL) for operator in WINDOWED),
    Example("lp-abs", TORCH, "LpPool", row_of(1, -2, 3), {"kernel_shape": [2], "p": 1}),
    Example("lp-abs", TORCH, "LpPool", row_of(-1, -2, -3), {"kernel_shape": [2], "p": 3}),
    *(Example("lp-ceil", engine, "LpPool", ramp(1, 1, 4), OVERHANG) for engine in (TORCH, REFERENCE)),
    *(
        Example("lp-range", engine, "LpPool", ramp(1, 1, 4, factor=factor), WHOLE)
        for factor in (1e20, 1e-30)
        for engine in (ONNXRUNTIME, REFERENCE, TORCH)
    ),
    Example("lp-range", ONNXRUNTIME, "LpPool", ramp(1, 1, 4), WHOLE | {"p": 64}),
    Example("lp-range", ONNXRUNTIME, "GlobalLpPool", ramp(1, 1, 4, factor=1e20), {}),
    Example("max-neginf", ONNXRUNTIME, "MaxPool", row_of(-INF, -INF, -INF), WHOLE),
    Example("max-neginf", ONNXRUNTIME, "GlobalMaxPool", row_of(-INF, -INF, -INF), {}),
    *(Example("max-nan", ONNXRUNTIME, "MaxPool", row_of(*values), WHOLE) for values in [(NAN, 2, 3), (1, 2, NAN)]),
    *(Example("max-nan", ONNXRUNTIME, "MaxPool", row_of(1, NAN, 3), WHOLE, outputs=outputs) for outputs in (1, 2)),
    Example("max-nan", ONNXRUNTIME, "MaxPool", row_of(1, NAN, 3).astype(np.float64), WHOLE),
    Example("max-nan", ONNXRUNTIME, "GlobalMaxPool", row_of(1, 2, NAN), {}),
    Example("max-nan", REFERENCE, "MaxPool", row_of(NAN, 2, 3), WHOLE),
    Example("empty-window", ONNXRUNTIME, "MaxPool", ramp(1, 3, 1), WITHOUT_DATUM, outputs=2),
    *(
        Example("empty-window", ONNXRUNTIME, "MaxPool", ramp(1, 1, 1, dtype="float16"), WITHOUT_DATUM, opset)
        for opset in (10, 15, 22)
    ),
    *(
        Example("empty-window", REFERENCE, operator, ramp(1, 1, 1), WITHOUT_DATUM)
        for operator in ("AveragePool", "MaxPool")
    ),
    Example("empty-window", TORCH, "MaxPool", ramp(1, 1, 1), WITHOUT_DATUM),
    *(Example("rank", ONNXRUNTIME, operator, ramp(1, 1, 2, 2, 2, 2), RANK_4) for operator in WINDOWED),
    *(
        Example("rank", ONNXRUNTIME, operator, ramp(1, 1, 2, 2, 2, 2), {})
        for operator in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
    ),
    Example("rank", ONNXRUNTIME, "MaxPool", ramp(1, 1, 2, 2, 2, 2, dtype="int8"), RANK_4),
    *(
        Example("dtypes", ONNXRUNTIME, operator, ramp(1, 1, 4, dtype=dtype), attributes, 22)
        for dtype in ("float64", "bfloat16")
        for operator, attributes in [
            ("AveragePool", WHOLE),
            ("LpPool", WHOLE),
            ("GlobalAveragePool", {}),
            ("GlobalMaxPool", {}),
        ]
    ),
    Example("dtypes", ONNXRUNTIME, "GlobalLpPool", ramp(1, 1, 4, dtype="float64"), {}),
    Example("dtypes", ONNXRUNTIME, "MaxPool", ramp(1, 1, 4, dtype="bfloat16"), WHOLE, 22),
    *(Example("dtypes", ONNXRUNTIME, "MaxPool", ramp(1, 1, 4, dtype="float64"), WHOLE, opset) for opset in (1, 7)),
    *(Example("dtypes", ONNXRUNTIME, o, ramp(1, 1, 4, dtype="float16"), a, 5) for o, a in OF_OPSET_5),
    Example("global-lp-22", ONNXRUNTIME, "GlobalLpPool", ramp(1, 1, 4), {}, 22),
    Example("v1-kernels", ONNXRUNTIME, "AveragePool", ramp(1, 1, 4), WHOLE, 6),
    Example("v1-kernels", ONNXRUNTIME, "LpPool", ramp(1, 1, 4), WHOLE, 1),
    Example("v1-kernels", ONNXRUNTIME, "GlobalLpPool", ramp(1, 1, 4), {}, 1),
    Example("max-indices", TORCH, "MaxPool", ramp(1, 2, 4), WHOLE, outputs=2),
]

# Nodes close by that do not fall under the row, and on which the engine agrees.
NEIGHBOURS = [
    *(Example("same-dilated", ONNXRUNTIME, o, ramp(1, 1, 5), SAME_DILATED | {"dilations": [1]}) for o in WINDOWED),
    *(
        Example("same-dilated", ONNXRUNTIME, o, ramp(1, 1, 5), SAME_DILATED | {"auto_pad": "NOTSET", "pads": [1, 1]})
        for o in WINDOWED
    ),
    Example("same-dilated", REFERENCE, "AveragePool", ramp(1, 1, 5), SAME_DILATED | {"dilations": [1]}),
    *(
        Example("same-negative", engine, o, ramp(1, 1, 5), SAME_NEGATIVE | {"strides": [2]})
        for o in WINDOWED
        for engine in (ONNXRUNTIME, REFERENCE)
    ),
    *(Example("large-pads", ONNXRUNTIME, o, ramp(1, 1, 5), LARGE_PADS | {"pads": [1, 1]}) for o in WINDOWED),
    Example("large-pads", TORCH, "MaxPool", ramp(1, 1, 5), LARGE_PADS | {"pads": [1, 1]}),
    Example(
        "ceil-float32", ONNXRUNTIME, "MaxPool", LONG[:, :, :-5], {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    ),
    Example("ceil-float32", ONNXRUNTIME, "MaxPool", LONG, {"kernel_shape": [2], "strides": [2]}),
    Example("valid-ceil", REFERENCE, "MaxPool", ramp(1, 1, 7), VALID_CEIL),
    Example("lp-abs", TORCH, "LpPool", row_of(1, -2, 3), {"kernel_shape": [2], "p": 2}),
    Example("lp-abs", TORCH, "LpPool", row_of(1, 2, 3), {"kernel_shape": [2], "p": 3}),
    *(Example("lp-ceil", engine, "LpPool", ramp(1, 1, 5), OVERHANG) for engine in (TORCH, REFERENCE)),
    *(
        Example("lp-range", engine, "LpPool", ramp(1, 1, 4, factor=factor), WHOLE)
        for factor in (1e15, 1e-15)
        for engine in (ONNXRUNTIME, REFERENCE, TORCH)
    ),
    Example("max-neginf", ONNXRUNTIME, "MaxPool", row_of(-3e38, -3e38, -3e38), WHOLE),
    Example("max-nan", ONNXRUNTIME, "MaxPool", row_of(1, INF, 3), WHOLE),
    Example("max-nan", REFERENCE, "MaxPool", row_of(1, INF, 3), WHOLE),
    Example("empty-window", ONNXRUNTIME, "MaxPool", ramp(1, 3, 2), WITHOUT_DATUM, outputs=2),
    Example("empty-window", TORCH, "MaxPool", ramp(1, 1, 2), WITHOUT_DATUM),
    *(Example("rank", ONNXRUNTIME, o, ramp(1, 1, 2, 2, 2), {"kernel_shape": [2, 2, 2]}) for o in WINDOWED),
    *(
        Example("dtypes", ONNXRUNTIME, "MaxPool", ramp(1, 1, 4, dtype=dtype), WHOLE)
        for dtype in ("float16", "float32", "float64", "int8", "uint8")
    ),
    *(
        Example("dtypes", ONNXRUNTIME, "MaxPool", ramp(1, 1, 4, dtype=dtype), WHOLE, opset)
        for dtype, opset in [("float64", 8), ("int8", 12), ("uint8", 12)]
    ),
    *(Example("dtypes", ONNXRUNTIME, o, ramp(1, 1, 4, dtype="float16"), WHOLE) for o in ("AveragePool", "LpPool")),
    *(Example("dtypes", ONNXRUNTIME, o, ramp(1, 1, 4, dtype="float16"), a, 6) for o, a in OF_OPSET_5),
    Example("global-lp-22", ONNXRUNTIME, "GlobalLpPool", ramp(1, 1, 4), {}, 21),
    Example("v1-kernels", ONNXRUNTIME, "AveragePool", ramp(1, 1, 4), WHOLE, 7),
    Example("v1-kernels", ONNXRUNTIME, "LpPool", ramp(1, 1, 4), WHOLE, 2),
    Example("v1-kernels", ONNXRUNTIME, "GlobalLpPool", ramp(1, 1, 4), {}, 2),
    Example("max-indices", TORCH, "MaxPool", ramp(1, 1, 4), WHOLE, outputs=2),
]

# Rows of releases before the oldest supported one.
REPAIRED = [
    Example("cip-overhang", ONNXRUNTIME, "AveragePool", ramp(1, 1, 4), OVERHANG | COUNTED, 18),
    Example(
        "cip-asymmetric", ONNXRUNTIME, "AveragePool", ramp(1, 1, 4), {"kernel_shape": [2], "pads": [1, 0]} | COUNTED
    ),
]

CEIL_CLIP = {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}
INFERRED = [
    Example("ceil-clip-inference", SHAPE_INFERENCE, operator, ramp(1, 1, 2, 2), CEIL_CLIP | padding, opset)
    for padding in ({"pads": [0, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"})
    for operator, opset in [
        *(("AveragePool", opset) for opset in (10, 11, 19)),
        *(("LpPool", opset) for opset in (18, 21)),
        *(("MaxPool", opset) for opset in (10, 11, 12, 21)),
    ]
]


def strictly_failing(examples):
    return [pytest.param(e, marks=pytest.mark.xfail(strict=True, reason=e.row), id=str(e)) for e in examples]


@pytest.mark.parametrize("example", strictly_failing(EXAMPLES))
def test_the_other_engine_differs(example):
    assert_close(example.theirs(), example.ours())


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_ledger_knows_what_the_difference_is_seen_by(example):
    try:
        sizes = [output.shape for output in example.theirs()]
        seen_by = ledger.VALUES if sizes == [output.shape for output in example.ours()] else ledger.SIZES
    except Exception:  # of three engines, each with errors of its own
        seen_by = ledger.REFUSAL
    assert seen_by in ledger.row(example.row).difference(example.engine).seen_by


@pytest.mark.parametrize("example", strictly_failing(INFERRED))
def test_the_inferred_shape_differs(example):
    assert inferred_shape(example) == list(example.ours()[0].shape)


@pytest.mark.parametrize("example", [*EXAMPLES, *INFERRED], ids=str)
def test_the_node_falls_under_its_row(example):
    version = {ONNXRUNTIME: onnxruntime.__version__, REFERENCE: onnx.__version__, TORCH: torch.__version__}
    assert example.row in example.rows()
    assert example.row in example.rows(engine=example.engine, engine_version=version.get(example.engine))


@pytest.mark.parametrize("example", [e for e in [*EXAMPLES, *INFERRED, *REPAIRED] if e.x is not LONG], ids=str)
def test_ours_is_right(example):
    """What the other engines are held against is what the oracle says."""
    expected = oracle.FORWARD[example.operator](example.x, **example.attributes)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, wanted in zip(example.ours(), expected):
        assert_close([actual], [wanted.astype(actual.dtype)])


@pytest.mark.parametrize("example", NEIGHBOURS, ids=str)
def test_a_neighbour_agrees(example):
    assert example.row not in example.rows()
    assert_close(example.theirs(), example.ours())


@pytest.mark.parametrize("opset", [22, 25])
@pytest.mark.parametrize("example", INFERRED, ids=str)
def test_inference_of_opset_22_agrees(example, opset):
    example = dataclasses.replace(example, opset=opset)
    assert example.row not in example.rows()
    assert inferred_shape(example) == list(example.ours()[0].shape)


@pytest.mark.parametrize(
    ("operator", "opset"), [("AveragePool", 10), ("AveragePool", 19), ("LpPool", 18), ("MaxPool", 10), ("MaxPool", 22)]
)
def test_inference_differs_where_its_row_says(operator, opset):
    """And nowhere else, on one axis; without its size, wherever there is a size for which it does."""
    padding = [{"auto_pad": auto_pad} for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID")]
    padding += [{"pads": list(pads)} for pads in itertools.product(range(2), range(4))]
    for kernel, stride, where in itertools.product((1, 2, 3), (1, 2, 3, 4), padding):
        attributes = {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": 1} | where
        pads, auto_pad = where.get("pads", [0, 0]), where.get("auto_pad", "NOTSET")
        differs = False
        for size in range(1, 9):
            example = Example("ceil-clip-inference", SHAPE_INFERENCE, operator, ramp(1, 1, size), attributes, opset)
            try:
                windows = oracle.axis_windows(size, kernel, 1, stride, *pads, auto_pad, 1)
            except ValueError:
                continue
            differs_here = inferred_shape(example)[2] != len(windows)
            assert (example.row in example.rows()) == differs_here, (attributes, size)
            differs |= differs_here
        rows = ledger.rows_for(example.node, opset, engine=SHAPE_INFERENCE)
        assert [row.id for row in rows] == [example.row] * differs, attributes


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8"])
def test_onnxruntime_agrees_on_empty_windows_without_indices(dtype):
    example = Example("empty-window", ONNXRUNTIME, "MaxPool", ramp(1, 1, 1, dtype=dtype), WITHOUT_DATUM)
    assert example.rows(engine=ONNXRUNTIME) == []
    assert_close(example.theirs(), example.ours())


@pytest.mark.parametrize("example", REPAIRED, ids=str)
def test_repaired_engines_agree(example):
    assert example.row in example.rows(engine=example.engine)
    assert example.row in example.rows(engine=example.engine, engine_version="1.24.1")
    assert example.row not in example.rows(engine=example.engine, engine_version=onnxruntime.__version__)
    assert_close(example.theirs(), example.ours())


def test_every_row_is_shown():
    shown = {example.row for example in [*EXAMPLES, *INFERRED, *REPAIRED]}
    elsewhere = {"unpool-shape", "empty-zero-point"}  # in test_unpool.py and test_quantized.py
    assert shown == {*ROW_IDS} - elsewhere
    assert len(ROW_IDS) == len(set(ROW_IDS)) == 21


def test_unpool_shape():
    attributes = {"kernel_shape": [2]}
    with_shape = PoolNode("MaxUnpool", "", 22, attributes, inputs=("X", "I", "output_shape"))
    without_shape = PoolNode("MaxUnpool", "", 22, attributes, inputs=("X", "I"))
    assert [row.id for row in ledger.rows_for(with_shape)] == ["unpool-shape"]
    assert ledger.rows_for(without_shape) == ()


@pytest.mark.parametrize("shape", [(1, 2, 6), (1, 2, 6, 6, 6)])
def test_shapes_of_another_rank_are_refused(shape):
    node = make_node("MaxPool", 1, kernel_shape=[2, 2])
    with pytest.raises(ValueError, match=rf"^MaxPool: X must have the 2 spatial axes .* got X of shape \[{shape[0]}, "):
        ledger.rows_for(node, 22, input_shape=shape)


@pytest.mark.parametrize("attributes", [{"strides": [0, 1]}, {"strides": [1]}, {"pads": [1, 1]}])
def test_illegal_nodes_are_refused(attributes):
    with pytest.raises(ValueError, match=rf"^MaxPool: .*{next(iter(attributes))}"):
        ledger.rows_for(make_node("MaxPool", kernel_shape=[2, 2], ceil_mode=1, **attributes), 22)
    with pytest.raises(ValueError, match=r"^rows_for: opset_version must be an int, got opset_version=None$"):
        ledger.rows_for(make_node("MaxPool", kernel_shape=[2, 2]))


def inferred_shape(example: Example) -> list[int]:
    output = onnx.shape_inference.infer_shapes(example.model).graph.output[0]
    return [size.dim_value for size in output.type.tensor_type.shape.dim]


# --- without knowing everything ---


@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if e.row in ("same-dilated", "same-negative", "large-pads")], ids=str
)
def test_rows_of_attributes_need_no_shape(example):
    assert example.row in [row.id for row in ledger.rows_for(example.node, example.opset)]


def test_rows_of_sizes_apply_where_sizes_are_open():
    node = make_node("LpPool", **OVERHANG | {"strides": [4]})
    assert [row.id for row in ledger.rows_for(node, 21)] == ["ceil-clip-inference", "lp-ceil"]
    assert [row.id for row in ledger.rows_for(node, 21, input_shape=("N", 3, None))] == [
        "ceil-clip-inference",
        "lp-ceil",
    ]
    assert ledger.rows_for(node, 21, input_shape=("N", 3, 7)) == ()
    # Windows that overlap leave nothing for one more, whatever the size.
    assert [row.id for row in ledger.rows_for(make_node("LpPool", **OVERHANG), 21)] == ["lp-ceil"]


def test_rows_of_values_need_values():
    for operator, attributes in (("MaxPool", WHOLE), ("GlobalMaxPool", {}), ("GlobalLpPool", {"p": 64})):
        assert ledger.rows_for(make_node(operator, **attributes), 21, input_shape=(1, 1, 3)) == ()


def test_rows_of_the_quantised_operator():
    names = ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point")
    node = make_node("QLinearGlobalAveragePool", 1, names, "com.microsoft")
    assert ledger.rows_for(node, 1, input_shape=(1, 2, 3, 3, 3, 3, 3), element_type="tensor(uint8)") == ()


def test_row_by_id():
    assert [ledger.row(row_id).id for row_id in ROW_IDS] == ROW_IDS
    with pytest.raises(ValueError, match=r"^row: row_id must be one of same-dilated, .*, got row_id='lp-sign'$"):
        ledger.row("lp-sign")


def test_engines_that_nobody_knows_are_refused():
    with pytest.raises(ValueError, match=r"^rows_for: engine must be one of onnxruntime, .*torch, got engine='ort'$"):
        ledger.rows_for(make_node("MaxPool", **WHOLE), 21, engine="ort")
    assert ledger.row("lp-abs").difference(TORCH).engine == TORCH
    with pytest.raises(ValueError, match=r"^lp-abs: engine must be one of torch, got engine='onnxruntime'$"):
        ledger.row("lp-abs").difference(ONNXRUNTIME)


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_sizes_know_the_windows(seed):
    """On one axis, against the oracle's windows."""
    rng, seen = np.random.default_rng(seed), set()
    for _ in range(500):
        n, kernel, stride, dilation = (int(v) for v in rng.integers(1, [9, 5, 6, 5]))
        pads = rng.integers(0, 6, 2).tolist()
        auto_pad = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
        attributes = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation], "ceil_mode": 1}
        attributes |= {"pads": pads} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
        begin, end = pads if auto_pad == "NOTSET" else (0, 0)
        try:
            windows = oracle.axis_windows(n, kernel, dilation, stride, begin, end, auto_pad, 1)
        except ValueError:
            continue
        effective_kernel, outputs = (kernel - 1) * dilation + 1, len(windows)
        reach, same = (outputs - 1) * stride + effective_kernel, auto_pad.startswith("SAME")
        expected = {
            "empty-window": any(not data for data, _ in windows),
            "same-negative": same and reach < n,
            "ceil-clip-inference": reach < n + begin + end,
            "lp-ceil": not same and reach > n + begin + end,
        }
        rows = ledger.rows_for(make_node("LpPool", **attributes), 18, input_shape=(1, 1, n))
        assert {row.id for row in rows} & expected.keys() == {row for row, falls in expected.items() if falls}
        seen |= {row for row, falls in expected.items() if falls}
    assert seen == {"empty-window", "same-negative", "ceil-clip-inference", "lp-ceil"}


# --- nothing beside the ledger ---


@pytest.mark.parametrize("seed", range(8))
def test_onnxruntime_agrees_wherever_no_row_applies(seed):
    """Random configurations, legal ones, in the types that onnxruntime has."""
    rng, compared = np.random.default_rng(seed), 0
    while compared < 150:
        drawn = random_case(rng)
        case, x = drawn.case, drawn.case.inputs(drawn.dtype)[0]
        legal_p = float(case.attributes.get("p", 2)).is_integer()
        if case.operator.startswith("QLinear") or x.ndim < 3 or x.size == 0 or not legal_p:
            continue
        attributes = case.attributes | ({"p": int(case.attributes["p"])} if "p" in case.attributes else {})
        outputs = int(rng.integers(1, 3)) if case.operator == "MaxPool" else 1
        example = Example("", ONNXRUNTIME, case.operator, x, attributes, int(rng.choice([20, 21, 22])), outputs)
        try:
            ours = example.ours()
        except ValueError:
            continue
        if example.rows(engine=ONNXRUNTIME, engine_version=onnxruntime.__version__):
            continue
        compared += 1
        assert_close(example.theirs(), ours)
