// Elements side by side in memory, moved 16 bytes at a time.
#pragma once

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

inline bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kVectorBytes == 0; }

// Whether channels lie side by side such that every `lanes` of them, at every place, start where an access may. `size`
// tells a tensor of inputs from one of outputs.
inline bool has_channel_vectors(const Call& call, const Operand& operand, int64_t Axis::* size, int element_size) {
    if (!operand.data) return true;
    const Geometry& geometry = call.geometry;
    const int64_t lanes = kVectorBytes / element_size;
    const auto fits = [&](int64_t count, int64_t stride) { return count <= 1 || stride % lanes == 0; };
    bool all_fit = operand.strides[1] == 1 && geometry.channels % lanes == 0 && is_aligned(operand.data) &&
                   fits(geometry.batch, operand.strides[0]);
    for (int a = 0; a < geometry.rank; ++a) {
        all_fit = all_fit && fits(geometry.axes[a].*size, operand.strides[2 + a]);
    }
    return all_fit;
}

}  // namespace onnxpool::cuda
