// A call as kernels see it: passed by value, with strides and sizes in as few bits as they need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "../window.h"
#include "kernels.h"
#include "launch.cuh"

namespace onnxpool::cuda {

// A positive number to divide by, known before the launch. 32-bit ones are divided by with a multiplication and a shift
// (Granlund and Montgomery, "Division by Invariant Integers using Multiplication").
template <class Integer>
struct Divider {
    Integer value = 1;

    Divider() = default;
    explicit Divider(Integer value) : value(value) {}
    ONNXPOOL_HOST_DEVICE operator Integer() const { return value; }
};

template <>
struct Divider<int32_t> {
    int32_t value = 1;
    uint32_t multiplier = 1;
    int shift = 0;

    Divider() = default;
    explicit Divider(int32_t value) : value(value) {
        while ((int64_t{1} << shift) < value) ++shift;
        const uint64_t excess = (uint64_t{1} << shift) - static_cast<uint64_t>(value);
        multiplier = static_cast<uint32_t>((excess << 32) / static_cast<uint64_t>(value) + 1);
    }
    ONNXPOOL_HOST_DEVICE operator int32_t() const { return value; }

    // For a numerator >= 0.
    ONNXPOOL_HOST_DEVICE friend int32_t operator/(int32_t numerator, const Divider& divider) {
        const auto n = static_cast<uint32_t>(numerator);
        const auto high = static_cast<uint32_t>((static_cast<uint64_t>(n) * divider.multiplier) >> 32);
        return static_cast<int32_t>((high + n) >> divider.shift);
    }
    // For a numerator below 2^62 and a divisor of at most 2^30: the multiplier makes quotients too large then, by so
    // little that the excess times the divisor fits into 32 bits.
    ONNXPOOL_HOST_DEVICE friend int64_t operator/(int64_t numerator, const Divider& divider) {
        const auto n = static_cast<uint64_t>(numerator);
        const uint64_t high = (n >> 32) * divider.multiplier + ((n & 0xffffffffu) * divider.multiplier >> 32);
        const auto not_below = static_cast<int64_t>((high + n) >> divider.shift);
        const int64_t excess = not_below * divider.value - numerator;
        return excess <= 0 ? not_below : not_below - 1 - static_cast<int32_t>(excess - 1) / divider;
    }
    ONNXPOOL_HOST_DEVICE friend int32_t operator%(int32_t numerator, const Divider& divider) {
        return numerator - numerator / divider * divider.value;
    }
};

// How sizes and offsets within a plane are counted. Nearly every call fits into three axes of 32-bit numbers, which
// stay in registers; calls with fewer axes get axes of size 1 in front.
struct Small {
    using Index = int32_t;
    using Count = int32_t;  // of a window's taps
    static constexpr int kRank = 3;
    ONNXPOOL_HOST_DEVICE static constexpr int rank(int) { return kRank; }
};

struct Any {
    using Index = int64_t;
    using Count = double;  // three axes of huge windows have more taps than int64 can count
    static constexpr int kRank = kMaxSpatialRank;
    ONNXPOOL_HOST_DEVICE static constexpr int rank(int given) { return given; }
};

// An Axis for window.h.
template <class Integer>
struct DeviceAxis {
    Integer input = 1;
    Integer output = 1;
    Integer kernel = 1;
    Divider<Integer> stride;
    Divider<Integer> dilation;
    Integer pad_begin = 0;
    Integer pad_end = 0;
};

// Whether an axis of `size` places has this one.
__device__ inline bool has_place(int32_t size, int32_t place) {
    return static_cast<uint32_t>(place) < static_cast<uint32_t>(size);
}

// A tensor, or the values of Indices: where the elements of a plane lie.
template <class Space>
struct View {
    using Index = typename Space::Index;

    void* data = nullptr;
    int64_t image_stride = 0;
    int64_t channel_stride = 0;
    Index strides[Space::kRank] = {};

