// MaxPool and GlobalMaxPool with Indices, and the gradients of both.
#include "plan.cuh"

namespace onnxpool::cuda {

bool enqueue_max_with_index(Direction direction, const Call& call, const Context& context) {
    return is_byte(call.parameters.element_type) ? enqueue_bytes<MaxWithIndex>(direction, call, context)
                                                 : enqueue_floating_point<MaxWithIndex>(direction, call, context);
}

}  // namespace onnxpool::cuda
