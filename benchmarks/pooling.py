"""Pooling beside a plain copy of the same bytes and beside every peer that is installed and can say the same thing.

    python benchmarks/pooling.py [--quick] [--compile] [--threads N] [--dtype TYPE] [--backward] [--workload TEXT]
    python benchmarks/pooling.py --random SEED [--output PATH | --publish]

README.md in this folder says what is timed and how to read the tables.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import torch
import torch.nn.functional as F
from harness import Call, console, geometric_mean
from torch import Tensor
from workloads import BYTES, FLOATS, LARGE_WORKLOADS, WORKLOADS, Workload, random_workloads

OURS, COPY = "ours", "copy"
CHANNELS_LAST = " channels_last"
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*FLOATS, *BYTES)}
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 2e-2, torch.bfloat16: 4e-2}
# Of inputs that take turns: far more than the caches keep, as far as all contestants' inputs, results and graphs find
# room beside each other.
ROTATED_BYTES = {"cpu": min(4 * harness.last_level_cache(), harness.memory() // 64), "cuda": 512 << 20}
MOST_ROTATED = 256  # of small ones, which caches may keep, as they do in a model
MARGIN = 1.05  # slower by less is a draw
RANDOM_WORKLOADS = 100
RANDOM_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 24}


class CannotSay(Exception):
    """The peer has no words for this workload."""


def main() -> None:
    options = _arguments()
    harness.keep_freed_memory()
    torch.set_num_threads(options.threads)
    dtype = DTYPES[options.dtype]
    if options.random is not None:
        workloads = random_workloads(options.random, RANDOM_WORKLOADS, RANDOM_ELEMENTS[options.device])
    else:
        workloads = WORKLOADS if options.device == "cpu" else LARGE_WORKLOADS
    chosen = [
        workload
        for workload in workloads
        if workload.allows(dtype, options.backward)
        and (not options.workload or any(text.lower() in workload.name.lower() for text in options.workload))
        and not (options.backward and workload.indices)
    ]
    if not chosen:
        raise SystemExit(f"no workload matches; there are\n{chr(10).join(workload.name for workload in workloads)}")
    machine = harness.describe_machine(options.threads, options.device)
    results = []
    with harness.progress_bar() as progress:
        task = progress.add_task("", total=len(chosen))
        for workload in chosen:
            progress.update(task, description=workload.name)
            results.append(measure(workload, dtype, options))
            progress.advance(task)
    if options.random is not None:
        results.sort(key=behind_peers, reverse=True)
    report(results, machine, options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--layout", choices=("both", "contiguous", "channels_last"), default="both", help="of ours")
    parser.add_argument("--backward", action="store_true", help="time the gradient instead of the result")
    parser.add_argument("--workload", action="append", metavar="TEXT", help="only those with TEXT in their names")
    parser.add_argument(
        "--random", type=int, metavar="SEED", help="random workloads, those first where a peer is ahead"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="only copy and ours")
    parser.add_argument("--compile", action="store_true", help="torch.compile too, which takes minutes")
    parser.add_argument("--quick", action="store_true", help="a glance: a few calls each")
    harness.add_output_options(parser)
    options = parser.parse_args()
    options.seconds = 0.01 if options.quick else 0.3 if options.device == "cpu" else 0.05
    direction = "backward" if options.backward else "forward"
    where = f"threads{options.threads}" if options.device == "cpu" else options.device
    if options.device == "cpu" and "ATEN_CPU_CAPABILITY" in os.environ:
        where += f"-{os.environ['ATEN_CPU_CAPABILITY']}"
    if options.random is not None:
        where += f"-random{options.random}"
    options.output = harness.output_of(options, f"pooling-{direction}-{options.dtype}-{where}")
    return options


# The contestants


def measure(workload: Workload, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """Race all contestants whose result is ours."""
    X = workload.input(dtype, options.device)
    expected = _tensors(torch_calls(workload.ours(dtype), [X], options.backward)[0]())
    contestants: dict[str, Sequence[Call]] = {}
    absent: dict[str, str] = {}
    for name, prepare in entrants(workload, X, expected, options):
        try:
            calls = prepare()
            _compare(calls[0](), expected, dtype)
            contestants[name] = calls
        except Exception as error:  # of many engines, each with errors of its own
            absent[name] = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    moved = bytes_moved(workload, X, expected, options.backward)
    contestants = {COPY: copies(moved, options.device), **contestants}
    room = ROTATED_BYTES["cpu"] if options.device == "cpu" and not options.quick else 0
    timings = harness.race(contestants, options.seconds, options.device, room)
    if options.compile:
        torch._dynamo.reset()
    return {
        "workload": workload.name,
        "origin": workload.origin,
        "bytes": moved,
        "milliseconds": {
            name: {"median": timing.median * 1e3, "minimum": timing.minimum * 1e3, "calls": timing.calls}
            for name, timing in timings.items()
        },
        "over_copy": {name: timing.median / timings[COPY].median for name, timing in timings.items() if name != COPY},
        "absent": absent,
    }


def entrants(
    workload: Workload, X: Tensor, expected: Sequence[Tensor], options: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Sequence[Call]]]]:
    """All who may enter: a name, and a function that prepares its calls or raises."""

    @cache
    def inputs(layout: str) -> list[Tensor]:
        return rotated(in_layout(X, layout))

    def torch_entrant(say: Callable[[], Callable[[Tensor], Any]], layout: str) -> Callable[[], Sequence[Call]]:
        return lambda: torch_calls(say(), inputs(layout), options.backward)

    in_ours = partial(workload.ours, X.dtype)
    in_torch = partial(torch_function, workload)
    layouts = {"": "contiguous", CHANNELS_LAST: "channels_last"}
    for suffix, layout in layouts.items():
        if options.layout in ("both", layout):
            yield OURS + suffix, torch_entrant(in_ours, layout)
    if not options.peers:
        return
    for suffix, layout in layouts.items():
        yield "torch" + suffix, torch_entrant(in_torch, layout)
    if options.compile:
        for suffix, layout in layouts.items():
            yield "torch.compile" + suffix, torch_entrant(lambda: torch.compile(in_torch(), dynamic=False), layout)
    if not options.backward and options.device == "cpu":
        windowed = workload.as_window() if workload.operator.startswith("Global") else workload
        yield (
            "oneDNN",
            lambda: torch_calls(torch_function(windowed), [x.to_mkldnn() for x in inputs("contiguous")], False),
        )
        yield "onnxruntime", lambda: onnxruntime_calls(workload, inputs("contiguous"), expected, options.threads)


def copies(moved: int, device: str) -> Sequence[Call]:
    """A copy reads half of the bytes and writes the other half."""
    source = torch.ones(max(1, moved // 8), device=device)
    return [partial(torch.empty_like(source).copy_, variant) for variant in rotated(source)]


def bytes_moved(workload: Workload, X: Tensor, results: Sequence[Tensor], backward: bool) -> int:
    """What the operator must read and write at least once."""
    if not backward:
        return sum(tensor.nbytes for tensor in (X, *results))
    Y = _tensors(workload.ours(X.dtype)(X))[0]
    kept = 0
    if "Lp" in workload.operator:
        kept = X.nbytes + Y.nbytes
    elif "Max" in workload.operator:
        kept = Y.numel() * 8  # Indices
    return Y.nbytes + kept + X.nbytes


def rotated(tensor: Tensor) -> list[Tensor]:
    """The tensor and as many copies as make calls in turn find their input in memory."""
    count = min(MOST_ROTATED, math.ceil(ROTATED_BYTES[tensor.device.type] / tensor.nbytes))
    return [tensor, *(tensor.clone() for _ in range(count - 1))]


def in_layout(X: Tensor, layout: str) -> Tensor:
    if layout == "contiguous":
        return X
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if X.dim() not in formats:
        raise CannotSay("torch has channels_last for two and three spatial axes")
    return X.contiguous(memory_format=formats[X.dim()])


def torch_calls(function: Callable[[Tensor], Any], inputs: Sequence[Tensor], backward: bool) -> Sequence[Call]:
    """The function on each input; or only its gradient, for a graph that is made beforehand."""
    if not backward:
        return [partial(function, X) for X in inputs]
    calls = []
    for X in inputs:
        X = X.detach().requires_grad_()
        Y = _tensors(function(X))[0]
        grad_Y = torch.linspace(0.5, 1, Y.numel(), device=Y.device).reshape(Y.shape).to(Y.dtype)
        calls.append(partial(torch.autograd.grad, Y, X, torch.empty_like(Y).copy_(grad_Y), retain_graph=True))
    return calls


def torch_function(workload: Workload) -> Callable[[Tensor], Any]:
    """The workload in the words of torch: one function, after F.pad where its own padding is too narrow a notion."""
    rank = len(workload.shape) - 2
    attributes = workload.attributes
    p = float(attributes.get("p", 2))
    spatial = tuple(range(2, 2 + rank))
    match workload.operator:
        case "GlobalAveragePool":
            return lambda X: X.mean(spatial, keepdim=True)
        case "GlobalMaxPool":
            return lambda X: X.amax(spatial, keepdim=True)
        case "GlobalLpPool":
            return lambda X: torch.linalg.vector_norm(X, p, spatial, keepdim=True)
        case "AveragePool" | "MaxPool" | "LpPool":
            kind = workload.operator
        case _:
            raise CannotSay(f"torch has no {workload.operator}")
    axes = workload.axes()
    kernel, stride = [axis.kernel for axis in axes], [axis.stride for axis in axes]
    dilation, padding = [axis.dilation for axis in axes], [axis.pad_begin for axis in axes]
    ceil_mode = bool(attributes.get("ceil_mode", 0))
    counts = bool(attributes.get("count_include_pad", 0))
    narrow = all(axis.pad_begin == axis.pad_end <= axis.kernel // 2 for axis in axes)
    if kind != "MaxPool" and any(step != 1 for step in dilation):
        raise CannotSay(f"torch dilates no {kind}")
    if kind == "AveragePool" and not narrow and not counts:
        raise CannotSay("torch counts what F.pad adds")

    padded = (kind == "LpPool" and any(padding)) or not narrow
    if padded:
        before = [pad for axis in reversed(axes) for pad in (axis.pad_begin, axis.pad_end)]
        padding = [0] * rank

    def function(X: Tensor) -> Any:
        if padded:
            X = F.pad(X, before, value=_lowest(X.dtype) if kind == "MaxPool" else 0)
        if kind == "AveragePool":
            average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
            return average(X, kernel, stride, padding, ceil_mode, counts)
        if kind == "LpPool":
            norm = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[rank - 1]
            return norm(X, p, kernel[0] if rank == 1 else kernel, stride[0] if rank == 1 else stride, ceil_mode)
        maximum = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
        return maximum(X, kernel, stride, padding, dilation, ceil_mode, return_indices=workload.indices)

    return function


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def onnxruntime_calls(
    workload: Workload, inputs: Sequence[Tensor], results: Sequence[Tensor], threads: int
) -> Sequence[Call]:
    """A model of one node, bound to the inputs' memory and to outputs that are allocated beforehand."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    types = {
        torch.float32: TensorProto.FLOAT,
        torch.float64: TensorProto.DOUBLE,
        torch.float16: TensorProto.FLOAT16,
        torch.bfloat16: TensorProto.BFLOAT16,
        torch.int8: TensorProto.INT8,
        torch.uint8: TensorProto.UINT8,
        torch.int64: TensorProto.INT64,
    }
    constants = workload.quantisation(inputs[0].dtype)
    names = ["Y", "Indices"][: len(results)]
    domain = "com.microsoft" if workload.quantised else ""
    node = helper.make_node(workload.operator, ["X", *constants], names, domain=domain, **workload.attributes)
    graph = helper.make_graph(
        [node],
        "benchmark",
        [helper.make_tensor_value_info("X", types[inputs[0].dtype], workload.shape)],
        [helper.make_tensor_value_info(name, types[y.dtype], y.shape) for name, y in zip(names, results)],
        [numpy_helper.from_array(value.numpy(), name) for name, value in constants.items()],
    )
    # onnxruntime is at its fastest below opset 19, which brought dilated averages
    opset = 19 if workload.operator == "AveragePool" and "dilations" in workload.attributes else 18
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 4
    # Between calls its threads shall not keep the cores from the others.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])

    def call(binding: Any, outputs: Sequence[Tensor], held: Tensor) -> Sequence[Tensor]:  # the binding holds no tensor
        session.run_with_iobinding(binding)
        return outputs

    calls = []
    for X in inputs:
        binding = session.io_binding()
        binding.bind_input("X", "cpu", 0, types[X.dtype], X.shape, X.data_ptr())
        outputs = [torch.empty_like(y, memory_format=torch.contiguous_format) for y in results]
        for name, y in zip(names, outputs):
            binding.bind_output(name, "cpu", 0, types[y.dtype], y.shape, y.data_ptr())
        calls.append(partial(call, binding, outputs, X))
    return calls


