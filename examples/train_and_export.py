"""Train a classifier that pools in four ONNX ways, export it, and see onnxruntime give the same numbers.

The 8x8 handwritten digits of scikit-learn go through an AveragePool with SAME_LOWER padding, an LpPool with p=3, a
MaxPool and a GlobalLpPool. Both exporters of torch write the model, and onnxruntime runs it. Then the last pooling
becomes QLinearGlobalAveragePool on bytes, and onnxruntime gives the same bytes.

    pip install ".[examples]"
    python examples/train_and_export.py [--output DIRECTORY]
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from torch_onnxpool import AveragePool, GlobalLpPool, LpPool, MaxPool, QLinearGlobalAveragePool

BATCH = 64
console = Console()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            AveragePool(kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            LpPool(kernel_shape=[2, 2], strides=[2, 2], p=3),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            MaxPool(kernel_shape=[2, 2]),
        )
        self.pool = GlobalLpPool(p=2)
        self.classify = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.pool(self.features(images)).flatten(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("build/example"), help="folder for the .onnx files")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    directory = options.output
    directory.mkdir(parents=True, exist_ok=True)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torchvision is not needed
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more than one only gets in the way of images this small
    train_images, test_images, train_labels, test_labels = load_data()

    model = Classifier()
    train(model, train_images, train_labels, options.epochs, "training")
    with torch.no_grad():
        logits = model(test_images).numpy()
    results = Table("", "accuracy", "largest difference from torch")
    results.add_row("torch", f"{accuracy(logits, test_labels):.2%}", "")
    for exporter, file in export(model, test_images[:2], directory / "classifier").items():
        theirs = run(file, test_images)
        difference = f"{np.abs(theirs - logits).max():.1e} in logits up to {np.abs(logits).max():.0f}"
        results.add_row(f"onnxruntime, {exporter} exporter", f"{accuracy(theirs, test_labels):.2%}", difference)
        check(np.allclose(theirs, logits, rtol=1e-4, atol=1e-4), f"{file}: other numbers in onnxruntime than in torch")

    # The last pooling on bytes: the features as uint8, and a linear layer trained for their averages.
    with torch.no_grad():
        train_features, test_features = model.features(train_images), model.features(test_images)
    x_scale, y_scale = train_features.max() / 255, train_features.mean((2, 3)).max() / 255
    zero = torch.tensor(0, dtype=torch.uint8)
    quantised_pool = QLinearGlobalAveragePool(x_scale, zero, y_scale, zero)
    train_bytes, test_bytes = (quantised_pool(to_bytes(f, x_scale)) for f in (train_features, test_features))
    classify = nn.Linear(64, 10)
    train(classify, train_bytes.flatten(1) * y_scale, train_labels, options.epochs, "training on quantised averages")
    with torch.no_grad():
        quantised_logits = classify(test_bytes.flatten(1) * y_scale).numpy()
    results.add_section()
    results.add_row("torch, last pooling quantised", f"{accuracy(quantised_logits, test_labels):.2%}", "")
    for exporter, file in export(quantised_pool, to_bytes(test_features[:2], x_scale), directory / "quantised").items():
        different = np.count_nonzero(run(file, to_bytes(test_features, x_scale)) != test_bytes.numpy())
        results.add_row(f"onnxruntime, {exporter} exporter", "", f"{different} of {test_bytes.numel()} bytes")
        check(different == 0, f"{file}: other bytes in onnxruntime than in torch")
    console.print(results)
    console.print(f"The models are in {directory}; python -m torch_onnxpool verify looks at every pooling in them.")


def load_data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images, test images, training labels, test labels."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    split = train_test_split(images, digits.target, test_size=0.2, stratify=digits.target, random_state=0)
    return tuple(map(torch.from_numpy, split))


def train(model: nn.Module, inputs: Tensor, labels: Tensor, epochs: int, title: str) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    steps = epochs * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=epochs, state="")
        for epoch in range(1, epochs + 1):
            for batch in torch.randperm(len(inputs)).split(BATCH):
                loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            progress.update(task, advance=1, state=f"epoch {epoch}/{epochs}, loss {loss.item():.4f}")


def export(model: nn.Module, example: Tensor, stem: Path) -> dict[str, Path]:
    """One file from each of torch's exporters, for a batch of any size."""
    files = {exporter: stem.with_name(f"{stem.name}_{exporter}.onnx") for exporter in ("dynamo", "torchscript")}
    batch = {0: "batch"}
    model.eval()
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # torch's, about its own exporters
            warnings.simplefilter("ignore", category)
        torch.onnx.export(model, (example,), files["dynamo"], dynamic_shapes=(batch,), verbose=False)
        torch.onnx.export(
            model, (example,), files["torchscript"], dynamo=False, input_names=["x"], dynamic_axes={"x": batch}
        )
    return files


def run(file: Path, x: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def to_bytes(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round().clamp(0, 255).to(torch.uint8)


def accuracy(logits: np.ndarray, labels: Tensor) -> float:
    return np.mean(logits.argmax(1) == labels.numpy())


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    main()
