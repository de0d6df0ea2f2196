"""Compare every pooling node of a model, as onnxruntime computes it, with the layer of this package.

The model runs once in onnxruntime, without graph optimisations, so that each pooling node is computed by its own
kernel, and with the inputs and outputs of those nodes as extra graph outputs. Whatever no pooling node needs is cut
off first, and external weights are left on disk for onnxruntime to read: a large model costs what its part up to the
last pooling costs. Each node is then compared twice: on its true inputs, and on random data of the same shape and type
(behind a ReLU a pooling never sees a negative number).

When two results agree
    Integers, Indices and maxima are equal. Averages and norms may differ by the rounding errors that two float32
    computations over the window's n taps can accumulate, u = 2**-24 being the unit roundoff:

        average   |ours - theirs| <= 2 (n + 1) u mean|x|
        p-norm    |ours - theirs| <= 2 ((n + 3) / p + |ln y| + 4) u y

    (powers and root err by up to 4u each, and a 1/p rounded to float32 costs |ln y| u). Results of float16 may also
    round to neighbours, as may subnormal ones of any type. Source: N. J. Higham, "Accuracy and Stability of Numerical
    Algorithms", chapters 3 and 4.

A difference that a row of the ledger explains is reported under that row and is not a mismatch.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from . import ledger, schemas
from .importer import layer_from_node
from .models import has_layer, has_opset, inlined, name_of, subgraphs, walk

Arrays = Mapping[str, np.ndarray]

_ELEMENT_TYPES = set(helper.get_all_tensor_dtypes())

_UNIT_ROUNDOFF = 2.0**-24  # of float32, in which onnxruntime sums every floating type it has kernels for

# Sizes for dimensions that a model leaves open: batch 1, and an image of the usual size where there are spatial axes.
OPEN_BATCH, OPEN_CHANNELS, OPEN_SPATIAL, OPEN_SEQUENCE = 1, 3, 224, 16


class VerificationError(Exception):
    """The comparison cannot be made: no model, no fitting inputs, or a model onnxruntime cannot run. One line."""


@dataclass(frozen=True)
class Difference:
    """How far our outputs are from onnxruntime's, over all outputs of one node.

    `ulp` counts units in the last place of the window's mean magnitude, which is the result itself unless positive
    and negative values cancel. `explained_by` names the ledger rows that account for what exceeds the bound, and
    `text` says what has no number: other shapes, or a node that one side refuses.
    """

    agrees: bool
    absolute: float = 0.0
    ulp: float = 0.0
    explained_by: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class NodeReport:
    """One pooling node, and its differences by the data they were seen on ("model", "random")."""

    name: str
    operator: str
    attributes: dict[str, object] = field(default_factory=dict)
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    element_type: str = ""
    differences: dict[str, Difference] = field(default_factory=dict)
    ledger_rows: tuple[str, ...] = ()
    not_compared: str = ""

    @property
    def mismatch(self) -> bool:
        return not all(difference.agrees for difference in self.differences.values())

    @property
    def explained_by(self) -> tuple[str, ...]:
        return tuple(sorted({row for difference in self.differences.values() for row in difference.explained_by}))


class Model:
    """An ONNX file, with its pooling nodes of the main graph (`nodes`) and those that cannot be compared (`others`)."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.proto = _load(self.path)
        self.opsets = _opsets(self.proto)
        self.nodes = [node for node in self.proto.graph.node if has_layer(node)]
        self.others = list(self._not_compared())

    def compare(self, inputs: Arrays | None = None, seed: int = 0) -> Iterator[NodeReport]:
        """Run the model, then compare node by node; the first report comes after the run.

        `inputs` are the graph's inputs by name; None generates them from `seed`, as the random data of the nodes.
        Raises VerificationError.
        """
        if not self.nodes:
            return
        generator = np.random.default_rng(seed)
        part = self._part_that_pools()
        feeds = _generated(part, generator) if inputs is None else _selected(part, inputs)
        try:
            values = _run(part, feeds, self.path)
        except VerificationError as error:
            raise VerificationError(f"{error}{self._known_limits(part)}") from None
        for node in self.nodes:
            yield self._compare_node(node, values, generator)

    def _not_compared(self) -> Iterator[NodeReport]:
        for place, node in _pools(self.proto.graph):
            if place:
                why = f"inside a subgraph of {place}, whose values are not graph outputs"
                yield NodeReport(f"{place}/{name_of(node)}", _versioned(node, self.opsets), not_compared=why)
            elif not has_layer(node):
                why = "torch_onnxpool has no such layer"
                yield NodeReport(name_of(node), _versioned(node, self.opsets), not_compared=why)
        for function in self.proto.functions:
            why = "inside a local function, and operators of functions have other versions than they have in the model"
            for place, node in _pools(function, function.name):
                yield NodeReport(f"{place}/{name_of(node)}", _versioned(node, _opsets(function)), not_compared=why)

    def _compare_node(self, node: NodeProto, values: Arrays, generator: np.random.Generator) -> NodeReport:
        inputs, model_outputs = ([values[name] for name in names if name] for names in (node.input, node.output))
        drawn = [_random(inputs[0].dtype, inputs[0].shape, generator), *inputs[1:]]
        return NodeReport(
            name=name_of(node),
            operator=_versioned(node, self.opsets),
            attributes={attribute.name: schemas.value_of(attribute) for attribute in node.attribute},
            input_shape=inputs[0].shape,
            output_shape=model_outputs[0].shape,
            element_type=str(inputs[0].dtype),
            differences={
                "model": self._difference(node, inputs, model_outputs),
                "random": self._difference(node, drawn, self._run_alone(node, drawn)),
            },
            ledger_rows=tuple(row.id for row in self._ledger_rows(node, values=inputs[0])),
        )

    def _difference(
        self, node: NodeProto, inputs: list[np.ndarray], theirs: list[np.ndarray] | VerificationError
    ) -> Difference:
        """Our outputs against theirs, which may be onnxruntime's refusal."""
        rows = self._ledger_rows(node, values=inputs[0])
        try:
            layer = layer_from_node(node, self.opset_version(node))
            with torch.no_grad():
                outputs = layer(*map(torch.from_numpy, inputs))
        except ValueError as error:
            return Difference(agrees=False, text=f"refused: {error}")
        ours = [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]
        if isinstance(theirs, VerificationError):
            explaining = _seen_by(rows, ledger.REFUSAL)
            return Difference(bool(explaining), explained_by=explaining, text=str(theirs))
        if ours[0].shape != theirs[0].shape:
            explaining = _seen_by(rows, ledger.SIZES)
            shapes = f"shape {list(ours[0].shape)}, onnxruntime {list(theirs[0].shape)}"
            return Difference(bool(explaining), explained_by=explaining, text=shapes)
        return _numeric_difference(layer, inputs[0], ours, theirs, _seen_by(rows, ledger.VALUES))

    def _run_alone(self, node: NodeProto, inputs: list[np.ndarray]) -> list[np.ndarray] | VerificationError:
        """The node's outputs from a model of its own, or onnxruntime's reason for not computing it."""
        feeds = dict(zip(filter(None, node.input), inputs, strict=True))
        graph = helper.make_graph(
            [node],
            "one_node",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in feeds.items()
            ],
            _untyped(filter(None, node.output)),
        )
        alone = helper.make_model(graph, opset_imports=self.proto.opset_import, ir_version=self.proto.ir_version)
        try:
            values = _run(alone, feeds, self.path)
        except VerificationError as error:
            return error
        return [values[output.name] for output in graph.output]

    def _ledger_rows(self, node: NodeProto, **known) -> tuple[ledger.Row, ...]:
        """The rows about this onnxruntime; `known` says what is known of X."""
        try:
            return ledger.rows_for(
                node,
                self.opset_version(node),
                engine=ledger.ONNXRUNTIME,
                engine_version=onnxruntime.__version__,
                **known,
            )
        except ValueError:  # a node that is not valid, which the comparison reports
            return ()

    def _known_limits(self, part: ModelProto) -> str:
        """Which rows of the ledger may be why onnxruntime refuses the model, by what shape inference knows."""
        try:
            graph = onnx.shape_inference.infer_shapes(part).graph
        except onnx.shape_inference.InferenceError:  # a malformed model
            graph = part.graph
        types = {value.name: value.type.tensor_type for value in (*graph.input, *graph.value_info)}
        hints = []
        for node in self.nodes:
            known = {}
            x_type = types.get(next(iter(node.input), ""))
            if x_type is not None:
                if x_type.elem_type in _ELEMENT_TYPES:
                    known["element_type"] = schemas.type_name(x_type.elem_type)
                sizes = [dimension.dim_value for dimension in x_type.shape.dim]
                known["input_shape"] = sizes if min(sizes, default=0) > 0 else None
            # Of a wrong size, whoever reads the values may complain.
            rows = _seen_by(self._ledger_rows(node, **known), ledger.REFUSAL, ledger.SIZES)
            hints += [f"{name_of(node)}: {row}" for row in rows]
        return f" (ledger: {', '.join(hints)})" if hints else ""

    def opset_version(self, node: NodeProto) -> int:
        return self.opsets.get(node.domain, 1)

    def _part_that_pools(self) -> ModelProto:
        """The nodes on which some pooling node depends, with all values of pooling nodes as outputs."""
        wanted = [name for node in self.nodes for name in (*node.input, *node.output) if name]
        whole, needed, kept = self.proto.graph, set(wanted), []
        for node in reversed(whole.node):
            if has_layer(node) or needed.intersection(node.output):
                needed.update(_names_used(node))
                kept.append(node)
        part = ModelProto(
            ir_version=self.proto.ir_version, opset_import=self.proto.opset_import, functions=self.proto.functions
        )
        part.graph.name = "pooling"
        part.graph.node.extend(reversed(kept))
        part.graph.input.extend(value for value in whole.input if value.name in needed)
        part.graph.initializer.extend(constant for constant in whole.initializer if constant.name in needed)
        part.graph.sparse_initializer.extend(c for c in whole.sparse_initializer if c.values.name in needed)
        part.graph.output.extend(_untyped(wanted))
        return part


