// From a reduction to the file that has its kernels: one each, so that they compile side by side.
#include "kernels.h"

#include "plan.cuh"

namespace onnxpool::cuda {

namespace {

bool enqueue(Direction direction, Reduction reduction, ElementType type, const Call& call, const Context& context) {
    switch (reduction) {
        case Reduction::kAverage:
            return enqueue_average(direction, type, call, context);
        case Reduction::kLpNorm:
            return enqueue_norm(direction, type, call, context);
        case Reduction::kMax:
            return enqueue_max(direction, type, call, context);
        case Reduction::kMaxWithIndex:
            return enqueue_max_with_index(direction, type, call, context);
        default:
            return direction == Direction::kForward && enqueue_quantized(reduction, type, call, context);
    }
}

}  // namespace

bool forward(Reduction reduction, ElementType type, const Call& call, const Context& context) {
    return enqueue(Direction::kForward, reduction, type, call, context);
}

bool backward(Reduction reduction, ElementType type, const Call& call, const Context& context) {
    return enqueue(Direction::kBackward, reduction, type, call, context);
}

}  // namespace onnxpool::cuda
