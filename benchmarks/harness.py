"""What the benchmarks share: timing, the machine's description, tables and files."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

RESULTS = Path(__file__).parent / "results"  # what the README shows
OUTPUT = Path(__file__).parents[1] / "build" / "benchmarks"
ROUNDS = 3
CYCLES_TO_ENQUEUE = 100_000  # of a GPU: 50 us, which is more than a call from Python takes

console = Console()
Call = Callable[[], Any]


class Timing(NamedTuple):
    """Seconds per call."""

    median: float
    minimum: float
    calls: int


def race(
    contestants: dict[str, Sequence[Call]], seconds: float, device: str = "cpu", room: int = 0
) -> dict[str, Timing]:
    """Time each contestant for about ``seconds``, in turns, so that all see the same weather.

    A contestant is a list of calls doing the same work on different memory; they are called one after the other. What
    a call returns is kept until the same is called again, so that results go round as much memory as their inputs do.
    In each turn the first call does not count: it finds the caches as another one left them. A call that takes longer
    than ``seconds`` is timed once. Before each turn, ``room`` bytes are touched that results may get.
    """
    take_turn = _turn if device == "cpu" else _turn_on_gpu
    calls = {}
    for name, variants in contestants.items():
        _touch(room)
        calls[name] = cycle(_warmed_up([_keeping_its_result(call) for call in variants], seconds))
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    racing = set(contestants)
    for _ in range(ROUNDS):
        for name in contestants:
            if name in racing:
                _touch(room)
                first, *others = take_turn(calls[name], seconds / ROUNDS)
                if first > seconds:
                    racing.remove(name)
                    others = [first]
                samples[name] += others
    return {name: Timing(median(taken), min(taken), len(taken)) for name, taken in samples.items()}


def _touch(room: int) -> None:
    """Some of the memory that glibc gives next. It seldom fits aligned blocks into freed ones of the same size, so that
    results get new memory now and then, which a virtual machine takes longer to touch first than many calls take."""
    torch.empty(room, dtype=torch.uint8).fill_(1)


def _keeping_its_result(call: Call) -> Call:
    kept = None

    def keep() -> None:
        nonlocal kept
        kept = call()

    return keep


def _warmed_up(variants: Sequence[Call], seconds: float) -> Sequence[Call]:
    """Those that have been called once, and found room for their results: of slow ones some."""
    deadline = time.perf_counter() + 2 * seconds
    for number, call in enumerate(variants, start=1):
        call()
        if time.perf_counter() > deadline:
            return variants[:number]
    return variants


def last_level_cache() -> int:
    """The size of the CPU's largest cache in bytes; that of most machines where the system does not tell."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(path.read_text().rstrip("K\n")) << 10 for path in sizes), default=32 << 20)


def memory() -> int:
    """The machine's main memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def keep_freed_memory() -> None:
    """From now on glibc gives freed memory again, rather than back to the system, whose page faults would be timed."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_max = -1, -4  # as <malloc.h> numbers them
        mallopt(trim_threshold, -1)  # none
        mallopt(mmap_max, 0)


def _turn(calls: Iterator[Call], seconds: float) -> list[float]:
    """Two calls or more, unless the first takes longer than all turns may."""
    taken: list[float] = []
    deadline = math.inf
    while len(taken) < 2 or time.perf_counter() < deadline:
        call = next(calls)
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
        if len(taken) == 1:
            if taken[0] > seconds * ROUNDS:
                break
            deadline = time.perf_counter() + seconds
    return taken


def _turn_on_gpu(calls: Iterator[Call], seconds: float) -> list[float]:
    """What the GPU takes: events between calls that were enqueued while it was kept busy with waiting."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    next(calls)()
    torch.cuda.synchronize()
    count = 2 + min(200, int(seconds / (time.perf_counter() - start)))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    for patience in (1, 4):  # if the CPU was interrupted, and the GPU waited for it
        torch.cuda._sleep(patience * count * CYCLES_TO_ENQUEUE)
        events[0].record()
        for event in events[1:]:
            next(calls)()
            event.record()
        was_ahead = not events[0].query()
        torch.cuda.synchronize()
        if was_ahead:
            break
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(events)]


def geometric_mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def describe_machine(threads: int, device: str = "cpu") -> dict[str, str]:
    """Call it before the work: the load average is that of the others."""
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    quiet = "idle" if load < 0.25 else "NOT IDLE: other work ran beside this one, take small differences for noise"
    gpu = {} if device == "cpu" else {"GPU": describe_gpu()}
    return gpu | {
        "processor": f"{_processor()}, {cores} cores",
        "instruction set": f"{torch.backends.cpu.get_cpu_capability()} in torch, ATEN_CPU_CAPABILITY="
        + os.environ.get("ATEN_CPU_CAPABILITY", "(not set)"),
        "threads": str(threads),
        "load average before": f"{load:.1f} on {cores} cores, {quiet}",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {_version(name)}" for name in ("torch_onnxpool", "torch", "onnxruntime")),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
    }


def describe_gpu() -> str:
    facts = torch.cuda.get_device_properties()
    return (
        f"{facts.name}, {facts.multi_processor_count} multiprocessors, {facts.total_memory >> 30} GiB, "
        f"compute capability {facts.major}.{facts.minor}, CUDA {torch.version.cuda} in torch"
    )


def _processor() -> str:
    """The model's name; where the system hides it behind a virtual one, family and model tell more."""
    facts = {}
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def add_output_options(parser: argparse.ArgumentParser) -> None:
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--output", type=Path, help="the files' path, without its suffix (default: in build/benchmarks)"
    )
    either.add_argument("--publish", action="store_true", help="for maintainers: to benchmarks/results")


def output_of(options: argparse.Namespace, name: str) -> Path:
    """Where a benchmark of this name writes its files."""
    return options.output or (RESULTS if options.publish else OUTPUT) / name


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, all others are numbers."""
    marks = ["---"] + ["---:"] * (len(headings) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, marks, *rows])


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def write(output: Path, title: str, machine: dict[str, str], sections: Sequence[str], data: dict[str, Any]) -> None:
    """``output`` plus .md for people and .json for programs."""
    output.parent.mkdir(parents=True, exist_ok=True)
    facts = "\n".join(f"* {name}: {value}" for name, value in machine.items())
    output.with_suffix(".md").write_text("\n\n".join([f"# {title}", facts, *sections]) + "\n")
    output.with_suffix(".json").write_text(json.dumps({"machine": machine, **data}, indent=1) + "\n")
    console.print(f"written: {output}.md, {output}.json", highlight=False, soft_wrap=True)
