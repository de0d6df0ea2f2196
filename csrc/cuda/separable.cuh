// Large windows, one axis after the other, in a number of steps for each output that hardly depends on their size: the
// windows of a run of neighbouring outputs share most of their taps, which are combined once (van Herk; Gil and
// Werman). No step subtracts.
#pragma once

#include "planes.cuh"
#include "tiles.cuh"

namespace onnxpool::cuda {

__device__ inline int32_t first_tap(const DeviceAxis<int32_t>& axis, int32_t window) {
    return window * axis.stride - axis.pad_begin;
}

// Tiles of outputs, some runs of rows high.
struct SeparableTiling : Tiles {
    Divider<int32_t> chunks;  // runs along a row of a tile
    int32_t input_columns = 0;
    int32_t pitch = 0;         // of rows of combined inputs in shared memory
    int32_t result_pitch = 0;  // of rows of results, if they go through it
    bool planes_innermost = false;

    // Where a column of a plane lies in a row of shared memory with `width` of them, and how far its neighbour is.
    __device__ int32_t kept(int32_t plane, int32_t column, int32_t width) const {
        return planes_innermost ? column * planes.value + plane : plane * width + column;
    }
    ONNXPOOL_HOST_DEVICE int32_t kept_step() const { return planes_innermost ? planes.value : 1; }
};

// results[i] combines element(i * stride + tap * dilation) for all taps.
template <int kCount, class A, class Combine, class Element>
__device__ inline void reduce_run(const DeviceAxis<int32_t>& axis, const Combine& combine, const Element& element,
                                  A (&results)[kCount]) {
    const int32_t common_begin = (kCount - 1) * axis.stride;
    if (axis.dilation != 1 || axis.kernel <= common_begin) {  // no tap is common to all
#pragma unroll
        for (int i = 0; i < kCount; ++i) results[i] = element(i * axis.stride);
#pragma unroll 1
        for (int32_t t = axis.dilation; t < axis.kernel * axis.dilation; t += axis.dilation) {
            A next[kCount];
#pragma unroll
            for (int i = 0; i < kCount; ++i) next[i] = element(i * axis.stride + t);
#pragma unroll
            for (int i = 0; i < kCount; ++i) results[i] = combine(results[i], next[i]);
        }
        return;
    }
    // From one output to the next, `stride` taps leave the window and as many enter it.
    A leave[kCount - 1], enter[kCount - 1];
#pragma unroll
    for (int i = 0; i < kCount - 1; ++i) leave[i] = element(i * axis.stride);
#pragma unroll 1
    for (int32_t t = 1; t < axis.stride; ++t) {
#pragma unroll
        for (int i = 0; i < kCount - 1; ++i) leave[i] = combine(leave[i], element(i * axis.stride + t));
    }
    A common = element(common_begin);
    constexpr int together = 8;
    int32_t t = common_begin + 1;
#pragma unroll 1
    for (; t + together <= axis.kernel; t += together) {
        A next[together];
#pragma unroll
        for (int k = 0; k < together; ++k) next[k] = element(t + k);
#pragma unroll
        for (int half = together / 2; half > 0; half /= 2) {
#pragma unroll
            for (int k = 0; k < half; ++k) next[k] = combine(next[k], next[k + half]);
        }
        common = combine(common, next[0]);
    }
#pragma unroll 1
    for (; t < axis.kernel; ++t) common = combine(common, element(t));
#pragma unroll
    for (int i = 0; i < kCount - 1; ++i) enter[i] = element(axis.kernel + i * axis.stride);
#pragma unroll 1
    for (int32_t t = 1; t < axis.stride; ++t) {
#pragma unroll
        for (int i = 0; i < kCount - 1; ++i) enter[i] = combine(enter[i], element(axis.kernel + i * axis.stride + t));
    }
#pragma unroll
    for (int i = kCount - 2; i >= 0; --i) {
        if (i < kCount - 2) leave[i] = combine(leave[i], leave[i + 1]);
        results[i] = combine(leave[i], common);
    }
    results[kCount - 1] = common;
#pragma unroll
    for (int i = 0; i < kCount - 1; ++i) {
        if (i > 0) enter[i] = combine(enter[i - 1], enter[i]);
        results[i + 1] = combine(results[i + 1], enter[i]);
    }
}

// The rows of a column of a slice, from row `first_row` on. If not kInside, some of them may lie outside of the data.
template <bool kInside, class R>
__device__ inline auto column_of(const R& reduction, const Problem<Small>& problem, const typename R::Element* plane,
                                 int32_t slice, int32_t first_row, int32_t column) {
    const int32_t first[] = {slice, first_row, column};
    const auto* x = plane + problem.x.offset(first, Small::kRank);
    return [&reduction, &problem, x, first_row](int32_t row) {
        auto element = outside_of(reduction);
        const bool is_inside = static_cast<uint32_t>(first_row + row) < static_cast<uint32_t>(problem.axes[1].input);
        if (kInside || is_inside) element = x[row * problem.x.strides[1]];
        return reduction.lift(element);
    };
}

template <class R, int kRun>
__global__ void __launch_bounds__(kThreads, 3)
    forward_separable(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                      const __grid_constant__ SeparableTiling tiling) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(problem.parameters);
    const auto& row_axis = problem.axes[1];
    const auto& column_axis = problem.axes[2];
    const Tile tile(tiling, first_block + blockIdx.x);
    const auto combine = [&](const Accumulator& a, const Accumulator& b) { return reduction.combine(a, b); };
    const auto slices = data_taps(problem.axes[0], tile.depth);
    const int32_t depth_divisor = counted_taps(problem.axes[0], tile.depth, problem.parameters.divisor);
    // Rows whose columns are combined, and then the results.
    auto* const kept = shared<Accumulator>();
    auto* const results = kept + kRun * tiling.pitch;
    auto* const row_divisors = reinterpret_cast<int32_t*>(results + kRun * tiling.result_pitch);
    auto* const column_divisors = row_divisors + tiling.rows;

