// AveragePool and GlobalAveragePool.
#include "plan.cuh"

namespace onnxpool::cuda {

template <class T>
using PlainAverage = Average<T>;  // without its second parameter

bool enqueue_average(Direction direction, const Call& call, const Context& context) {
    return enqueue_floating_point<PlainAverage>(direction, call, context);
}

}  // namespace onnxpool::cuda
