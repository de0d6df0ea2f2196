# make demo and make test are all a newcomer needs: Python 3.10+, a C++ compiler and make.
# Every target sets up what it needs. VENV names the environment, PYTHON the interpreter that creates it, and
# TORCH_ONNXPOOL_ABI=aten builds against ATen instead of LibTorch's stable ABI (give it a VENV of its own).
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

bin := $(VENV)/bin
requirements := $(VENV)/.requirements
installed := $(VENV)/.installed
sources := setup.py pyproject.toml $(shell find csrc -type f)
cpp := $(shell find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: demo test lint format docs audit clean

demo: $(installed)
	$(bin)/python examples/train_and_export.py
	$(bin)/python -m torch_onnxpool verify "$$($(bin)/python -c 'import onnx; print(onnx.__path__[0])')"/backend/test/data/light/*.onnx

test: $(installed)
	$(bin)/pytest -n $(WORKERS) -q tests export_tests

lint: $(requirements)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/clang-format --dry-run -Werror $(cpp)

format: $(requirements)
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(cpp)

# The stable build must run on every torch since 2.10 and on every Python since 3.10.
docs: $(installed)
	$(bin)/python docs/readme_tables.py

audit: $(installed)
	$(bin)/python tools/audit.py

clean:
	rm -rf build *.egg-info torch_onnxpool/*.so $(installed)

$(requirements): requirements-dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torch_onnxpool needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install -r requirements-dev.txt
	touch $@

# --no-deps: what the package needs is pinned above, so that nothing is left for pip to choose.
$(installed): $(requirements) $(sources)
	$(bin)/python -m pip install --no-build-isolation --no-deps -e .
	touch $@
