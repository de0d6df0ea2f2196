// MaxUnpool. Every place of the large tensor first learns which element of the small one comes last to it: integer
// maxima, whose order does not matter.
#include "launch.cuh"

namespace onnxpool::cuda {

namespace {

// A tensor's elements, numbered row-major.
struct Numbered {
    void* data;
    int rank;
    int64_t count = 1;
    int64_t sizes[2 + kMaxSpatialRank];
    int64_t strides[2 + kMaxSpatialRank];

    Numbered(const Operand& operand, const int64_t* shape, int rank) : data(operand.data), rank(rank) {
        for (int d = 0; d < rank; ++d) {
            sizes[d] = shape[d];
            strides[d] = operand.strides[d];
            count *= shape[d];
        }
    }

    template <class T>
    __device__ T& at(int64_t number) const {
        int64_t offset = 0;
        for (int d = rank - 1; d > 0; --d) {
            const int64_t rest = number / sizes[d];
            offset += (number - rest * sizes[d]) * strides[d];
            number = rest;
        }
        return static_cast<T*>(data)[offset + number * strides[0]];
    }
};

__device__ inline int64_t thread_number(int64_t first_block) {
    return (first_block + blockIdx.x) * kThreads + threadIdx.x;
}

using Winner = long long;  // what atomicMax takes

// winners[j] = 1 + the last element that goes to place j, 0 if none does. winners[whole_count] = 1 + the last element
// whose index names no place.
__global__ void __launch_bounds__(kThreads)
    find_winners(int64_t first_block, const __grid_constant__ Numbered indices, int64_t whole_count, Winner* winners) {
    const int64_t element = thread_number(first_block);
    if (element >= indices.count) return;
    const auto index = indices.at<const int64_t>(element);
    const bool inside = index >= 0 && index < whole_count;
    atomicMax(winners + (inside ? index : whole_count), static_cast<Winner>(element + 1));
}

__global__ void __launch_bounds__(kThreads)
    fetch_index(int64_t, const __grid_constant__ Numbered indices, int64_t element, int64_t* index) {
    if (threadIdx.x == 0) *index = indices.at<const int64_t>(element);
}

// Every place takes the element that won it, or 0.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    place_winners(int64_t first_block, const __grid_constant__ Numbered pooled, const __grid_constant__ Numbered whole,
                  const Winner* winners) {
    const int64_t place = thread_number(first_block);
    if (place >= whole.count) return;
    const Winner winner = winners[place];
    whole.at<Bits>(place) = winner > 0 ? pooled.at<const Bits>(winner - 1) : Bits{0};
}

// Every element takes what lies at its place, or 0 where another one won it.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    fetch_places(int64_t first_block, const __grid_constant__ Numbered pooled, const __grid_constant__ Numbered indices,
                 const __grid_constant__ Numbered whole, const Winner* winners) {
    const int64_t element = thread_number(first_block);
    if (element >= pooled.count) return;
    const auto place = indices.at<const int64_t>(element);
    const bool inside = place >= 0 && place < whole.count;
    pooled.at<Bits>(element) = inside && winners[place] == element + 1 ? whole.at<const Bits>(place) : Bits{0};
}

struct Unpool {
    const Context& context;
    Numbered pooled, indices, whole;
    Winner* winners;

    Unpool(const Unpooling& call, const Context& context)
        : context(context),
          pooled(call.pooled, call.pooled_shape, call.rank),
          indices(call.indices, call.pooled_shape, call.rank),
          whole(call.whole, call.whole_shape, call.rank),
          winners(static_cast<Winner*>(context.allocate((whole.count + 1) * sizeof(Winner)))) {
        check(cudaMemsetAsync(winners, 0, static_cast<size_t>(whole.count + 1) * sizeof(Winner), context.stream));
        launch(find_winners, blocks_for(indices.count), 0, context.stream, indices, whole.count, winners);
    }

    std::optional<int64_t> index_outside() const {
        cudaStreamCaptureStatus capturing;
        check(cudaStreamIsCapturing(context.stream, &capturing));
        if (capturing != cudaStreamCaptureStatusNone) return std::nullopt;
        Winner* last_outside = winners + whole.count;
        const Winner element = read(last_outside);
        if (element == 0) return std::nullopt;
        auto* index = reinterpret_cast<int64_t*>(last_outside);
        launch(fetch_index, 1, 0, context.stream, indices, static_cast<int64_t>(element - 1), index);
        return read(index);
    }

    template <class Number>
    Number read(const Number* address) const {
        Number number;
        check(cudaMemcpyAsync(&number, address, sizeof(number), cudaMemcpyDeviceToHost, context.stream));
        check(cudaStreamSynchronize(context.stream));
        return number;
    }

    template <class Bits>
    void forward() const {
        launch(place_winners<Bits>, blocks_for(whole.count), 0, context.stream, pooled, whole,
               static_cast<const Winner*>(winners));
    }

    template <class Bits>
    void backward() const {
        launch(fetch_places<Bits>, blocks_for(pooled.count), 0, context.stream, pooled, indices, whole,
               static_cast<const Winner*>(winners));
    }
};

}  // namespace

// Elements are only moved, so their size is all that matters of their type.
std::optional<int64_t> unpool(const Unpooling& call, const Context& context) {
    const Unpool unpool(call, context);
    if (const auto outside = unpool.index_outside()) return outside;
    call.element_size == 2   ? unpool.forward<uint16_t>()
    : call.element_size == 4 ? unpool.forward<uint32_t>()
                             : unpool.forward<uint64_t>();
    return std::nullopt;
}

std::optional<int64_t> unpool_backward(const Unpooling& call, const Context& context) {
    const Unpool unpool(call, context);
    if (const auto outside = unpool.index_outside()) return outside;
    call.element_size == 2   ? unpool.backward<uint16_t>()
    : call.element_size == 4 ? unpool.backward<uint32_t>()
                             : unpool.backward<uint64_t>();
    return std::nullopt;
}

}  // namespace onnxpool::cuda