def _tensors(result: Any) -> Sequence[Tensor]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _compare(result: Any, expected: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Only the same work is compared. Indices are no reason to refuse: torch's are flat over a plane only."""
    Y = _tensors(result)[0].detach()
    Y = Y.to_dense() if Y.is_mkldnn else Y
    tolerance = (
        {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]} if dtype in TOLERANCES else {"rtol": 0, "atol": 1}
    )
    if Y.shape != expected[0].shape or not torch.allclose(Y.double(), expected[0].double(), **tolerance):
        raise CannotSay("gives other numbers")


# The report


def report(results: Sequence[dict[str, Any]], machine: dict[str, str], options: argparse.Namespace) -> None:
    names = list(dict.fromkeys(name for result in results for name in result["over_copy"]))
    ratios = [[result["workload"], *(_cell(result["over_copy"].get(name)) for name in names)] for result in results]
    times = [
        [f"{result['workload']} ({result['origin']})", f"{result['bytes'] / 1e6:.1f}"]
        + [_cell(result["milliseconds"].get(name, {}).get("median")) for name in (COPY, *names)]
        for result in results
    ]
    summary = summarise(results, names)
    summary_headings = ["", *next(iter(summary.values()))]
    summary_rows = [[name, *map(_cell, row.values())] for name, row in summary.items()]
    draws = [verdict(results, name) for name in names if name.startswith(OURS) and options.peers]
    harness.print_table(["time over copy", *(name.replace(" ", "\n") for name in names)], ratios)
    harness.print_table(summary_headings, summary_rows)
    for line in draws:
        console.print(line, highlight=False)

    direction = "backward" if options.backward else "forward"
    title = f"Pooling, {direction}, {options.dtype}, " + (
        "GPU" if options.device == "cuda" else f"{options.threads} thread" + "s" * (options.threads > 1)
    )
    if options.quick:
        title += " (--quick: a glance, not a measurement)"
    figure = f"![time over copy]({options.output.name}.png)"
    plotted = plot(results, names, title, options.output.with_suffix(".png"))
    sections = [
        "How this is measured and how to read it: benchmarks/README.md.",
        *([figure] if plotted else []),
        "## Time over copy, all workloads",
        harness.markdown_table(summary_headings, summary_rows),
        *draws,
        "## Time over copy",
        harness.markdown_table(["workload", *names], ratios),
        "## Median time in milliseconds",
        harness.markdown_table(["workload", "MB moved", COPY, *names], times),
    ]
    data = {
        "title": title,
        "summary": summary,
        "results": results,
    }
    harness.write(options.output, title, machine, sections, data)