    template <class T>
    __device__ T* plane(int64_t image, int64_t channel) const {
        return static_cast<T*>(data) + image * image_stride + channel * channel_stride;
    }
    __device__ Index offset(const Index* position, int rank) const {
        Index sum = 0;
#pragma unroll
        for (int a = 0; a < Space::rank(rank); ++a) sum += position[a] * strides[a];
        return sum;
    }
};

// A place in a tensor.
template <class Space>
struct Position {
    int64_t image;
    int64_t channel;
    typename Space::Index spatial[Space::kRank];
};

// The places of a tensor, some channels, rows and columns at a time, numbered in the order of its memory:
// [N, C, D1, ..., Dr], or [N, D1, ..., Dr, C] with channels innermost.
template <class Space>
struct Places {
    using Index = typename Space::Index;

    int64_t count = 0;
    int rank = Space::kRank;
    int lanes = 1;    // channels of a place
    int rows = 1;     // of a place, along the second to last axis, unless there is one axis only
    int columns = 1;  // of a place, along the last axis
    bool channels_innermost = false;
    Divider<Index> channel_blocks;
    Divider<Index> sizes[Space::kRank];

    __device__ Position<Space> operator[](int64_t number) const {
        if (sizeof(Index) == 4 && count <= std::numeric_limits<int32_t>::max()) {
            return decode(static_cast<int32_t>(number));
        }
        return decode_large(number);
    }

private:
    __device__ __attribute__((noinline)) Position<Space> decode_large(int64_t number) const { return decode(number); }

    template <class Number>
    __device__ Position<Space> decode(Number number) const {
        Position<Space> position;
        if (channels_innermost) position.channel = take(number, channel_blocks) * lanes;
#pragma unroll
        for (int i = 1; i <= Space::rank(rank); ++i) {
            const int a = Space::rank(rank) - i;
            position.spatial[a] = static_cast<Index>(take(number, sizes[a]));
        }
        if (!channels_innermost) position.channel = take(number, channel_blocks) * lanes;
        position.image = number;
        if (rows > 1) position.spatial[Space::rank(rank) - 2] *= rows;
        position.spatial[Space::rank(rank) - 1] *= columns;
        return position;
    }

    // The last digit of a number in a mixed-radix system, which it loses.
    template <class Number>
    static __device__ Number take(Number& number, const Divider<Index>& radix) {
        const Number quotient = number / radix;
        const Number digit = number - quotient * static_cast<Number>(radix);
        number = quotient;
        return digit;
    }
};

template <class Space>
struct Problem {
    using Index = typename Space::Index;
    using AxisType = DeviceAxis<Index>;

    Parameters parameters;
    int rank = Space::kRank;
    int64_t channels;
    AxisType axes[Space::kRank];
    Places<Space> places;  // of the tensor that is written
    View<Space> x, y, indices, grad_y, grad_x;
    View<Space> flat;  // the values of Indices

    explicit Problem(const Call& call)
        : parameters(call.parameters), rank(Space::rank(call.geometry.rank)), channels(call.geometry.channels) {
        const Geometry& geometry = call.geometry;
        for (int a = 0; a < geometry.rank; ++a) {
            const Axis& given = geometry.axes[a];
            AxisType& axis = axes[rank - geometry.rank + a];
            axis.input = static_cast<Index>(given.input);
            axis.output = static_cast<Index>(given.output);
            axis.kernel = static_cast<Index>(given.kernel);
            axis.stride = Divider<Index>(static_cast<Index>(given.stride));
            axis.dilation = Divider<Index>(static_cast<Index>(given.dilation));
            axis.pad_begin = static_cast<Index>(given.pad_begin);
            axis.pad_end = static_cast<Index>(given.pad_end);
        }
        x = view(call, call.x);
        y = view(call, call.y);
        indices = view(call, call.indices);
        grad_y = view(call, call.grad_y);
        grad_x = view(call, call.grad_x);
        flat = view(call, {nullptr, call.index_strides});
    }

    // The places are those of outputs or of inputs.
    void number(const Call& call, Index AxisType::* size, int lanes, int rows = 1, int columns = 1) {
        Index sizes[Space::kRank];
        for (int a = 0; a < rank; ++a) sizes[a] = axes[a].*size;
        number(call, sizes, lanes, rows, columns);
    }

