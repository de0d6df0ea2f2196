"""Builds the native extensions against the torch of the target environment.

TORCH_ONNXPOOL_ABI=stable   LibTorch's stable ABI, the default: one binary for torch >= 2.10
TORCH_ONNXPOOL_ABI=aten     plain ATen: for exactly the torch it was built with

TORCH_ONNXPOOL_CUDA=auto    kernels for NVIDIA GPUs if that torch has CUDA and there is an nvcc, the default
TORCH_ONNXPOOL_CUDA=1       with them, whatever the torch; nvcc has to be there
TORCH_ONNXPOOL_CUDA=0       without them
TORCH_ONNXPOOL_CUDA_ARCHITECTURES="75 80"   for these compute capabilities only, and for all later than the last

torch is not a build requirement: build isolation would download another one, several gigabytes large. It is looked up
in the environment that the package is installed into. nvcc is that of CUDA_HOME, on the PATH, or of NVIDIA's packages
from PyPI, in this order.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PYTHON_API = 0x030A0000  # the limited API of Python 3.10
TORCH_API = "0x020a000000000000"  # the stable ABI of torch 2.10
# One of each generation: 8.6 and 8.9 run the machine code of 8.0 as it is, as 10.3 runs that of 10.0.
CUDA_ARCHITECTURES = "75 80 90 100 120"
# Most of the time goes into the intermediate code that machine code is made from. Kernels ask for nothing that is newer
# than the second of these: made from it, they are as fast on an H200 as those made for it alone.
CUDA_INTERMEDIATE = (75, 80)
OLDEST_NVCC = (12, 8)  # the first for all of these

# The CPU's kernels, which know nothing of torch, are compiled for each of these by itself: it takes minutes. Those that
# take longest come first.
REDUCTIONS = ["kLpNorm", "kMaxWithIndex", "kAverage", "kMax", "kQuantizedAverage", "kQuantizedGlobalAverage"]

# No contraction to fused multiply-adds: the same bits on every instruction set and device. Nobody reads errno or the
# flags of floating-point exceptions, which would keep loops from being vectorised.
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# GCC 12 and 13 merge functions that differ only in what is known of their values (PR 113907): the same loop, written
# for vectors of several lengths, ended too early for some.
FLAGS += ["-fno-ipa-icf"]
# Vectors go from function to function in ways that depend on the instruction set, but never to other files.
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi", "-g0"]


def fail(text: str) -> None:
    sys.exit(f"torch_onnxpool: {text}")


def choice(variable: str, *values: str) -> str:
    """The value of an environment variable; the first one unless it is set."""
    chosen = os.environ.get(variable) or values[0]
    if chosen not in values:
        fail(f"{variable} must be {', '.join(values[:-1])} or {values[-1]}, got {chosen}")
    return chosen


ABI = choice("TORCH_ONNXPOOL_ABI", "stable", "aten")
CUDA = choice("TORCH_ONNXPOOL_CUDA", "auto", "1", "0")


def site_folders() -> list[Path]:
    """Where packages are, those of the target environment first."""
    return [Path(sysconfig.get_paths()[name]) for name in ("platlib", "purelib")] + [Path(entry) for entry in sys.path]


def torch_folder() -> Path:
    """Where torch is installed, without importing it."""
    for folder in site_folders():
        if (folder / "torch" / "include" / "torch" / "csrc" / "stable" / "library.h").is_file():
            return folder / "torch"
    fail(
        f"building needs torch >= 2.10 in {sys.prefix}; install it first, then torch_onnxpool. If this is not the "
        "environment where torch is, the build was isolated from it: --no-build-isolation (pip, uv) or --no-isolation "
        "(build) turns that off"
    )


def torch_has_cuda(torch: Path) -> bool:
    return re.search(r"^cuda\b.*=\s*['\"]", (torch / "version.py").read_text(), re.MULTILINE) is not None


def find_nvcc() -> str | None:
    if "CUDA_HOME" in os.environ:
        return shutil.which("nvcc", path=f"{os.environ['CUDA_HOME']}/bin")
    packaged = (str(path) for folder in site_folders() for path in sorted(folder.glob("nvidia/*/bin/nvcc")))
    return shutil.which("nvcc") or next(packaged, None)


@cache
def release_of(nvcc: str) -> tuple[int, ...]:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", text)
    return tuple(map(int, release.groups())) if release else ()


def nvcc_to_use(torch: Path) -> str | None:
    """None where the kernels for GPUs are not wanted; not to find it where they are is an error."""
    if CUDA == "0" or (CUDA == "auto" and not torch_has_cuda(torch)):
        return None
    nvcc = find_nvcc()
    problem = "no nvcc was found: not in CUDA_HOME, not on the PATH, not among the packages of this environment"
    if nvcc:
        if release_of(nvcc) >= OLDEST_NVCC:
            return nvcc
        problem = f"{nvcc} is older than {'.'.join(map(str, OLDEST_NVCC))}"
    if CUDA == "1":
        fail(f"TORCH_ONNXPOOL_CUDA=1 asks for the kernels for NVIDIA GPUs, but {problem}")
    print(f"torch_onnxpool: building without the kernels for NVIDIA GPUs: {problem}", file=sys.stderr)
    return None


def torch_flags(torch: Path) -> list[str]:
    """-isystem: its headers do not warn."""
    include = torch / "include"
    flags = ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    if ABI == "aten":
        return [*flags, "-std=c++20", "-DTORCH_ONNXPOOL_ATEN"]
    return [*flags, "-std=c++17", f"-DTORCH_TARGET_VERSION={TORCH_API}"]


class Unit(NamedTuple):
    """A source file, compiled in one way: `variant` tells its object file from others of the same source."""

    source: str
    flags: list[str]
    variant: str

    @property
    def object_file(self) -> str:
        return f"{self.source}.{self.variant}.o"


def units_of(pattern: str, flags: list[str], variant: str) -> list[Unit]:
    return [Unit(str(path.relative_to(ROOT)), flags, variant) for path in sorted(ROOT.glob(pattern))]


class NativeExtension(Extension):
    """A shared object with its own compiler, or the environment's if that is None: Python's module, or a library of
    torch's operators, which knows nothing of Python, so that programs without it can load it, too."""

    def __init__(self, name: str, units: list[Unit], link_flags: Sequence[str] = (), compiler: str | None = None):
        native = [str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/**/*.*")]  # all for a source distribution
        super().__init__(name, sorted({unit.source for unit in units}), depends=native, py_limited_api=True)
        self.units, self.link_flags, self.compiler = units, link_flags, compiler


def module() -> NativeExtension:
    python = [f"-DPy_LIMITED_API={PYTHON_API:#x}", "-isystem", sysconfig.get_paths()["include"]]
    return NativeExtension("torch_onnxpool._C", units_of("csrc/module.cpp", [*FLAGS, "-std=c++17", *python], "any"))


def cpu_library(torch: Path) -> NativeExtension:
    openmp = ["-fopenmp", "-Wno-unused-parameter"] if ABI == "aten" else []
    bindings = [*FLAGS, *openmp, *torch_flags(torch)]
    # GCC takes its own headers' undefined vectors, which are initialised with themselves, for mistakes (PR 105593).
    kernels = [*FLAGS, "-std=c++17", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
    units = []
    for reduction in REDUCTIONS:
        units += units_of("csrc/cpu/kernels_*.cpp", [*kernels, f"-DONNXPOOL_REDUCTION={reduction}"], reduction)
    units += units_of("csrc/cpu/kernels.cpp", kernels, "any")
    units += units_of("csrc/cpu/unpool.cpp", kernels, "any")
    units += units_of("csrc/cpu/bindings.cpp", bindings, ABI)
    units += units_of("csrc/ops.cpp", bindings, ABI)
    link_flags = [*openmp[:1], f"-L{torch / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu"]
    return NativeExtension("torch_onnxpool.libtorch_onnxpool", units, link_flags)


def cuda_code(architectures: list[str]) -> dict[int, list[str]]:
    """The machine code to be made from each intermediate code; from the last one, also what later GPUs need."""
    code: dict[int, list[str]] = {}
    for architecture in architectures:
        number = re.fullmatch(r"(\d+)[af]?", architecture)
        older = [intermediate for intermediate in CUDA_INTERMEDIATE if number and intermediate <= int(number[1])]
        if not older:
            fail(
                f"TORCH_ONNXPOOL_CUDA_ARCHITECTURES must name architectures from {CUDA_INTERMEDIATE[0]} on, "
                f"got {architecture!r}"
            )
        code.setdefault(older[-1], []).append(f"sm_{architecture}")
    latest = max(code)
    code[latest].append(f"compute_{latest}")
    return code


def cuda_library(torch: Path, nvcc: str) -> NativeExtension:
    """Of what torch has for CUDA, a torch without it has headers but no libraries: those are found when loading."""
    given = os.environ.get("TORCH_ONNXPOOL_CUDA_ARCHITECTURES") or CUDA_ARCHITECTURES
    architectures = re.split(r"[\s,;]+", given.strip())
    targets = [
        f"-gencode=arch=compute_{intermediate},code=[{','.join(codes)}]"
        for intermediate, codes in cuda_code(architectures).items()
    ]
    # What an nvcc 12 makes runs on drivers from 525 on, but so compressed from 550 on. An nvcc 13 asks for 580 anyway.
    compression = ["--compress-mode=size"] if release_of(nvcc) >= (13,) else []
    flags = [
        *(f"-Xcompiler={flag}" for flag in ["-fPIC", *FLAGS]),
        *("-O3", "-fmad=false", "--expt-relaxed-constexpr", *compression, "--threads=2", *targets),
        # Of kernels that ask for more blocks at once than some architectures have threads for: these run what they can.
        "-Xptxas=--disable-warnings",
    ]
    kernels = units_of("csrc/cuda/*.cu", [*flags, "-std=c++17"], "any")
    kernels.sort(key=lambda unit: not unit.source.endswith("norm.cu"))  # which takes longest
    bindings = [*flags, "-DUSE_CUDA", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", *torch_flags(torch)]
    if ABI == "aten":
        bindings.append("-Xcompiler=-Wno-unused-parameter")
    return NativeExtension(
        "torch_onnxpool.libtorch_onnxpool_cuda",
        [*kernels, *units_of("csrc/cuda/*.cpp", bindings, ABI)],
        [
            *("-cudart=static", f"-L{Path(nvcc).parents[1] / 'lib'}", f"-L{torch / 'lib'}"),
            *("-Xlinker=--no-as-needed", "-lc10", "-ltorch", "-ltorch_cpu"),  # libtorch brings what torch has for CUDA
        ],
        compiler=nvcc,
    )


def is_current(output: Path, command: list[str]) -> bool:
    """Whether an object file was made by this command from files that have not changed since."""
    recipe, dependencies = output.with_suffix(".command"), output.with_suffix(".d")
    if not all(path.is_file() for path in (output, recipe, dependencies)) or recipe.read_text() != shlex.join(command):
        return False
    _, _, inputs = dependencies.read_text().replace("\\\n", " ").partition(": ")
    made = output.stat().st_mtime
    return all(Path(path).is_file() and Path(path).stat().st_mtime <= made for path in shlex.split(inputs))


class Build(build_ext):
    """Compiles the sources side by side, and only those for which something changed; says how far it is.

    Through pip, what it says is to be seen with `pip install -v` only.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(ROOT / "build" / "objects")  # one that pip leaves alone

    def get_ext_filename(self, fullname: str) -> str:
        *folders, name = fullname.split(".")
        return str(Path(*folders, f"{name}.so")) if name.startswith("lib") else super().get_ext_filename(fullname)

    def run(self) -> None:
        """A checkout holds one build: nothing is left of an earlier one, which may have had more extensions."""
        folders = [Path(self.build_lib), *([ROOT] if self.inplace or self.editable_mode else [])]
        for library in (path for folder in folders for path in folder.glob("torch_onnxpool/*.so")):
            library.unlink()
        super().run()

    def build_extension(self, extension: NativeExtension) -> None:
        compiler = [extension.compiler] if extension.compiler else self.compiler.compiler_so_cxx
        linker = [extension.compiler, "-shared"] if extension.compiler else self.compiler.linker_so_cxx

        def say(text: str) -> None:
            print(f"{extension.name}: {text}", file=sys.stderr, flush=True)

        def compile_unit(unit: Unit) -> tuple[str, float]:
            started = time.monotonic()
            output = Path(self.build_temp, unit.object_file)
            command = [*compiler, *unit.flags, "-c", unit.source, "-o", str(output)]
            if not is_current(output, command):
                output.parent.mkdir(parents=True, exist_ok=True)
                self.spawn([*command, "-MD", "-MF", str(output.with_suffix(".d"))])
                output.with_suffix(".command").write_text(shlex.join(command))
            return str(output), time.monotonic() - started

        count = len(extension.units)
        say(f"{count} files to compile, those that take longest first, on {os.cpu_count()} cores")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compilations = [pool.submit(compile_unit, unit) for unit in extension.units]
            for number, compilation in enumerate(as_completed(compilations), 1):
                output, seconds = compilation.result()
                if seconds >= 1:
                    say(f"{number} of {count}, {Path(output).stem}: {seconds:.0f} s")
        objects = [compilation.result()[0] for compilation in compilations]
        library = Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        self.spawn([*linker, *objects, *extension.link_flags, "-o", str(library)])


def extensions() -> list[NativeExtension]:
    torch = torch_folder()
    nvcc = nvcc_to_use(torch)
    return [module(), cpu_library(torch)] + ([cuda_library(torch, nvcc)] if nvcc else [])


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
