// Between host and device: launches and their errors.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels.h"

namespace onnxpool::cuda {

// Threads of a block, in all kernels, and of a warp.
constexpr int kThreads = 256, kWarpThreads = 32;
constexpr int kWarps = kThreads / kWarpThreads;

// What every device gives a block without being asked.
constexpr int64_t kSharedBytes = 48 * 1024;

#ifndef ONNXPOOL_LARGEST_GRID
#define ONNXPOOL_LARGEST_GRID 0x7fffffff
#endif

// Runs a kernel whose first argument is the number of its first block: more blocks than a grid holds come in several
// launches.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(int64_t, Parameters...), int64_t blocks, int64_t shared_bytes, cudaStream_t stream,
            const Arguments&... arguments) {
    constexpr int64_t largest_grid = ONNXPOOL_LARGEST_GRID;
    for (int64_t first_block = 0; first_block < blocks; first_block += largest_grid) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(static_cast<unsigned>(std::min(blocks - first_block, largest_grid)));
        config.blockDim = dim3(kThreads);
        config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
        config.stream = stream;
        check(cudaLaunchKernelEx(&config, kernel, first_block, arguments...));
    }
}

// As many blocks as a thread for each item takes.
inline int64_t blocks_for(int64_t items) { return (items + kThreads - 1) / kThreads; }

inline int64_t multiprocessors() {
    int device = 0, count = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

}  // namespace onnxpool::cuda
