"""The terminal side of `python -m torch_onnxpool verify`: progress, tables, exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .onnx.verify import Difference, Model, NodeReport, VerificationError, read_inputs


def run(paths: Sequence[str], input_path: str | None, seed: int) -> int:
    """Compare the pooling nodes of each model, print a table for each and a summary, and return the exit code."""
    console, errors = Console(), Console(stderr=True, soft_wrap=True)
    compared, mismatches, failures = 0, 0, 0
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        for path in paths:
            try:
                model = Model(path)
                inputs = read_inputs(input_path) if input_path else None
                reports = list(_with_progress(model, model.compare(inputs, seed), progress))
            except VerificationError as error:
                errors.print(f"[bold red]error[/]: {escape(path)}: {escape(str(error))}", highlight=False)
                failures += 1
                continue
            _print(console, model, [*reports, *model.others])
            compared += len(reports)
            mismatches += sum(report.mismatch for report in reports)
    console.print(f"{compared} pooling nodes compared, {mismatches} mismatches, {failures} files not verified")
    return 2 if failures else int(mismatches > 0)


def _print(console: Console, model: Model, reports: Sequence[NodeReport]) -> None:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    console.print(f"[bold]{escape(str(model.path))}[/] ({opsets})", soft_wrap=True, highlight=False)
    console.print(_table(reports) if reports else "no pooling nodes\n")


def _with_progress(model: Model, reports: Iterator[NodeReport], progress: Progress) -> Iterator[NodeReport]:
    task = progress.add_task(f"{model.path}: onnxruntime", total=len(model.nodes))
    for report in reports:
        progress.update(task, description=f"{model.path}: {report.name}", advance=1)
        yield report
    progress.remove_task(task)


def _table(reports: Sequence[NodeReport]) -> Table:
    """A row for each node, in lines short enough for 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("node", "attributes", "input, output", "error (ulp)", "verdict"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        shapes = (report.input_shape, report.output_shape)
        table.add_row(
            escape(f"{report.name}\n{report.operator}"),
            escape("\n".join(f"{name} {_attribute(value)}" for name, value in sorted(report.attributes.items()))),
            "\n".join(["×".join(map(str, shape)) for shape in shapes] + [report.element_type]),
            escape("\n".join(f"{data} {_error(difference)}" for data, difference in report.differences.items())),
            _verdict(report),
        )
    return table


def _attribute(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _error(difference: Difference) -> str:
    if difference.text:
        return difference.text
    return f"{difference.absolute:.2g}" + (f" ({difference.ulp:.2g})" if difference.ulp else "")


def _verdict(report: NodeReport) -> str:
    if report.not_compared:
        return f"[yellow]not compared[/]: {escape(report.not_compared)}"
    if report.mismatch:
        return "[bold red]MISMATCH[/]"
    if report.explained_by:
        return f"[yellow]differs[/] (ledger: {', '.join(report.explained_by)})"
    return "[green]ok[/]" + "".join(f"\n[dim]ledger: {row}[/]" for row in report.ledger_rows)
