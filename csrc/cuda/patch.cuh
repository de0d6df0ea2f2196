// Small windows whose size is known when compiling: squares over the last two axes, or along one axis of many channels.
// A thread reads a patch of inputs into registers, all at once, and computes the outputs whose windows lie in it.
#pragma once

#include "window.cuh"

namespace onnxpool::cuda {

// The taps of windows along an axis, where their number is known when compiling and none is skipped.
template <int32_t kKernel>
struct PatchAxis {
    int32_t input;
    int32_t output;
    int32_t pad_begin;
    int32_t counted_begin, counted_end;  // where taps count

    __device__ PatchAxis(const DeviceAxis<int32_t>& axis, Divisor divisor)
        : input(axis.input),
          output(axis.output),
          pad_begin(axis.pad_begin),
          counted_begin(divisor == Divisor::kData ? 0 : -kFar),
          counted_end(divisor == Divisor::kData       ? axis.input
                      : divisor == Divisor::kDeclared ? axis.input + axis.pad_end
                                                      : kFar) {}

    // counted_taps() of a window with its first tap at `start`.
    __device__ int32_t count(int32_t start) const {
        const int32_t begin = start < counted_begin ? counted_begin : start;
        const int32_t end = start + kKernel < counted_end ? start + kKernel : counted_end;
        return start < input && start + kKernel > 0 ? end - begin : 0;
    }
    // Not by has_place(), with which compilers take more registers.
    __device__ bool has_window(int32_t window) const {
        return static_cast<uint32_t>(window) < static_cast<uint32_t>(output);
    }
    // How many positions lie before the last window's end.
    __device__ int32_t covered(int32_t stride) const { return (output - 1) * stride + kKernel - pad_begin; }

private:
    static constexpr int32_t kFar = 1 << 30;
};

// The size of windows, along rows and along columns.
template <int kRowKernel_, int kRowStride_, int kKernel_, int kStride_>
struct PatchWindow {
    static constexpr int kRowKernel = kRowKernel_, kRowStride = kRowStride_;
    static constexpr int kKernel = kKernel_, kStride = kStride_;
    static constexpr int kTaps = kRowKernel * kKernel;
};
template <int kKernel, int kStride>
using SquareWindow = PatchWindow<kKernel, kStride, kKernel, kStride>;

// What a thread computes: kRows by kColumns outputs, for kLanes channels side by side in memory. Where columns lie side
// by side, kVector of them are read by one access, the first of them kBefore columns after the patch begins.
template <class Window, int kRows_, int kColumns_, int kLanes_, int kVector_ = 1, int kBefore_ = 0>
struct Patch : Window {
    using Window::kKernel, Window::kStride;
    static constexpr int kRows = kRows_, kColumns = kColumns_, kLanes = kLanes_;
    static constexpr int kVector = kVector_, kBefore = kBefore_;
    static constexpr int kInputRows = (kRows - 1) * Window::kRowStride + Window::kRowKernel;
    static constexpr int kInputColumns = (kColumns - 1) * kStride + kKernel;
    using RowAxis = PatchAxis<Window::kRowKernel>;
    using ColumnAxis = PatchAxis<kKernel>;
    static constexpr int kVectorsEnd = kBefore + (kInputColumns - kBefore) / kVector * kVector;

    // Whether a column of inputs is read together with others, and as the first of them.
    static constexpr __device__ bool in_vector(int column) {
        const int begin = column - (column + kVector - kBefore) % kVector;
        return kVector > 1 && begin >= 0 && begin + kVector <= kInputColumns;
    }
    static constexpr __device__ bool begins_vector(int column) {
        return in_vector(column) && (column + kVector - kBefore) % kVector == 0;
    }
};

__device__ inline int32_t clamp_to(int32_t number, int32_t size) {
    const int32_t not_below = number > 0 ? number : 0;
    return not_below < size - 1 ? not_below : size - 1;
}

// 1 / number, rounded correctly, for a number that is neither very large nor very small.
__device__ inline float reciprocal_of(float number) {
#if defined(__CUDA_ARCH__)
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(number));
    return std::fma(std::fma(-number, guess, 1.0f), guess, guess);
#else
    return 1 / number;
#endif
}