def _load(path: Path) -> ModelProto:
    """The model, its local functions inlined where they can be, its external data left on disk."""
    try:
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise VerificationError(f"cannot read it: {error.strerror}") from None
    except Exception:  # whatever the parser of a foreign file raises, it means the same
        proto = ModelProto()
    if not proto.graph.node or not has_opset(proto):
        raise VerificationError("not an ONNX model")
    return inlined(proto)


def _run(model: ModelProto, feeds: Arrays, path: Path) -> dict[str, np.ndarray]:
    """The feeds and all outputs of a model by name. External data is read from beside `path`."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # failures are raised as well
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
    outputs = [output.name for output in model.graph.output]
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(feeds) | dict(zip(outputs, session.run(outputs, feeds), strict=True))
    except Exception as error:  # onnxruntime's exceptions have no common base of their own
        raise VerificationError(f"onnxruntime cannot run it: {_one_line(error)}") from None


def _generated(model: ModelProto, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs for a graph; sizes that the model leaves open are chosen, the same name meaning the same size."""
    named_sizes: dict[str, int] = {}
    return {
        value.name: _random(_numpy_type(value), _chosen_shape(value, named_sizes), generator)
        for value in _required_inputs(model)
    }


def _chosen_shape(value: ValueInfoProto, named_sizes: dict[str, int]) -> list[int]:
    if not value.type.tensor_type.HasField("shape"):
        raise VerificationError(f"input {value.name!r} has no shape: give it with --input")
    dimensions = value.type.tensor_type.shape.dim
    sizes = [dimension.dim_value if dimension.HasField("dim_value") else -1 for dimension in dimensions]
    if 0 in sizes:
        raise VerificationError(f"input {value.name!r} is empty: its shape is {sizes}")
    rank, is_open = len(sizes), [size < 0 for size in sizes]  # -1 is what some exporters write

    def usual_size(axis: int) -> int:
        if axis == 0:
            return OPEN_BATCH
        if rank == 2:
            return OPEN_SEQUENCE
        return OPEN_CHANNELS if axis == 1 and all(is_open[1:]) else OPEN_SPATIAL

    return [
        dimension.dim_value
        if not is_open[axis]
        else named_sizes.setdefault(dimension.dim_param or f"{value.name}.{axis}", usual_size(axis))
        for axis, dimension in enumerate(dimensions)
    ]


