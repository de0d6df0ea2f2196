// Gradients of maxima of large windows. Each window names one element, so to add up what windows send takes as many
// steps as there are windows, however many of them cover an element. A warp does this for a tile of inputs, in the
// order of the windows, so that no sum depends on chance.
#pragma once

#include "gradient.cuh"
#include "tiles.cuh"

namespace onnxpool::cuda {

constexpr int kWarpThreads = 32;
constexpr int kWarps = kThreads / kWarpThreads;

// Tiles of inputs, one for each warp: at the same place of as many planes, whose channels may share an access.
struct ScatterTiling : Tiles {
    // From the number of an element in its plane to its row: number / stride % size; likewise for the others.
    Divider<int32_t> strides[Small::kRank], sizes[Small::kRank];
    bool is_row_major = false;
};

// The windows that may cover some of `count` inputs side by side.
struct CoveringRange {
    int32_t begin, end;

    __device__ CoveringRange(const DeviceAxis<int32_t>& axis, int32_t first, int32_t count)
        : begin(first_covering_window(axis, first)) {
        const int32_t last = (first + count - 1 + axis.pad_begin) / axis.stride;
        end = last < axis.output ? last + 1 : axis.output;
    }
};

template <class R>
__global__ void __launch_bounds__(kThreads)
    backward_scattered(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                       const __grid_constant__ ScatterTiling tiling) {
    using T = typename R::Element;
    using Gradient = GradientArithmetic<R>;
    using Sum = typename Gradient::Sum;
    constexpr unsigned all_lanes = 0xffffffffu;
    const int32_t lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const Tile tile(tiling, first_block + blockIdx.x);
    if (warp >= tile.planes) return;
    const auto& [depth_axis, row_axis, column_axis] = problem.axes;
    const Position<Small> plane = tile.position(problem, warp);
    const int32_t size = tiling.rows * tiling.columns.value;
    Sum* const sums = shared<Sum>() + warp * size;
    for (int32_t i = lane; i < size; i += kWarpThreads) sums[i] = 0;
    __syncwarp();

    // ---- The windows, `together` times 32 neighbours at once ----
    const T* grad_y = problem.grad_y.template plane<const T>(plane.image, plane.channel);
    const auto* indices = problem.indices.template plane<const int64_t>(plane.image, plane.channel);
    const int64_t first_index = plane.image * problem.flat.image_stride + plane.channel * problem.flat.channel_stride;
    const CoveringRange slices(depth_axis, tile.depth, 1);
    const CoveringRange rows(row_axis, tile.first_row, tiling.rows);
    const CoveringRange columns(column_axis, tile.first_column, tiling.columns);
    constexpr int together = 4;
    const int32_t own_rows = places_left(row_axis.input, tile.first_row, tiling.rows);
    const int32_t own_columns = places_left(column_axis.input, tile.first_column, tiling.columns);
    const int32_t first_own[] = {tile.depth, tile.first_row, tile.first_column};
    const int64_t first_own_index = first_index + problem.flat.offset(first_own, Small::kRank);
    // Where in the tile the datum with this index is, or -1.
    const auto target_of = [&](int64_t index) {
        if (tiling.is_row_major) {  // between the tile's first element and its last there are only those beside it
            const int64_t distance = index - first_own_index;
            if (static_cast<uint64_t>(distance) >= static_cast<uint32_t>(own_rows * tiling.strides[1].value)) return -1;
            const auto number = static_cast<int32_t>(distance);
            const int32_t row = number / tiling.strides[1], column = number - row * tiling.strides[1].value;
            return column < own_columns ? row * tiling.columns.value + column : -1;
        }
        index -= first_index;
        const auto number = static_cast<int32_t>(index);
        if (number < 0 || number != index) return -1;
        int32_t position[Small::kRank];
#pragma unroll
        for (int a = 0; a < Small::kRank; ++a) position[a] = number / tiling.strides[a] % tiling.sizes[a];
        const int32_t row = position[1] - tile.first_row, column = position[2] - tile.first_column;
        const bool is_own = position[0] == tile.depth && problem.flat.offset(position, Small::kRank) == number &&
                            has_place(own_rows, row) && has_place(own_columns, column);
        return is_own ? row * tiling.columns.value + column : -1;
    };
    for (int32_t slice = slices.begin; slice < slices.end; ++slice) {
        int32_t row = rows.begin, column = columns.begin;
        while (row < rows.end && columns.begin < columns.end) {
            int32_t targets[together];
            T gradients[together];
#pragma unroll
            for (int k = 0; k < together; ++k) {
                const int32_t window[] = {slice, row, column + lane};
                const bool is_window = row < rows.end && window[2] < columns.end;
                targets[k] = is_window ? target_of(indices[problem.indices.offset(window, Small::kRank)]) : -1;
                if (targets[k] >= 0) gradients[k] = grad_y[problem.grad_y.offset(window, Small::kRank)];
                column += kWarpThreads;
                if (column >= columns.end) {
                    column = columns.begin;
                    ++row;
                }
            }
#pragma unroll
            for (int k = 0; k < together; ++k) {
                if (!__any_sync(all_lanes, targets[k] >= 0)) continue;
                // Lanes with the same target take turns.
                const unsigned same = __match_any_sync(all_lanes, targets[k]);
                const int turn = targets[k] < 0 ? -1 : __popc(same & ((1u << lane) - 1));
                for (int now = 0; __any_sync(all_lanes, turn >= now); ++now) {
                    if (turn == now) sums[targets[k]] += Gradient::widened(gradients[k]);
                    __syncwarp();
                }
            }
        }
    }

    for (int32_t i = lane; i < size; i += kWarpThreads) {
        const int32_t row = i / tiling.columns, column = i - row * tiling.columns.value;
        const int32_t input[] = {tile.depth, tile.first_row + row, tile.first_column + column};
        if (input[1] < row_axis.input && input[2] < column_axis.input) {
            problem.grad_x.template plane<T>(plane.image, plane.channel)[problem.grad_x.offset(input, Small::kRank)] =
                Gradient::rounded(sums[i]);
        }
    }
}

// ---- The choice ----

// The tile whose warp reads the fewest windows for each input.
template <class R>
void backward_scattered(const Call& call, const Context& context) {
    using Sum = typename GradientArithmetic<R>::Sum;
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    problem.number(call, &Problem<Small>::AxisType::input, 1);
    const auto& [depth, rows, columns] = problem.axes;
    ScatterTiling tiling;
    for (int a = 0; a < Small::kRank; ++a) {
        tiling.strides[a] = Divider<int32_t>(std::max(problem.flat.strides[a], 1));
        tiling.sizes[a] = Divider<int32_t>(problem.axes[a].input);
    }
    tiling.is_row_major = problem.flat.strides[2] == 1 && problem.flat.strides[1] >= columns.input;
    tiling.all_planes = problem.planes(call);
    tiling.planes = Divider<int32_t>(kWarps);
    tiling.depth = Divider<int32_t>(depth.input);
    constexpr int64_t most = kSharedBytes / kWarps / static_cast<int64_t>(sizeof(Sum));
    double best = std::numeric_limits<double>::infinity();
    int64_t best_height = 0, best_width = 0;
    for (int64_t limit = 8; limit <= most; limit += 8) {
        const int64_t width = std::min<int64_t>(columns.input, limit);
        const int64_t height = ceil_div(rows.input, ceil_div(rows.input, most / width));
        const int64_t steps = ceil_div(most_covering(columns, width), kWarpThreads) * most_covering(rows, height) + 16;
        const double cost = static_cast<double>(steps) *
                            static_cast<double>(ceil_div(columns.input, width) * ceil_div(rows.input, height));
        if (cost < best) {
            best = cost;
            best_height = height;
            best_width = width;
        }
        if (width == columns.input) break;
    }
    tiling.cut(rows.input, columns.input, best_height, best_width);
    launch(backward_scattered<R>, tiling.count(), kWarps * best_height * best_width * static_cast<int64_t>(sizeof(Sum)),
           context.stream, problem, tiling);
}

}  // namespace onnxpool::cuda
