// MaxPool and GlobalMaxPool without Indices.
#include "plan.cuh"

namespace onnxpool::cuda {

bool enqueue_max(Direction direction, ElementType type, const Call& call, const Context& context) {
    return is_byte(type) ? enqueue_bytes<Max>(direction, type, call, context)
                         : enqueue_floating_point<Max>(direction, type, call, context);
}

}  // namespace onnxpool::cuda