// The quotient by a positive whole number, for a given reciprocal of that: rounded correctly, but for ties between
// subnormal numbers; NaN where it is infinite.
__device__ inline float finite_quotient(float numerator, float divisor, float reciprocal) {
    const float quotient = numerator * reciprocal;
    return std::fma(-std::fma(quotient, divisor, -numerator), reciprocal, quotient);
}

// The elements of a patch. Pairs of two-byte elements that are read together stay together in a word, which is what
// branches choose between: half as many registers, and to convert one of them takes one instruction.
template <class P, class T>
struct PatchData {
    static constexpr bool kPairs = is_half_precision<T>;
    using Slot = std::conditional_t<kPairs, uint32_t, T>;

    Slot slots[P::kInputRows][P::kInputColumns * P::kLanes];  // of pairs, the first one's

    static constexpr __device__ bool is_second(int column, int lane) {
        return kPairs &&
               (P::kLanes > 1 ? lane % 2 == 1 : P::in_vector(column) && (column + P::kVector - P::kBefore) % 2 == 1);
    }
    __device__ T at(int row, int column, int lane) const {
        const int place = column * P::kLanes + lane;
        if constexpr (kPairs) {
            T element;
            element.bits =
                static_cast<uint16_t>(is_second(column, lane) ? slots[row][place - 1] >> 16 : slots[row][place]);
            return element;
        } else {
            return slots[row][place];
        }
    }

    // Reads kCount elements into a row, from its element number `place` on.
    template <int kCount>
    __device__ void read(const T* from, int row, int place) {
        if constexpr (!kPairs) {
            T loaded[kCount];
            load(from, loaded);
#pragma unroll
            for (int k = 0; k < kCount; ++k) slots[row][place + k] = loaded[k];
        } else if constexpr (kCount == 1) {
            slots[row][place] = from->bits;
        } else {
            uint32_t loaded[kCount / 2];
            load(reinterpret_cast<const uint32_t*>(from), loaded);
#pragma unroll
            for (int k = 0; k < kCount; k += 2) slots[row][place + k] = loaded[k / 2];
        }
    }
    static __device__ Slot filled_with(T element) {
        if constexpr (kPairs) {
            return element.bits * 0x10001u;
        } else {
            return element;
        }
    }
};

// Reads a patch. What lies outside of the plane is replaced: rows and channels are read from its edge first, since a
// load that may not happen is expensive unless it is of one element. Vectors of columns lie inside.
template <class P, class T>
__device__ inline void read_patch(const T* plane, const View<Small>& view, const typename P::RowAxis& rows,
                                  const typename P::ColumnAxis& columns, int32_t first_row, int32_t first_column,
                                  T outside, PatchData<P, T>& data) {
    constexpr bool replaces_columns = P::kLanes > 1;
    constexpr bool side_by_side = P::kVector > 1;  // then the compiler knows the columns' distances
    const auto replacement = data.filled_with(outside);
    const int32_t step = side_by_side ? 1 : view.strides[2];
    int32_t offsets[P::kInputColumns];
#pragma unroll
    for (int j = 0; j < P::kInputColumns; ++j) {
        offsets[j] = replaces_columns ? clamp_to(first_column + j, columns.input) * step : j * step;
    }
    const int32_t first_offset = replaces_columns ? 0 : first_column * step;
#pragma unroll
    for (int i = 0; i < P::kInputRows; ++i) {
        const T* row = advance(plane, clamp_to(first_row + i, rows.input) * view.strides[1] + first_offset);
#pragma unroll
        for (int j = 0; j < P::kInputColumns; ++j) {
            const T* from = side_by_side ? row + j : advance(row, offsets[j]);
            if (P::begins_vector(j)) {
                data.template read<P::kVector>(from, i, j);
            } else if (replaces_columns) {
                data.template read<P::kLanes>(from, i, j * P::kLanes);
            } else if (!P::in_vector(j)) {
                data.slots[i][j] = replacement;
                if (has_place(columns.input, first_column + j)) data.template read<1>(from, i, j);
            }
        }
    }
    if (replaces_columns && (first_column < 0 || first_column + P::kInputColumns > columns.input)) {
#pragma unroll
        for (int j = 0; j < P::kInputColumns; ++j) {
            const bool is_inside = has_place(columns.input, first_column + j);
#pragma unroll
            for (int i = 0; i < P::kInputRows; ++i) {
#pragma unroll
                for (int lane = 0; lane < P::kLanes; ++lane) {
                    auto& slot = data.slots[i][j * P::kLanes + lane];
                    if (!data.is_second(j, lane)) slot = is_inside ? slot : replacement;
                }
            }
        }
    }
    if (first_row < 0 || first_row + P::kInputRows > rows.input) {
#pragma unroll
        for (int i = 0; i < P::kInputRows; ++i) {
            if (has_place(rows.input, first_row + i)) continue;
#pragma unroll
            for (int k = 0; k < P::kInputColumns * P::kLanes; ++k) data.slots[i][k] = replacement;
        }
    }
}

