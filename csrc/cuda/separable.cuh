// Large windows, one axis after the other, in a number of steps for each output that hardly depends on their size: the
// windows of a run of neighbouring outputs share most of their taps, which are combined once (van Herk; Gil and
// Werman). No step subtracts. Gradients of windows that move by one element are windows as well, over what they send.
#pragma once

#include "gradient.cuh"
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

// ---- What is combined ----

// Data, for outputs.
template <class R>
class SeparableForward {
public:
    using Element = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // What is written, and how many of its places there are along the first axis.
    static ONNXPOOL_HOST_DEVICE const View<Small>& target(const Problem<Small>& problem) { return problem.y; }
    static int32_t depth(const Problem<Small>& problem) { return problem.axes[0].output; }
    // Bytes of shared memory for a tile of so many rows and columns.
    static int64_t shared_bytes(const Problem<Small>&, int64_t rows, int64_t columns) {
        return (rows + columns) * static_cast<int64_t>(sizeof(int32_t));
    }

    const RangeOf<int32_t> slices;

    __device__ SeparableForward(const Problem<Small>& problem, const Tiles& tiling, const Tile& tile, void* shared)
        : slices(data_taps(problem.axes[0], tile.depth)),
          problem_(problem),
          tile_(tile),
          reduction_(problem.parameters),
          depth_divisor_(counted_taps(problem.axes[0], tile.depth, problem.parameters.divisor)),
          row_divisors_(static_cast<int32_t*>(shared)),
          column_divisors_(row_divisors_ + tiling.rows) {
        fill_divisors(problem, tiling, tile, row_divisors_);
    }

    __device__ Accumulator identity() const { return reduction_.identity(); }
    __device__ Accumulator combine(const Accumulator& a, const Accumulator& b) const {
        return reduction_.combine(a, b);
    }

    // The rows of a column, from row `first_row` on. If not kInside, some of them may lie outside of the data.
    template <bool kInside>
    __device__ auto column(const Position<Small>& plane, int32_t slice, int32_t first_row, int32_t column) const {
        const int32_t first[] = {slice, first_row, column};
        const auto* x = problem_.x.template plane<const Element>(plane.image, plane.channel) +
                        problem_.x.offset(first, Small::kRank);
        return [this, x, first_row](int32_t row) {
            auto element = outside_of(reduction_);
            if (kInside || has_place(problem_.axes[1].input, first_row + row)) element = x[row * problem_.x.strides[1]];
            return reduction_.lift(element);
        };
    }
    // What the combined rows of such columns are multiplied by.
    __device__ Nothing weight(int32_t, int32_t) const { return {}; }
    static __device__ Accumulator weighted(const Accumulator& sum, Nothing) { return sum; }

    __device__ Element result(const Position<Small>& plane, int32_t row, int32_t column, const Accumulator& sum) const {
        const auto box = [&] {
            const int32_t output[] = {tile_.depth, row, column};
            Box<Small> data;
            window_at(problem_, output, data);
            return data;
        };
        const auto* x = problem_.x.template plane<const Element>(plane.image, plane.channel);
        const int32_t divisor =
            row_divisors_[row - tile_.first_row] * column_divisors_[column - tile_.first_column] * depth_divisor_;
        return finish_window(reduction_, problem_, box, x, sum, divisor);
    }

private:
    const Problem<Small>& problem_;
    const Tile& tile_;
    const R reduction_;
    const int32_t depth_divisor_;
    int32_t* const row_divisors_;
    int32_t* const column_divisors_;
};

// From where elements of an axis are, to where its windows are, if they move by one element; and back.
ONNXPOOL_HOST_DEVICE inline DeviceAxis<int32_t> transposed(DeviceAxis<int32_t> axis) {
    const int32_t input = axis.input, reach = (axis.kernel - 1) * axis.dilation;
    axis.input = axis.output;
    axis.output = input;
    axis.pad_begin = reach - axis.pad_begin;
    axis.pad_end = reach - axis.pad_end;
    return axis;
}

// What windows send, for inputs. The last two axes are transposed: their outputs are the inputs.
template <class R>
class SeparableGradient {
    using Gradient = GradientArithmetic<R>;

public:
    using Element = typename R::Element;
    using Accumulator = typename Gradient::Sum;

    static ONNXPOOL_HOST_DEVICE const View<Small>& target(const Problem<Small>& problem) { return problem.grad_x; }
    static int32_t depth(const Problem<Small>& problem) { return problem.axes[0].input; }
    static int64_t shared_bytes(const Problem<Small>& problem, int64_t rows, int64_t) {
        return R::kDivides ? reach(problem.axes[1], rows) * static_cast<int64_t>(sizeof(Accumulator)) : 0;
    }

    const RangeOf<int32_t> slices;

