// Gradients of maxima. Each window names one element, so to add up what windows send takes as many steps as there are
// windows, however many of them cover an element. A warp does this for a tile of inputs, in an order that depends on
// the indices alone, so that no sum depends on chance.
#pragma once

#include "gradient.cuh"
#include "tiles.cuh"

namespace onnxpool::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

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

// Windows read at once: in so many rows, one for each lane of a warp.
constexpr int kWindowRows = 4;

// What windows of a plane send.
template <class T>
struct SendingWindows {
    const T* grad_y;
    const int64_t* indices;
    int64_t first_index;

    __device__ SendingWindows(const Problem<Small>& problem, const Position<Small>& plane)
        : grad_y(problem.grad_y.template plane<const T>(plane.image, plane.channel)),
          indices(problem.indices.template plane<const int64_t>(plane.image, plane.channel)),
          first_index(plane.image * problem.flat.image_stride + plane.channel * problem.flat.channel_stride) {}

    // The number of the datum in its plane that a window names, or -1.
    __device__ int32_t number(const Problem<Small>& problem, const int32_t* window) const {
        const int64_t index = indices[problem.indices.offset(window, Small::kRank)] - first_index;
        const auto number = static_cast<int32_t>(index);
        return number == index && number >= 0 ? number : -1;
    }
    __device__ T gradient(const Problem<Small>& problem, const int32_t* window) const {
        return grad_y[problem.grad_y.offset(window, Small::kRank)];
    }
};

// Where threads that read the windows of several channels side by side leave them for the warps that add them up.
template <class T>
struct WindowExchange {
    static constexpr int kPitch = kWarpThreads + 1;  // no two planes in the same bank
    int32_t numbers[kWindowRows][kWarps][kPitch];
    T gradients[kWindowRows][kWarps][kPitch];
};

// The sum over all lanes with this lane's target, if it is the first of these: as a tree that depends on them alone.
template <class Sum>
__device__ inline Sum sum_over_peers(Sum sum, unsigned peers, int32_t lane) {
    int rank = __popc(peers & ((1u << lane) - 1));
    peers &= ~1u << lane;  // those after this one
    while (__any_sync(kAllLanes, peers != 0)) {
        const int next = __ffs(static_cast<int>(peers));
        const Sum other = __shfl_sync(kAllLanes, sum, next - 1);
        if (next > 0) sum += other;
        peers &= __ballot_sync(kAllLanes, rank % 2 == 0);
        rank /= 2;
    }
    return sum;
}