def _cell(value: float | None) -> str:
    """Three digits, or all of the integer part."""
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def summarise(results: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each contestant, over the workloads that it runs."""
    summary = {}
    for name in names:
        ran = [result for result in results if name in result["over_copy"]]
        ours = [result["over_copy"][OURS] for result in ran if OURS in result["over_copy"]]
        ratios = [result["over_copy"][name] for result in ran]
        minima = [result["milliseconds"][name]["minimum"] / result["milliseconds"][COPY]["minimum"] for result in ran]
        summary[name] = {
            "workloads": len(ran),
            "median": median(ratios),
            "geometric mean": geometric_mean(ratios),
            "of minima": geometric_mean(minima),
            "worst": max(ratios),
            "ours on the same": geometric_mean(ours) if ours and not name.startswith(OURS) else None,
        }
    return summary


def fastest_peer(result: dict[str, Any]) -> float:
    """Its time over copy, whatever its layout; infinite if there is none."""
    return min((value for name, value in result["over_copy"].items() if not name.startswith(OURS)), default=math.inf)


def behind_peers(result: dict[str, Any]) -> float:
    """Our time over that of the fastest peer, in the layout where we are farthest behind."""
    ours = [value for name, value in result["over_copy"].items() if name.startswith(OURS)]
    return max(ours) / fastest_peer(result)


def verdict(results: Sequence[dict[str, Any]], ours: str) -> str:
    """Against the fastest peer, whatever its layout."""
    faster = slower = compared = 0
    for result in results:
        peer = fastest_peer(result)
        if math.isfinite(peer) and ours in result["over_copy"]:
            compared += 1
            faster += result["over_copy"][ours] * MARGIN < peer
            slower += result["over_copy"][ours] > MARGIN * peer
    percent = round((MARGIN - 1) * 100)
    return (
        f"{ours}, beside the fastest peer of each of {compared} workloads: faster in {faster}, slower in {slower}, "
        f"within {percent} % in the others."
    )


def plot(results: Sequence[dict[str, Any]], names: Sequence[str], title: str, path: Path) -> bool:
    """A line for each workload and a mark for each contestant; False if matplotlib is not there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        console.print("no plot: matplotlib is not installed")
        return False
    figure = Figure(figsize=(10, 1.6 + 0.26 * len(results)), layout="constrained")
    axes = figure.add_subplot()
    rows = range(len(results))
    for number, name in enumerate(names):
        ours = name.startswith(OURS)
        style = {"s": 60, "zorder": 3, "marker": "D", "edgecolors": "black"} if ours else {"s": 28, "marker": "o"}
        values = [result["over_copy"].get(name, math.nan) for result in results]
        axes.scatter(values, rows, label=name, color=f"C{number}", **style)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(rows, [result["workload"] for result in results], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="both", alpha=0.3)
    axes.set_xlabel("time over that of a plain copy of as many bytes (log scale, 1 is the limit)")
    axes.set_title(title, fontsize=11)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True


if __name__ == "__main__":
    main()
