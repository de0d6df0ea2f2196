"""The README's tables say what the code says, and its examples run as printed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_tables_are_up_to_date():
    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "tools" / "readme_tables.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.with_tables(README) == README, "run `make docs`"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.strip().splitlines()[-1])
def test_example_runs(example, tmp_path):
    finished = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert not re.search("(User|Portability)Warning", finished.stderr), finished.stderr  # others are torch's own


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def test_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make (\w+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
