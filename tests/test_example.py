"""The example runs, and what it exports stands up to verify."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from torch_onnxpool.onnx import verify

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_and_export.py"


def test_train_and_export(tmp_path):
    """A difference between torch and onnxruntime ends the example with an error."""
    command = [sys.executable, EXAMPLE, "--epochs", "1", "--output", tmp_path]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "UserWarning" not in finished.stderr, finished.stderr
    for exporter in ("dynamo", "torchscript"):
        assert f"onnxruntime, {exporter} exporter" in finished.stdout
        classifier = verify.Model(tmp_path / f"classifier_{exporter}.onnx")
        operators = [node.op_type for node in classifier.nodes]
        assert operators == ["AveragePool", "LpPool", "MaxPool", "GlobalLpPool"]
        quantised = verify.Model(tmp_path / f"quantised_{exporter}.onnx")
        assert [node.op_type for node in quantised.nodes] == ["QLinearGlobalAveragePool"]
        for model in (classifier, quantised):
            assert not any(report.mismatch or report.explained_by for report in model.compare())
