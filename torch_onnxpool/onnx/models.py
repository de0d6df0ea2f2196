"""Models as the backend and `verify` look at them: local functions inlined, and one spelling of the default domain."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, inliner

from . import schemas
from .operators import LAYERS, ONNX, canonical_domain

_FIRST_IR_VERSION_WITH_OPSETS = 3


def has_opset(model: ModelProto) -> bool:
    """Whether a model imports an opset, or is so old that it need not: then it has opset 1."""
    return bool(model.opset_import) or model.ir_version < _FIRST_IR_VERSION_WITH_OPSETS


def canonical(model: ModelProto) -> ModelProto:
    """A copy of a model that writes the default domain as "" everywhere, and says which opsets it imports."""
    copy = ModelProto()
    copy.CopyFrom(model)
    if has_opset(copy) and not copy.opset_import:
        copy.ir_version = _FIRST_IR_VERSION_WITH_OPSETS
        copy.opset_import.add(domain=ONNX, version=1)
    opsets = (opset for scope in (copy, *copy.functions) for opset in scope.opset_import)
    nodes = (node for graph in (copy.graph, *copy.functions) for _, node in walk(graph))
    for named in (*opsets, *copy.functions, *nodes):
        named.domain = canonical_domain(named.domain)
    return copy


def inlined(model: ModelProto) -> ModelProto:
    """A canonical copy of a model, with the nodes of its local functions in place of their calls.

    All functions remain if an operator in one of them has another version in the opset that the model imports. A legal
    model has such operators only where onnx's checker does not look: in subgraphs, and in domains unknown to onnx.
    """
    model = canonical(model)
    if model.functions and _unite_opsets(model):
        _write_defaults(model)
        return inliner.inline_local_functions(model)
    return model


def has_layer(node: NodeProto) -> bool:
    return (node.domain, node.op_type) in LAYERS


def name_of(node: NodeProto) -> str:
    return node.name or next(filter(None, node.output), node.op_type)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs


def walk(graph: GraphProto | FunctionProto, place: str = "") -> Iterator[tuple[str, NodeProto]]:
    """Every node of a graph and of its subgraphs, with `place` and the names of the nodes that it is inside of."""
    for node in graph.node:
        yield place, node
        for subgraph in subgraphs(node):
            yield from walk(subgraph, f"{place}/{name_of(node)}".lstrip("/"))


def _write_defaults(model: ModelProto) -> None:
    """Write the attributes that calls of local functions leave out. onnx's inliner forgets that they have defaults."""
    defaults = {(f.domain, f.name, f.overload): f.attribute_proto for f in model.functions}
    for graph in (model.graph, *model.functions):
        for _, node in walk(graph):
            written = {attribute.name for attribute in node.attribute}
            callee = (node.domain, node.op_type, node.overload)
            node.attribute.extend(a for a in defaults.get(callee, ()) if a.name not in written)


def _unite_opsets(model: ModelProto) -> bool:
    """Let functions import the opsets that the model does; False if their operators are not the same in both.

    onnx's inliner passes over functions that import others, and then loses functions that those call. Its conversion of
    versions is no help: it does not look into subgraphs, and some versions of pooling operators are unknown to it.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    calls = {(function.domain, function.name) for function in model.functions}
    for function in model.functions:
        operators = {(node.domain, node.op_type) for _, node in walk(function)} - calls
        for opset in function.opset_import:
            if opset.domain not in versions:
                versions[opset.domain] = opset.version
                model.opset_import.append(opset)
            version = versions[opset.domain]
            of_domain = (op_type for domain, op_type in operators if domain == opset.domain)
            if not all(schemas.is_same(op_type, opset.domain, opset.version, version) for op_type in of_domain):
                return False
            opset.version = version
    return True