// A row of outputs.
template <class P, class Value>
__device__ inline void write_row(const Value (&values)[P::kColumns * P::kLanes], Value* to, int32_t step,
                                 int32_t columns) {
#pragma unroll
    for (int j = 0; j < P::kColumns; j += P::kVector) {
        Value together[P::kVector * P::kLanes];
#pragma unroll
        for (int v = 0; v < P::kVector * P::kLanes; ++v) together[v] = values[j * P::kLanes + v];
        if (j < columns) store(together, to + j * step);
    }
}

// Combines, in every column, the rows of a window that begins in row `first_row` of the patch.
template <class R, class P>
__device__ inline void reduce_columns(const R& reduction, const PatchData<P, typename R::Element>& data, int first_row,
                                      typename R::Accumulator (&columns)[P::kInputColumns * P::kLanes]) {
#pragma unroll
    for (int k = 0; k < P::kInputColumns * P::kLanes; ++k) {
        const auto lifted = [&](int row) {
            return reduction.lift(data.at(first_row + row, k / P::kLanes, k % P::kLanes));
        };
        columns[k] = lifted(0);
#pragma unroll
        for (int t = 1; t < P::kRowKernel; ++t) columns[k] = reduction.combine(columns[k], lifted(t));
    }
}

// The windows of a row of outputs, of what their columns combine to.
template <class R, class P>
__device__ inline void reduce_along(const R& reduction,
                                    const typename R::Accumulator (&columns)[P::kInputColumns * P::kLanes],
                                    typename R::Accumulator (&accumulators)[P::kColumns * P::kLanes]) {
#pragma unroll
    for (int k = 0; k < P::kColumns * P::kLanes; ++k) {
        const int first = k / P::kLanes * P::kStride * P::kLanes + k % P::kLanes;
        accumulators[k] = columns[first];
#pragma unroll
        for (int t = 1; t < P::kKernel; ++t) {
            accumulators[k] = reduction.combine(accumulators[k], columns[first + t * P::kLanes]);
        }
    }
}

// The accumulators of the windows of a row of outputs, which begin in row `first_row` of the patch.
template <class R, class P>
__device__ inline void reduce_row(const R& reduction, const PatchData<P, typename R::Element>& data, int first_row,
                                  typename R::Accumulator (&accumulators)[P::kColumns * P::kLanes]) {
    using Accumulator = typename R::Accumulator;
    if constexpr (R::kInOrder) {
        const auto lifted = [&](int row, int column, int lane) {
            return reduction.lift(data.at(first_row + row, column, lane));
        };
#pragma unroll
        for (int k = 0; k < P::kColumns * P::kLanes; ++k) {
            const int column = k / P::kLanes * P::kStride, lane = k % P::kLanes;
            Accumulator accumulator = lifted(0, column, lane);
#pragma unroll
            for (int t = 1; t < P::kTaps; ++t) {
                accumulator = reduction.combine(accumulator, lifted(t / P::kKernel, column + t % P::kKernel, lane));
            }
            accumulators[k] = accumulator;
        }
    } else {  // rows first, then along the row
        Accumulator of_columns[P::kInputColumns * P::kLanes];
        reduce_columns<R, P>(reduction, data, first_row, of_columns);
        reduce_along<R, P>(reduction, of_columns, accumulators);
    }
}

