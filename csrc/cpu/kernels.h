// The CPU kernels as the bindings see them. Free of torch headers.
#pragma once

#include "../kernels.h"

namespace onnxpool::cpu {

// The work of a call: `units` independent parts, of which `run` does a range.
struct Task {
    void (*run)(const Call& call, int64_t begin, int64_t end) = nullptr;
    int64_t units = 0;
    double elements_per_unit = 0;  // roughly how many elements a unit looks at
};

// How to do a call on this machine, with its best instruction set, capped by ATEN_CPU_CAPABILITY (default, avx2,
// avx512). `run` is null where the reduction does not take the element type, or has no gradient.
Task plan_forward(Reduction reduction, const Call& call);
Task plan_backward(Reduction reduction, const Call& call);

}  // namespace onnxpool::cpu
