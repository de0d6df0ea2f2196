# make demo and make test are all a newcomer needs, with Python 3.10+, a C++ compiler and make.
# Every target sets up what it needs. PYTHON creates the environment, VENV names it. TORCH_ONNXPOOL_ABI=aten builds
# against ATen instead of LibTorch's stable ABI; TORCH_ONNXPOOL_CUDA=1 or 0 builds with or without the kernels for
# NVIDIA GPUs, instead of finding out whether they can be built and used.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
TESTS ?= tests export_tests

bin := $(VENV)/bin
environment := $(VENV)/.requirements-installed
package := $(VENV)/.package-installed-$(or $(TORCH_ONNXPOOL_ABI),stable)-cuda-$(or $(TORCH_ONNXPOOL_CUDA),auto)
native := $(shell find csrc -type f)
native_users := $(wildcard examples/*.cpp tests/*.cpp tests/cuda_emulation/*.h tests/cuda_emulation/*.cpp)

.PHONY: build demo test compatibility bench gpu lint format docs audit clean

build: $(package)

demo: $(package)
	$(bin)/python examples/train_and_export.py --output build/example
	$(bin)/python -m torch_onnxpool verify build/example/*.onnx \
		"$$($(bin)/python -c 'import onnx; print(onnx.__path__[0])')"/backend/test/data/light/*.onnx

test: $(package)
	$(bin)/pytest -n $(WORKERS) --dist worksteal $(TESTS)

# The same tests and the same binary in an environment of its own with another torch: make compatibility TORCH=2.10.0.
# Gigabytes on Linux, where PyPI's torch brings CUDA along.
other := $(VENV)-torch-$(TORCH)
compatibility: $(package)
	$(PYTHON) -m venv $(other)
	$(other)/bin/python -m pip install torch==$(TORCH)
	$(other)/bin/python -m pip install -r <(grep -vE '^(torch|setuptools)==' requirements-dev.txt)
	PYTHONPATH=$(CURDIR) $(other)/bin/python -m pytest -n $(WORKERS) --ignore=tests/test_build.py \
		--ignore=tests/test_sanitizers.py $(TESTS)

# BENCH passes options: make bench BENCH="--threads 2 --backward"
bench: $(package)
	$(bin)/python benchmarks/pooling.py $(BENCH)
	$(bin)/python benchmarks/call_overhead.py $(filter --publish,$(BENCH))

# All that needs a GPU: build, tests, compute-sanitizer, benchmarks; within ten minutes. GPU_PYTHON names a Python that
# already has torch with CUDA and what requirements-dev.txt lists. GPU passes options: see tools/gpu.py
gpu: $(if $(GPU_PYTHON),,$(environment))
	$(or $(GPU_PYTHON),$(bin)/python) tools/gpu.py $(GPU)

lint: $(environment)
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/clang-format --dry-run -Werror $(native) $(native_users)

format: $(environment)
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/clang-format -i $(native) $(native_users)

docs: $(package)
	$(bin)/python tools/readme_tables.py

# One binary for every Python since 3.10 and every torch since 2.10.
audit: $(package)
	$(bin)/abi3audit --strict --summary --assume-minimum-abi3 3.10 torch_onnxpool/_C.abi3.so
	for library in torch_onnxpool/lib*.so; do \
		report=$$($(bin)/torch-abi-audit --check both "$$library"); \
		echo "$$report"; \
		grep -q 'Torch ABI: *STABLE' <<< "$$report"; \
		grep -q 'Min torch: *2\.10\.' <<< "$$report"; \
	done

clean:
	rm -rf build *.egg-info torch_onnxpool/*.so $(VENV)/.package-installed-*

$(environment): requirements-dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torch_onnxpool needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install -r requirements-dev.txt
	touch $@

# A checkout holds one build. What takes minutes is compiled before pip, which would not show how far it is. --no-deps:
# all that the package needs is pinned above, nothing is left for pip to choose.
$(package): $(environment) setup.py pyproject.toml $(native)
	rm -f $(VENV)/.package-installed-*
	[[ "$(TORCH_ONNXPOOL_CUDA)" != 1 ]] || command -v nvcc || $(bin)/python -m pip install -r requirements-nvcc.txt
	export TORCH_ONNXPOOL_ABI=$(or $(TORCH_ONNXPOOL_ABI),stable) TORCH_ONNXPOOL_CUDA=$(or $(TORCH_ONNXPOOL_CUDA),auto); \
	$(bin)/python setup.py --quiet build_ext; \
	$(bin)/python -m pip install --no-build-isolation --no-deps --editable .
	touch $@
