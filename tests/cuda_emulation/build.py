"""Builds the operators over the emulated CUDA kernels: a library that, once loaded, replaces the CPU kernels.

python build.py FOLDER [--sanitize]
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX", "g++")
CSRC = HERE.parents[1] / "csrc"
TORCH = Path(torch.__file__).parent
SOURCES = [*sorted(CSRC.glob("cuda/*.cu")), HERE / "bindings.cpp", HERE / "emulation.cpp"]

FLAGS = ["-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
MACROS = ["-DTORCH_TARGET_VERSION=0x020a000000000000", "-DONNXPOOL_LARGEST_GRID=5"]
# What AddressSanitizer stops at anyway is not checked twice: checks take most of the compiler's time.
UNCHECKED = "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute,object-size"
SANITIZERS = ["-fsanitize=address,undefined", UNCHECKED, "-fno-sanitize-recover=undefined", "-g1"]


def build(folder: Path, sanitize: bool = False) -> Path:
    """Compiles into a folder; returns the library."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, *MACROS]
    if sanitize:
        flags += [*SANITIZERS, "-Og"]  # compiling takes longer than the tests, but half as long as with -O1
    includes = [f"-I{HERE}", "-isystem", str(TORCH / "include")]

    def compile_source(source: Path) -> str:
        target = folder / f"{source.stem}{source.suffix[1:]}.o"
        own = {
            "bindings.cpp": ["-fvisibility=hidden"],  # as torch's own types are
            "emulation.cpp": ["-O2"],  # from where all threads are started and go on
        }
        run(["-x", "c++", *flags, *own.get(source.name, []), *includes, "-c", str(source), "-o", str(target)])
        return str(target)

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        objects = list(pool.map(compile_source, SOURCES))
    library = folder / "emulated_kernels.so"
    libraries = [f"-L{TORCH / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu", "-ldl"]
    run(["-shared", *flags, *objects, *libraries, "-o", str(library)])
    return library


def run(arguments: list[str]) -> None:
    subprocess.run([COMPILER, *arguments], check=True)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), "--sanitize" in sys.argv[2:]))
