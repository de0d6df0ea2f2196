// What a window covers along one axis. Used by forward and backward, on CPU and GPU; free of torch headers.
#pragma once

#include <cstdint>

#include "geometry.h"
#include "host_device.h"

namespace onnxpool {

// The positions begin, begin + step, ..., `count` of them.
struct Range {
    int64_t begin;
    int64_t count;
    int64_t step;
};

// How many of the taps start, start + dilation, ... (at most `kernel`) lie below `limit`.
ONNXPOOL_HOST_DEVICE inline int64_t taps_below(const Axis& axis, int64_t start, int64_t limit) {
    if (start + (axis.kernel - 1) * axis.dilation < limit) return axis.kernel;
    return start < limit ? (limit - start + axis.dilation - 1) / axis.dilation : 0;
}

// The data of window `output`: its taps t with 0 <= t < input.
ONNXPOOL_HOST_DEVICE inline Range data_taps(const Axis& axis, int64_t output) {
    const int64_t start = output * axis.stride - axis.pad_begin;
    const int64_t skipped = start < 0 ? (-start + axis.dilation - 1) / axis.dilation : 0;
    const int64_t count = taps_below(axis, start, axis.input) - skipped;
    return {start + skipped * axis.dilation, count > 0 ? count : 0, axis.dilation};
}

// Data and declared padding of window `output`: overhang (t >= input + pad_end, only with ceil_mode) never counts.
ONNXPOOL_HOST_DEVICE inline int64_t declared_count(const Axis& axis, int64_t output) {
    return taps_below(axis, output * axis.stride - axis.pad_begin, axis.input + axis.pad_end);
}

// The inverse: the windows that have a tap at input position `input`, for gradients by gathering.
ONNXPOOL_HOST_DEVICE inline Range covering_windows(const Axis& axis, int64_t input) {
    const int64_t padded = input + axis.pad_begin;  // window o covers it where padded - o * stride = j * dilation
    const int64_t reach = (axis.kernel - 1) * axis.dilation;
    int64_t first = padded > reach ? (padded - reach + axis.stride - 1) / axis.stride : 0;
    int64_t last = padded / axis.stride;
    if (last > axis.output - 1) last = axis.output - 1;
    if (axis.dilation == 1) return {first, last >= first ? last - first + 1 : 0, 1};
    // Windows with a tap here repeat with the period dilation / gcd(stride, dilation): both the first one and the
    // period are found by looking.
    const auto has_tap = [&](int64_t window) { return (padded - window * axis.stride) % axis.dilation == 0; };
    const int64_t tried_until = first + axis.dilation <= last ? first + axis.dilation - 1 : last;
    while (first <= tried_until && !has_tap(first)) ++first;
    if (first > tried_until) return {0, 0, 1};
    int64_t step = 1;
    while (step <= last - first && step * axis.stride % axis.dilation != 0) ++step;
    return {first, (last - first) / step + 1, step};
}

}  // namespace onnxpool