// A word of two halves of others.
__device__ inline uint32_t pair_of_halves(uint32_t low, bool low_is_upper, uint32_t high, bool high_is_upper) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(low, high, (low_is_upper ? 0x32u : 0x10u) | (high_is_upper ? 0x7600u : 0x5400u));
#else
    return (low >> (low_is_upper ? 16 : 0) & 0xffffu) | high >> (high_is_upper ? 16 : 0) << 16;
#endif
}

// Two two-byte numbers in a word, each half the larger one, or NaN if there is one.
template <class T>
__device__ inline uint32_t larger_pair(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t larger;
    if constexpr (std::is_same_v<T, Half>) {
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    } else {
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    }
    return larger;
#else
    uint32_t larger = 0;
#pragma unroll
    for (int shift = 0; shift < 32; shift += 16) {
        T x, y;
        x.bits = static_cast<uint16_t>(a >> shift);
        y.bits = static_cast<uint16_t>(b >> shift);
        larger |= uint32_t{T(larger_or_nan(static_cast<float>(x), static_cast<float>(y))).bits} << shift;
    }
    return larger;
#endif
}

// Combines the elements of the windows of a row of outputs as they are, two at a time.
template <class P, class T, class Combine>
__device__ inline void reduce_row_of_pairs(const PatchData<P, T>& data, int first_row, const Combine& combine,
                                           T (&results)[P::kColumns * P::kLanes]) {
    uint32_t of_columns[P::kInputColumns * P::kLanes];
#pragma unroll
    for (int k = 0; k < P::kInputColumns * P::kLanes; ++k) {
        of_columns[k] = data.slots[first_row][k];
        if (data.is_second(k / P::kLanes, k % P::kLanes)) continue;
#pragma unroll
        for (int t = 1; t < P::kRowKernel; ++t) of_columns[k] = combine(of_columns[k], data.slots[first_row + t][k]);
    }
#pragma unroll
    for (int k = 0; k < P::kColumns * P::kLanes; k += 2) {
        uint32_t result = 0;
#pragma unroll
        for (int t = 0; t < P::kKernel; ++t) {
            const int columns[] = {k / P::kLanes * P::kStride + t, (k + 1) / P::kLanes * P::kStride + t};
            const int lanes[] = {k % P::kLanes, (k + 1) % P::kLanes};
            const bool seconds[] = {data.is_second(columns[0], lanes[0]), data.is_second(columns[1], lanes[1])};
            const uint32_t pair =
                pair_of_halves(of_columns[columns[0] * P::kLanes + lanes[0] - seconds[0]], seconds[0],
                               of_columns[columns[1] * P::kLanes + lanes[1] - seconds[1]], seconds[1]);
            result = t == 0 ? pair : combine(result, pair);
        }
        results[k].bits = static_cast<uint16_t>(result);
        results[k + 1].bits = static_cast<uint16_t>(result >> 16);
    }
}

// Finds the largest datum of a window in column `first_column` of the patch, and its number among the taps, counted row
// by row from `taps_before` on; if none is larger than the one before, that stays.
template <class P, class T>
__device__ inline void find_largest(const PatchData<P, T>& data, int first_row, int first_column, int lane,
                                    int32_t taps_before, comparable_t<T>& largest, int32_t& tap) {
#pragma unroll
    for (int t = 0; t < P::kTaps; ++t) {
        const auto value =
            static_cast<comparable_t<T>>(data.at(first_row + t / P::kKernel, first_column + t % P::kKernel, lane));
        const bool is_larger = !(value <= largest) && largest == largest;  // or the first NaN
        largest = is_larger ? value : largest;
        tap = is_larger ? taps_before + t : tap;
    }
}

// What a patch has: one function does what is rare for patches of all sizes.
struct PatchSize {
    int rows, columns, lanes;
};
template <class P>
constexpr PatchSize size_of_patch{P::kRows, P::kColumns, P::kLanes};

template <class Visit>
__device__ inline void for_each_place_of_patch(const Position<Small>& first, PatchSize size, const Visit& visit) {
    for (int k = 0; k < size.rows * size.columns * size.lanes; ++k) {
        Position<Small> place = first;
        place.spatial[1] += k / (size.columns * size.lanes);
        place.spatial[2] += k / size.lanes % size.columns;
        place.channel += k % size.lanes;
        visit(place);
    }
}

