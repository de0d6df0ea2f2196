"""Writes the README's tables from the facts that the code itself uses: `make docs`.

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

import torch_onnxpool  # noqa: F401  registers the operators
from torch_onnxpool.onnx import ledger, schemas
from torch_onnxpool.onnx.operators import OPERATORS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def support_matrix() -> str:
    """Operators x versions x element types x devices."""
    devices = _devices()
    ours: dict[tuple[str, str], list[str]] = {}
    for name, operator in OPERATORS.items():
        ours.setdefault((operator.op_type, operator.domain), []).append(name)
    return _table(
        ("operator", "opset versions", "element types", "gradient", "devices"),
        (
            (
                f"{domain} {op_type}".strip(),
                ", ".join(str(schema.since_version) for schema in schemas.history(op_type, domain)),
                _element_types(schemas.history(op_type, domain)),
                "yes" if any(map(_has_gradient, names)) else "no",
                devices,
            )
            for (op_type, domain), names in ours.items()
        ),
    )


def ledger_table() -> str:
    """One row for each divergence of another engine."""
    return _table(
        ("id", "case", "right", "who differs"),
        ((f"`{row.id}`", row.case, row.ours, "<br>".join(map(_who, row.differs))) for row in ledger.ROWS),
    )


def _who(difference: ledger.Difference) -> str:
    versions = " {} to {}".format(*difference.versions) if difference.versions else ""
    return f"{difference.engine}{versions}: {difference.how}"


TABLES = {"support": support_matrix, "ledger": ledger_table}


def with_tables(text: str) -> str:
    """The README's text with every table made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = pattern.subn(lambda _: f"{begin}{make()}{end}", text)  # noqa: B023  called at once
        if count != 1:
            raise ValueError(f"README.md: {begin.strip()} ... {end} must be there once, got {count}")
    return text


def _element_types(history: Sequence) -> str:
    """All types of X, each with its first version where that is not the operator's first."""
    first: dict[str, int] = {}
    for schema in history:
        for element_type in schemas.element_types(schema):
            first.setdefault(_short(element_type), schema.since_version)
    oldest = history[0].since_version
    names = sorted(first, key=lambda name: (first[name], name))
    return ", ".join(name if first[name] == oldest else f"{name} (from {first[name]})" for name in names)


def _short(element_type: str) -> str:
    """ "tensor(double)" in torch's words."""
    name = element_type.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(name, name)


def _has_gradient(operator: str) -> bool:
    return f"torch_onnxpool::{operator}_backward" in torch._C._dispatch_get_all_op_names()


def _devices() -> str:
    """Every device that has bindings has those of all operators. Read from the sources: not every build has all."""
    sources = (path.read_text() for path in sorted(ROOT.glob("csrc/*/bindings.cpp")))
    return ", ".join(
        key for text in sources for key in re.findall(r"^ONNXPOOL_LIBRARY_IMPL\((\w+)", text, re.MULTILINE)
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
