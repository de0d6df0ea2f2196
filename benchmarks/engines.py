"""Who runs the cases of the tests' table: each as a model of one node, in every engine that is installed.

    python benchmarks/engines.py [--operator NAME] [--output PATH | --publish]

A case counts as right if the model loads, runs and gives the numbers of the tests' oracle, as wrong if it gives others,
and as refused otherwise. onnx2torch and onnx2pytorch are not among the development requirements, and they want packages
that would bring another torch along: `pip install --no-deps onnx2torch onnx2pytorch` adds them, beside the torchvision
that belongs to the torch that is there.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np
import onnx
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "export_tests")]
from cases import CASES, QUANTISED, UNPOOL_CASES, Case  # noqa: E402
from exporting import (  # noqa: E402
    assert_close,
    make_node,
    one_node_model,
    opset_of,
    outputs_of,
    run_onnxruntime,
    run_reference,
)
from tensors import expected, to_tensor  # noqa: E402

from torch_onnxpool.onnx import layer_from_node, schemas  # noqa: E402
from torch_onnxpool.onnx.operators import OPERATORS  # noqa: E402

OLDEST_OPSET = 11
RIGHT, WRONG, REFUSED = "right", "wrong", "refused"
Arrays = list[np.ndarray]


class Question(NamedTuple):
    """A model of one node, its inputs and what must come out."""

    operator: str
    model: onnx.ModelProto
    inputs: Arrays
    answer: Arrays


def questions() -> Iterator[Question]:
    """All cases that an opset can say, those of MaxPool also with Indices."""
    for case in (*CASES, *UNPOOL_CASES):
        if float(case.attributes.get("p", 2)).is_integer():
            yield _question(case, case.operator, outputs=1)
            if case.operator == "MaxPool":
                yield _question(case, "MaxPool with Indices", outputs=2)


def _question(case: Case, operator: str, outputs: int) -> Question:
    dtype = "uint8" if case.operator in QUANTISED else "float32"
    inputs, attributes = case.inputs(dtype), dict(case.attributes)
    if "output_shape" in attributes:
        inputs.append(np.array(attributes.pop("output_shape"), np.int64))
    domain = OPERATORS[case.function].domain
    # The oldest opset is the one that most engines know.
    first = schemas.first_opset(case.operator, domain, lambda schema: attributes.keys() <= schema.attributes.keys())
    opset = max(OLDEST_OPSET, first)
    names = tuple(parameter.name for parameter in schemas.at(case.operator, domain, opset).inputs)
    node = make_node(case.operator, outputs, names[: len(inputs)], domain, **attributes)
    answer = [value if value.dtype == np.int64 else value.astype(inputs[0].dtype) for value in expected(case, dtype)]
    return Question(operator, one_node_model(node, inputs, opset), inputs, answer[:outputs])


# The engines: what they make of a model and its inputs


def by_layer(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    node = model.graph.node[0]
    return outputs_of(layer_from_node(node, opset_of(model, node.domain)), *map(to_tensor, inputs))


def by_onnx2torch(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    return outputs_of(import_module("onnx2torch").convert(model), *map(to_tensor, inputs))


def by_onnx2pytorch(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    module = import_module("onnx2pytorch").ConvertModel(model)

    def in_a_tuple(*tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        outputs = module(*tensors)
        return tuple(outputs) if isinstance(outputs, list) else outputs

    return outputs_of(in_a_tuple, *map(to_tensor, inputs))


ENGINES: dict[str, Callable[[onnx.ModelProto, Arrays], Arrays]] = {
    "torch_onnxpool": by_layer,
    "onnxruntime": run_onnxruntime,
    "onnx": run_reference,  # its reference evaluator
    "onnx2pytorch": by_onnx2pytorch,
    "onnx2torch": by_onnx2torch,
}


def outcome(engine: Callable[[onnx.ModelProto, Arrays], Arrays], question: Question) -> str:
    try:
        results = engine(question.model, question.inputs)
    except Exception:  # of many engines, each with errors of its own
        return REFUSED
    try:
        assert_close(results, question.answer)
    except AssertionError:
        return WRONG
    return RIGHT


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operator", action="append", metavar="NAME", help="only the cases of NAME")
    harness.add_output_options(parser)
    options = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    engines = {name: engine for name, engine in ENGINES.items() if find_spec(name)}
    wanted = options.operator
    asked = [question for question in questions() if not wanted or question.operator in wanted]
    counts: dict[str, dict[str, Counter]] = {name: {} for name in engines}
    with harness.progress_bar() as progress:
        for question in progress.track(asked, description="cases"):
            for name, engine in engines.items():
                of_operator = counts[name].setdefault(question.operator, Counter())
                of_operator[outcome(engine, question)] += 1
    report(counts, harness.output_of(options, "engines"))


def report(counts: dict[str, dict[str, Counter]], output: Path) -> None:
    totals = {name: sum(by_operator.values(), Counter()) for name, by_operator in counts.items()}
    summary = [
        [f"{name} {metadata.version(name)}", *(str(total[kind]) for kind in (RIGHT, WRONG, REFUSED))]
        for name, total in totals.items()
    ]
    asked = {operator: count.total() for operator, count in counts["torch_onnxpool"].items()}
    rows = [
        [operator, str(total), *(str(by_operator[operator][RIGHT]) for by_operator in counts.values())]
        for operator, total in asked.items()
    ]
    headings = [f"of {sum(asked.values())} cases", RIGHT, WRONG, REFUSED]
    harness.print_table(headings, summary)
    machine = {
        "models": f"one node, at the oldest opset from {OLDEST_OPSET} on that has its attributes; float32, or uint8",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", *counts)),
    }
    sections = [
        "How this is counted: benchmarks/engines.py.",
        harness.markdown_table(headings, summary),
        "## Right ones by operator",
        harness.markdown_table(["operator", "cases", *counts], rows),
    ]
    harness.write(output, "Single-node models in each engine", machine, sections, {"counts": counts})


if __name__ == "__main__":
    main()
