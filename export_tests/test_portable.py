"""Portable forms: what `portable()` writes is what the oracle computes, in onnxruntime; and the warnings without it."""

from __future__ import annotations

import io
import itertools
import re
import warnings

import numpy as np
import onnx
import oracle
import pytest
import torch
from cases import GLOBAL, WINDOWED, numpy_type, random_attributes
from exporting import (
    EXPORTERS,
    WARNINGS,
    Together,
    assert_close,
    attributes_of,
    export,
    layer_of,
    only_node,
    opset_of,
    outputs_of,
    run_onnxruntime,
)
from onnx.reference import ReferenceEvaluator
from tensors import to_tensor

import torch_onnxpool
from torch_onnxpool.onnx import PortabilityWarning, ledger, portable

PER_MODEL = 125
TYPES = {
    "AveragePool": ("float32", "float16"),
    "LpPool": ("float32",),
    "MaxPool": ("float32", "float16", "float64", "uint8"),
}


class InBfloat16(torch.nn.Module):
    """onnxruntime's Python interface takes no bfloat16, but its graphs do."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        outputs = self.layer(x.bfloat16())
        return (outputs[0].float(), outputs[1]) if isinstance(outputs, tuple) else outputs.float()


def random_pool(rng: np.random.Generator, opset: int):
    """A layer with an input for it, and what the oracle says."""
    while True:
        operator = str(rng.choice(WINDOWED * 3 + GLOBAL))
        rank = int(rng.integers(1, 5))
        spatial = tuple(int(n) for n in rng.integers(1, [0, 17, 8, 6, 5][rank], rank))
        types = TYPES.get(operator, ("float32", "float64"))
        if opset >= 22 and rng.random() < 0.2:
            types = ("bfloat16",)
        dtype = numpy_type(str(rng.choice(types)))
        attributes = {} if operator in GLOBAL else random_attributes(operator, spatial, rng)
        if operator in ("LpPool", "GlobalLpPool"):
            attributes["p"] = int(rng.integers(1, 5))
        shape = (int(rng.integers(1, 3)), int(rng.integers(1, 4)), *spatial)
        x = rng.permutation(np.prod(shape)).reshape(shape) - (0 if dtype.kind == "u" else np.prod(shape) // 2)
        x = x.astype(dtype)
        try:
            expected = oracle.FORWARD[operator](x, **attributes)
        except ValueError:  # the window does not fit
            continue
        gives_indices = operator == "MaxPool" and rank <= 3 and rng.random() < 0.5
        expected = expected if isinstance(expected, tuple) else (expected,)
        more = {"return_indices": True} if gives_indices else {}
        outputs = [array.astype(np.int64 if i else dtype) for i, array in enumerate(expected[: 1 + gives_indices])]
        layer = layer_of(operator, **attributes, **more)
        if dtype == numpy_type("bfloat16"):
            layer, x, outputs[0] = InBfloat16(layer), x.astype(np.float32), outputs[0].astype(np.float32)
        return layer, to_tensor(x), outputs


def export_portably(model, args, exporter="dynamo", opset=20, full_check=False, **options):
    """A portable form brings no warning about portability."""
    with warnings.catch_warnings(), portable():
        warnings.simplefilter("error", PortabilityWarning)
        return export(model, args, exporter, opset, full_check=full_check, **options)


@pytest.mark.parametrize(
    ("exporter", "opset", "seed"),
    [
        *(("dynamo", opset, seed) for opset in (19, 20, 22, 23) for seed in range(5)),
        *(("torchscript", opset, seed) for opset in (19, 20) for seed in range(2)),
    ],
)
def test_random(exporter, opset, seed):
    """24 models of 125 pools: 3,000 configurations."""
    rng = np.random.default_rng([opset, seed])
    layers, inputs, expected = zip(*(random_pool(rng, opset) for _ in range(PER_MODEL)))
    proto = export_portably(Together(layers, [1] * PER_MODEL).eval(), inputs, exporter, opset)
    outputs = iter(run_onnxruntime(proto, [x.numpy() for x in inputs]))
    for layer, x, wanted in zip(layers, inputs, expected):
        try:
            assert_close(list(itertools.islice(outputs, len(wanted))), wanted)
        except AssertionError as error:
            raise AssertionError(f"{layer} on {x.dtype} {list(x.shape)}: {error}") from None


X = torch.linspace(-3, 3, 2 * 3 * 7 * 8).sin().reshape(2, 3, 7, 8)
AVERAGE, LP, MAX = (
    (operator, {"kernel_shape": [2, 3], "strides": [2, 1]}) for operator in ("AveragePool", "LpPool", "MaxPool")
)
INDICES = {"return_indices": True}

# A node under a row, and the operators of its portable form.
FORMS = [
    ("same-dilated", *AVERAGE, {"auto_pad": "SAME_LOWER", "dilations": [2, 2]}, ["AveragePool"]),
    ("same-dilated", *LP, {"auto_pad": "SAME_UPPER", "dilations": [2, 2]}, ["LpPool"]),
    ("same-negative", *MAX, {"auto_pad": "SAME_UPPER", "strides": [5, 4]}, ["MaxPool"]),
    ("large-pads", *LP, {"pads": [2, 3, 4, 5]}, ["Pad", "LpPool"]),
    ("large-pads", *AVERAGE, {"pads": [2, 3, 4, 5]}, ["Pad", "Slice", "AveragePool", "Mul"]),
    ("large-pads", *AVERAGE, {"pads": [2, 3, 4, 5], "count_include_pad": 1}, ["Pad", "Slice", "AveragePool"]),
    ("large-pads", *MAX, {"pads": [2, 3, 2, 5]}, ["Pad", "Gather", "Gather", "MaxPool"]),
    (
        "large-pads",
        *MAX,
        {"pads": [2, 3, 2, 5]} | INDICES,
        ["Pad", "Gather", "Gather", "MaxPool", "Div", "Mul", "Sub", "Gather", "Mul", "Add", "Where"],
    ),
    ("valid-ceil", *MAX, {"auto_pad": "VALID", "ceil_mode": 1, "strides": [3, 3]}, ["MaxPool"]),
    ("lp-ceil", *LP, {"ceil_mode": 1, "strides": [3, 3]}, ["LpPool"]),
    ("ceil-clip-inference", *MAX, {"ceil_mode": 1, "pads": [0, 0, 1, 2], "strides": [4, 4]}, ["MaxPool"]),
    ("ceil-clip-inference", *AVERAGE, {"ceil_mode": 1, "auto_pad": "SAME_LOWER", "strides": [4, 4]}, ["AveragePool"]),
    ("cip-asymmetric", *AVERAGE, {"pads": [0, 0, 1, 2], "count_include_pad": 1}, ["Pad", "Slice", "AveragePool"]),
]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("row", "operator", "attributes", "more", "expected"), FORMS)
def test_form(row, operator, attributes, more, expected, exporter):
    layer = layer_of(operator, **attributes | more)
    proto = export_portably(layer, (X,), exporter, full_check=True)
    written = [node for node in proto.graph.node if node.op_type != "Constant"]
    assert [node.op_type for node in written] == expected
    assert_close(run_onnxruntime(proto, [X.numpy()]), outputs_of(layer, X))
    plain = export(layer, (X,), exporter, full_check=False)
    (node,) = (node for node in plain.graph.node if node.op_type == operator)
    assert row in [row.id for row in ledger.rows_for(node, 20, input_shape=X.shape)]
    (node,) = (node for node in written if node.op_type == operator)
    assert not ledger.rows_for(node, 20, engine=ledger.ONNXRUNTIME)


@pytest.mark.parametrize("attributes", [{}, {"auto_pad": "SAME_UPPER"}, {"pads": [1, 1, 0, 0], "dilations": [2, 2]}])
@pytest.mark.parametrize("operator", WINDOWED)
def test_a_node_under_no_row_stays(operator, attributes):
    layer = layer_of(operator, kernel_shape=[2, 3], **attributes)
    proto = export_portably(layer, (X,))
    assert attributes_of(only_node(proto)) == {"kernel_shape": [2, 3]} | attributes


@pytest.mark.parametrize(
    ("p", "dynamic", "expected"),
    [
        (1, True, ["ReduceL1"]),
        (2, False, ["ReduceL2"]),
        (3, False, ["LpPool"]),
        (3, True, ["Abs", "Pow", "ReduceSum", "Pow"]),
    ],
)
def test_global_lp_pool_of_opset_22(p, dynamic, expected):
    layer = layer_of("GlobalLpPool", p=p)
    sizes = {"dynamic_shapes": ({0: "N", 2: "H", 3: "W"},)} if dynamic else {}
    proto = export_portably(layer, (X,), opset=22, **sizes)
    assert [node.op_type for node in proto.graph.node if node.op_type != "Constant"] == expected
    assert_close(run_onnxruntime(proto, [X.numpy()]), outputs_of(layer, X))


@pytest.mark.parametrize(("p", "value"), [(2, 5000), (3, 60)])
def test_sums_of_powers_that_float16_cannot_hold(p, value):
    layer, x = layer_of("GlobalLpPool", p=p), torch.full((1, 2, 4, 5), value, dtype=torch.float16)
    proto = export_portably(layer, (x,), opset=22, dynamic_shapes=({2: "H", 3: "W"},))
    (name,) = (value.name for value in proto.graph.input)
    assert_close(ReferenceEvaluator(proto).run(None, {name: x.numpy()}), outputs_of(layer, x))


def test_global_lp_pool_of_opset_1():
    layer = layer_of("GlobalLpPool")
    proto = export_portably(layer, (X,), "torchscript", 1)
    assert attributes_of(only_node(proto)) == {"axes": [2, 3]}
    assert_close(run_onnxruntime(proto, [X.numpy()]), outputs_of(layer, X))


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 13, 17, 18, 26])
def test_forms_of_every_opset(opset):
    """By way of our own export, which writes for the opset asked for."""
    pools = [
        (2, layer_of("LpPool", kernel_shape=[2, 3], pads=[2, 3, 4, 5], p=3)),
        (7, layer_of("AveragePool", kernel_shape=[2, 3], pads=[2, 3, 4, 5])),
        (7, layer_of("AveragePool", kernel_shape=[2, 3], pads=[2, 3, 4, 5], count_include_pad=1)),
        (1, layer_of("MaxPool", kernel_shape=[2, 3], pads=[2, 3, 4, 5])),
        (9, layer_of("MaxPool", kernel_shape=[2, 3], pads=[2, 3, 4, 5], return_indices=True, storage_order=1)),
        (10, layer_of("MaxPool", kernel_shape=[2, 3], dilations=[2, 2], pads=[2, 3, 4, 5])),
        (1, layer_of("MaxPool", kernel_shape=[2, 1], strides=[4, 4], auto_pad="SAME_UPPER")),
    ]
    pools = [pool for first, pool in pools if first <= opset]
    model = Together(pools, [1] * len(pools)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", PortabilityWarning)
        program = torch_onnxpool.onnx.export(
            model, (X,) * len(pools), opset_version=opset, portable=True, verbose=False
        )
    proto = program.model_proto
    onnx.checker.check_model(proto)
    assert opset_of(proto) == opset
    outputs = run_onnxruntime(proto, [X.numpy()] * len(pools))
    assert_close(outputs, [output for pool in pools for output in outputs_of(pool, X)])


@pytest.mark.parametrize(
    ("dtype", "opset"),
    [(torch.float16, 10), (torch.float16, 15), (torch.float32, 10), (torch.float64, 11), (torch.int8, 12)],
)
@pytest.mark.parametrize("pads", [[1, 1], [2, 3]])
def test_empty_windows(pads, dtype, opset):
    """The lowest number of the element type, in onnxruntime too."""
    layer, x = layer_of("MaxPool", kernel_shape=[2], dilations=[2], pads=pads), torch.ones(1, 1, 1, dtype=dtype)
    proto = export_portably(layer, (x,), "torchscript", opset)
    assert_close(run_onnxruntime(proto, [x.numpy()]), outputs_of(layer, x))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_dynamic_sizes(exporter):
    """What does not depend on sizes is portable without them; N and C may be open everywhere but in parts."""
    pools = [
        layer_of("AveragePool", kernel_shape=[3, 2], auto_pad="SAME_LOWER", dilations=[2, 2]),
        layer_of("LpPool", kernel_shape=[3, 2], pads=[3, 3, 4, 4]),
        layer_of("AveragePool", kernel_shape=[3, 2], pads=[3, 3, 4, 4], count_include_pad=1),
    ]
    model = Together(pools, [1] * len(pools))
    x, larger = X, torch.cat([X, X], 3).repeat(2, 1, 1, 1)
    proto = export_portably(model.eval(), (x,) * 3, exporter, **open_sizes(exporter, 3, "NHW"))
    assert_close(
        run_onnxruntime(proto, [larger.numpy()] * 3), [out for pool in pools for out in outputs_of(pool, larger)]
    )
    static = layer_of("MaxPool", kernel_shape=[3, 2], pads=[3, 3, 4, 4], return_indices=True)
    proto = export_portably(static, (x,), exporter, **open_sizes(exporter, 1, "N"))
    assert_close(run_onnxruntime(proto, [x.repeat(3, 1, 1, 1).numpy()]), outputs_of(static, x.repeat(3, 1, 1, 1)))


def open_sizes(exporter: str, inputs: int, letters: str) -> dict:
    axes = {"NCHW".index(letter): letter for letter in letters}
    if exporter == "torchscript":
        names = [f"x{i}" for i in range(inputs)]
        return {"input_names": names, "dynamic_axes": dict.fromkeys(names, axes)}
    sizes = {axis: torch.export.Dim(letter.lower(), min=2, max=100) for axis, letter in axes.items()}
    return {"dynamic_shapes": ((sizes,) * inputs,) if inputs > 1 else (sizes,)}


# --- warnings ---


WARNED = [
    ("same-dilated", "AveragePool", X, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "dilations": [2, 2]}, 20),
    ("same-negative", "MaxPool", X, {"kernel_shape": [1, 1], "auto_pad": "SAME_UPPER", "strides": [3, 3]}, 20),
    ("large-pads", "LpPool", X, {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, 20),
    (
        "empty-window",
        "MaxPool",
        X[..., :1],
        {"kernel_shape": [1, 2], "pads": [0, 1, 0, 1], "dilations": [1, 2]} | INDICES,
        20,
    ),
    ("empty-window", "MaxPool", X[:1, :1, 0, :1].half(), {"kernel_shape": [2], "pads": [1, 1], "dilations": [2]}, 20),
    ("rank", "AveragePool", X[None, None], {"kernel_shape": [1, 1, 2, 2]}, 20),
    ("dtypes", "AveragePool", X.double(), {"kernel_shape": [2, 2]}, 20),
    ("dtypes", "MaxPool", X.bfloat16(), {"kernel_shape": [2, 2]}, 22),
    ("global-lp-22", "GlobalLpPool", X, {}, 22),
]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("row", "operator", "x", "attributes", "opset"), WARNED)
def test_warns(row, operator, x, attributes, opset, exporter):
    kernel = f"kernel_shape={attributes['kernel_shape']} and " if "kernel_shape" in attributes else ""
    which = re.escape(f", got {kernel}X of shape {list(x.shape)}: onnxruntime ")
    text = rf"^{operator}: .*{which}.* \(ledger: {row}\)\. Remedy: torch_onnxpool\.onnx\.portable\(\) writes .+\.$"
    with pytest.warns(PortabilityWarning, match=text):
        loud_export(layer_of(operator, **attributes), x, exporter, opset)


def test_the_warning_leaves_sizes_open_that_are():
    layer = layer_of("MaxPool", kernel_shape=[2, 2], pads=[2, 2, 2, 2])
    with pytest.warns(PortabilityWarning, match=r", got kernel_shape=\[2, 2\] and X of shape \[\d+, \d+, \?, \d+\]: "):
        loud_export(layer, X, "dynamo", 20, dynamic_shapes=({2: "H"},))


def loud_export(layer, x, exporter, opset, **options):
    file = io.BytesIO()
    how = {"f": file, "dynamo": False} if exporter == "torchscript" else {}
    model = torch.export.export(layer, (x,)) if exporter == "program" else layer
    with warnings.catch_warnings():
        for warning in WARNINGS[:-1]:  # the last one is that of the ledger
            warnings.filterwarnings("ignore", warning)
        program = torch.onnx.export(model, (x,), opset_version=opset, verbose=False, **how, **options)
    return onnx.load_from_string(file.getvalue()) if program is None else program.model_proto


def test_the_warning_for_v1_names_the_opset():
    with pytest.warns(PortabilityWarning, match=r"v1-kernels\)\. .*export at opset 7 or above"):
        loud_export(layer_of("AveragePool", kernel_shape=[2, 2]), X, "torchscript", 6)


@pytest.mark.parametrize(
    ("layer", "x", "options", "reason"),
    [
        (
            layer_of("MaxPool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER", dilations=[2, 2]),
            X,
            {"dynamic_shapes": ({3: "W"},)},
            "axis 3 of X must have a static size",
        ),
        (layer_of("LpPool", kernel_shape=[2, 2]), X.double(), {}, "cast the input to float32"),
        (layer_of("MaxPool", kernel_shape=[1, 1, 1, 1], **INDICES), X[None, None], {}, "no indices over more than 3"),
    ],
)
def test_without_a_portable_form_the_warning_says_why(layer, x, options, reason):
    with portable(), pytest.warns(PortabilityWarning, match=f"It has no portable form here: .*{reason}"):
        proto = loud_export(layer, x, "dynamo", 20, **options)
    assert [node.op_type for node in proto.graph.node] == [type(layer).__name__]


@pytest.mark.parametrize(
    ("opset", "layer", "x", "reason"),
    [
        (5, layer_of("GlobalMaxPool"), X.half(), "no kernel for float16 below opset 6, export at opset 6 or above"),
        (5, layer_of("MaxPool", kernel_shape=[2, 2]), X.half(), "no kernel for float16 below opset 6"),
        (7, layer_of("MaxPool", kernel_shape=[2, 2]), X.double(), "no kernel for float64 below opset 8"),
        (7, layer_of("MaxPool", kernel_shape=[1, 1, 2, 2]), X.double()[None, None], "float64 below opset 8"),
        (1, layer_of("MaxPool", kernel_shape=[2, 2], pads=[2, 0, 0, 0]), X, "no Cast below opset 6, export at opset 6"),
        (5, layer_of("LpPool", kernel_shape=[1, 1, 2, 2]), X[None, None], "no Cast below opset 6"),
        (10, layer_of("MaxPool", kernel_shape=[2, 2], pads=[2, 0, 0, 0]), X.double(), "from opset 11 on, export at"),
        (10, layer_of("MaxPool", kernel_shape=[2, 2], pads=[2, 0, 0, 0], **INDICES), X.double(), "from opset 11 on"),
    ],
)
def test_old_opsets_without_a_portable_form(opset, layer, x, reason):
    """The node itself is written, and nothing beside it."""
    with portable(), pytest.warns(PortabilityWarning, match=f"It has no portable form here: .*{reason}"):
        proto = loud_export(layer, x, "torchscript", opset)
    assert only_node(proto).op_type == type(layer).__name__


def test_rows_say_what_helps():
    for row in ledger.ROWS:
        current = [d for d in row.differs if d.engine == ledger.ONNXRUNTIME and d.versions is None]
        of_values = row.id in ("lp-range", "max-neginf", "max-nan")
        assert row.portable or row.remedy or not current or of_values


def test_portable_ends():
    with portable():
        pass
    with pytest.warns(PortabilityWarning):
        loud_export(layer_of("GlobalLpPool"), X, "dynamo", 22)
