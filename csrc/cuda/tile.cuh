// Windows over rows that are contiguous in memory. A block takes a tile of outputs: the rows of their windows are
// combined into shared memory, and the results then along the row.
#pragma once

#include "planes.cuh"
#include "tiles.cuh"

namespace onnxpool::cuda {

// Neighbouring rows of outputs that one thread writes.
constexpr int32_t kGroupRows = 4;

// Tiles of outputs.
struct Tiling : Tiles {
    Divider<int32_t> row_groups;  // of kGroupRows rows each
    // The inputs that these outputs look at. Columns before the first tap make the first one start on a 16-byte
    // boundary, where rows are read in vectors.
    Divider<int32_t> input_columns;
    int32_t lead = 0;
    bool in_vectors = false;
    int32_t divisor_bytes = 0;  // of shared memory: factors of divisors
};

template <class R>
__global__ void __launch_bounds__(kThreads)
    forward_tiles(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                  const __grid_constant__ Tiling tiling) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(problem.parameters);
    const auto& row_axis = problem.axes[1];
    const auto& column_axis = problem.axes[2];

    const Tile tile(tiling, first_block + blockIdx.x);
    const int32_t first_row = tile.first_row, first_column = tile.first_column, depth = tile.depth;
    const int32_t width = tiling.input_columns;
    const int32_t height = tiling.rows;
    const int32_t size = tile.planes * height * width;
    auto* const divisors_of_rows = shared<int32_t>();
    auto* const divisors_of_columns = divisors_of_rows + tiling.rows;
    auto* const buffer = reinterpret_cast<Accumulator*>(shared<char>() + tiling.divisor_bytes);

    fill_divisors(problem, tiling, tile, divisors_of_rows);
    const int32_t depth_divisor = counted_taps(problem.axes[0], depth, problem.parameters.divisor);

    // ---- Along the columns, into shared memory ----
    const auto depth_taps = data_taps(problem.axes[0], depth);
    const int32_t input_column = first_column * column_axis.stride - column_axis.pad_begin - tiling.lead;
    // `lanes` columns from number `i` of all on.
    const auto fill = [&](auto lanes_constant, int32_t i) {
        constexpr int lanes = decltype(lanes_constant)::value;
        const int32_t row = i / tiling.input_columns;
        const int32_t plane = row / height;
        const int32_t output_row = first_row + row - plane * height;
        RangeOf<int32_t> taps{0, 0, 1};
        if (output_row < row_axis.output) taps = data_taps(row_axis, output_row);
        const int32_t column = input_column + i - row * width;
        Accumulator sums[lanes];
#pragma unroll
        for (int lane = 0; lane < lanes; ++lane) sums[lane] = reduction.identity();
        if (column >= 0 && column < column_axis.input) {
            const Position<Small> position = tile.position(problem, plane);
            const T* x =
                problem.x.template plane<const T>(position.image, position.channel) + column * problem.x.strides[2];
            for (int32_t d = 0; d < depth_taps.count; ++d) {
                const T* from = x + (depth_taps.begin + d * depth_taps.step) * problem.x.strides[0] +
                                taps.begin * problem.x.strides[1];
                const int32_t step = taps.step * problem.x.strides[1];
#pragma unroll 4
                for (int32_t t = 0; t < taps.count; ++t) {
                    T loaded[lanes];
                    load(from + t * step, loaded);
#pragma unroll
                    for (int lane = 0; lane < lanes; ++lane) {
                        sums[lane] = combine_datum(reduction, sums[lane], loaded[lane]);
                    }
                }
            }
        }
        store(sums, buffer + i);
    };
    if (tiling.in_vectors) {
        constexpr int lanes = kVectorLanes<T>;
        for (int32_t i = threadIdx.x * lanes; i < size; i += kThreads * lanes) {
            fill(std::integral_constant<int, lanes>(), i);
        }
    } else {
        for (int32_t i = threadIdx.x; i < size; i += kThreads) fill(std::integral_constant<int, 1>(), i);
    }
    __syncthreads();

    // ---- Along the row ----
    for (int32_t i = threadIdx.x; i < tile.planes * tiling.row_groups * tiling.columns; i += kThreads) {
        const int32_t group = i / tiling.columns;
        const int32_t plane = group / tiling.row_groups;
        const int32_t column = i - group * tiling.columns;
        const int32_t group_begin = (group - plane * tiling.row_groups) * kGroupRows;
        const int32_t end_in_tile =
            group_begin + kGroupRows < tiling.rows ? group_begin + kGroupRows : tiling.rows.value;
        const int32_t rows_left = row_axis.output - first_row;
        const int32_t group_end = end_in_tile < rows_left ? end_in_tile : rows_left;
        int32_t output[] = {depth, first_row + group_begin, first_column + column};
        if (output[2] >= column_axis.output) continue;
        const Position<Small> position = tile.position(problem, plane);
        T* y = problem.y.template plane<T>(position.image, position.channel) + problem.y.offset(output, Small::kRank);
        const Accumulator* from =
            buffer + (plane * height + group_begin) * width + tiling.lead + column * column_axis.stride;
        const int32_t divisor_of_column = depth_divisor * divisors_of_columns[column];
        for (int32_t row = group_begin; row < group_end; ++row) {
            Accumulator sum = from[0];
            for (int32_t t = 1; t < column_axis.kernel; ++t) {
                sum = reduction.combine(sum, from[t * column_axis.dilation]);
            }
            const auto box = [&] {
                Box<Small> data;
                window_at(problem, output, data);
                return data;
            };
            const T* x = problem.x.template plane<const T>(position.image, position.channel);
            *y = finish_window(reduction, problem, box, x, sum, divisor_of_column * divisors_of_rows[row]);
            y += problem.y.strides[1];
            from += width;
            ++output[1];
        }
    }
}

