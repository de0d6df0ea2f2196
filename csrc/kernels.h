// What the kernels of every device are called with: plain pointers, strides and a geometry. Free of torch headers.
#pragma once

#include <cstdint>

#include "geometry.h"
#include "reductions.h"

namespace onnxpool {

enum class Reduction { kAverage, kLpNorm, kMax, kMaxWithIndex, kQuantizedAverage, kQuantizedGlobalAverage };

// A tensor [N, C, D1, ..., Dr]; strides count elements. Unused tensors stay null.
struct Operand {
    void* data = nullptr;
    const int64_t* strides = nullptr;
};

// One call of a kernel: which tensors are read and written depends on the reduction and the direction.
struct Call {
    const Geometry& geometry;
    Parameters parameters;
    const int64_t* index_strides = nullptr;  // of Indices' values: [N, C, D1, ..., Dr] flat over the whole tensor
    bool channels_innermost = false;         // vectors run over channels rather than along the last spatial axis
    Operand x, y, indices, grad_y, grad_x;

    // Of a segment of a larger call: its axis, along which there are more data before and behind those of this call,
    // which divisors count, and the index of its first element.
    int segmented_axis = -1;
    int64_t data_before = 0, data_after = 0;
    int64_t first_index = 0;

    // How often divisors count each element: one that stands for several that are alike.
    int64_t repeats = 1;

    Call(const Geometry& geometry, const Parameters& parameters) : geometry(geometry), parameters(parameters) {}
};

// One call of MaxUnpool. Shapes and tensors of dimensions [N, C, D1, ..., Dr], `rank` of them. Indices are flat over
// the whole tensor, row-major.
struct Unpooling {
    int rank;
    int element_size;
    const int64_t* pooled_shape;
    const int64_t* whole_shape;
    Operand pooled;   // X, or its gradient
    Operand indices;  // of pooled_shape
    Operand whole;    // Y, or its gradient
};

}  // namespace onnxpool
