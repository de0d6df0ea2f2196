"""Between the table of cases and torch: tensors in every layout, calls by ONNX name, and how close is close enough."""

from __future__ import annotations

import math
from functools import lru_cache

import ml_dtypes
import numpy as np
import oracle
import torch
from cases import Case

import torch_onnxpool


def to_tensor(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    array = np.array(array, order="C")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def to_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def arrange(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another layout: one of cases.LAYOUTS, for any rank."""
    if layout == "contiguous" or tensor.dim() < 3:
        return tensor.contiguous()
    if layout == "channels_last":
        return tensor.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "cropped_channels_last":
        large = arrange(tensor.new_zeros([n + 2 for n in tensor.shape]), "channels_last")
        view = large[tuple(slice(1, -1) for _ in tensor.shape)]
        return view.copy_(tensor)
    if layout == "transposed":
        order = range(tensor.dim() - 1, -1, -1)
        return tensor.permute(*order).contiguous().permute(*order)
    assert layout == "sliced"
    large = tensor.new_zeros([2 * n + 1 for n in tensor.shape])
    view = large[tuple(slice(1, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Channels next to each other, and positions not; views may leave gaps between them."""
    positions = [stride for size, stride in zip(tensor.shape[2:], tensor.stride()[2:]) if size > 1]
    return tensor.shape[1] > 1 and tensor.stride(1) == 1 and positions != [] and positions[-1] != 1


def call(case: Case, inputs: list[torch.Tensor], **more) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    return getattr(torch_onnxpool, case.function)(*inputs, **case.attributes, **more)


@lru_cache(maxsize=1024)
def expected(case: Case, dtype: str) -> tuple[np.ndarray, ...]:
    """The oracle's outputs, computed once for each case and type: one, or MaxPool's Y and Indices."""
    outputs = oracle.FORWARD[case.operator](*case.inputs(dtype), **case.attributes)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def rounded(exact: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """float64 values rounded to a type."""
    if dtype in (torch.float16, torch.bfloat16):
        target = np.float16 if dtype == torch.float16 else ml_dtypes.bfloat16
        with np.errstate(over="ignore"):
            return to_tensor(exact.astype(target))
    return torch.from_numpy(exact).to(dtype)


def ulps(actual: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many representable numbers lie between two tensors' elements; 0 where both are NaN."""
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape

    def ordered(tensor: torch.Tensor) -> torch.Tensor:
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        bits = tensor.cpu().contiguous().view(integer).to(torch.int64)
        return torch.where(bits < 0, torch.iinfo(integer).min - bits, bits)

    distance = (ordered(actual) - ordered(wanted)).abs()
    nans = actual.isnan().cpu(), wanted.isnan().cpu()
    distance[nans[0] & nans[1]] = 0
    distance[nans[0] ^ nans[1]] = torch.iinfo(torch.int64).max
    return distance


def largest_window(case: Case) -> int:
    """How many data a window can hold."""
    spatial = case.shape[2:]
    return math.prod(map(min, case.attributes.get("kernel_shape", spatial), spatial))


def accumulated_error(case: Case, dtype: str) -> np.ndarray | float:
    """The rounding errors that a sum over a window may have gathered before its one rounding to the result's type.

    Averages of half-precision and float32 windows are summed in float32, all others in float64. Recursive summation of
    n terms errs by at most n * u * sum |x|, which matters where terms of opposite sign cancel; norms have no such
    terms."""
    if "Average" not in case.operator:
        return 0.0
    x = case.inputs(dtype)[0].astype(np.float64)
    finite = np.where(np.isfinite(x), np.abs(x), 0.0)
    in_float32 = dtype in ("float16", "bfloat16") or (dtype == "float32" and case.operator == "AveragePool")
    unit = 2.0**-24 if in_float32 else 2.0**-53
    return largest_window(case) * unit * oracle.FORWARD[case.operator](finite, **case.attributes)


def allowed_ulps(case: Case, dtype: str) -> int:
    """One for the rounding to the type; float64 sums and powers have no wider type to be computed in."""
    if dtype != "float64":
        return 1
    return 4 + largest_window(case) if "Lp" in case.operator else 1


def assert_value(case: Case, dtype: str, actual: torch.Tensor, exact: np.ndarray, where: str = "") -> None:
    """A result is the oracle's exact value, rounded once: see allowed_ulps and accumulated_error."""
    assert tuple(actual.shape) == exact.shape, f"{where}: {tuple(actual.shape)} instead of {exact.shape}"
    if exact.dtype != np.float64 or "Max" in case.operator:  # maxima and quantised values
        np.testing.assert_array_equal(to_array(actual).astype(np.float64), exact.astype(np.float64), err_msg=where)
        return
    wanted = rounded(exact, actual.dtype)
    close = ulps(actual, wanted) <= allowed_ulps(case, dtype)
    error = (actual.double().cpu() - torch.from_numpy(exact)).abs()
    close |= error <= torch.as_tensor(accumulated_error(case, dtype))
    assert bool(close.all()), (
        f"{where}: {actual.cpu()[~close][:5].tolist()} instead of {exact[~close.numpy()][:5].tolist()}, "
        f"{ulps(actual, wanted)[~close][:5].tolist()} ulp"
    )