// ---- The choice ----

// The tile with the fewest inputs for all outputs; false if none fits into shared memory.
template <class R>
bool choose_tiling(const Call& call, const Problem<Small>& problem, Tiling& tiling) {
    using T = typename R::Element;
    const auto& rows = problem.axes[1];
    const auto& columns = problem.axes[2];
    constexpr int64_t lanes = kVectorLanes<T>;
    tiling.all_planes = problem.planes(call);
    tiling.depth = Divider<int32_t>(problem.axes[0].output);
    tiling.in_vectors = problem.x.strides[2] == 1 && columns.input % lanes == 0 && is_aligned(call.x.data) &&
                        problem.x.strides[1] % lanes == 0 && problem.x.strides[0] % lanes == 0 &&
                        problem.x.channel_stride % lanes == 0 && problem.x.image_stride % lanes == 0;
    if (tiling.in_vectors) tiling.lead = static_cast<int32_t>((lanes - columns.pad_begin % lanes) % lanes);
    constexpr double shared_limit = kSharedBytes / 2.0;  // rather two blocks than one

    const auto input_columns = [&](int64_t outputs) {
        const int64_t all = tiling.lead + reach(columns, outputs);
        return tiling.in_vectors ? ceil_div(all, lanes) * lanes : all;
    };
    const auto divisor_bytes = [](int64_t height, int64_t width) {
        return ceil_div((height + width) * static_cast<int64_t>(sizeof(int32_t)), kVectorBytes) * kVectorBytes;
    };
    const auto buffer_bytes = [&](int64_t height, int64_t width) {
        return static_cast<double>(height) * static_cast<double>(input_columns(width)) *
               static_cast<double>(sizeof(typename R::Accumulator));
    };
    double best = std::numeric_limits<double>::infinity();
    int64_t best_height = 0, best_width = 0;
    // Widths that begin on a boundary wherever the tile lies, or the whole row.
    for (int64_t limit = 4096; limit >= 16; limit /= 2) {
        const int64_t width = std::min<int64_t>(columns.output, limit);
        for (int64_t height = std::min<int64_t>(rows.output, 64); height >= 1; height /= 2) {
            if (height * width > 4096) continue;
            if (static_cast<double>(divisor_bytes(height, width)) + buffer_bytes(height, width) > shared_limit)
                continue;
            const int64_t tiles = ceil_div(rows.output, height) * ceil_div(columns.output, width);
            const auto cost =
                static_cast<double>(tiles) * static_cast<double>(reach(rows, height) * input_columns(width) + kThreads);
            if (cost < best) {
                best = cost;
                best_height = height;
                best_width = width;
            }
        }
    }
    if (best_height == 0) return false;
    if (best_height == rows.output && best_width == columns.output) {  // small planes share a block
        const int64_t wanted = tiling.all_planes * problem.axes[0].output / wanted_blocks();
        const double room = shared_limit - static_cast<double>(divisor_bytes(best_height, best_width));
        const auto most = std::min(static_cast<int64_t>(room / buffer_bytes(best_height, best_width)),
                                   2048 / (best_height * best_width));
        tiling.planes =
            Divider<int32_t>(static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, most))));
    }
    tiling.cut(rows.output, columns.output, best_height, best_width);
    tiling.row_groups = Divider<int32_t>(static_cast<int32_t>(ceil_div(best_height, kGroupRows)));
    tiling.divisor_bytes = static_cast<int32_t>(divisor_bytes(best_height, best_width));
    tiling.input_columns = Divider<int32_t>(static_cast<int32_t>(input_columns(best_width)));
    return true;
}

template <class R>
bool forward_tiles(const Call& call, const Context& context) {
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    problem.number(call, &Problem<Small>::AxisType::output, 1);
    Tiling tiling;
    if (!choose_tiling<R>(call, problem, tiling)) return false;
    const int64_t accumulators = int64_t{tiling.planes} * tiling.rows * tiling.input_columns;
    const int64_t shared_bytes =
        tiling.divisor_bytes + accumulators * static_cast<int64_t>(sizeof(typename R::Accumulator));
    launch(forward_tiles<R>, tiling.count(), shared_bytes, context.stream, problem, tiling);
    return true;
}

}  // namespace onnxpool::cuda
