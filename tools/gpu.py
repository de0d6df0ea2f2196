"""All that needs an NVIDIA GPU, in one go: `make gpu`. Build, tests, compute-sanitizer, benchmarks; within ten minutes.

python tools/gpu.py [--device cpu] [--minutes N] [--quick] [--only STEP] [--publish]

Ends with a table, which is written to build/gpu/gpu.md and .json beside the benchmarks' own files and plots, or with
--publish to benchmarks/results. Whatever fails, the rest is still done; the exit status tells, and build/gpu holds what
each step wrote.
`--device cpu` rehearses where there is no GPU. `--only benchmark --only tests` does these steps with the build that is
there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "gpu"
sys.path.insert(0, str(ROOT / "benchmarks"))
import harness  # noqa: E402

TYPES = ("float32", "bfloat16", "float16")
COMPILED = ("MaxPool 3x3 s2", "AveragePool 3x3 s2", "GlobalAveragePool, 64x256")  # compilers take seconds for each

WITHOUT_SHARED_MEMORY = ("patches", "by_window")  # parts of the names of kernels that cannot have races

FOUND_BY_SANITIZER = re.compile(r"^=+ (ERROR|RACECHECK) SUMMARY: (?!0 )", re.MULTILINE)


class Step(NamedTuple):
    name: str
    command: Sequence[str | Path]
    seconds: int  # at most
    environment: dict[str, str] = {}  # noqa: RUF012  nobody changes it


class Outcome(NamedTuple):
    name: str
    result: str
    seconds: float
    passed: bool


def steps(options: argparse.Namespace) -> Iterator[Step]:
    on_gpu = options.device == "cuda"
    python, device = sys.executable, ["--device", options.device]
    build = {"TORCH_ONNXPOOL_CUDA": "auto"}
    if on_gpu:
        major, minor = torch.cuda.get_device_capability()
        build = {"TORCH_ONNXPOOL_CUDA": "1", "TORCH_ONNXPOOL_CUDA_ARCHITECTURES": f"{major}{minor}"}
    yield Step("build", [python, "setup.py", "build_ext", "--inplace"], 240, build)

    workers = ["-n", str(min(16, os.cpu_count() or 1))]
    pytest = [python, "-m", "pytest", *device]
    tests = ["tests/test_random.py"] if options.quick else ["tests", "export_tests"]
    yield Step("tests", [*pytest, *workers, *tests], 300)

    quick = ["--quick"] if options.quick else []
    for direction, kind in product(("forward", "backward"), TYPES):
        yield benchmark(options, direction, kind, ["--dtype", kind])
    output = options.folder / f"call_overhead-{options.device}"
    yield Step("call overhead", [python, "benchmarks/call_overhead.py", *device, *quick, "--output", output], 60)

    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that each tensor has bounds of its own
    for tool, excluded in (("memcheck", ()), ("racecheck", WITHOUT_SHARED_MEMORY)):
        filters = ["--kernel-name", "kns=onnxpool"]
        filters += [word for part in excluded for word in ("--kernel-name-exclude", f"kns={part}")]
        watched = ["compute-sanitizer", "--tool", tool, *filters] if on_gpu else []
        yield Step(tool, [*watched, python, "tools/case_table.py", *device], 100, uncached)

    some = [word for text in COMPILED for word in ("--workload", text)]
    for direction in ("forward", "backward"):
        yield benchmark(options, direction, "compiled", ["--compile", *some])


def benchmark(options: argparse.Namespace, direction: str, kind: str, more: Sequence[str]) -> Step:
    output = options.folder / f"pooling-{direction}-{kind}-{options.device}"
    command = [sys.executable, "benchmarks/pooling.py", "--device", options.device, *more, "--output", output]
    command += ["--quick"] * options.quick + ["--backward"] * (direction == "backward")
    return Step(f"benchmark {direction} {kind}", command, 90)


def run(step: Step, deadline: float) -> Outcome:
    """The last line that a program writes says how it went."""
    limit = min(step.seconds, deadline - time.monotonic())
    if limit <= 0:
        return Outcome(step.name, "NOT RUN: no time was left", 0, False)
    begin = time.monotonic()
    log = LOGS / f"{step.name.replace(' ', '-')}.log"
    print(f"{step.name} ... ", end="", flush=True)
    try:
        with log.open("w") as output:
            search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            environment = os.environ | {"PYTHONPATH": search_path} | step.environment
            finished = subprocess.run(
                step.command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=limit
            )
        text = log.read_text()
        passed = finished.returncode == 0 and not FOUND_BY_SANITIZER.search(text)
        lines = text.strip().splitlines()
        result = "passed" if passed else f"FAILED ({finished.returncode})"
        result += f": {lines[-1].strip(' =')[:100]}" if lines and (not passed or "pytest" in step.command) else ""
    except subprocess.TimeoutExpired:
        passed, result = False, f"STOPPED after {limit:.0f} s"
    except FileNotFoundError as missing:
        passed, result = False, f"MISSING: {missing.filename}"
    outcome = Outcome(step.name, result, time.monotonic() - begin, passed)
    print(f"{result} ({outcome.seconds:.0f} s)", flush=True)
    return outcome


# Of a benchmark's summary: whose time over that of a copy.
COLUMNS = {
    "ours": ("ours", "geometric mean"),
    "worst": ("ours", "worst"),
    "ours channels_last": ("ours channels_last", "geometric mean"),
    "its worst": ("ours channels_last", "worst"),
    "torch": ("torch", "geometric mean"),
    "torch.compile": ("torch.compile", "geometric mean"),
}


def benchmark_rows(folder: Path, since: float) -> Iterator[list[str]]:
    """Time over copy of the benchmarks just run, over all workloads of each."""
    for path in sorted(folder.glob("pooling-*.json")):
        if path.stat().st_mtime >= since:
            summary = json.loads(path.read_text())["summary"]
            cells = (summary.get(name, {}).get(key) for name, key in COLUMNS.values())
            yield [path.stem.removeprefix("pooling-"), *("-" if cell is None else f"{cell:.2f}" for cell in cells)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument("--minutes", type=float, default=9.5, help="what has not been done by then is left out")
    parser.add_argument("--quick", action="store_true", help="a glance: few tests, benchmarks with --quick")
    parser.add_argument("--only", action="append", metavar="STEP", help="only steps with STEP in their names")
    parser.add_argument("--publish", action="store_true", help="for maintainers: to benchmarks/results")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no NVIDIA GPU here; --device cpu rehearses without one")
    options.folder = harness.RESULTS if options.publish else LOGS
    LOGS.mkdir(parents=True, exist_ok=True)

    since = time.time()
    machine = harness.describe_machine(1, options.device)
    deadline = time.monotonic() + options.minutes * 60
    wanted = (step for step in steps(options) if not options.only or any(text in step.name for text in options.only))
    outcomes = [run(step, deadline) for step in wanted]
    headings = ["step", "result", "seconds"]
    rows = [[outcome.name, outcome.result, f"{outcome.seconds:.0f}"] for outcome in outcomes]
    benchmark_headings = ["time over copy", *COLUMNS]
    benchmarks = list(benchmark_rows(options.folder, since))
    harness.print_table(headings, rows)
    harness.print_table(benchmark_headings, benchmarks)
    sections = [harness.markdown_table(headings, rows), harness.markdown_table(benchmark_headings, benchmarks)]
    data = {"steps": [outcome._asdict() for outcome in outcomes], "benchmarks": benchmarks}
    harness.write(options.folder / "gpu", "All that needs a GPU", machine, sections, data)
    sys.exit(not all(outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    main()
