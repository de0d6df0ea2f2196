// Gradients of windows of any size: a block takes a tile of inputs. What the windows that cover it send is kept in
// shared memory: added up along the columns first, then along the row; or, for maxima, as it is, with what it was sent
// to.
#pragma once

#include "gradient.cuh"
#include "tiles.cuh"

namespace onnxpool::cuda {

// Tiles of inputs. A thread takes whole columns of them.
struct GradientTiling : Tiles {
    // The windows that cover such a tile.
    int32_t window_rows = 1;
    int32_t kept_rows = 1;  // in shared memory: sums for rows of inputs, or rows of windows
    Divider<int32_t> window_columns;
    bool planes_innermost = false;

    // A column of the tile's inputs, or of its windows, of which there are `width` in each plane.
    struct Column {
        int32_t plane, number;
    };
    __device__ Column column(int32_t number, const Divider<int32_t>& width) const {
        const Divider<int32_t>& radix = planes_innermost ? planes : width;
        const int32_t quotient = number / radix, digit = number - quotient * radix.value;
        return planes_innermost ? Column{digit, quotient} : Column{quotient, digit};
    }
    // Where column `window` of windows begins in shared memory: rows lie behind each other, so that threads side by
    // side find neighbouring columns side by side.
    __device__ int32_t kept_column(int32_t plane, int32_t window) const {
        return planes_innermost ? window * planes.value + plane : plane * window_columns.value + window;
    }
    __device__ int32_t kept_step() const { return planes_innermost ? planes.value : 1; }
    ONNXPOOL_HOST_DEVICE int32_t kept_row() const { return planes.value * window_columns.value; }
};

template <class R>
__global__ void __launch_bounds__(kThreads)
    backward_tiles(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                   const __grid_constant__ GradientTiling tiling) {
    using T = typename R::Element;
    using Gradient = GradientArithmetic<R>;
    using Sum = typename Gradient::Sum;
    const auto& depth_axis = problem.axes[0];
    const auto& row_axis = problem.axes[1];
    const auto& column_axis = problem.axes[2];

    const Tile tile(tiling, first_block + blockIdx.x);
    const int32_t window_row = first_covering_window(row_axis, tile.first_row);
    const int32_t window_column = first_covering_window(column_axis, tile.first_column);
    const auto slices = covering_windows(depth_axis, tile.depth);

    // ---- Which windows cover a row, and a column, and what they divide by ----
    using Range = RangeOf<int32_t>;
    auto* const sent = shared<Sum>();
    auto* const row_weights = sent + tiling.kept_row() * tiling.kept_rows;
    auto* const column_weights = row_weights + tiling.window_rows;
    auto* const row_ranges = reinterpret_cast<Range*>(column_weights + tiling.window_columns);
    auto* const column_ranges = row_ranges + tiling.rows;
    auto* const named = reinterpret_cast<int32_t*>(column_ranges + tiling.columns);
    for (int32_t i = threadIdx.x; i < tiling.rows + tiling.columns; i += kThreads) {
        const bool is_row = i < tiling.rows;
        row_ranges[i] = is_row ? covering_windows(row_axis, tile.first_row + i)
                               : covering_windows(column_axis, tile.first_column + i - tiling.rows);
    }
    if constexpr (R::kDivides) {
        for (int32_t i = threadIdx.x; i < tiling.window_rows + tiling.window_columns; i += kThreads) {
            const bool is_row = i < tiling.window_rows;
            const int32_t window = is_row ? window_row + i : window_column + i - tiling.window_rows;
            const auto& axis = is_row ? row_axis : column_axis;
            const int32_t count = window < axis.output ? counted_taps(axis, window, problem.parameters.divisor) : 1;
            row_weights[i] = 1 / static_cast<Sum>(count);
        }
    }
    __syncthreads();

    const int32_t rows = places_left(row_axis.input, tile.first_row, tiling.rows);
    // Calls visit(column, position, grad_x) for the columns of inputs of this thread, with the position of the first
    // row.
    const auto for_each_column = [&](auto visit) {
        for (int32_t i = threadIdx.x; i < tiling.planes.value * tiling.columns.value; i += kThreads) {
            const auto column = tiling.column(i, tiling.columns);
            if (column.plane >= tile.planes || tile.first_column + column.number >= column_axis.input) continue;
            Position<Small> position = tile.position(problem, column.plane);
            position.spatial[0] = tile.depth;
            position.spatial[1] = tile.first_row;
            position.spatial[2] = tile.first_column + column.number;
            visit(column, position,
                  problem.grad_x.template plane<T>(position.image, position.channel) +
                      problem.grad_x.offset(position.spatial, Small::kRank));
        }
    };

    if constexpr (R::kIndexed) {
        // ---- The windows ----
        const int32_t kept_slice = tiling.window_rows * tiling.kept_row();
        for (int32_t i = threadIdx.x; i < tiling.kept_row(); i += kThreads) {
            const auto column = tiling.column(i, tiling.window_columns);
            const bool is_column = column.plane < tile.planes && window_column + column.number < column_axis.output;
            const Position<Small> plane = tile.position(problem, is_column ? column.plane : 0);
            const int32_t window[] = {slices.begin, window_row, window_column + column.number};
            const T* grad_y = problem.grad_y.template plane<const T>(plane.image, plane.channel) +
                              problem.grad_y.offset(window, Small::kRank);
            const auto* indices = problem.indices.template plane<const int64_t>(plane.image, plane.channel) +
                                  problem.indices.offset(window, Small::kRank);
            const int64_t first_index =
                plane.image * problem.flat.image_stride + plane.channel * problem.flat.channel_stride;
            for (int32_t d = 0; d < slices.count; ++d) {
                for (int32_t row = 0; row < tiling.window_rows; ++row) {
                    const int32_t kept = d * kept_slice + row * tiling.kept_row() + i;
                    const auto offset = [&](const View<Small>& view) {
                        return d * slices.step * view.strides[0] + row * view.strides[1];
                    };
                    int64_t index = -1;
                    if (is_column && window_row + row < row_axis.output) {
                        index = indices[offset(problem.indices)] - first_index;
                        sent[kept] = Gradient::widened(grad_y[offset(problem.grad_y)]);
                    }
                    const auto number = static_cast<int32_t>(index);
                    named[kept] = number == index ? number : -1;
                }
            }
        }
        __syncthreads();

        // ---- The inputs ----
        for_each_column([&](const auto& column, const auto& position, T* grad_x) {
            const int32_t first_own = problem.flat.offset(position.spatial, Small::kRank);
            const Range windows = column_ranges[column.number];
            const int32_t first_kept = tiling.kept_column(column.plane, windows.begin - window_column);
            const int32_t step = windows.step * tiling.kept_step();
            for (int32_t row = 0; row < rows; ++row) {
                const int32_t own = first_own + row * problem.flat.strides[1];
                const Range of_row = row_ranges[row];
                Sum sum = 0;
                for (int32_t d = 0; d < slices.count; ++d) {
                    for (int32_t r = 0; r < of_row.count; ++r) {
                        const int32_t begin = d * kept_slice + first_kept +
                                              (of_row.begin + r * of_row.step - window_row) * tiling.kept_row();
#pragma unroll 4
                        for (int32_t c = 0; c < windows.count; ++c) {
                            if (named[begin + c * step] == own) sum += sent[begin + c * step];
                        }
                    }
                }
                grad_x[row * problem.grad_x.strides[1]] = Gradient::rounded(sum);
            }
        });
    } else {
        // ---- Along the columns ----
        for (int32_t i = threadIdx.x; i < tiling.kept_row(); i += kThreads) {
            const auto column = tiling.column(i, tiling.window_columns);
            if (column.plane >= tile.planes || window_column + column.number >= column_axis.output) continue;
            const Position<Small> plane = tile.position(problem, column.plane);
            const auto offset = [&](const View<Small>& view) {
                return slices.begin * view.strides[0] + (window_column + column.number) * view.strides[2];
            };
            const T* grad_y =
                problem.grad_y.template plane<const T>(plane.image, plane.channel) + offset(problem.grad_y);
            [[maybe_unused]] const T* y =
                problem.y.template plane<const T>(plane.image, plane.channel) + offset(problem.y);
            for (int32_t row = 0; row < rows; ++row) {
                const Range windows = row_ranges[row];
                Sum sum = 0;
                for (int32_t d = 0; d < slices.count; ++d) {
                    const T* from = grad_y + d * slices.step * problem.grad_y.strides[0] +
                                    windows.begin * problem.grad_y.strides[1];
                    [[maybe_unused]] const T* beside =
                        y + d * slices.step * problem.y.strides[0] + windows.begin * problem.y.strides[1];
                    [[maybe_unused]] const Sum* weights = row_weights + windows.begin - window_row;
                    Sum of_slice = 0;
#pragma unroll 4
                    for (int32_t r = 0; r < windows.count; ++r) {
                        const int32_t window = r * windows.step;
                        const Sum gradient = Gradient::widened(from[window * problem.grad_y.strides[1]]);
                        if constexpr (R::kDivides) {
                            of_slice += gradient * weights[window];
                        } else {
                            of_slice += Gradient::linear_factor(gradient, beside[window * problem.y.strides[1]]);
                        }
                    }
                    if (R::kDivides && depth_axis.kernel > 1) {
                        of_slice /= static_cast<Sum>(
                            counted_taps(depth_axis, slices.begin + d * slices.step, problem.parameters.divisor));
                    }
                    sum += of_slice;
                }
                sent[row * tiling.kept_row() + i] = R::kDivides ? sum * column_weights[column.number] : sum;
            }
        }
        __syncthreads();

        // ---- Along the row ----
        for_each_column([&](const auto& column, const auto& position, T* grad_x) {
            [[maybe_unused]] const T* x = problem.x.template plane<const T>(position.image, position.channel) +
                                          problem.x.offset(position.spatial, Small::kRank);
            const Range windows = column_ranges[column.number];
            const Sum* from = sent + tiling.kept_column(column.plane, windows.begin - window_column);
            const int32_t step = windows.step * tiling.kept_step();
            for (int32_t row = 0; row < rows; ++row) {
                Sum sum = 0;
#pragma unroll 4
                for (int32_t c = 0; c < windows.count; ++c) sum += from[c * step];
                if constexpr (R::kGradientNeedsData) {
                    // What no window covers has the gradient 0, even if it is infinite or NaN.
                    if (slices.count > 0 && row_ranges[row].count > 0 && windows.count > 0) {
                        sum *= Gradient::widened(x[row * problem.x.strides[1]]);
                    }
                }
                grad_x[row * problem.grad_x.strides[1]] = Gradient::rounded(sum);
                from += tiling.kept_row();
            }
        });
    }
}

// ---- The choice ----

// The tile with the least work for each input; false if none fits into shared memory.
template <class R>
bool choose_gradient_tiling(const Call& call, const Problem<Small>& problem, GradientTiling& tiling,
                            int64_t& shared_bytes) {
    using Sum = typename GradientArithmetic<R>::Sum;
    const auto& depth = problem.axes[0];
    const auto& rows = problem.axes[1];
    const auto& columns = problem.axes[2];
    tiling.all_planes = problem.planes(call);
    tiling.planes_innermost = call.channels_innermost;
    tiling.depth = Divider<int32_t>(depth.input);

    const auto kept_rows = [&](int64_t height) {
        return R::kIndexed ? most_covering(depth, 1) * most_covering(rows, height) : height;
    };
    const auto bytes = [&](int64_t planes, int64_t height, int64_t width) {
        const int64_t window_rows = most_covering(rows, height), window_columns = most_covering(columns, width);
        constexpr auto of_sum = static_cast<int64_t>(sizeof(Sum));
        return kept_rows(height) * planes * window_columns * (of_sum + (R::kIndexed ? sizeof(int32_t) : 0)) +
               (window_rows + window_columns) * of_sum + (height + width) * sizeof(RangeOf<int32_t>);
    };
    double best = std::numeric_limits<double>::infinity();
    int64_t best_planes = 0, best_height = 0, best_width = 0;
    for (int64_t limit = kThreads; limit >= 1; limit /= 2) {
        const int64_t width = std::min<int64_t>(columns.input, limit);
        const int64_t planes = std::min(kThreads / width, tiling.all_planes);
        const int64_t side_by_side = tiling.planes_innermost ? planes : width;
        if (side_by_side < kWarpThreads && side_by_side < (tiling.planes_innermost ? tiling.all_planes : columns.input))
            continue;
        for (int64_t most_rows = 32; most_rows >= 1; most_rows /= 2) {
            const int64_t height = std::min<int64_t>(rows.input, most_rows);
            if (bytes(planes, height, width) > kSharedBytes) continue;
            const auto share = [](int64_t size, int64_t part) {
                return static_cast<double>(ceil_div(size, part) * part) / static_cast<double>(size);
            };
            // The cost of a column of windows, beside that of its rows.
            constexpr double once = 12;
            const double along_columns =
                static_cast<double>(most_covering(columns, width)) *
                (once +
                 static_cast<double>(R::kIndexed ? 4 * kept_rows(height) : height * (6 + most_covering(rows, 1))));
            const double cost =
                (along_columns / static_cast<double>(height * width) + once / static_cast<double>(height)) *
                share(rows.input, height) * share(columns.input, width);
            if (cost < best) {
                best = cost;
                best_planes = planes;
                best_height = height;
                best_width = width;
            }
        }
    }
    if (best_planes == 0) return false;
    tiling.planes = Divider<int32_t>(static_cast<int32_t>(best_planes));
    tiling.cut(rows.input, columns.input, best_height, best_width);
    tiling.window_rows = static_cast<int32_t>(most_covering(rows, best_height));
    tiling.window_columns = Divider<int32_t>(static_cast<int32_t>(most_covering(columns, best_width)));
    tiling.kept_rows = static_cast<int32_t>(kept_rows(best_height));
    shared_bytes = bytes(best_planes, best_height, best_width);
    return true;
}

// False if these kernels do not take the windows.
template <class R>
bool backward_tiles(const Call& call, const Context& context) {
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    problem.number(call, &Problem<Small>::AxisType::input, 1);
    GradientTiling tiling;
    int64_t shared_bytes = 0;
    if (!choose_gradient_tiling<R>(call, problem, tiling, shared_bytes)) return false;
    launch(backward_tiles<R>, tiling.count(), shared_bytes, context.stream, problem, tiling);
    return true;
}

}  // namespace onnxpool::cuda
