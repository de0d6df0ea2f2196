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
            console.print(_table(model, [*reports, *model.others]))
            compared += len(reports)
            mismatches += sum(report.mismatch for report in reports)
    console.print(f"{compared} pooling nodes compared, {mismatches} mismatches, {failures} files not verified")
    return 2 if failures else int(mismatches > 0)


def _with_progress(model: Model, reports: Iterator[NodeReport], progress: Progress) -> Iterator[NodeReport]:
    task = progress.add_task(f"{model.path}: onnxruntime", total=len(model.nodes))
    for report in reports:
        progress.update(task, description=f"{model.path}: {report.name}", advance=1)
        yield report
    progress.remove_task(task)


def _table(model: Model, reports: Sequence[NodeReport]) -> Table:
    """One row for each node, its cells in two lines where they can be: readable in 80 columns."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    title = f"{escape(str(model.path))} (opset {opsets})" + ("" if reports else ": no pooling nodes")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=bool(reports))
    for heading in ("node", "attributes", "input, output", "largest error", "verdict"):
        table.add_column(heading, overflow="fold")
    for report in reports:
        table.add_row(
            escape(f"{report.name}\n{report.operator}"),
            escape("\n".join(f"{name} {_joined(value)}" for name, value in report.attributes.items())),
            ""
            if report.not_compared
            else f"{_joined(report.input_shape)}\n{_joined(report.output_shape)}\n{report.element_type}",
            "\n".join(f"{data} {_amount(difference)}" for data, difference in report.differences.items()),
            _verdict(report),
        )
    return table


def _joined(value: object) -> str:
    return "×".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _amount(difference: Difference) -> str:
    if difference.text:
        return escape(difference.text)
    return f"{difference.absolute:.2g}" + (f" ({difference.ulp:.2g} ulp)" if difference.ulp else "")


def _verdict(report: NodeReport) -> str:
    if report.not_compared:
        return f"[yellow]not compared[/]: {escape(report.not_compared)}"
    if report.mismatch:
        return "[bold red]MISMATCH[/]"
    if report.explained_by:
        return f"[yellow]differs[/] (ledger: {', '.join(report.explained_by)})"
    return "[green]ok[/]" + "".join(f"\n[dim]ledger: {row}[/]" for row in report.ledger_rows)
