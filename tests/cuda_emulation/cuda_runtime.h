// What the kernels use of CUDA, emulated on the CPU: g++ compiles csrc/cuda/*.cu with this file in place of CUDA's own.
//
// The threads of a block run one after the other, up to a barrier or their end. A thread that waits keeps its stack, so
// that kernels without barriers run as plain loops. Each launch is checked as CUDA would: sizes of grid, block, shared
// memory and parameters; a barrier that some threads of the block or warp do not reach is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0 };
enum cudaMemcpyKind { cudaMemcpyDeviceToHost = 2 };

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
};

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

void wait_for_block();
bool any_of_block(bool predicate);
void wait_for_warp();
// Where threads leave values for their warp: each in the slot of its number.
using Slot = unsigned char[16];
Slot& own_slot();
const Slot* slots();
// The lanes of the warp whose predicate holds.
unsigned ballot(bool predicate);

cudaError_t run(const cudaLaunchConfig_t& config, const void* kernel, size_t parameter_bytes,
                const std::function<void()>& body);

template <class T>
T from_lane(T value, unsigned lane) {
    static_assert(sizeof(T) <= sizeof(Slot));
    __builtin_memcpy(own_slot(), &value, sizeof(T));
    wait_for_warp();
    const unsigned source = threadIdx.x / 32 * 32 + lane;
    if (lane < 32 && source < blockDim.x) __builtin_memcpy(&value, slots()[source], sizeof(T));
    return value;
}

}  // namespace emulation

inline void __syncthreads() { emulation::wait_for_block(); }
inline int __syncthreads_or(int predicate) { return emulation::any_of_block(predicate != 0); }
inline void __syncwarp(unsigned = ~0u) { emulation::wait_for_warp(); }

template <class T>
T __shfl_sync(unsigned, T value, int lane, int = 32) {
    return emulation::from_lane(value, static_cast<unsigned>(lane) % 32);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
    return emulation::from_lane(value, threadIdx.x % 32 ^ static_cast<unsigned>(mask));
}

// The lanes that have the same value.
template <class T>
unsigned __match_any_sync(unsigned, T value) {
    __builtin_memcpy(emulation::own_slot(), &value, sizeof(T));
    emulation::wait_for_warp();
    const emulation::Slot* slots = emulation::slots();
    unsigned same = 0;
    for (unsigned lane = 0, source = threadIdx.x / 32 * 32; lane < 32 && source < blockDim.x; ++lane, ++source) {
        T other;
        __builtin_memcpy(&other, slots[source], sizeof(T));
        same |= static_cast<unsigned>(other == value) << lane;
    }
    return same;
}
inline unsigned __ballot_sync(unsigned, int predicate) { return emulation::ballot(predicate != 0); }
inline int __any_sync(unsigned lanes, int predicate) { return __ballot_sync(lanes, predicate) != 0; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <class T>
T atomicMax(T* address, T value) {
    const T before = *address;
    if (value > before) *address = value;
    return before;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
    return emulation::run(*config, reinterpret_cast<const void*>(kernel), (sizeof(Parameters) + ... + 0),
                          [&] { kernel(arguments...); });
}

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
const char* cudaGetErrorString(cudaError_t error);
