// QLinearAveragePool and QLinearGlobalAveragePool.
#include "plan.cuh"

namespace onnxpool::cuda {

bool enqueue_quantized(Reduction reduction, ElementType type, const Call& call, const Context& context) {
    return reduction == Reduction::kQuantizedAverage
               ? enqueue_bytes<QuantizedAverage>(Direction::kForward, type, call, context)
               : enqueue_bytes<QuantizedGlobalAverage>(Direction::kForward, type, call, context);
}

}  // namespace onnxpool::cuda
