// What the kernels of every instruction set offer, and all that they include: a file that compiles kernels.inl sets its
// target after including this one, so that the inline functions from here belong to the baseline and may be inlined
// anywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "../window.h"
#include "folded_call.h"
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define ONNXPOOL_X86 1
#endif

namespace onnxpool::cpu {

// Begins where a cache line does: vectors that reach into two of them cost twice as much.
template <class T>
struct CacheLineAllocator {
    using value_type = T;
    static constexpr std::align_val_t kAlignment{64};

    CacheLineAllocator() = default;
    template <class U>
    CacheLineAllocator(const CacheLineAllocator<U>&) {}

    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kAlignment)); }
    void deallocate(T* pointer, size_t) { ::operator delete(pointer, kAlignment); }
    // Numbers without a value of their own are left as memory is: to fill large buffers takes as long as a kernel.
    template <class U>
    void construct(U* place) {
        ::new (static_cast<void*>(place)) U;
    }
    bool operator==(const CacheLineAllocator&) const { return true; }
    bool operator!=(const CacheLineAllocator&) const { return false; }
};

// Elements or accumulators that vectors are read from.
template <class T>
using Buffer = std::vector<T, CacheLineAllocator<T>>;

// What a set of kernels makes of a call; null where it cannot be done.
using Plan = Task (*)(const Call& call);

struct Plans {
    Plan forward = nullptr;
    Plan backward = nullptr;
};

// The plans for one reduction of these elements: find_plans.inl, compiled for each instruction set.
namespace baseline {
template <Reduction kReduction>
Plans find_plans(const Call& call);
}
namespace avx2 {
template <Reduction kReduction>
Plans find_plans(const Call& call);
}
namespace avx512 {
template <Reduction kReduction>
Plans find_plans(const Call& call);
}

}  // namespace onnxpool::cpu
