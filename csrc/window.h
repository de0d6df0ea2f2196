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
    if (axis.dilation == 1) return {first, last >= first ? last - first + 1 : 0, 1};
    // Windows with a tap here repeat with the period dilation / gcd(stride, dilation): both the first one and the
    // period are found by looking.
    const auto has_tap = [&](Integer window) { return (padded - window * axis.stride) % axis.dilation == 0; };
    const Integer tried_until = first + axis.dilation <= last ? first + axis.dilation - 1 : last;
    while (first <= tried_until && !has_tap(first)) ++first;
    if (first > tried_until) return {0, 0, 1};
    Integer step = 1;
    while (step <= last - first && step * axis.stride % axis.dilation != 0) ++step;
    return {first, (last - first) / step + 1, step};
}

}  // namespace onnxpool