// kExchange: windows are read channel by channel, which lie side by side, and exchanged among the warps of a block.
template <class R, bool kExchange>
__global__ void __launch_bounds__(kThreads)
    backward_scattered(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                       const __grid_constant__ ScatterTiling tiling) {
    using T = typename R::Element;
    using Gradient = GradientArithmetic<R>;
    using Sum = typename Gradient::Sum;
    const int32_t lane = threadIdx.x % kWarpThreads, warp = threadIdx.x / kWarpThreads;
    const Tile tile(tiling, first_block + blockIdx.x);
    if (!kExchange && warp >= tile.planes) return;
    const auto& [depth_axis, row_axis, column_axis] = problem.axes;
    const int32_t size = tiling.rows * tiling.columns.value;
    Sum* const sums = shared<Sum>() + warp * size;
    for (int32_t i = lane; i < size; i += kWarpThreads) sums[i] = 0;
    __syncwarp();

    const int32_t own_rows = places_left(row_axis.input, tile.first_row, tiling.rows);
    const int32_t own_columns = places_left(column_axis.input, tile.first_column, tiling.columns);
    const int32_t first_own[] = {tile.depth, tile.first_row, tile.first_column};
    const int32_t first_own_number = problem.flat.offset(first_own, Small::kRank);
    // Where in the tile the datum with this number is, or -1.
    const auto target_of = [&](int32_t number) {
        if (tiling.is_row_major) {  // between the tile's first element and its last there are only those beside it
            number -= first_own_number;
            if (!has_place(own_rows * tiling.strides[1].value, number)) return -1;
            const int32_t row = number / tiling.strides[1], column = number - row * tiling.strides[1].value;
            return column < own_columns ? row * tiling.columns.value + column : -1;
        }
        int32_t position[Small::kRank];
#pragma unroll
        for (int a = 0; a < Small::kRank; ++a) position[a] = number / tiling.strides[a] % tiling.sizes[a];
        const int32_t row = position[1] - tile.first_row, column = position[2] - tile.first_column;
        const bool is_own = position[0] == tile.depth && problem.flat.offset(position, Small::kRank) == number &&
                            has_place(own_rows, row) && has_place(own_columns, column);
        return is_own ? row * tiling.columns.value + column : -1;
    };

    // ---- The windows ----
    // Neighbours in a column, which a lane visits one after the other, often name the same datum: what they send is
    // added up before it is known where that lies.
    int32_t named = -1;
    Sum sent = 0;
    const auto add_up = [&](bool is_complete) {
        const int32_t target = is_complete && named >= 0 ? target_of(named) : -1;
        const unsigned peers = __match_any_sync(kAllLanes, target);
        const Sum sum = sum_over_peers(sent, target < 0 ? 0 : peers, lane);
        if (target >= 0 && (peers & ((1u << lane) - 1)) == 0) sums[target] += sum;
        __syncwarp();
        if (is_complete) sent = 0;
    };
    const int32_t reading_plane = kExchange ? threadIdx.x % kWarps : warp;
    const int32_t reading_column = kExchange ? threadIdx.x / kWarps : lane;
    const bool reads = reading_plane < tile.planes;
    const SendingWindows<T> windows(problem, tile.position(problem, reads ? reading_plane : 0));
    auto* const exchange = reinterpret_cast<WindowExchange<T>*>(shared<Sum>() + kWarps * size);
    const CoveringRange slices(depth_axis, tile.depth, 1);
    const CoveringRange rows(row_axis, tile.first_row, tiling.rows);
    const CoveringRange columns(column_axis, tile.first_column, tiling.columns);
    for (int32_t slice = slices.begin; slice < slices.end; ++slice) {
        for (int32_t first_column = columns.begin; first_column < columns.end; first_column += kWarpThreads) {
            for (int32_t first_row = rows.begin; first_row < rows.end; first_row += kWindowRows) {
                int32_t numbers[kWindowRows];
                T gradients[kWindowRows];
#pragma unroll
                for (int k = 0; k < kWindowRows; ++k) {
                    const int32_t window[] = {slice, first_row + k, first_column + reading_column};
                    const bool is_window = reads && window[1] < rows.end && window[2] < columns.end;
                    numbers[k] = is_window ? windows.number(problem, window) : -1;
                    gradients[k] = is_window ? windows.gradient(problem, window) : static_cast<T>(comparable_t<T>(0));
                }
                if constexpr (kExchange) {
                    __syncthreads();
#pragma unroll
                    for (int k = 0; k < kWindowRows; ++k) {
                        exchange->numbers[k][reading_plane][reading_column] = numbers[k];
                        exchange->gradients[k][reading_plane][reading_column] = gradients[k];
                    }
                    __syncthreads();
#pragma unroll
                    for (int k = 0; k < kWindowRows; ++k) {
                        numbers[k] = exchange->numbers[k][warp][lane];
                        gradients[k] = exchange->gradients[k][warp][lane];
                    }
                }
#pragma unroll
                for (int k = 0; k < kWindowRows; ++k) {
                    const bool is_complete = numbers[k] != named;
                    if (__any_sync(kAllLanes, is_complete)) add_up(is_complete);
                    named = numbers[k];
                    sent += Gradient::widened(gradients[k]);
                }
            }
        }
    }
    add_up(true);

    if (warp >= tile.planes) return;
    const Position<Small> plane = tile.position(problem, warp);
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
template <class R, bool kExchange>
void launch_scattered(const Call& call, const Context& context) {
    using T = typename R::Element;
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
    constexpr int64_t exchanged = kExchange ? sizeof(WindowExchange<T>) : 0;
    constexpr int64_t most = (kSharedBytes - exchanged) / kWarps / static_cast<int64_t>(sizeof(Sum));
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
    const int64_t shared_bytes = kWarps * best_height * best_width * static_cast<int64_t>(sizeof(Sum)) + exchanged;
    launch(backward_scattered<R, kExchange>, tiling.count(), shared_bytes, context.stream, problem, tiling);
}

template <class R>
void backward_scattered(const Call& call, const Context& context) {
    return call.channels_innermost ? launch_scattered<R, true>(call, context)
                                   : launch_scattered<R, false>(call, context);
}

}  // namespace onnxpool::cuda
