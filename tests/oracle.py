"""What every pooling operator computes, in plain loops: the expectation of all tests.

Nothing here is shared with the code under test and nothing is clever. Inputs are numpy arrays of the operator's own
element type (bfloat16 as ``ml_dtypes.bfloat16``). Maxima and quantised results come back in that type. Averages and
norms come back as float64 arrays that hold the *exact* value rounded once to float64, whatever the element type:
averages are summed as fractions, norms in decimals of 40 digits and unlimited exponents. The caller rounds them once
more, to the type under test. Whatever an operator does not allow raises ValueError.

``FORWARD`` and ``GRADIENT`` list the functions by the operator's ONNX name.
"""

from __future__ import annotations

import decimal
import itertools
import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np

FLOATS = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]
BYTES = [np.dtype(np.uint8), np.dtype(np.int8)]

LIMITLESS = decimal.Context(prec=40, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)


# --- windows ---------------------------------------------------------------------------------------------------------


def axis_windows(n, kernel, dilation, stride, begin, end, auto_pad, ceil_mode):
    """For every window along one axis: the list of its data taps, and its number of data and declared padding taps."""
    effective_kernel = (kernel - 1) * dilation + 1
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        outputs = math.ceil(Fraction(n, stride))
        padding = max(0, (outputs - 1) * stride + effective_kernel - n)
        begin = padding // 2 if auto_pad == "SAME_UPPER" else padding - padding // 2
        end = padding - begin
    else:
        span = n + begin + end - effective_kernel
        if span <= -stride or (span < 0 and not ceil_mode):
            raise ValueError(f"the window does not fit: {n} with pads {begin}, {end} and kernel {effective_kernel}")
        if ceil_mode:
            outputs = math.ceil(Fraction(span, stride)) + 1
            if (outputs - 1) * stride >= n + begin:
                outputs -= 1
        else:
            outputs = span // stride + 1
    windows = []
    for o in range(outputs):
        first = o * stride - begin
        taps = range(first, first + effective_kernel, dilation)
        data = [t for t in taps if 0 <= t < n]
        windows.append((data, len([t for t in taps if -begin <= t < n + end])))
    return windows


def pool_windows(shape, kernel_shape, auto_pad="NOTSET", ceil_mode=0, dilations=None, pads=None, strides=None):
    """One list of windows per spatial axis, after all checks of the attributes and of the input's shape."""
    rank = len(shape) - 2
    spatial = shape[2:]
    require(rank >= 1, "at least one spatial dimension")
    require(all(d >= 1 for d in spatial) and math.prod(shape[1:]) >= 1, "no empty channels or spatial dimensions")
    require(auto_pad in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "auto_pad")
    require(ceil_mode in (0, 1), "ceil_mode is 0 or 1")
    require(auto_pad == "NOTSET" or pads is None, "auto_pad and pads contradict each other")
    dilations = [1] * rank if dilations is None else dilations
    strides = [1] * rank if strides is None else strides
    pads = [0] * 2 * rank if pads is None else pads
    for values in (kernel_shape, dilations, strides):
        require(len(values) == rank and all(1 <= v < 2**31 for v in values), "one positive value per spatial axis")
    require(len(pads) == 2 * rank and all(0 <= v < 2**31 for v in pads), "two pads >= 0 per spatial axis")
    return [
        axis_windows(*axis, auto_pad, ceil_mode)
        for axis in zip(spatial, kernel_shape, dilations, strides, pads[:rank], pads[rank:], strict=True)
    ]


def whole_plane(shape):
    """The windows of a global operator: one for each axis, with everything in it."""
    return pool_windows(shape, shape[2:])


def require(condition, rule):
    if not condition:
        raise ValueError(rule)


def output_shape(shape, windows):
    return (*shape[:2], *(len(axis) for axis in windows))


def positions(shape, windows):
    """Every output position, with the positions of the data in its window (row-major) and its declared tap count."""
    for n, c in itertools.product(range(shape[0]), range(shape[1])):
        for o in itertools.product(*(range(len(axis)) for axis in windows)):
            axes = [axis[i] for axis, i in zip(windows, o, strict=True)]
            data = [(n, c, *t) for t in itertools.product(*(taps for taps, _ in axes))]
            yield (n, c, *o), data, math.prod(declared for _, declared in axes)


# --- averages --------------------------------------------------------------------------------------------------------


