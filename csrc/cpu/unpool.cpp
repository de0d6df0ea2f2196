// Bound by memory and by the order in which duplicates win, so neither threads nor instruction sets matter here.
#include "unpool.h"

#include <cstring>
#include <vector>

namespace onnxpool::cpu {

namespace {

// Calls visit(flat position, offset in `first`, offset in `second`) for every element of a shape, in row-major order.
template <class Visit>
void for_each_element(const Unpooling& call, const int64_t* first, const int64_t* second, Visit visit) {
    const int64_t* shape = call.pooled_shape;
    int64_t size = 1;
    for (int d = 0; d < call.rank; ++d) size *= shape[d];
    std::vector<int64_t> position(call.rank, 0);
    int64_t offset = 0, other = 0;
    for (int64_t flat = 0; flat < size; ++flat) {
        visit(flat, offset, other);
        for (int d = call.rank - 1; d >= 0; --d) {
            offset += first[d];
            other += second[d];
            if (++position[d] < shape[d]) break;
            offset -= shape[d] * first[d];
            other -= shape[d] * second[d];
            position[d] = 0;
        }
    }
}

// Where the element with a flat row-major index lies in `whole`.
int64_t offset_in_whole(const Unpooling& call, int64_t index) {
    int64_t offset = 0;
    for (int d = call.rank - 1; d >= 0; --d) {
        offset += index % call.whole_shape[d] * call.whole.strides[d];
        index /= call.whole_shape[d];
    }
    return offset;
}

int64_t size_of_whole(const Unpooling& call) {
    int64_t size = 1;
    for (int d = 0; d < call.rank; ++d) size *= call.whole_shape[d];
    return size;
}

// Elements are only moved, so their size is all that matters of their type.
template <class Bits>
void unpool_bits(const Unpooling& call) {
    auto* whole = static_cast<Bits*>(call.whole.data);
    const auto* pooled = static_cast<const Bits*>(call.pooled.data);
    const auto* indices = static_cast<const int64_t*>(call.indices.data);
    std::memset(whole, 0,
                static_cast<size_t>(size_of_whole(call)) * sizeof(Bits));  // freshly allocated, so dense
    for_each_element(call, call.pooled.strides, call.indices.strides, [&](int64_t, int64_t from, int64_t at) {
        whole[offset_in_whole(call, indices[at])] = pooled[from];
    });
}

template <class Bits>
void unpool_backward_bits(const Unpooling& call) {
    const auto* whole = static_cast<const Bits*>(call.whole.data);
    auto* pooled = static_cast<Bits*>(call.pooled.data);
    const auto* indices = static_cast<const int64_t*>(call.indices.data);
    std::vector<int64_t> winner(size_of_whole(call), -1);
    for_each_element(call, call.indices.strides, call.indices.strides,
                     [&](int64_t flat, int64_t at, int64_t) { winner[indices[at]] = flat; });
    for_each_element(call, call.pooled.strides, call.indices.strides, [&](int64_t flat, int64_t to, int64_t at) {
        const int64_t index = indices[at];
        pooled[to] = winner[index] == flat ? whole[offset_in_whole(call, index)] : Bits{0};
    });
}

}  // namespace

std::optional<int64_t> find_index_outside(const Unpooling& call) {
    const int64_t size = size_of_whole(call);
    const auto* indices = static_cast<const int64_t*>(call.indices.data);
    std::optional<int64_t> outside;
    for_each_element(call, call.indices.strides, call.indices.strides, [&](int64_t, int64_t at, int64_t) {
        if (!outside && (indices[at] < 0 || indices[at] >= size)) outside = indices[at];
    });
    return outside;
}

void unpool(const Unpooling& call) {
    switch (call.element_size) {
        case 2:
            return unpool_bits<uint16_t>(call);
        case 4:
            return unpool_bits<uint32_t>(call);
        default:
            return unpool_bits<uint64_t>(call);
    }
}

void unpool_backward(const Unpooling& call) {
    switch (call.element_size) {
        case 2:
            return unpool_backward_bits<uint16_t>(call);
        case 4:
            return unpool_backward_bits<uint32_t>(call);
        default:
            return unpool_backward_bits<uint64_t>(call);
    }
}

}  // namespace onnxpool::cpu
