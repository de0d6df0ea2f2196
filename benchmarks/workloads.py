"""The workloads: pooling as real networks do it, and corners that only ONNX can say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import torch_onnxpool
from torch_onnxpool._geometry import Axis, resolve_axes

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BYTES = (torch.int8, torch.uint8)
_FUNCTIONS = {
    "AveragePool": torch_onnxpool.average_pool,
    "GlobalAveragePool": torch_onnxpool.global_average_pool,
    "GlobalLpPool": torch_onnxpool.global_lp_pool,
    "GlobalMaxPool": torch_onnxpool.global_max_pool,
    "LpPool": torch_onnxpool.lp_pool,
    "MaxPool": torch_onnxpool.max_pool,
    "QLinearAveragePool": torch_onnxpool.qlinear_average_pool,
    "QLinearGlobalAveragePool": torch_onnxpool.qlinear_global_average_pool,
}


@dataclass(frozen=True)
class Workload:
    """One operator with ONNX's attributes, on one shape ``[N, C, D1, ..., Dr]``."""

    operator: str
    shape: tuple[int, ...]
    origin: str
    attributes: dict[str, Any] = field(default_factory=dict)
    indices: bool = False

    @property
    def name(self) -> str:
        """As in "AveragePool 3x3 s2 p1, 8x64x112x112"."""
        words = [self.operator]
        for attribute, value in self.attributes.items():
            words.append(_WORDS[attribute](value))
        return " ".join(words + ["Indices"] * self.indices) + ", " + _by(self.shape)

    @property
    def quantised(self) -> bool:
        return self.operator.startswith("QLinear")

    def allows(self, dtype: torch.dtype, backward: bool) -> bool:
        if self.quantised or dtype in BYTES:
            return not backward and dtype in BYTES and (self.quantised or self.operator == "MaxPool")
        return dtype in FLOATS

    def input(self, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        """Seeded. Norms get no negative values, of which torch sums signed powers."""
        seeded = {"generator": torch.Generator(device).manual_seed(0), "device": device}
        if dtype in BYTES:
            limits = torch.iinfo(dtype)
            return torch.randint(limits.min, limits.max + 1, self.shape, dtype=dtype, **seeded)
        draw = torch.rand if "Lp" in self.operator else torch.randn
        return draw(self.shape, **seeded).to(dtype)

    def quantisation(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The inputs that a quantised operator has after X."""
        if not self.quantised:
            return {}
        scale, zero_point = torch.tensor(0.02), torch.tensor(3, dtype=dtype)
        return {"x_scale": scale, "x_zero_point": zero_point, "y_scale": scale, "y_zero_point": zero_point}

    def ours(self, dtype: torch.dtype) -> Callable[[Tensor], Any]:
        function, arguments = _FUNCTIONS[self.operator], {**self.quantisation(dtype), **self.attributes}
        if self.indices:
            arguments["return_indices"] = True
        return lambda X: function(X, **arguments)

    def as_window(self) -> Workload:
        """A global operator as the window that spans the plane."""
        kernel_shape = {"kernel_shape": list(self.shape[2:])}
        return Workload(
            self.operator.removeprefix("Global"), self.shape, self.origin, {**kernel_shape, **self.attributes}
        )

    def axes(self) -> list[Axis]:
        """The geometry with auto_pad resolved."""
        names = ("auto_pad", "ceil_mode", "dilations", "pads", "strides")
        window = {name: self.attributes[name] for name in names if name in self.attributes}
        return resolve_axes(self.operator, self.shape, self.attributes["kernel_shape"], **window)


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _uniform(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else ",".join(map(str, values))


_WORDS: dict[str, Callable[[Any], str]] = {
    "auto_pad": str,
    "ceil_mode": lambda _: "ceil",
    "count_include_pad": lambda _: "count_include_pad",
    "dilations": lambda values: f"d{_uniform(values)}",
    "kernel_shape": lambda values: _by(values) if len(values) > 1 else f"k{values[0]}",
    "p": lambda p: f"p={p}",
    "pads": lambda values: f"p{_uniform(values)}",
    "strides": lambda values: f"s{_uniform(values)}",
}


def _workload(operator: str, shape: Sequence[int], origin: str, kernel: Any = None, **attributes: Any) -> Workload:
    """An int stands for a list that repeats it, as in the functions."""
    rank = len(shape) - 2
    indices = attributes.pop("indices", False)
    lists = {"kernel_shape": rank, "strides": rank, "pads": 2 * rank, "dilations": rank}
    if kernel is not None:
        attributes = {"kernel_shape": kernel, **attributes}
    for name, length in lists.items():
        if isinstance(attributes.get(name), int):
            attributes[name] = [attributes[name]] * length
    return Workload(operator, tuple(shape), origin, attributes, indices)


A, L, M = "AveragePool", "LpPool", "MaxPool"

WORKLOADS = [
    # stems and downsampling
    _workload(A, (8, 64, 112, 112), "ResNet stem, averaging", 3, strides=2, pads=1),
    _workload(M, (8, 64, 112, 112), "ResNet stem", 3, strides=2, pads=1),
    _workload(L, (8, 64, 112, 112), "ResNet stem, norm", 3, strides=2, p=3),
    _workload(L, (8, 64, 112, 112), "arbitrary p", 3, strides=2, p=2.5),
    _workload(M, (2, 64, 224, 224), "VGG, first pool", 2, strides=2),
    _workload(M, (8, 512, 28, 28), "VGG, fourth pool", 2, strides=2),
    _workload(M, (2, 16, 640, 640), "U-Net, full resolution", 2, strides=2),
    _workload(M, (1, 64, 320, 320), "detector's stem", 3, strides=2, pads=1),
    _workload(M, (8, 96, 109, 109), "SqueezeNet", 3, strides=2, ceil_mode=1),
    _workload(M, (8, 192, 71, 71), "Inception v3, second pool", 3, strides=2),
    _workload(A, (8, 64, 112, 112), "TensorFlow's padding, averaging", 3, strides=2, auto_pad="SAME_LOWER"),
    _workload(M, (8, 64, 112, 112), "TensorFlow's padding", 3, strides=2, auto_pad="SAME_LOWER"),
    _workload(A, (8, 128, 56, 56), "DenseNet, first transition", 2, strides=2),
    _workload(A, (32, 512, 14, 14), "DenseNet, third transition", 2, strides=2),
    _workload(L, (8, 128, 56, 56), "the default norm", 2, strides=2),
    _workload(M, (8, 64, 112, 112), "SegNet, which unpools later", 2, strides=2, indices=True),
    _workload(M, (8, 64, 112, 112), "ResNet stem, as training needs it", 3, strides=2, pads=1, indices=True),
    _workload(M, (8, 256, 20, 20), "YOLO, SPPF, as training needs it", 5, pads=2, indices=True),
    _workload(M, (8, 512, 13, 13), "YOLO, SPP, as training needs it", 13, pads=6, indices=True),
    # size is kept
    _workload(A, (8, 256, 35, 35), "Inception A", 3, pads=1),
    _workload(A, (8, 2048, 8, 8), "Inception C", 3, pads=1, count_include_pad=1),
    _workload(A, (32, 512, 14, 14), "pooling as token mixer", 3, pads=1),
    _workload(M, (8, 256, 20, 20), "YOLO, SPPF", 5, pads=2),
    _workload(M, (8, 512, 13, 13), "YOLO, SPP", 13, pads=6),
    _workload(M, (8, 512, 13, 13), "tiny YOLO: pads only at the end", 2, pads=[0, 0, 1, 1]),
    _workload(A, (8, 128, 56, 56), "dilated average", 3, pads=2, dilations=2),
    _workload(M, (8, 128, 56, 56), "dilated maximum", 3, pads=2, dilations=2),
    _workload(A, (1, 16, 224, 224), "large window", 31),
    _workload(M, (1, 16, 224, 224), "large window", 31),
    _workload(L, (1, 16, 224, 224), "large window", 31),
    # heads
    _workload("GlobalAveragePool", (32, 2048, 7, 7), "ResNet head"),
    _workload("GlobalAveragePool", (32, 1280, 7, 7), "EfficientNet head"),
    _workload("GlobalAveragePool", (8, 96, 112, 112), "EfficientNet, squeeze and excite"),
    _workload("GlobalMaxPool", (32, 2048, 7, 7), "CBAM, retrieval heads"),
    _workload("GlobalLpPool", (32, 2048, 7, 7), "generalised mean of retrieval", p=3),
    _workload(A, (32, 1024, 7, 7), "DenseNet head as a window", 7),
    _workload(A, (1, 512, 60, 60), "PSPNet, a level of the pyramid", 10, strides=10),
    # one and three spatial axes
    _workload(A, (64, 64, 1024), "moving average of a series", 25, pads=12),
    _workload(M, (32, 256, 1024), "1-D ResNet stem", 3, strides=2, pads=1),
    _workload(A, (16, 1, 480000), "half a minute of audio", 10, strides=5),
    _workload(A, (2, 32, 32, 64, 64), "volumes", 3, strides=2),
    _workload(M, (1, 64, 16, 56, 56), "video stem", 3, strides=2, pads=1),
    _workload(M, (2, 32, 32, 64, 64), "3-D U-Net", 2, strides=2),
    # axes that are not pooled, or pooled as a whole
    _workload(M, (1, 64, 16, 56, 56), "video, frame by frame", [1, 3, 3], strides=[1, 2, 2], pads=[0, 1, 1] * 2),
    _workload(A, (16, 64, 8000, 1), "a series as an image", [4, 1], strides=[4, 1]),
    _workload(A, (64, 16, 22, 512), "EEGNet", [1, 4], strides=[1, 4]),
    _workload(A, (8, 256, 16, 128), "spectrogram, over time", [1, 128]),
    _workload(M, (8, 32, 60, 100), "text, over whole rows of embeddings", [3, 100]),
    # bytes
    _workload("QLinearAveragePool", (8, 64, 112, 112), "quantised stem", 3, strides=2, pads=1),
    _workload("QLinearGlobalAveragePool", (32, 2048, 7, 7), "quantised ResNet head"),
]

# For GPUs: more elements than caches hold, and work enough to hide the launches.
LARGE_WORKLOADS = [
    *(_workload(operator, (64, 64, 128, 128), "halved", 2, strides=2) for operator in (A, L, M)),
    *(_workload(operator, (64, 64, 128, 128), "size is kept", 3, pads=1) for operator in (A, L, M)),
    *(_workload(operator, (64, 64, 112, 112), "ResNet stem", 3, strides=2, pads=1) for operator in (A, L, M)),
    _workload(M, (64, 64, 113, 113), "odd rows", 2, strides=2),
    _workload(M, (64, 64, 128, 128), "which unpools later", 2, strides=2, indices=True),
    _workload(M, (64, 256, 64, 64), "YOLO, SPPF", 5, pads=2),
    *(_workload(operator, (16, 64, 256, 256), "large window", 31, pads=15) for operator in (A, L, M)),
    _workload(A, (8, 64, 48, 48, 48), "volumes", 3, strides=2),
    _workload(M, (8, 64, 48, 48, 48), "3-D U-Net", 2, strides=2),
    _workload(M, (32, 256, 4096), "1-D ResNet stem", 3, strides=2, pads=1),
    *(
        _workload(operator, shape, "whole planes")
        for operator in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
        for shape in ((512, 2048, 7, 7), (256, 1024, 14, 14), (64, 256, 56, 56), (64, 64, 112, 112))
    ),
    _workload("QLinearAveragePool", (256, 64, 112, 112), "quantised stem", 3, strides=2, pads=1),
    _workload("QLinearGlobalAveragePool", (2048, 2048, 7, 7), "quantised ResNet head"),
]


def random_workloads(seed: int, count: int, elements: int) -> list[Workload]:
    """Windows of all sizes in inputs of about so many elements: what nobody has tuned for. All that torch can say."""
    rng = random.Random(seed)
    sizes = {
        1: (200, 1000, 5000, 20000),
        2: (7, 13, 14, 20, 28, 35, 56, 64, 100, 112, 224),
        3: (7, 8, 14, 16, 24, 32, 48),
    }
    found: list[Workload] = []
    while len(found) < count:
        rank = rng.choice((1, 2, 2, 2, 3))

        def along_axes(choices: Sequence[int], rank: int = rank) -> list[int]:
            """Mostly the same for all axes."""
            return rng.choices(choices, k=rank) if rng.random() < 0.3 else [rng.choice(choices)] * rank

        operator = rng.choice((A, L, M, M))
        kernel = along_axes((1, 2, 3, 3, 4, 5, 7, 8, 13, 21))
        strides = kernel if rng.random() < 0.3 else along_axes((1, 1, 2, 2, 3, 4, 8))
        dilations = along_axes((1, 1, 1, 2, 3)) if operator == M else [1] * rank
        pads = [0 if operator == L else rng.randint(0, size // 2) for size in kernel]
        size = along_axes(sizes[rank])
        channels = rng.choice((1, 2, 3, 8, 16, 17, 32, 64, 96, 256))
        fits = all((k - 1) * d < n + 2 * pad for k, d, n, pad in zip(kernel, dilations, size, pads))
        image = channels * math.prod(size)
        if not fits or image > 4 * elements:
            continue
        attributes: dict[str, Any] = {"strides": strides, "pads": pads * 2}
        if operator == M:
            attributes |= {"dilations": dilations, "indices": rng.random() < 0.5}
        if operator == L:
            attributes["p"] = rng.choice((1, 2, 3))
        shape = (max(1, min(256, elements // image)), channels, *size)
        found.append(_workload(operator, shape, "random", kernel, **attributes))
    return found