def average_pool(x, kernel_shape, *, count_include_pad=0, **attributes):
    require(x.dtype in FLOATS, "element type")
    require(count_include_pad in (0, 1), "count_include_pad is 0 or 1")
    return average(x, pool_windows(x.shape, kernel_shape, **attributes), count_include_pad)


def global_average_pool(x):
    require(x.dtype in FLOATS, "element type")
    return average(x, whole_plane(x.shape), 0)


def average(x, windows, count_include_pad):
    y = np.zeros(output_shape(x.shape, windows))
    for o, data, declared in positions(x.shape, windows):
        if data:
            y[o] = exact_sum([float(x[t]) for t in data], declared if count_include_pad else len(data))
    return y


def exact_sum(values, divisor=1):
    if all(map(math.isfinite, values)):
        return float(sum(map(Fraction, values)) / divisor)
    return sum(values) / divisor


def average_pool_gradient(g, x, kernel_shape, *, count_include_pad=0, **attributes):
    return average_gradient(g, x, pool_windows(x.shape, kernel_shape, **attributes), count_include_pad)


def global_average_pool_gradient(g, x):
    return average_gradient(g, x, whole_plane(x.shape), 0)


def average_gradient(g, x, windows, count_include_pad):
    shares = np.full(x.shape, Fraction(0), dtype=object)
    for o, data, declared in positions(x.shape, windows):
        for t in data:
            shares[t] += Fraction(float(g[o])) / (declared if count_include_pad else len(data))
    return shares.astype(np.float64)


# --- norms -----------------------------------------------------------------------------------------------------------


def lp_pool(x, kernel_shape, *, p=2, **attributes):
    require(x.dtype in FLOATS, "element type")
    return norms(x, pool_windows(x.shape, kernel_shape, **attributes), p)


def global_lp_pool(x, *, p=2):
    require(x.dtype in FLOATS, "element type")
    return norms(x, whole_plane(x.shape), p)


def norms(x, windows, p):
    require(1 <= p < math.inf, "p is a real number >= 1")
    y = np.zeros(output_shape(x.shape, windows))
    with decimal.localcontext(LIMITLESS):
        for o, data, _ in positions(x.shape, windows):
            values = [float(x[t]) for t in data]
            if all(map(math.isfinite, values)):
                y[o] = float(norm([Decimal(v) for v in values], p))
            else:
                y[o] = sum(map(abs, values))  # NaN if there is one, else inf
    return y


def norm(values, p):
    """(sum |v|^p)^(1/p)."""
    if p == 1:
        return sum(map(abs, values), Decimal(0))
    total = sum((abs(v) ** Decimal(p) for v in values), Decimal(0))
    return total.sqrt() if p == 2 else total ** (1 / Decimal(p))


def lp_pool_gradient(g, x, kernel_shape, *, p=2, **attributes):
    return norm_gradient(g, x, pool_windows(x.shape, kernel_shape, **attributes), p)


def global_lp_pool_gradient(g, x, *, p=2):
    return norm_gradient(g, x, whole_plane(x.shape), p)


def norm_gradient(g, x, windows, p):
    """g * sign(x) * (|x| / y)^(p-1), and 0 where x or y is 0."""
    shares = np.full(x.shape, Decimal(0), dtype=object)
    with decimal.localcontext(LIMITLESS):
        for o, data, _ in positions(x.shape, windows):
            values = [Decimal(float(x[t])) for t in data]
            y = norm(values, p)
            for t, v in zip(data, values, strict=True):
                if v != 0:
                    slope = (abs(v) / y) ** (Decimal(p) - 1)
                    shares[t] += Decimal(float(g[o])) * (slope if v > 0 else -slope)
    return shares.astype(np.float64)


# --- maxima ----------------------------------------------------------------------------------------------------------


def max_pool(x, kernel_shape, *, storage_order=0, **attributes):
    """(Y, Indices)."""
    require(x.dtype in FLOATS + BYTES, "element type")
    require(storage_order in (0, 1), "storage_order is 0 or 1")
    windows = pool_windows(x.shape, kernel_shape, **attributes)
    y = np.full(output_shape(x.shape, windows), lowest(x.dtype), dtype=x.dtype)
    indices = np.full(y.shape, -1, dtype=np.int64)
    for o, data, _ in positions(x.shape, windows):
        if data:
            t = first_maximum(x, data)
            y[o] = x[t]
            indices[o] = flat_index(t, x.shape, storage_order)
    return y, indices


