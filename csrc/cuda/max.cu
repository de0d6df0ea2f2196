// MaxPool and GlobalMaxPool without Indices.
#include "plan.cuh"

namespace onnxpool::cuda {

bool enqueue_max(Direction direction, const Call& call, const Context& context) {
    return is_byte(call.parameters.element_type) ? enqueue_bytes<Max>(direction, call, context)
                                                 : enqueue_floating_point<Max>(direction, call, context);
}

}  // namespace onnxpool::cuda
