// QLinearAveragePool and QLinearGlobalAveragePool.
#include "plan.cuh"

namespace onnxpool::cuda {

bool enqueue_quantized(Reduction reduction, const Call& call, const Context& context) {
    return reduction == Reduction::kQuantizedAverage
               ? enqueue_bytes<QuantizedAverage>(Direction::kForward, call, context)
               : enqueue_bytes<QuantizedGlobalAverage>(Direction::kForward, call, context);
}

}  // namespace onnxpool::cuda
