// The CPU kernels as the bindings see them: plain pointers, strides and a geometry. Free of torch headers.
#pragma once

#include <cstdint>

#include "../geometry.h"
#include "../reductions.h"

namespace onnxpool::cpu {

enum class Reduction { kAverage, kLpNorm, kMax, kMaxWithIndex, kQuantizedGlobalAverage };

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

    Call(const Geometry& geometry, const Parameters& parameters) : geometry(geometry), parameters(parameters) {}
};

// Work comes in rows: all positions along the last spatial axis of the written tensor, for one channel or, with
// channels innermost, for a block of channels. A kernel computes the rows begin <= row < end; rows are independent of
// each other.
using Kernel = void (*)(const Call& call, int64_t begin, int64_t end);

struct Kernels {
    Kernel forward;
    Kernel backward;  // null where the reduction has no gradient
};

// The kernels for this machine's best instruction set, capped by ATEN_CPU_CAPABILITY (default, avx2, avx512).
// Null pointers where the reduction does not take the element type.
Kernels find_kernels(Reduction reduction, ElementType type);

// The number of channels in a block.
constexpr int64_t kChannelBlock = 32;

inline int64_t lanes_per_row(const Call& call) { return call.channels_innermost ? kChannelBlock : 1; }

// How many rows the tensor with the given sizes along its spatial axes has.
template <class Size>
int64_t count_rows(const Call& call, Size size_of_axis) {
    const Geometry& geometry = call.geometry;
    int64_t rows = geometry.batch * ceil_div(geometry.channels, lanes_per_row(call));
    for (int a = 0; a + 1 < geometry.rank; ++a) rows *= size_of_axis(geometry.axes[a]);
    return rows;
}

inline int64_t forward_rows(const Call& call) {
    return count_rows(call, [](const Axis& axis) { return axis.output; });
}

inline int64_t backward_rows(const Call& call) {
    return count_rows(call, [](const Axis& axis) { return axis.input; });
}

}  // namespace onnxpool::cpu