def global_max_pool(x):
    require(x.dtype in FLOATS, "element type")
    y = np.empty((*x.shape[:2], *(1 for _ in x.shape[2:])), dtype=x.dtype)
    for o, data, _ in positions(x.shape, whole_plane(x.shape)):
        y[o] = x[first_maximum(x, data)]
    return y


def lowest(dtype):
    return np.iinfo(dtype).min if dtype.kind in "iu" else ml_dtypes.finfo(dtype).min


def first_maximum(x, data):
    """The position of the first NaN, else of the first of the largest elements."""
    nans = [t for t in data if math.isnan(x[t])]
    return nans[0] if nans else max(data, key=lambda t: x[t])


def flat_index(t, shape, storage_order):
    """The index over the whole tensor; with storage_order 1 the first spatial axis is the fastest, not the last."""
    n, c, *spatial = t
    sizes = list(shape[2:])
    if storage_order == 1:
        spatial, sizes = spatial[::-1], sizes[::-1]
    inner = 0
    for position, size in zip(spatial, sizes, strict=True):
        inner = inner * size + position
    return (n * shape[1] + c) * math.prod(sizes) + inner


def max_pool_gradient(g, x, kernel_shape, *, storage_order=0, **attributes):
    return maximum_gradient(g, x, pool_windows(x.shape, kernel_shape, **attributes))


def global_max_pool_gradient(g, x):
    return maximum_gradient(g, x, whole_plane(x.shape))


def maximum_gradient(g, x, windows):
    shares = np.full(x.shape, Fraction(0), dtype=object)
    for o, data, _ in positions(x.shape, windows):
        if data:
            shares[first_maximum(x, data)] += Fraction(float(g[o]))
    return shares.astype(np.float64)


# --- unpooling -------------------------------------------------------------------------------------------------------


def max_unpool(x, indices, kernel_shape, *, output_shape=None, pads=None, strides=None):
    """Zeros, but for the elements of x where the indices say: flat over the output, the last of several wins."""
    require(x.dtype in FLOATS, "element type")
    y = np.zeros(unpooled_shape(x, indices, kernel_shape, output_shape, pads, strides), dtype=x.dtype)
    for i, value in zip(indices.ravel(), x.ravel(), strict=True):
        require(0 <= i < y.size, "an index is one of the output's")
        y.flat[i] = value
    return y


def unpooled_shape(x, indices, kernel_shape, output_shape, pads, strides):
    rank = x.ndim - 2
    require(rank >= 1, "at least one spatial dimension")
    require(math.prod(x.shape[1:]) >= 1, "no empty channels or spatial dimensions")
    require(indices.dtype == np.int64 and indices.shape == x.shape, "an int64 index for each element")
    strides = [1] * rank if strides is None else strides
    pads = [0] * 2 * rank if pads is None else pads
    for values in (kernel_shape, strides):
        require(len(values) == rank and all(1 <= v < 2**31 for v in values), "one positive value per spatial axis")
    require(len(pads) == 2 * rank and all(0 <= v < 2**31 for v in pads), "two pads >= 0 per spatial axis")
    axes = zip(x.shape[2:], kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
    inferred = (*x.shape[:2], *((n - 1) * stride - begin - end + kernel for n, kernel, stride, begin, end in axes))
    if output_shape is None:
        require(all(size >= 1 for size in inferred[2:]), "no empty spatial dimensions")
        return inferred
    require(len(output_shape) == x.ndim and tuple(output_shape[:2]) == x.shape[:2], "the same N and C")
    require(all(size >= 1 for size in output_shape[2:]), "no empty spatial dimensions")
    return tuple(output_shape)


def max_unpool_gradient(g, x, indices, kernel_shape, **attributes):
    """Each element has the gradient of the output that it became: those that another one replaced have none."""
    winner = np.full(g.size, -1)
    winner[indices.ravel()] = np.arange(x.size)  # of duplicates numpy, too, keeps the last
    shares = np.zeros(x.size)
    for position, element in enumerate(winner):
        if element >= 0:
            shares[element] = g.flat[position]
    return shares.reshape(x.shape)


# --- quantised -------------------------------------------------------------------------------------------------------


def qlinear_global_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point, *, channels_last=0):
    """Bit for bit what onnxruntime computes: int32 sums that wrap, float32 steps, ties to even, then the zero point."""
    planes = quantised_planes(x, x_scale, x_zero_point, y_scale, y_zero_point, channels_last)
    require(math.prod(planes.shape[1:]) >= 1, "no empty channels or spatial dimensions")
    n = math.prod(planes.shape[2:])
    require(n < 2**24, "fewer than 2^24 elements in a plane")
    x_zero, y_zero = x_zero_point.item(), y_zero_point.item()
    low, high = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    with np.errstate(all="ignore"):
        scale = np.float32(x_scale.item()) / (np.float32(y_scale.item()) * np.float32(n))
    require(2**-32 <= scale < 256, "x_scale / (y_scale * n) is in [2^-32, 256)")
    y = np.empty((*planes.shape[:2], *(1 for _ in planes.shape[2:])), dtype=x.dtype)
    for o in itertools.product(*map(range, planes.shape[:2])):
        total = int(planes[o].sum(dtype=np.int64)) - x_zero * n
        wrapped = (total + 2**31) % 2**32 - 2**31
        value = np.float32(wrapped) * scale
        clamped = min(max(value, np.float32(low - y_zero)), np.float32(high - y_zero))
        y[o] = round(float(clamped)) + y_zero  # Python rounds half to even
    return np.moveaxis(y, 1, -1) if channels_last else y