def _random(dtype: np.dtype, shape, generator: np.random.Generator) -> np.ndarray:
    """Normally distributed numbers, all values of a one-byte integer, or 0 and 1 (valid as token, class and index)."""
    if np.issubdtype(dtype, np.floating):
        return generator.standard_normal(shape).astype(dtype)
    if dtype in (np.uint8, np.int8):
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return generator.integers(0, 2, shape).astype(dtype)


def _numpy_type(value: ValueInfoProto) -> np.dtype:
    if value.type.tensor_type.elem_type not in _ELEMENT_TYPES - {TensorProto.STRING}:
        raise VerificationError(f"input {value.name!r} is not a tensor of numbers: give it with --input")
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def read_inputs(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name."""
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except OSError as error:
        raise VerificationError(f"cannot read {path}: {error.strerror or error}") from None
    except (EOFError, TypeError, ValueError, zipfile.BadZipFile):  # what numpy raises for other and damaged files
        raise VerificationError(f"{path} is not an .npz file") from None


def _selected(model: ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """The given inputs that are this graph's, all that it needs."""
    missing = [value.name for value in _required_inputs(model) if value.name not in inputs]
    if missing:
        raise VerificationError(f"missing inputs {missing}, given are {list(inputs)}")
    return {value.name: inputs[value.name] for value in model.graph.input if value.name in inputs}


def _required_inputs(model: ModelProto) -> list[ValueInfoProto]:
    """Graph inputs without an initializer; up to IR version 3, initializers had to be listed as inputs too."""
    constants = {constant.name for constant in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _untyped(names: Iterable[str]) -> list[ValueInfoProto]:
    """Graph outputs whose types onnxruntime infers."""
    return [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(names)]


def _pools(graph: GraphProto | FunctionProto, place: str = "") -> Iterator[tuple[str, NodeProto]]:
    return (found for found in walk(graph, place) if "Pool" in found[1].op_type)


def _opsets(scope: ModelProto | FunctionProto) -> dict[str, int]:
    """The versions of the domains that a model or a function imports."""
    return {opset.domain: opset.version for opset in scope.opset_import}


def _versioned(node: NodeProto, opsets: Mapping[str, int]) -> str:
    """The operator with the version that these opsets have, as in "MaxPool-12"."""
    try:
        return f"{node.op_type}-{schemas.at(node.op_type, node.domain, opsets.get(node.domain, 1)).since_version}"
    except ValueError:  # a domain or an opset that onnx does not know
        return node.op_type


def _names_used(node: NodeProto) -> Iterator[str]:
    """The values a node reads, those its subgraphs capture from around them included."""
    yield from filter(None, node.input)
    for subgraph in subgraphs(node):
        yield from (output.name for output in subgraph.output)
        for inner in subgraph.node:
            yield from _names_used(inner)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _seen_by(rows: Iterable[ledger.Row], *ways: str) -> tuple[str, ...]:
    """The ids of those whose difference in onnxruntime can be seen in one of these ways."""
    return tuple(row.id for row in rows if set(ways) & set(row.difference(ledger.ONNXRUNTIME).seen_by))


# The elements of the first output where a row of the ledger shows; rows that are not here can show anywhere.
_SHOWS = {
    "max-nan": lambda ours, theirs, p: np.isnan(ours) | np.isnan(theirs),
    "max-neginf": lambda ours, theirs, p: np.isneginf(ours),
    "empty-window": lambda ours, theirs, p: ours == _lowest(ours.dtype),
    # sums of powers that float32 cannot hold, or not to its full precision
    "lp-range": lambda ours, theirs, p: (p * _log2(ours) > 127.9) | (p * _log2(ours) < -124),
}


def _numeric_difference(
    layer: torch.nn.Module, x: np.ndarray, ours: list[np.ndarray], theirs: list[np.ndarray], rows: tuple[str, ...]
) -> Difference:
    magnitude, bound = _magnitude_and_bound(layer, x, ours[0])
    beyond, absolute, ulp = np.zeros(ours[0].shape, bool), 0.0, 0.0
    for our, their, allowed in zip(ours, theirs, (bound, 0.0), strict=False):  # of Indices, none is allowed
        with np.errstate(invalid="ignore"):
            error = np.where(_same(our, their), 0.0, np.abs(our.astype(np.float64) - their.astype(np.float64)))
        differs = error != 0  # a NaN differs too
        beyond |= differs & ~(error <= allowed)
        absolute = np.maximum(absolute, error.max(initial=0.0))  # which keeps a NaN
        if np.issubdtype(our.dtype, np.floating):
            ulp = np.divide(error, _spacing(magnitude), out=np.zeros_like(error), where=differs).max(initial=0.0)
    p = float(getattr(layer, "p", 1))
    explained = {row: beyond & (_SHOWS[row](ours[0], theirs[0], p) if row in _SHOWS else True) for row in rows}
    unexplained = beyond & ~np.any([beyond & False, *explained.values()], axis=0)
    explained_by = tuple(row for row, where in explained.items() if where.any())
    return Difference(not unexplained.any(), float(absolute), float(ulp), explained_by)


def _magnitude_and_bound(layer: torch.nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
    """Every window's mean magnitude in the type of y, and the difference that rounding allows (module docstring)."""
    operator = type(layer).__name__
    if operator.startswith(("Max", "GlobalMax")) or not np.issubdtype(y.dtype, np.floating):
        return np.abs(y), 0.0
    plane = math.prod(x.shape[2:])
    taps = min(plane, math.prod(getattr(layer, "kernel_shape", x.shape[2:])))
    if operator.endswith("AveragePool"):
        with torch.no_grad():
            magnitude = layer(torch.from_numpy(np.abs(x))).numpy()
        roundings = taps + 1
    else:
        magnitude = y
        roundings = (taps + 3) / layer.p + np.abs(_log2(y)) * math.log(2) + 4
    bound = 2 * roundings * _UNIT_ROUNDOFF * magnitude.astype(np.float64)
    last_rounding = _spacing(magnitude) if y.dtype == np.float16 else np.finfo(y.dtype).smallest_subnormal
    return magnitude, bound + last_rounding


def _spacing(x: np.ndarray) -> np.ndarray:
    """Between finite numbers around x. NumPy's is infinite for the largest one, which has one neighbour only."""
    largest = np.finfo(x.dtype).max
    return np.spacing(np.minimum(x, np.nextafter(largest, x.dtype.type(0))))


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | ((a != a) & (b != b))


def _log2(y: np.ndarray) -> np.ndarray:
    """The logarithm of norms, 0 for 0: a window of zeros is exact."""
    return np.log2(y, out=np.zeros(y.shape), where=y > 0, dtype=np.float64)


def _lowest(dtype: np.dtype) -> float | int:
    return np.finfo(dtype).min if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min