    // ---- The threads' shares ----
    // Columns of inputs, of all planes; those outside of the data stay what changes nothing.
    const int32_t first_input = first_tap(column_axis, tile.first_column);
    const int32_t begin = first_input > 0 ? first_input : 0;
    const int32_t input_end = first_input + tiling.input_columns;
    const int32_t end = input_end < column_axis.input ? input_end : column_axis.input;
    const int32_t inside = end > begin && slices.count > 0 ? end - begin : 0;
    const int32_t input_width = tiling.planes_innermost ? tile.planes : inside;
    for (int32_t i = threadIdx.x; i < kRun * tiling.pitch; i += kThreads) kept[i] = reduction.identity();
    fill_divisors(problem, tiling, tile, row_divisors);
    // A run along a row. Planes that lie side by side come first, then rows: their elements are in different banks.
    int32_t rest = threadIdx.x;
    const auto take = [&](int32_t radix) {
        const int32_t quotient = rest / radix, digit = rest - quotient * radix;
        rest = quotient;
        return digit;
    };
    int32_t run_plane = tiling.planes_innermost ? take(tiling.planes) : 0;
    const int32_t run_row = take(kRun);
    const int32_t run_column = take(tiling.chunks) * kRun;
    if (!tiling.planes_innermost) run_plane = rest;
    const bool has_run = run_plane < tile.planes && (!tiling.planes_innermost || rest == 0);
    // A column of results, unless runs are written as they are.
    rest = threadIdx.x;
    const int32_t own_column = take(tiling.columns);
    const int32_t plane = rest;
    const int32_t column = tile.first_column + own_column;
    const int32_t result_width = tiling.chunks * kRun;
    const bool has_column = !tiling.planes_innermost && plane < tile.planes && column < column_axis.output;
    const Position<Small> position = tile.position(problem, has_column ? plane : 0);
    const View<Small>& view = problem.y;
    const int32_t place[] = {tile.depth, tile.first_row, column};
    T* to = view.template plane<T>(position.image, position.channel) + view.offset(place, Small::kRank);
    __syncthreads();

