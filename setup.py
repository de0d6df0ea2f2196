"""Builds the native extension against the torch of the target environment.

TORCH_ONNXPOOL_ABI=stable  LibTorch's stable ABI, the default: one binary for torch >= 2.10
TORCH_ONNXPOOL_ABI=aten    plain ATen: for exactly the torch it was built with

torch is not a build requirement: build isolation would download another one, several gigabytes large. It is looked up
in the environment that the package is installed into.
"""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PYTHON_API = 0x030A0000  # the limited API of Python 3.10
TORCH_API = "0x020a000000000000"  # the stable ABI of torch 2.10


def torch_folder() -> Path:
    """Where torch is installed, without importing it."""
    for name in ("platlib", "purelib"):
        folder = Path(sysconfig.get_paths()[name]) / "torch"
        if (folder / "include" / "torch" / "csrc" / "stable" / "library.h").is_file():
            return folder
    for entry in sys.path:
        folder = Path(entry) / "torch"
        if (folder / "include" / "torch" / "csrc" / "stable" / "library.h").is_file():
            return folder
    sys.exit("torch_onnxpool: building needs torch >= 2.10 in this environment; install it first, then torch_onnxpool")


def native_extension() -> Extension:
    abi = os.environ.get("TORCH_ONNXPOOL_ABI", "stable")
    if abi not in ("stable", "aten"):
        sys.exit(f"torch_onnxpool: TORCH_ONNXPOOL_ABI must be stable or aten, got {abi}")
    torch = torch_folder()
    include = torch / "include"
    macros = [("Py_LIMITED_API", hex(PYTHON_API))]
    # No contraction to fused multiply-adds: the same bits on every instruction set. Nobody reads errno or the flags of
    # floating-point exceptions, which would keep loops from being vectorised.
    flags = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    flags += ["-fvisibility=hidden", "-Wall", "-Wextra", "-g0"]
    link_flags = []
    if abi == "aten":
        macros.append(("TORCH_ONNXPOOL_ATEN", None))
        flags += ["-std=c++20", "-fopenmp", "-Wno-unused-parameter"]
        link_flags += ["-fopenmp"]
    else:
        macros.append(("TORCH_TARGET_VERSION", TORCH_API))
        flags += ["-std=c++17"]
    csrc = ROOT / "csrc"
    return Extension(
        "torch_onnxpool._C",
        sources=sorted(str(path.relative_to(ROOT)) for path in csrc.rglob("*.cpp")),
        depends=[str(path.relative_to(ROOT)) for path in csrc.rglob("*") if path.suffix in (".h", ".inl")],
        define_macros=macros,
        # -isystem: torch's own headers do not warn.
        extra_compile_args=[*flags, "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")],
        extra_link_args=link_flags,
        library_dirs=[str(torch / "lib")],
        libraries=["c10", "torch", "torch_cpu"],
        language="c++",
        py_limited_api=True,
    )


class ParallelBuild(build_ext):
    """Compiles the sources side by side: the kernels of each instruction set take a minute."""

    def build_extensions(self) -> None:
        compile_sources = self.compiler.compile

        def compile_one_each(sources: list[str], **arguments) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_sources([source], **arguments), sources)
            return [name for names in objects for name in names]

        self.compiler.compile = compile_one_each
        super().build_extensions()


setup(
    ext_modules=[native_extension()],
    cmdclass={"build_ext": ParallelBuild},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
