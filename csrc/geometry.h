// From attributes and input sizes to output sizes and paddings: integers only, free of torch headers.
// torch_onnxpool/_geometry.py holds the same sizes for symbolic shapes; a test keeps the two equal.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attributes.h"
#include "host_device.h"

namespace onnxpool {

// numerator / denominator, also of types that divide in their own way.
template <class Numerator, class Denominator>
ONNXPOOL_HOST_DEVICE inline Numerator quotient(Numerator numerator, const Denominator& denominator) {
    return numerator / denominator;
}

// Most numbers fit in 32 bits, where a division takes a third of the time.
ONNXPOOL_HOST_DEVICE inline int64_t quotient(int64_t numerator, int64_t denominator) {
    if ((numerator | denominator) >> 32 == 0) {
        return static_cast<uint32_t>(numerator) / static_cast<uint32_t>(denominator);
    }
    return numerator / denominator;
}

// One spatial axis of a pooling: the only thing that kernels know about attributes.
struct Axis {
    int64_t input;
    int64_t output;
    int64_t kernel;
    int64_t stride;
    int64_t dilation;
    int64_t pad_begin;
    int64_t pad_end;
};

struct Geometry {
    int64_t batch;
    int64_t channels;
    int rank;  // number of spatial axes
    Axis axes[kMaxSpatialRank];
};

// Whether one window has all data along the axis, and no padding.
inline bool is_spanned(const Axis& axis) {
    return axis.kernel == axis.input && axis.output == 1 && axis.dilation == 1 && axis.pad_begin == 0;
}

// Whether one window has all data of the plane, and no padding.
inline bool spans_plane(const Geometry& geometry) {
    return std::all_of(geometry.axes, geometry.axes + geometry.rank, is_spanned);
}

// How many windows cover an element, on average.
inline double windows_of_element(const Geometry& geometry) {
    double windows = 1;
    for (int a = 0; a < geometry.rank; ++a) {
        windows *= static_cast<double>(geometry.axes[a].kernel) / static_cast<double>(geometry.axes[a].stride);
    }
    return windows;
}

inline int64_t ceil_div(int64_t numerator, int64_t positive_denominator) {  // of a non-negative numerator
    return quotient(numerator + positive_denominator - 1, positive_denominator);
}

inline Axis resolve_axis(const PoolAttributes& attributes, int index, int64_t input) {
    const AxisAttributes& given = attributes.axes[index];
    Axis axis{input, 0, given.kernel, given.stride, given.dilation, given.pad_begin, given.pad_end};
    const int64_t effective_kernel = (axis.kernel - 1) * axis.dilation + 1;

    if (attributes.auto_pad == AutoPad::kSameUpper || attributes.auto_pad == AutoPad::kSameLower) {
        axis.output = ceil_div(input, axis.stride);
        const int64_t padding = std::max<int64_t>(0, (axis.output - 1) * axis.stride + effective_kernel - input);
        const int64_t smaller_half = padding / 2;
        const bool upper = attributes.auto_pad == AutoPad::kSameUpper;
        axis.pad_begin = upper ? smaller_half : padding - smaller_half;
        axis.pad_end = padding - axis.pad_begin;
        return axis;
    }

    const int64_t span = input + axis.pad_begin + axis.pad_end - effective_kernel;
    if (span < 0 && !(attributes.ceil_mode && span > -axis.stride)) {
        refuse(attributes.operator_name, "the window must fit into the padded input, got on spatial axis ", index,
               " an effective kernel of ", effective_kernel, " for an input of ", input, " with pads ", axis.pad_begin,
               " and ", axis.pad_end);
    }
    if (!attributes.ceil_mode) {
        axis.output = quotient(span, axis.stride) + 1;
    } else {
        axis.output = span <= 0 ? 1 : ceil_div(span, axis.stride) + 1;
        // The last window must start inside the input or the begin padding.
        if ((axis.output - 1) * axis.stride >= input + axis.pad_begin) --axis.output;
    }
    return axis;
}

// `shape` is [N, C, D1, ..., Dr]; the number of spatial axes has been matched with the attributes.
inline Geometry resolve_geometry(const PoolAttributes& attributes, IntSpan shape) {
    Geometry geometry;
    geometry.batch = shape[0];
    geometry.channels = shape[1];
    geometry.rank = attributes.rank;
    // Bounds the output by what int64 can address, in bytes of the widest element (8), before anything is allocated.
    int64_t bytes = 8;
    bool too_large = __builtin_mul_overflow(bytes, std::max<int64_t>(1, shape[0]), &bytes) ||
                     __builtin_mul_overflow(bytes, shape[1], &bytes);
    for (int a = 0; a < attributes.rank; ++a) {
        geometry.axes[a] = resolve_axis(attributes, a, shape[2 + a]);
        too_large = too_large || __builtin_mul_overflow(bytes, geometry.axes[a].output, &bytes);
    }
    if (too_large) {
        refuse(attributes.operator_name, "the output must be addressable in 64 bits, got X of shape ", shape);
    }
    return geometry;
}

}  // namespace onnxpool