    const auto result = [&](const Position<Small>& plane, int32_t row, int32_t column, const Accumulator& sum,
                            int32_t divisor) {
        const auto box = [&] {
            const int32_t output[] = {tile.depth, row, column};
            Box<Small> data;
            window_at(problem, output, data);
            return data;
        };
        const T* x = problem.x.template plane<const T>(plane.image, plane.channel);
        return finish_window(reduction, problem, box, x, sum, divisor * depth_divisor);
    };
    const int32_t rows_left = row_axis.output - tile.first_row;
    const int32_t rows = rows_left < tiling.rows ? rows_left : tiling.rows.value;
    for (int32_t done = 0; done < rows; done += kRun) {
        // ---- Along the columns ----
        const int32_t first_input_row = first_tap(row_axis, tile.first_row + done);
        const bool all_inside = first_input_row >= 0 && first_input_row + reach(row_axis, kRun) <= row_axis.input;
        for (int32_t i = threadIdx.x; i < tile.planes * inside; i += kThreads) {
            const int32_t quotient = i / input_width, digit = i - quotient * input_width;
            const int32_t input_plane = tiling.planes_innermost ? digit : quotient;
            const int32_t number = begin + (tiling.planes_innermost ? quotient : digit);
            Accumulator* const combined = kept + tiling.kept(input_plane, number - first_input, tiling.input_columns);
            const Position<Small> position = tile.position(problem, input_plane);
            const T* x = problem.x.template plane<const T>(position.image, position.channel);
            for (int32_t d = 0; d < slices.count; ++d) {
                const int32_t slice = slices.begin + d * slices.step;
                Accumulator sums[kRun];
                if (all_inside) {
                    const auto element = column_of<true>(reduction, problem, x, slice, first_input_row, number);
                    reduce_run(row_axis, combine, element, sums);
                } else {
                    const auto element = column_of<false>(reduction, problem, x, slice, first_input_row, number);
                    reduce_run(row_axis, combine, element, sums);
                }
#pragma unroll
                for (int r = 0; r < kRun; ++r) {
                    Accumulator& sum = combined[r * tiling.pitch];
                    sum = d > 0 ? combine(sum, sums[r]) : sums[r];
                }
            }
        }
        __syncthreads();

        // ---- Along the row ----
        const int32_t own_row = tile.first_row + done + run_row;
        if (has_run) {
            const int32_t step = tiling.kept_step();
            const Accumulator* from = kept + run_row * tiling.pitch +
                                      tiling.kept(run_plane, run_column * column_axis.stride, tiling.input_columns);
            Accumulator sums[kRun];
            reduce_run(column_axis, combine, [&](int32_t number) { return from[number * step]; }, sums);
            if (tiling.planes_innermost) {
                const Position<Small> position = tile.position(problem, run_plane);
                const int32_t row_divisor = row_divisors[done + run_row];
                const int32_t place[] = {tile.depth, own_row, tile.first_column + run_column};
                T* to = view.template plane<T>(position.image, position.channel) + view.offset(place, Small::kRank);
#pragma unroll
                for (int i = 0; i < kRun; ++i) {
                    const int32_t number = run_column + i;
                    if (own_row < row_axis.output && number < tiling.columns &&
                        tile.first_column + number < column_axis.output) {
                        to[i * view.strides[2]] = result(position, own_row, tile.first_column + number, sums[i],
                                                         row_divisor * column_divisors[number]);
                    }
                }
            } else {
                Accumulator* into =
                    results + run_row * tiling.result_pitch + tiling.kept(run_plane, run_column, result_width);
#pragma unroll
                for (int i = 0; i < kRun; ++i) into[i] = sums[i];
            }
        }
        __syncthreads();

        // ---- Results ----
        if (has_column) {
            const Accumulator* from = results + tiling.kept(plane, own_column, result_width);
            const int32_t end_of_run = rows - done < kRun ? rows - done : kRun;
            for (int32_t r = 0; r < end_of_run; ++r) {
                *to = result(position, tile.first_row + done + r, column, from[r * tiling.result_pitch],
                             row_divisors[done + r] * column_divisors[own_column]);
                to += view.strides[1];
            }
        }
    }
}

// ---- The choice ----

