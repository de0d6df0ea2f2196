// LpPool and GlobalLpPool.
#include "plan.cuh"

namespace onnxpool::cuda {

template <class T>
using L2Norm = LpNorm<T, 2>;
template <class T>
using AnyNorm = LpNorm<T>;

bool enqueue_norm(Direction direction, const Call& call, const Context& context) {
    if (call.parameters.p == 2) return enqueue_floating_point<L2Norm>(direction, call, context);
    return enqueue_floating_point<AnyNorm>(direction, call, context);
}

}  // namespace onnxpool::cuda
