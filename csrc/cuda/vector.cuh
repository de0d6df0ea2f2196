// Elements side by side in memory, moved 16 bytes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "problem.cuh"

namespace onnxpool::cuda {

constexpr int kVectorBytes = 16;

template <class T>
constexpr int kVectorLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T, int kLanes>
struct alignas(sizeof(T) * kLanes) Vector {
    T lanes[kLanes];
};

// As many elements of T as one access moves, at most `lanes`.
template <class T, int kLanes>
constexpr int kAccessLanes = kLanes < kVectorLanes<T> ? kLanes : kVectorLanes<T>;

template <int kLanes, class T>
__device__ inline void load(const T* from, T (&to)[kLanes]) {
    constexpr int step = kAccessLanes<T, kLanes>;
#pragma unroll
    for (int first = 0; first < kLanes; first += step) {
        const auto vector = *reinterpret_cast<const Vector<T, step>*>(from + first);
#pragma unroll
        for (int lane = 0; lane < step; ++lane) to[first + lane] = vector.lanes[lane];
    }
}

template <int kLanes, class T>
__device__ inline void store(const T (&from)[kLanes], T* to) {
    constexpr int step = kAccessLanes<T, kLanes>;
#pragma unroll
    for (int first = 0; first < kLanes; first += step) {
        Vector<T, step> vector;
#pragma unroll
        for (int lane = 0; lane < step; ++lane) vector.lanes[lane] = from[first + lane];
        *reinterpret_cast<Vector<T, step>*>(to + first) = vector;
    }
}

// The address `elements` further on, in one instruction: left to itself, the compiler adds up all that is known of an
// address before it multiplies by the size of an element, in four.
template <class T>
__device__ inline const T* advance(const T* from, int32_t elements) {
#if defined(__CUDA_ARCH__)
    const T* to;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(to) : "r"(elements), "n"(static_cast<int>(sizeof(T))), "l"(from));
    __builtin_assume(__isGlobal(to));
    return to;
#else
    return from + elements;
#endif
}

inline bool is_aligned(const void* address, int bytes = kVectorBytes) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether elements lie side by side along a dimension of [N, C, D1, ..., Dr] such that every `lanes` of them, at every
// place, start where an access may. `size` tells a tensor of inputs from one of outputs.
inline bool has_vectors(const Geometry& geometry, const Operand& operand, int64_t Axis::* size, int dimension,
                        int lanes, int element_size) {
    if (!operand.data) return true;
    bool all_fit = is_aligned(operand.data, std::min(kVectorBytes, lanes * element_size));
    for (int d = 0; d < 2 + geometry.rank; ++d) {
        const int64_t count = d == 0 ? geometry.batch : d == 1 ? geometry.channels : geometry.axes[d - 2].*size;
        const int64_t stride = operand.strides[d];
        all_fit = all_fit && (d == dimension ? stride == 1 && count % lanes == 0 : count <= 1 || stride % lanes == 0);
    }
    return all_fit;
}

// As many channels as one access moves, in a tensor of inputs or of outputs.
inline bool has_channel_vectors(const Call& call, const Operand& operand, int64_t Axis::* size, int element_size) {
    return has_vectors(call.geometry, operand, size, 1, kVectorBytes / element_size, element_size);
}

// The same of all tensors of a call that has its channels innermost. An access of indices moves two of them.
inline bool has_channel_vectors(const Call& call, int element_size) {
    const auto has = [&](const Operand& operand, int64_t Axis::* size, int bytes) {
        return has_channel_vectors(call, operand, size, bytes);
    };
    return call.channels_innermost && has(call.x, &Axis::input, element_size) &&
           has(call.y, &Axis::output, element_size) && has(call.indices, &Axis::output, sizeof(int64_t)) &&
           has(call.grad_y, &Axis::output, element_size) && has(call.grad_x, &Axis::input, element_size);
}

// `columns` of them along the last axis.
inline bool has_column_vectors(const Call& call, const Operand& operand, int64_t Axis::* size, int columns,
                               int element_size) {
    return has_vectors(call.geometry, operand, size, 1 + call.geometry.rank, columns, element_size);
}

}  // namespace onnxpool::cuda
