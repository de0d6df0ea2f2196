"""What one call costs before any work: one element, one thread, ours beside torch.nn.functional.

python benchmarks/call_overhead.py [--quick] [--device DEVICE] [--output PATH | --publish]
"""

from __future__ import annotations

import argparse
import math
from timeit import Timer

import harness
import torch
import torch.nn.functional as F

import torch_onnxpool

# our function, our layer, and torch's nearest function
CALLS = {
    "AveragePool": ("average_pool(X, [1, 1])", "AveragePool([1, 1])", "F.avg_pool2d(X, [1, 1])"),
    "AveragePool 3x3 s2 p1": (
        "average_pool(X, [3, 3], pads=[1, 1, 1, 1], strides=[2, 2])",
        "AveragePool([3, 3], pads=[1, 1, 1, 1], strides=[2, 2])",
        "F.avg_pool2d(X, [3, 3], [2, 2], [1, 1])",
    ),
    "MaxPool": ("max_pool(X, [1, 1])", "MaxPool([1, 1])", "F.max_pool2d(X, [1, 1])"),
    "MaxPool 3x3 s2 p1": (
        "max_pool(X, [3, 3], pads=[1, 1, 1, 1], strides=[2, 2])",
        "MaxPool([3, 3], pads=[1, 1, 1, 1], strides=[2, 2])",
        "F.max_pool2d(X, [3, 3], [2, 2], [1, 1])",
    ),
    "MaxPool with Indices": (
        "max_pool(X, [1, 1], return_indices=True)",
        "MaxPool([1, 1], return_indices=True)",
        "F.max_pool2d(X, [1, 1], return_indices=True)",
    ),
    "LpPool": ("lp_pool(X, [1, 1])", "LpPool([1, 1])", "F.lp_pool2d(X, 2.0, [1, 1])"),
    "GlobalAveragePool": ("global_average_pool(X)", "GlobalAveragePool()", "X.mean((2, 3), keepdim=True)"),
    "GlobalMaxPool": ("global_max_pool(X)", "GlobalMaxPool()", "X.amax((2, 3), keepdim=True)"),
    "GlobalLpPool": (
        "global_lp_pool(X)",
        "GlobalLpPool()",
        "torch.linalg.vector_norm(X, 2, (2, 3), keepdim=True)",
    ),
}


def timers_of(function: str, layer: str, peer: str, device: str) -> dict[str, Timer]:
    """By column: all three without gradient, then all three with."""
    X = torch.ones(1, 1, 1, 1, device=device)
    inputs = {"": X, ", gradient": X.clone().requires_grad_()}
    names = {**vars(torch_onnxpool), "F": F, "torch": torch}
    names["layer"] = eval(layer, names)
    ways = {"function": function, "layer": "layer(X)", "torch": peer}
    return {
        way + suffix: Timer(call, globals={**names, "X": X})
        for suffix, X in inputs.items()
        for way, call in ways.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a glance: few calls")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    harness.add_output_options(parser)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    output = harness.output_of(options, "call_overhead-cuda" if on_gpu else "call_overhead")
    torch.set_num_threads(1)
    # A GPU is waited for between repeats, not between calls: it takes up to a thousand before a call waits for it.
    repeats, calls = (5, 50) if options.quick else (100, 500 if on_gpu else 1000)
    machine = harness.describe_machine(1, options.device)

    timers = {operator: timers_of(*ways, options.device) for operator, ways in CALLS.items()}
    microseconds = {operator: dict.fromkeys(timers[operator], math.inf) for operator in CALLS}
    with harness.progress_bar() as progress:
        for _ in progress.track(range(repeats)):  # all in turns, so that they see the same weather
            for operator, fastest in microseconds.items():
                for way, timer in timers[operator].items():
                    fastest[way] = min(fastest[way], timer.timeit(calls) / calls * 1e6)
                    if on_gpu:
                        torch.cuda.synchronize()

    headings = ["us per call", *next(iter(microseconds.values()))]
    rows = [[operator, *(f"{value:.2f}" for value in row.values())] for operator, row in microseconds.items()]
    harness.print_table([heading.replace(", ", ",\n") for heading in headings], rows)
    sections = [
        "One float32 element, the minimum over repeats; gradient: the input requires one, the forward pass is timed. "
        "More in benchmarks/README.md.",
        harness.markdown_table(headings, rows),
    ]
    harness.write(output, "Call overhead", machine, sections, {"microseconds": microseconds})


if __name__ == "__main__":
    main()