// Rows of outputs, one bit each, with something that is rare: an infinity, a NaN, a window without data, powers that
// overflow. They are computed again one by one.
template <class R>
__device__ __attribute__((noinline)) void write_rare_rows(const Problem<Small>& problem, int64_t number, PatchSize size,
                                                          uint32_t rows) {
    const R reduction(problem.parameters);
    const Position<Small> first = problem.places[number];
    for_each_place_of_patch(first, size, [&](const Position<Small>& output) {
        const int row = output.spatial[1] - first.spatial[1];
        if ((rows >> row & 1) && output.spatial[2] < problem.axes[2].output) {
            write_windows<R, Small, 1>(reduction, problem, output);
        }
    });
}

// Windows have data in one slice, or in several, which are visited one after the other.
template <class R, class P, bool kSeveralSlices>
__global__ void __launch_bounds__(kThreads)
    forward_patches(int64_t first_block, const __grid_constant__ Problem<Small> problem) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const int64_t number = (first_block + blockIdx.x) * kThreads + threadIdx.x;
    if (number >= problem.places.count) return;
    const R reduction(problem.parameters);
    const Divisor divisor = problem.parameters.divisor;
    const typename P::RowAxis rows(problem.axes[1], divisor);
    const typename P::ColumnAxis columns(problem.axes[2], divisor);
    const Position<Small> output = problem.places[number];
    const int32_t first_row = output.spatial[1] * P::kRowStride - rows.pad_begin;
    const int32_t first_column = output.spatial[2] * P::kStride - columns.pad_begin;
    const T* plane = problem.x.template plane<const T>(output.image, output.channel);
    const auto read_slice = [&](int32_t slice, PatchData<P, T>& data) {
        read_patch<P>(plane + slice * problem.x.strides[0], problem.x, rows, columns, first_row, first_column,
                      outside_of(reduction), data);
    };

    // ---- The slices ----
    constexpr int results_of_row = P::kColumns * P::kLanes;
    RangeOf<int32_t> slices{output.spatial[0] * problem.axes[0].stride, 1, 1};
    int32_t depth_divisor = 1;
    PatchData<P, T> data;
    [[maybe_unused]] Accumulator of_columns[kSeveralSlices && !R::kIndexed ? P::kRows : 1]
                                           [P::kInputColumns * P::kLanes];
    [[maybe_unused]] comparable_t<T> largest[R::kIndexed ? P::kRows : 1][results_of_row];
    [[maybe_unused]] int32_t taps[R::kIndexed ? P::kRows : 1][results_of_row];
    if constexpr (R::kIndexed) {
#pragma unroll
        for (int k = 0; k < P::kRows * results_of_row; ++k) {
            const int i = k / results_of_row, of_row = k % results_of_row;
            const int32_t row = first_row + i * P::kRowStride, column = first_column + of_row / P::kLanes * P::kStride;
            largest[i][of_row] = static_cast<comparable_t<T>>(outside_of(reduction));
            taps[i][of_row] = (row < 0 ? -row : 0) * P::kKernel + (column < 0 ? -column : 0);  // the first datum
        }
    }
    [[maybe_unused]] const auto find_in_row = [&](int i, int32_t taps_before) {
#pragma unroll
        for (int k = 0; k < results_of_row; ++k) {
            find_largest<P>(data, i * P::kRowStride, k / P::kLanes * P::kStride, k % P::kLanes, taps_before,
                            largest[i][k], taps[i][k]);
        }
    };
    if constexpr (kSeveralSlices) {
        slices = data_taps(problem.axes[0], output.spatial[0]);
        depth_divisor = counted_taps(problem.axes[0], output.spatial[0], divisor);
        for (int32_t d = 0; d < slices.count; ++d) {
            read_slice(slices.begin + d * slices.step, data);
#pragma unroll
            for (int i = 0; i < P::kRows; ++i) {
                if constexpr (R::kIndexed) {
                    find_in_row(i, d * P::kTaps);
                } else {
                    Accumulator of_slice[P::kInputColumns * P::kLanes];
                    reduce_columns<R, P>(reduction, data, i * P::kRowStride, of_slice);
#pragma unroll
                    for (int k = 0; k < P::kInputColumns * P::kLanes; ++k) {
                        of_columns[i][k] = d == 0 ? of_slice[k] : reduction.combine(of_columns[i][k], of_slice[k]);
                    }
                }
            }
        }
    } else {
        read_slice(slices.begin, data);
    }

    // ---- The results ----
    const int32_t columns_left = columns.output - output.spatial[2];
    T* y = problem.y.template plane<T>(output.image, output.channel) + problem.y.offset(output.spatial, Small::kRank);
    int32_t column_divisors[P::kColumns];
    bool columns_have_data = true;
