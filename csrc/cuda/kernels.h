// The CUDA kernels as the bindings see them. Free of torch headers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "../kernels.h"

namespace onnxpool::cuda {

inline void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(error));
}

// Where a call runs.
struct Context {
    cudaStream_t stream;
    // Device memory for kernels that the call enqueues on `stream`. The caller of the call releases it, in the order of
    // the stream.
    std::function<void*(int64_t bytes)> allocate;
};

// Enqueue the kernels of a call. False where the reduction does not take the element type, or has no gradient. An error
// of CUDA arrives as std::runtime_error.
bool forward(Reduction reduction, const Call& call, const Context& context);
bool backward(Reduction reduction, const Call& call, const Context& context);

// As in cpu/unpool.h. An index that names no element of `whole` is returned, and nothing has been computed: to know
// this, both wait for the stream. While a CUDA graph is captured nobody can, and such an index is passed over: its
// element goes nowhere, and has the gradient 0.
std::optional<int64_t> unpool(const Unpooling& call, const Context& context);
std::optional<int64_t> unpool_backward(const Unpooling& call, const Context& context);

}  // namespace onnxpool::cuda
