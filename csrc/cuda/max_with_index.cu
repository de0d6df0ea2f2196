// MaxPool and GlobalMaxPool with Indices, and the gradients of both.
#include "plan.cuh"

namespace onnxpool::cuda {

bool enqueue_max_with_index(Direction direction, ElementType type, const Call& call, const Context& context) {
    return is_byte(type) ? enqueue_bytes<MaxWithIndex>(direction, type, call, context)
                         : enqueue_floating_point<MaxWithIndex>(direction, type, call, context);
}

}  // namespace onnxpool::cuda