#pragma unroll
    for (int j = 0; j < P::kColumns; ++j) {
        column_divisors[j] = j < columns_left ? columns.count(first_column + j * P::kStride) : 1;
        columns_have_data = columns_have_data && column_divisors[j] > 0;
    }
    uint32_t rare_rows = 0;
    int32_t row_divisor = -1;
    [[maybe_unused]] float divisors[P::kColumns] = {}, reciprocals[P::kColumns] = {};
#pragma unroll
    for (int i = 0; i < P::kRows; ++i) {
        if (output.spatial[1] + i >= rows.output) break;
        const int32_t row_of_window = first_row + i * P::kRowStride;
        const int32_t own_row_divisor = depth_divisor * rows.count(row_of_window);
        bool is_plain = columns_have_data && own_row_divisor > 0;
        T results[results_of_row];
        if constexpr (R::kIndexed) {
            if constexpr (!kSeveralSlices) find_in_row(i, 0);
            int64_t indices[results_of_row];
#pragma unroll
            for (int k = 0; k < results_of_row; ++k) {
                const int j = k / P::kLanes, lane = k % P::kLanes;
                const int32_t d = kSeveralSlices ? taps[i][k] / P::kTaps : 0, tap = taps[i][k] - d * P::kTaps;
                const int32_t position[] = {slices.begin + d * slices.step, row_of_window + tap / P::kKernel,
                                            first_column + j * P::kStride + tap % P::kKernel};
                const bool has_data = own_row_divisor > 0 && column_divisors[j] > 0;
                indices[k] = has_data ? problem.flat.image_stride * output.image +
                                            problem.flat.channel_stride * (output.channel + lane) +
                                            problem.flat.offset(position, Small::kRank)
                                      : -1;
                results[k] = has_data ? static_cast<T>(largest[i][k]) : reduction.empty();
            }
            int64_t* to = problem.indices.template plane<int64_t>(output.image, output.channel) +
                          problem.indices.offset(output.spatial, Small::kRank);
            write_row<P>(indices, to + i * problem.indices.strides[1], problem.indices.strides[2], columns_left);
        } else if constexpr (is_max<R> && is_half_precision<T> && !kSeveralSlices) {
            reduce_row_of_pairs(data, i * P::kRowStride, larger_pair<T>, results);
        } else {
            Accumulator accumulators[results_of_row];
            if constexpr (kSeveralSlices) {
                reduce_along<R, P>(reduction, of_columns[i], accumulators);
            } else {
                reduce_row<R, P>(reduction, data, i * P::kRowStride, accumulators);
            }
            if constexpr (R::kDivides) {
                if (own_row_divisor != row_divisor) {
                    row_divisor = own_row_divisor;
#pragma unroll
                    for (int j = 0; j < P::kColumns; ++j) {
                        divisors[j] = static_cast<float>(row_divisor * column_divisors[j]);
                        reciprocals[j] = reciprocal_of(divisors[j]);
                    }
                }
                float zero = 0;  // or NaN, if a mean is infinite or NaN
#pragma unroll
                for (int k = 0; k < results_of_row; ++k) {
                    const float count = divisors[k / P::kLanes], sum = accumulators[k];
                    const float mean =
                        R::kInOrder ? sum / count : finite_quotient(sum, count, reciprocals[k / P::kLanes]);
                    zero = std::fma(mean, 0.0f, zero);
                    results[k] = reduction.finish(mean);
                }
                is_plain = is_plain && zero == 0;
            } else {
                bool is_in_range = true;
#pragma unroll
                for (int k = 0; k < results_of_row; ++k) {
                    results[k] = reduction.finish(accumulators[k]);
                    if constexpr (may_be_out_of_range<R>) {
                        is_in_range = is_in_range && !reduction.out_of_range(accumulators[k]);
                    }
                }
                if constexpr (may_be_out_of_range<R> && is_half_precision<T>) {
                    if (!is_in_range) {  // often, only since all data of a window are 0
                        T bits[results_of_row];
                        reduce_row_of_pairs(
                            data, i * P::kRowStride, [](uint32_t a, uint32_t b) { return a | b; }, bits);
                        is_in_range = true;
#pragma unroll
                        for (int k = 0; k < results_of_row; ++k) {
                            const bool are_zero = (bits[k].bits & 0x7fff) == 0;
                            is_in_range = is_in_range && (are_zero || !reduction.out_of_range(accumulators[k]));
                        }
                    }
                }
                is_plain = is_plain && is_in_range;
            }
        }
        write_row<P>(results, y + i * problem.y.strides[1], problem.y.strides[2], columns_left);
        rare_rows |= (is_plain ? 0u : 1u) << i;
    }
    if constexpr (!R::kIndexed) {
        if (rare_rows) write_rare_rows<R>(problem, number, size_of_patch<P>, rare_rows);
    }
}

