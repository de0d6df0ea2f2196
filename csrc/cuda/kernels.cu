// From a reduction to the file that has its kernels: one each, so that they compile side by side.
#include "kernels.h"

#include "plan.cuh"

namespace onnxpool::cuda {

namespace {

bool enqueue(Direction direction, Reduction reduction, const Call& call, const Context& context) {
    switch (reduction) {
        case Reduction::kAverage:
            return enqueue_average(direction, call, context);
        case Reduction::kLpNorm:
            return enqueue_norm(direction, call, context);
        case Reduction::kMax:
            return enqueue_max(direction, call, context);
        case Reduction::kMaxWithIndex:
            return enqueue_max_with_index(direction, call, context);
        default:
            return direction == Direction::kForward && enqueue_quantized(reduction, call, context);
    }
}

}  // namespace

bool forward(Reduction reduction, const Call& call, const Context& context) {
    return enqueue(Direction::kForward, reduction, call, context);
}

bool backward(Reduction reduction, const Call& call, const Context& context) {
    return enqueue(Direction::kBackward, reduction, call, context);
}

}  // namespace onnxpool::cuda
