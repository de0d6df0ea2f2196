// The CPU kernels as the bindings see them: plain pointers, strides and a geometry. Free of torch headers.
#pragma once

#include <cstdint>

#include "../geometry.h"
#include "../reductions.h"

namespace onnxpool::cpu {

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

    Call(const Geometry& geometry, const Parameters& parameters) : geometry(geometry), parameters(parameters) {}
};

// The work of a call: `units` independent parts, of which `run` does a range.
struct Task {
    void (*run)(const Call& call, int64_t begin, int64_t end) = nullptr;
    int64_t units = 0;
    double elements_per_unit = 0;  // roughly how many elements a unit looks at
};

// How to do a call on this machine, with its best instruction set, capped by ATEN_CPU_CAPABILITY (default, avx2,
// avx512). `run` is null where the reduction does not take the element type, or has no gradient.
Task plan_forward(Reduction reduction, ElementType type, const Call& call);
Task plan_backward(Reduction reduction, ElementType type, const Call& call);

}  // namespace onnxpool::cpu