// ---- The choice ----

// Launches patches of any size: what is made anew for each takes time to compile.
inline void launch_patches(void (*kernel)(int64_t, Problem<Small>), PatchSize size, const Call& call,
                           const Context& context) {
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    problem.number(call, &DeviceAxis<int32_t>::output, size.lanes, size.rows, size.columns);
    launch(kernel, blocks_for(problem.places.count), 0, context.stream, problem);
}
template <class R, class P, bool kSeveralSlices = false>
void launch_patches(const Call& call, const Context& context) {
    launch_patches(forward_patches<R, P, kSeveralSlices>, size_of_patch<P>, call, context);
}

// Shapes of patches: the fastest of those that were tried on an H200. Indices take registers.
template <class R, class Window>
struct PatchShapes {
    using T = typename R::Element;
    static constexpr bool is_narrow = sizeof(T) < 4, slides = Window::kStride == 1;
    static constexpr bool has_long_rows = is_half_precision<T> && slides && Window::kKernel == 3 && !R::kIndexed;
    static constexpr bool is_row = Window::kRowKernel == 1;
    using Channels = Patch<Window, is_narrow && !slides ? 2 : 4, has_long_rows ? 4 : 2,
                           is_narrow && !(slides && R::kIndexed) ? 4 : 2>;
    template <int kBefore>
    using Vectors = Patch<Window, is_narrow && slides && (is_row || !R::kIndexed) ? 8 : 4, 4, 1, 4, kBefore>;
    template <int kBefore>
    using LongVectors = Patch<Window, 8, 8, 1, 8, kBefore>;
    using Elements = Patch<Window, slides ? 8 : 4, 2, 1>;
    // For windows over three axes, whose combined columns take registers as well.
    using VolumeChannels = Patch<Window, 2, 2, is_narrow ? 4 : 2>;
    using VolumeElements = Patch<Window, slides ? 4 : 2, 2, 1>;
};

// Launches patches whose columns are read in vectors, where they are aligned and none lies outside of the plane.
template <class R, class P>
bool forward_vectors(const Call& call, const Context& context) {
    using T = typename R::Element;
    const Axis& axis = call.geometry.axes[call.geometry.rank - 1];
    if (axis.pad_begin != P::kBefore ||
        (axis.output - P::kColumns) * P::kStride - axis.pad_begin + P::kVectorsEnd > axis.input ||
        !has_column_vectors(call, call.x, &Axis::input, P::kVector, sizeof(T)) ||
        !has_column_vectors(call, call.y, &Axis::output, P::kVector, sizeof(T)) ||
        !has_column_vectors(call, call.indices, &Axis::output, P::kVector, sizeof(int64_t))) {
        return false;
    }
    launch_patches<R, P>(call, context);
    return true;
}

