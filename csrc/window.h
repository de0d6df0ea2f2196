// What a window covers along one axis. Used by forward and backward, on CPU and GPU; free of torch headers.
// An axis is an Axis of geometry.h or, on GPUs, one with the same members in 32 bits whose stride and dilation divide
// quickly.
#pragma once

#include <cstdint>
#include <type_traits>

#include "geometry.h"
#include "host_device.h"
#include "reductions.h"

namespace onnxpool {

// The positions begin, begin + step, ..., `count` of them.
template <class Integer>
struct RangeOf {
    Integer begin;
    Integer count;
    Integer step;
};

using Range = RangeOf<int64_t>;

template <class AnyAxis>
using integer_of = std::remove_const_t<decltype(AnyAxis::input)>;

// How many of the taps start, start + dilation, ... (at most `kernel`) lie below `limit`.
template <class AnyAxis>
ONNXPOOL_HOST_DEVICE inline integer_of<AnyAxis> taps_below(const AnyAxis& axis, integer_of<AnyAxis> start,
                                                           integer_of<AnyAxis> limit) {
    if (start + (axis.kernel - 1) * axis.dilation < limit) return axis.kernel;
    return start < limit ? quotient(limit - start + axis.dilation - 1, axis.dilation) : 0;
}

// The data of window `output`: its taps t with 0 <= t < input.
template <class AnyAxis>
ONNXPOOL_HOST_DEVICE inline RangeOf<integer_of<AnyAxis>> data_taps(const AnyAxis& axis, integer_of<AnyAxis> output) {
    using Integer = integer_of<AnyAxis>;
    const Integer start = output * axis.stride - axis.pad_begin;
    const Integer skipped = start < 0 ? quotient(-start + axis.dilation - 1, axis.dilation) : 0;
    const Integer count = taps_below(axis, start, axis.input) - skipped;
    return {start + skipped * axis.dilation, count > 0 ? count : 0, axis.dilation};
}

// Data and declared padding of window `output`: overhang (t >= input + pad_end, only with ceil_mode) never counts.
template <class AnyAxis>
ONNXPOOL_HOST_DEVICE inline integer_of<AnyAxis> declared_count(const AnyAxis& axis, integer_of<AnyAxis> output) {
    return taps_below(axis, output * axis.stride - axis.pad_begin, axis.input + axis.pad_end);
}

// One axis's factor of the number of taps that an average divides by; 0 for a window without data.
template <class AnyAxis>
ONNXPOOL_HOST_DEVICE inline integer_of<AnyAxis> counted_taps(const AnyAxis& axis, integer_of<AnyAxis> output,
                                                             Divisor divisor) {
    using Integer = integer_of<AnyAxis>;
    const Integer data = data_taps(axis, output).count;
    if (data == 0 || divisor == Divisor::kData) return data;
    return divisor == Divisor::kDeclared ? declared_count(axis, output) : axis.kernel;
}

// The inverse: the windows that have a tap at input position `input`, for gradients by gathering.
template <class AnyAxis>
ONNXPOOL_HOST_DEVICE inline RangeOf<integer_of<AnyAxis>> covering_windows(const AnyAxis& axis,
                                                                          integer_of<AnyAxis> input) {
    using Integer = integer_of<AnyAxis>;
    const Integer padded = input + axis.pad_begin;  // window o covers it where padded - o * stride = j * dilation
    const Integer reach = (axis.kernel - 1) * axis.dilation;
    Integer first = padded > reach ? quotient(padded - reach + axis.stride - 1, axis.stride) : 0;
    Integer last = quotient(padded, axis.stride);
    if (last > axis.output - 1) last = axis.output - 1;
    if (axis.dilation == 1 || first > last) return {first, last >= first ? last - first + 1 : 0, 1};
    // From the beginning of a window that has a tap here, the distance is a multiple of the dilation; from that of any
    // window it is congruent to `padded` modulo the stride. The smallest distance that is both, and their common
    // period, are found by looking, in steps of the larger of the two numbers: no more than the smaller one are needed.
    const Integer stride = axis.stride, dilation = axis.dilation, farthest = padded - first * stride;
    Integer distance = padded - last * stride, period;
    if (stride > dilation) {
        while (distance <= farthest && distance % axis.dilation != 0) distance += stride;
        period = stride;
        while (period <= farthest - distance && period % axis.dilation != 0) period += stride;
    } else {
        distance = quotient(distance + dilation - 1, axis.dilation) * dilation;
        while (distance <= farthest && (padded - distance) % axis.stride != 0) distance += dilation;
        period = dilation;
        while (period <= farthest - distance && period % axis.stride != 0) period += dilation;
    }
    if (distance > farthest) return {0, 0, 1};
    last = quotient(padded - distance, axis.stride);
    if (period > farthest - distance) return {last, 1, 1};
    const Integer step = quotient(period, axis.stride), count = (farthest - distance) / period + 1;
    return {last - (count - 1) * step, count, step};
}

}  // namespace onnxpool