    __device__ SeparableGradient(const Problem<Small>& problem, const Tiles& tiling, const Tile& tile, void* shared)
        : slices(covering_windows(problem.axes[0], tile.depth)),
          problem_(problem),
          tile_(tile),
          first_window_row_(first_tap(problem.axes[1], tile.first_row)),
          row_weights_(static_cast<Accumulator*>(shared)) {
        if constexpr (R::kDivides) {
            const int32_t window_rows = reach<int32_t>(problem.axes[1], tiling.rows);
            for (int32_t i = threadIdx.x; i < window_rows; i += kThreads) {
                const int32_t window = first_window_row_ + i;
                const bool is_window = has_place(problem.axes[1].input, window);
                row_weights_[i] = is_window ? 1 / static_cast<Accumulator>(divisor(1, window)) : 0;
            }
        }
    }

    static __device__ Accumulator identity() { return 0; }
    static __device__ Accumulator combine(Accumulator a, Accumulator b) { return a + b; }

    template <bool kInside>
    __device__ auto column(const Position<Small>& plane, int32_t slice, int32_t first_row, int32_t column) const {
        const int32_t first[] = {slice, first_row, column};
        const auto of = [&](const View<Small>& view) {
            return view.template plane<const Element>(plane.image, plane.channel) + view.offset(first, Small::kRank);
        };
        const Element* grad_y = of(problem_.grad_y);
        [[maybe_unused]] const Element* y = of(problem_.y);
        return [this, grad_y, y, first_row](int32_t row) -> Accumulator {
            if (!kInside && !has_place(problem_.axes[1].input, first_row + row)) return 0;
            const Accumulator gradient = Gradient::widened(grad_y[row * problem_.grad_y.strides[1]]);
            if constexpr (R::kDivides) {
                return gradient * row_weights_[first_row - first_window_row_ + row];
            } else {
                return Gradient::linear_factor(gradient, y[row * problem_.y.strides[1]]);
            }
        };
    }
    __device__ Accumulator weight(int32_t slice, int32_t column) const {
        if constexpr (!R::kDivides) return 1;
        return 1 / static_cast<Accumulator>(counted_taps(problem_.axes[0], slice, problem_.parameters.divisor) *
                                            divisor(2, column));
    }
    static __device__ Accumulator weighted(Accumulator sum, Accumulator weight) {
        return R::kDivides ? sum * weight : sum;
    }

    __device__ Element result(const Position<Small>& plane, int32_t row, int32_t column, Accumulator sum) const {
        if constexpr (R::kGradientNeedsData) {
            // What no window covers has the gradient 0, even if it is infinite or NaN.
            const auto is_covered = [&](int a, int32_t place) { return data_taps(problem_.axes[a], place).count > 0; };
            if (sum != 0 || (slices.count > 0 && is_covered(1, row) && is_covered(2, column))) {
                const int32_t place[] = {tile_.depth, row, column};
                const auto* x = problem_.x.template plane<const Element>(plane.image, plane.channel);
                sum *= Gradient::widened(x[problem_.x.offset(place, Small::kRank)]);
            }
        }
        return Gradient::rounded(sum + Accumulator(0));  // which is never -0
    }

private:
    // The factor that row or column `window` of windows contributes.
    __device__ int32_t divisor(int a, int32_t window) const {
        return counted_taps(transposed(problem_.axes[a]), window, problem_.parameters.divisor);
    }

    const Problem<Small>& problem_;
    const Tile& tile_;
    const int32_t first_window_row_;
    Accumulator* const row_weights_;
};

// ---- The kernel ----