template <class R, class Window>
void forward_patches_of(const Call& call, const Context& context) {
    using T = typename R::Element;
    using Shapes = PatchShapes<R, Window>;
    if constexpr (!Shapes::is_row) {
        if (has_channel_vectors(call, sizeof(T))) {
            return launch_patches<R, typename Shapes::Channels>(call, context);
        }
    }
    // Windows that keep the size have `half` columns before the first one; those between stages may have none.
    constexpr int half = Window::kKernel > Window::kStride ? Window::kKernel / 2 : 0;
    if constexpr (is_half_precision<T> && Window::kStride == 1 && !Shapes::is_row && !R::kIndexed) {
        if (forward_vectors<R, typename Shapes::template LongVectors<half>>(call, context)) return;
    }
    if (forward_vectors<R, typename Shapes::template Vectors<half>>(call, context)) return;
    if constexpr (half > 0 && Window::kStride > 1 && !Shapes::is_row) {
        if (forward_vectors<R, typename Shapes::template Vectors<0>>(call, context)) return;
    }
    launch_patches<R, typename Shapes::Elements>(call, context);
}

template <int kKernel, int kStride>
bool has_window(const Axis& axis) {
    return axis.kernel == kKernel && axis.stride == kStride && axis.dilation == 1;
}

// Calls function(window), with a PatchWindow, for square windows of which there are patches along the last two axes;
// false for others.
template <class R, class Function>
bool with_square_window(const Geometry& geometry, const Function& function) {
    if (geometry.rank < 2) return false;
    const Axis* axes = geometry.axes + geometry.rank - 2;
    if (has_window<2, 2>(axes[0]) && has_window<2, 2>(axes[1])) return function(SquareWindow<2, 2>());
    if (has_window<3, 1>(axes[0]) && has_window<3, 1>(axes[1])) return function(SquareWindow<3, 1>());
    if (has_window<3, 2>(axes[0]) && has_window<3, 2>(axes[1])) return function(SquareWindow<3, 2>());
    if constexpr (is_max<R>) {
        if (has_window<5, 1>(axes[0]) && has_window<5, 1>(axes[1])) return function(SquareWindow<5, 1>());
    }
    return false;
}

// The same for windows along one axis, other than of bytes.
template <class R, class Function>
bool with_row_window(const Geometry& geometry, const Function& function) {
    if constexpr (!std::is_integral_v<typename R::Element>) {
        if (geometry.rank != 1) return false;
        const Axis& axis = geometry.axes[0];
        if (has_window<2, 2>(axis)) return function(PatchWindow<1, 1, 2, 2>());
        if (has_window<3, 1>(axis)) return function(PatchWindow<1, 1, 3, 1>());
        if (has_window<3, 2>(axis)) return function(PatchWindow<1, 1, 3, 2>());
    }
    return false;
}

template <class R, class Window>
void forward_volume_patches_of(const Call& call, const Context& context) {
    using Shapes = PatchShapes<R, Window>;
    if (has_channel_vectors(call, sizeof(typename R::Element))) {
        return launch_patches<R, typename Shapes::VolumeChannels, true>(call, context);
    }
    launch_patches<R, typename Shapes::VolumeElements, true>(call, context);
}

// Whether there are patches over several slices: not for what would need more registers, or is used too rarely for the
// time that it takes to compile.
template <class R>
constexpr bool has_volume_patches = !std::is_integral_v<typename R::Element> && (R::kDivides || is_max<R>);

// False if these kernels do not take the windows.
template <class R>
bool forward_patches(const Call& call, const Context& context) {
    const Axis& depth = call.geometry.axes[0];
    const bool has_one_slice = call.geometry.rank < 3 || (depth.kernel == 1 && depth.pad_begin == 0 &&
                                                          (depth.output - 1) * depth.stride < depth.input);
    const auto compute = [&](auto window) {
        using Window = decltype(window);
        if (has_one_slice) {
            forward_patches_of<R, Window>(call, context);
            return true;
        }
        if constexpr (has_volume_patches<R> && Window::kRowKernel > 1 && Window::kKernel <= 3) {
            forward_volume_patches_of<R, Window>(call, context);
            return true;
        }
        return false;
    };
    return call.geometry.rank == 1 ? !call.channels_innermost && with_row_window<R>(call.geometry, compute)
                                   : with_square_window<R>(call.geometry, compute);
}

}  // namespace onnxpool::cuda