    void number(const Call& call, const Index (&sizes)[Space::kRank], int lanes, int rows, int columns) {
        places.rank = rank;
        places.lanes = lanes;
        places.channels_innermost = call.channels_innermost;
        const int64_t channel_blocks = ceil_div(channels, lanes);
        places.channel_blocks = Divider<Index>(static_cast<Index>(channel_blocks));
        places.count = call.geometry.batch * channel_blocks;
        places.rows = rows;
        places.columns = columns;
        for (int a = 0; a < rank; ++a) {
            const int together = a == rank - 1 ? columns : a == rank - 2 ? rows : 1;
            const int64_t numbers = ceil_div(sizes[a], together);
            places.sizes[a] = Divider<Index>(static_cast<Index>(numbers));
            places.count *= numbers;
        }
    }

    // Where windows have one axis only, the channels of an image become rows of a plane, if their offsets are small. To
    // be called before places are numbered.
    void make_rows_of_channels(const Call& call) {
        View<Space>* const views[] = {&x, &y, &indices, &grad_y, &grad_x, &flat};
        const bool all_fit = std::all_of(std::begin(views), std::end(views), [&](const View<Space>* view) {
            return call.geometry.channels * view->channel_stride <= std::numeric_limits<Index>::max() / 2;
        });
        if (call.geometry.rank > 1 || call.channels_innermost || !all_fit) return;
        AxisType& rows = axes[rank - 2];
        rows.input = rows.output = static_cast<Index>(channels);
        for (View<Space>* view : views) view->strides[rank - 2] = static_cast<Index>(view->channel_stride);
        channels = 1;
    }

    // How many planes the numbered places have.
    int64_t planes(const Call& call) const { return call.geometry.batch * places.channel_blocks; }

private:
    View<Space> view(const Call& call, const Operand& operand) const {
        View<Space> view;
        if (!operand.strides) return view;
        view.data = operand.data;
        view.image_stride = operand.strides[0];
        view.channel_stride = operand.strides[1];
        for (int a = 0; a < call.geometry.rank; ++a) {
            view.strides[rank - call.geometry.rank + a] = static_cast<Index>(operand.strides[2 + a]);
        }
        return view;
    }
};

// Whether everything that kernels compute within a plane fits into 31 bits.
inline bool is_small(const Call& call) {
    constexpr auto limit = static_cast<double>(1 << 30);
    const Geometry& geometry = call.geometry;
    if (geometry.rank > Small::kRank || static_cast<double>(geometry.channels) > limit) return false;
    double taps = 1;
    for (int a = 0; a < geometry.rank; ++a) {
        const Axis& axis = geometry.axes[a];
        const double padded = static_cast<double>(axis.input) + static_cast<double>(axis.pad_begin + axis.pad_end);
        const double reach = static_cast<double>(axis.output) * static_cast<double>(axis.stride) +
                             static_cast<double>(axis.kernel) * static_cast<double>(axis.dilation);
        taps *= static_cast<double>(axis.kernel);
        if (padded + reach + static_cast<double>(axis.stride) > limit) return false;
    }
    if (taps > limit) return false;
    // Offsets are also added to those of the places before a plane where windows, or what they send, begin.
    const auto plane_fits = [&](const int64_t* strides, int64_t Axis::* size, const auto& before) {
        double reach = 0;
        for (int a = 0; strides && a < geometry.rank; ++a) {
            const Axis& axis = geometry.axes[a];
            reach += static_cast<double>(axis.*size + before(axis)) * static_cast<double>(strides[2 + a]);
        }
        return reach <= limit;
    };
    for (const Operand& operand : {call.x, call.grad_x, Operand{nullptr, call.index_strides}}) {
        if (!plane_fits(operand.strides, &Axis::input, [](const Axis& axis) { return axis.pad_begin; })) return false;
    }
    const auto sent_before = [](const Axis& axis) { return (axis.kernel - 1) * axis.dilation; };
    for (const Operand& operand : {call.y, call.indices, call.grad_y}) {
        if (!plane_fits(operand.strides, &Axis::output, sent_before)) return false;
    }
    return true;
}

}  // namespace onnxpool::cuda