template <class Work, int kRun>
__global__ void __launch_bounds__(kThreads, 3)
    combine_separably(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                      const __grid_constant__ SeparableTiling tiling) {
    using T = typename Work::Element;
    using Accumulator = typename Work::Accumulator;
    const auto& row_axis = problem.axes[1];
    const auto& column_axis = problem.axes[2];
    const Tile tile(tiling, first_block + blockIdx.x);
    // Rows whose columns are combined, and then the results.
    auto* const kept = shared<Accumulator>();
    auto* const results = kept + kRun * tiling.pitch;
    const Work work(problem, tiling, tile, results + kRun * tiling.result_pitch);
    const auto combine = [&](const Accumulator& a, const Accumulator& b) { return work.combine(a, b); };
    const RangeOf<int32_t> slices = work.slices;

    // ---- The threads' shares ----
    // Columns of inputs, of all planes; those outside of the data stay what changes nothing.
    const int32_t first_input = first_tap(column_axis, tile.first_column);
    const int32_t begin = first_input > 0 ? first_input : 0;
    const int32_t input_end = first_input + tiling.input_columns;
    const int32_t end = input_end < column_axis.input ? input_end : column_axis.input;
    const int32_t inside = end > begin && slices.count > 0 ? end - begin : 0;
    const int32_t input_width = tiling.planes_innermost ? tile.planes : inside;
    for (int32_t i = threadIdx.x; i < kRun * tiling.pitch; i += kThreads) kept[i] = work.identity();
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
    const View<Small>& view = Work::target(problem);
    const int32_t place[] = {tile.depth, tile.first_row, column};
    T* to = view.template plane<T>(position.image, position.channel) + view.offset(place, Small::kRank);
    __syncthreads();

    const int32_t rows = places_left(row_axis.output, tile.first_row, tiling.rows);
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
            for (int32_t d = 0; d < slices.count; ++d) {
                const int32_t slice = slices.begin + d * slices.step;
                Accumulator sums[kRun];
                if (all_inside) {
                    const auto element = work.template column<true>(position, slice, first_input_row, number);
                    reduce_run(row_axis, combine, element, sums);
                } else {
                    const auto element = work.template column<false>(position, slice, first_input_row, number);
                    reduce_run(row_axis, combine, element, sums);
                }
                const auto weight = work.weight(slice, number);
#pragma unroll
                for (int r = 0; r < kRun; ++r) {
                    Accumulator& sum = combined[r * tiling.pitch];
                    const Accumulator of_slice = work.weighted(sums[r], weight);
                    sum = d > 0 ? combine(sum, of_slice) : of_slice;
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
                const int32_t place[] = {tile.depth, own_row, tile.first_column + run_column};
                T* to = view.template plane<T>(position.image, position.channel) + view.offset(place, Small::kRank);
#pragma unroll
                for (int i = 0; i < kRun; ++i) {
                    const int32_t number = run_column + i;
                    if (own_row < row_axis.output && number < tiling.columns &&
                        tile.first_column + number < column_axis.output) {
                        to[i * view.strides[2]] = work.result(position, own_row, tile.first_column + number, sums[i]);
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
                *to = work.result(position, tile.first_row + done + r, column, from[r * tiling.result_pitch]);
                to += view.strides[1];
            }
        }
    }
}

// ---- The choice ----

// The tile with the least work; false if none fits into shared memory.
template <class Work, int kRun>
bool choose_separable_tiling(const Call& call, const Problem<Small>& problem, SeparableTiling& tiling,
                             int64_t& shared_bytes) {
    using Accumulator = typename Work::Accumulator;
    constexpr int64_t kMostRows = 4 * kRun;
    const auto& rows = problem.axes[1];
    const auto& columns = problem.axes[2];
    tiling.all_planes = problem.planes(call);
    tiling.planes_innermost = call.channels_innermost;
    // Of a run, windows behind the last one count as well, which is_small() knows nothing of.
    if (reach<int64_t>(rows, kRun) > 1 << 30) return false;

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
               Work::shared_bytes(problem, kMostRows, width);
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
                std::max<double>(1, kVectorBytes / static_cast<double>(side_by_side * sizeof(typename Work::Element)));
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

// Launches with runs of kRun windows, or shorter ones where only those have taps in common. False if these kernels do
// not take the windows.
template <class Work, int kRun>
bool launch_separable(const Call& call, const Problem<Small>& problem, const Context& context) {
    constexpr int short_run = 8;
    if constexpr (kRun > short_run) {
        const bool suits_long_runs = std::all_of(problem.axes + 1, problem.axes + Small::kRank, [&](const auto& axis) {
            const int64_t stride = axis.stride;
            return axis.kernel > (kRun - 1) * stride || axis.kernel <= (short_run - 1) * stride;
        });
        if (!suits_long_runs) return launch_separable<Work, short_run>(call, problem, context);
    }
    SeparableTiling tiling;
    tiling.depth = Divider<int32_t>(Work::depth(problem));
    int64_t shared_bytes = 0;
    if (!choose_separable_tiling<Work, kRun>(call, problem, tiling, shared_bytes)) return false;
    launch(combine_separably<Work, kRun>, tiling.count(), shared_bytes, context.stream, problem, tiling);
    return true;
}

// A problem with the channels of one axis as its rows.
inline Problem<Small> separable_problem(const Call& call) {
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    problem.number(call, &Problem<Small>::AxisType::output, 1);
    return problem;
}

template <class R, int kLongRun>
bool forward_separable(const Call& call, const Context& context) {
    return launch_separable<SeparableForward<R>, kLongRun>(call, separable_problem(call), context);
}

template <class R, int kLongRun>
bool backward_separable(const Call& call, const Context& context) {
    Problem<Small> problem = separable_problem(call);
    for (int a = 1; a < Small::kRank; ++a) {
        if (problem.axes[a].stride != 1) return false;
        problem.axes[a] = transposed(problem.axes[a]);
    }
    return launch_separable<SeparableGradient<R>, kLongRun>(call, problem, context);
}

}  // namespace onnxpool::cuda