def quantised_planes(x, x_scale, x_zero_point, y_scale, y_zero_point, channels_last):
    """X with its channels in second place, after the checks that both operators make."""
    require(x.dtype in BYTES and x_zero_point.dtype == x.dtype and y_zero_point.dtype == x.dtype, "element type")
    require(x_scale.dtype == np.float32 and y_scale.dtype == np.float32, "scales are float32")
    require(all(a.shape in ((), (1,)) for a in (x_scale, x_zero_point, y_scale, y_zero_point)), "scalars")
    require(channels_last in (0, 1), "channels_last is 0 or 1")
    require(x.ndim >= 3, "at least one spatial dimension")
    return np.moveaxis(x, -1, 1) if channels_last else x


def qlinear_average_pool(
    x, x_scale, x_zero_point, y_scale, y_zero_point, kernel_shape, *, channels_last=0, count_include_pad=0, **attributes
):
    """Bit for bit what onnxruntime computes: data made float32 one by one, a running sum, one quantisation."""
    planes = quantised_planes(x, x_scale, x_zero_point, y_scale, y_zero_point, channels_last)
    require(count_include_pad in (0, 1), "count_include_pad is 0 or 1")
    require(all(math.isfinite(s) and s != 0 for s in (x_scale.item(), y_scale.item())), "scales are finite and not 0")
    windows = pool_windows(planes.shape, kernel_shape, **attributes)
    is_padded = any(attributes.get("pads") or []) or any(len(axis) > 1 for axis in windows)
    if tuple(kernel_shape) == planes.shape[2:] and not is_padded:
        scalars = (x_scale, x_zero_point, y_scale, y_zero_point)
        return qlinear_global_average_pool(x, *scalars, channels_last=channels_last)
    x_zero, y_zero = x_zero_point.item(), y_zero_point.item()
    low, high = np.iinfo(x.dtype).min, np.iinfo(x.dtype).max
    y = np.empty(output_shape(planes.shape, windows), dtype=x.dtype)
    for o, data, _ in positions(planes.shape, windows):
        total = np.float32(0)
        for t in data:
            total += np.float32(x_scale.item()) * np.float32(int(planes[t]) - x_zero)
        divisor = math.prod(kernel_shape) if count_include_pad else len(data)
        average = total / np.float32(divisor) if data else np.float32(0)
        value = np.rint(average / np.float32(y_scale.item()) + np.float32(y_zero))
        y[o] = min(max(value, low), high)
    return np.moveaxis(y, 1, -1) if channels_last else y


FORWARD = {
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
    "GlobalAveragePool": global_average_pool,
    "GlobalLpPool": global_lp_pool,
    "GlobalMaxPool": global_max_pool,
    "MaxUnpool": max_unpool,
    "QLinearAveragePool": qlinear_average_pool,
    "QLinearGlobalAveragePool": qlinear_global_average_pool,
}

GRADIENT = {
    "AveragePool": average_pool_gradient,
    "LpPool": lp_pool_gradient,
    "MaxPool": max_pool_gradient,
    "GlobalAveragePool": global_average_pool_gradient,
    "GlobalLpPool": global_lp_pool_gradient,
    "GlobalMaxPool": global_max_pool_gradient,
}