// The tile with the least work; false if none fits into shared memory.
template <class R, int kRun>
bool choose_separable_tiling(const Call& call, const Problem<Small>& problem, SeparableTiling& tiling,
                             int64_t& shared_bytes) {
    using Accumulator = typename R::Accumulator;
    constexpr int64_t kMostRows = 4 * kRun;
    const auto& rows = problem.axes[1];
    const auto& columns = problem.axes[2];
    tiling.all_planes = problem.planes(call);
    tiling.planes_innermost = call.channels_innermost;

    const auto inputs_of = [&](int64_t width) { return reach(columns, ceil_div(width, kRun) * kRun); };
    const auto pitch = [&](int64_t planes, int64_t width) {  // rows are in different banks
        const int64_t step = tiling.planes_innermost ? planes : 1;
        constexpr int64_t banks = 128 / sizeof(Accumulator);
        return ceil_div(planes * width - step, banks) * banks + step;
    };
    const auto result_pitch = [&](int64_t planes, int64_t width) {
        return tiling.planes_innermost ? 0 : pitch(planes, ceil_div(width, kRun) * kRun);
    };
    const auto bytes = [&](int64_t planes, int64_t width) {
        return kRun * (pitch(planes, inputs_of(width)) + result_pitch(planes, width)) *
                   static_cast<int64_t>(sizeof(Accumulator)) +
               (kMostRows + width) * static_cast<int64_t>(sizeof(int32_t));
    };
    double best = std::numeric_limits<double>::infinity();
    int64_t best_planes = 0, best_width = 0;
    constexpr int64_t runs = kThreads / kRun;
    for (int64_t chunks = 1; chunks <= runs && (chunks - 1) * kRun < columns.output; ++chunks) {
        const int64_t width = std::min<int64_t>(columns.output, chunks * kRun);
        const int64_t inputs = std::min<int64_t>(columns.input, inputs_of(width));
        for (int64_t planes = 1; planes * chunks <= runs && planes < 2 * tiling.all_planes; planes *= 2) {
            if (bytes(planes, width) > kSharedBytes) continue;
            const int64_t tiles = ceil_div(columns.output, width) * ceil_div(tiling.all_planes, planes);
            const int64_t side_by_side = tiling.planes_innermost ? planes : inputs;
            const double waste =
                std::max<double>(1, kVectorBytes / static_cast<double>(side_by_side * sizeof(typename R::Element)));
            constexpr double once = 64;  // what a block does beside reading
            const double cost =
                static_cast<double>(tiles) *
                (once + waste * static_cast<double>(ceil_div(planes * inputs, kThreads) * reach(rows, kRun)));
            if (cost < best) {
                best = cost;
                best_planes = planes;
                best_width = width;
            }
        }
    }
    if (best_planes == 0) return false;
    tiling.planes = Divider<int32_t>(static_cast<int32_t>(best_planes));
    // Some runs below each other, unless that leaves the device idle.
    int64_t height = kRun;
    const int64_t blocks = ceil_div(tiling.all_planes, best_planes) * ceil_div(columns.output, best_width) *
                           tiling.depth * ceil_div(rows.output, kRun);
    while (height < kMostRows && height < rows.output && blocks * kRun / height > 2 * wanted_blocks()) height *= 2;
    tiling.cut(rows.output, columns.output, height, best_width);
    tiling.chunks = Divider<int32_t>(static_cast<int32_t>(ceil_div(best_width, kRun)));
    tiling.input_columns = static_cast<int32_t>(inputs_of(best_width));
    tiling.pitch = static_cast<int32_t>(pitch(best_planes, tiling.input_columns));
    tiling.result_pitch = static_cast<int32_t>(result_pitch(best_planes, best_width));
    shared_bytes = bytes(best_planes, best_width);
    return true;
}

template <class R, int kRun>
bool launch_separable(const Call& call, const Context& context) {
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    problem.number(call, &Problem<Small>::AxisType::output, 1);
    SeparableTiling tiling;
    tiling.depth = Divider<int32_t>(problem.axes[0].output);
    int64_t shared_bytes = 0;
    if (!choose_separable_tiling<R, kRun>(call, problem, tiling, shared_bytes)) return false;
    launch(forward_separable<R, kRun>, tiling.count(), shared_bytes, context.stream, problem, tiling);
    return true;
}

// With runs of kLongRun, or of shorter ones where only their windows have taps in common. False if these kernels do not
// take the windows.
template <class R, int kLongRun>
bool forward_separable(const Call& call, const Context& context) {
    constexpr int short_run = 8;
    if constexpr (kLongRun > short_run) {
        const Geometry& geometry = call.geometry;
        const bool suits_long_runs = std::all_of(
            geometry.axes + std::max(0, geometry.rank - 2), geometry.axes + geometry.rank, [&](const Axis& axis) {
                return axis.kernel > (kLongRun - 1) * axis.stride || axis.kernel <= (short_run - 1) * axis.stride;
            });
        if (suits_long_runs) return launch_separable<R, kLongRun>(call, context);
    }
    return launch_separable<R, short_run>(call, context);
}

}  // namespace onnxpool::cuda
