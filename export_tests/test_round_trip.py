"""NodeProto -> layer -> NodeProto gives the same node, but for attributes that say their default."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cases import random_attributes
from exporting import attributes_of, export_together, make_node, without_defaults

from torch_onnxpool.onnx import layer_from_node, schemas

# Between them these opsets have every version of every operator that an exporter can write.
WRITERS = [
    *(("torchscript", opset) for opset in (1, 5, *range(7, 24))),
    *(("dynamo", opset) for opset in (18, 19, 22, 25)),
]
OPERATORS = ["AveragePool", "LpPool", "MaxPool"] * 3 + ["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"]
NODES_PER_OPSET = 40


def random_node(opset: int, rng: np.random.Generator):
    """A node of any operator that is legal in the opset, and the shape of an input for it."""
    schema = schemas.at(str(rng.choice(OPERATORS)), "", opset)
    spatial = tuple(int(n) for n in rng.integers(4, 9, rng.integers(1, 4)))
    attributes = {} if schema.name.startswith("Global") else random_attributes(schema.name, spatial, rng)
    if "p" in schema.attributes:
        attributes["p"] = float(rng.choice([1, 1.5, 2, 3])) if schema.since_version == 1 else int(rng.integers(1, 6))
    attributes = {name: value for name, value in attributes.items() if name in schema.attributes}
    outputs = int(rng.integers(1, schema.max_output + 1))
    return make_node(schema.name, outputs, **attributes), (1, 2, *spatial)


def random_nodes(opset: int):
    """Nodes, the layers they become, and inputs that these accept."""
    rng = np.random.default_rng(opset)
    while True:
        node, shape = random_node(opset, rng)
        layer, x = layer_from_node(node, opset), torch.randn(shape)
        try:
            layer(x)
        except ValueError:  # the window does not fit
            continue
        yield node, layer, x


@pytest.mark.parametrize(("exporter", "opset"), WRITERS)
def test_round_trip(exporter, opset):
    nodes, layers, inputs = zip(*itertools.islice(random_nodes(opset), NODES_PER_OPSET))
    written = export_together(layers, [(x,) for x in inputs], exporter, opset)
    for given, result in zip(nodes, written, strict=True):
        assert_same(given, result)


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_round_trip_of_the_quantised(exporter, channels_last):
    (schema,) = schemas.history("QLinearGlobalAveragePool", "com.microsoft")
    names = tuple(parameter.name for parameter in schema.inputs)
    node = make_node(schema.name, 1, names, schema.domain, channels_last=channels_last)
    bytes_, scales = torch.zeros(1, 2, 3, 4, dtype=torch.int8), torch.tensor([0.5, 0.25])
    zero_points = torch.tensor([3, 4], dtype=torch.int8)
    inputs = (bytes_, scales[0], zero_points[0], scales[1], zero_points[1])
    (result,) = export_together([layer_from_node(node, 1)], [inputs], exporter, 20)
    assert len(result.input) == 5
    assert_same(node, result)


def assert_same(given, result) -> None:
    assert (result.domain, result.op_type) == (given.domain, given.op_type)
    assert len(result.output) == len(given.output)
    assert attributes_of(result) == without_defaults(attributes_of(given))
    types = {attribute.name: attribute.type for attribute in given.attribute}
    assert all(attribute.type == types[attribute.name] for attribute in result.attribute)
