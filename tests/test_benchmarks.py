"""The benchmarks run and write their files; what they measure is not judged here. Another tool for GPUs runs, too."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _run(script: str, *arguments: str | Path) -> None:
    command = [sys.executable, BENCHMARKS / script, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_pooling(tmp_path):
    """Every peer runs this workload, and gives our numbers; the gradient only torch."""
    workload = "AveragePool 2x2 s2, 8x128x56x56"
    peers = {"torch", "torch channels_last", "oneDNN", "onnxruntime"}
    for arguments, expected in (([], peers), (["--backward"], {"torch", "torch channels_last"})):
        _run("pooling.py", "--quick", "--workload", workload, "--output", tmp_path / "pooling", *arguments)
        results = json.loads((tmp_path / "pooling.json").read_text())
        (result,) = results["results"]
        assert result["workload"] == workload
        assert not result["absent"]
        assert set(result["over_copy"]) == expected | {"ours", "ours channels_last"}
        ours = results["summary"]["ours"]
        assert ours["median"] == result["over_copy"]["ours"] == pytest.approx(ours["geometric mean"])
        assert workload in (tmp_path / "pooling.md").read_text()
        assert (tmp_path / "pooling.png").exists() == (importlib.util.find_spec("matplotlib") is not None)


def test_random_workloads(tmp_path):
    """Random windows are valid, the same for a seed, and sorted by how far the peers are ahead."""
    arguments = ("--quick", "--random", "1", "--workload", "MaxPool 5x5", "--output", tmp_path / "random")
    _run("pooling.py", *arguments)
    results = json.loads((tmp_path / "random.json").read_text())["results"]
    assert results
    assert all("ours" in result["over_copy"] for result in results)

    def behind(result):
        ours, peers = [], []
        for name, ratio in result["over_copy"].items():
            (ours if name.startswith("ours") else peers).append(ratio)
        return max(ours) / min(peers)

    assert results == sorted(results, key=behind, reverse=True)
    _run("pooling.py", *arguments)
    again = json.loads((tmp_path / "random.json").read_text())["results"]
    assert {result["workload"] for result in again} == {result["workload"] for result in results}


def test_call_overhead(tmp_path):
    _run("call_overhead.py", "--quick", "--output", tmp_path / "call_overhead")
    rows = json.loads((tmp_path / "call_overhead.json").read_text())["microseconds"]
    assert "GlobalLpPool" in rows
    assert "GlobalLpPool" in (tmp_path / "call_overhead.md").read_text()


def test_engines(tmp_path):
    """All is right with ours; onnxruntime refuses four axes, for one."""
    _run("engines.py", "--operator", "MaxUnpool", "--output", tmp_path / "engines")
    counts = json.loads((tmp_path / "engines.json").read_text())["counts"]
    (ours,) = counts["torch_onnxpool"].values()
    assert set(ours) == {"right"}
    assert 0 < counts["onnxruntime"]["MaxUnpool"]["right"] < ours["right"]
    assert "MaxUnpool" in (tmp_path / "engines.md").read_text()


def test_published_tables_are_replaced_only_on_request(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import harness

    parser = argparse.ArgumentParser()
    harness.add_output_options(parser)
    for arguments, path in (
        ([], BENCHMARKS.parent / "build" / "benchmarks" / "table"),
        (["--output", "elsewhere"], Path("elsewhere")),
        (["--publish"], BENCHMARKS / "results" / "table"),
    ):
        assert harness.output_of(parser.parse_args(arguments), "table") == path


def test_case_table():
    """What compute-sanitizer watches on a GPU runs without one as well."""
    program = BENCHMARKS.parent / "tools" / "case_table.py"
    finished = subprocess.run([sys.executable, program, "--device", "cpu"], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
