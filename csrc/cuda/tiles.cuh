// Planes cut into tiles.
#pragma once

#include "problem.cuh"

namespace onnxpool::cuda {

// Tiles of `rows` by `columns` places along the last two of three axes, at one place along the first, of `planes`
// planes.
struct Tiles {
    int64_t all_planes = 0;
    Divider<int32_t> planes, rows, columns;
    Divider<int32_t> tile_rows, tile_columns, depth;  // how many of them make up a plane

    // Places of a plane, `all_rows` by `all_columns`, into tiles.
    void cut(int64_t all_rows, int64_t all_columns, int64_t rows_of_tile, int64_t columns_of_tile) {
        const auto divider = [](int64_t value) { return Divider<int32_t>(static_cast<int32_t>(value)); };
        rows = divider(rows_of_tile);
        columns = divider(columns_of_tile);
        tile_rows = divider(ceil_div(all_rows, rows_of_tile));
        tile_columns = divider(ceil_div(all_columns, columns_of_tile));
    }

    int64_t count() const { return ceil_div(all_planes, planes) * depth * tile_rows * tile_columns; }
};

// From the first tap of the first one to the last tap of the last one of so many windows side by side.
template <class Integer>
ONNXPOOL_HOST_DEVICE inline Integer reach(const DeviceAxis<int32_t>& axis, Integer windows) {
    return (windows - 1) * axis.stride + Integer{axis.kernel - 1} * axis.dilation + 1;
}

// The first window that may cover an input, or one that follows it.
__device__ inline int32_t first_covering_window(const DeviceAxis<int32_t>& axis, int32_t input) {
    const int32_t before = input + axis.pad_begin - (axis.kernel - 1) * axis.dilation;
    return before > 0 ? (before + axis.stride - 1) / axis.stride : 0;
}

// The most windows that may cover so many inputs side by side.
inline int64_t most_covering(const DeviceAxis<int32_t>& axis, int64_t inputs) {
    return std::min<int64_t>(axis.output, (inputs - 1 + reach<int64_t>(axis, 1) - 1) / axis.stride + 1);
}

// How many of `count` places from `first` on an axis of `size` places has.
__device__ inline int32_t places_left(int32_t size, int32_t first, int32_t count) {
    return size - first < count ? size - first : count;
}

// Where a tile lies.
struct Tile {
    int32_t first_column, first_row, depth;
    int64_t first_plane;
    int32_t planes;  // the last tile may have fewer

    __device__ Tile(const Tiles& tiles, int64_t number) {
        const auto take = [&](const Divider<int32_t>& radix) {
            const int64_t quotient = number / radix;
            const auto digit = static_cast<int32_t>(number - quotient * static_cast<int64_t>(radix));
            number = quotient;
            return digit;
        };
        first_column = take(tiles.tile_columns) * tiles.columns;
        first_row = take(tiles.tile_rows) * tiles.rows;
        depth = take(tiles.depth);
        first_plane = number * tiles.planes;
        const int64_t remaining = tiles.all_planes - first_plane;
        planes = remaining < tiles.planes ? static_cast<int32_t>(remaining) : tiles.planes.value;
    }

    // Where one of its planes lies.
    __device__ Position<Small> position(const Problem<Small>& problem, int32_t plane) const {
        const Divider<int32_t>& channels = problem.places.channel_blocks;
        const int64_t image = (first_plane + plane) / channels;
        return {image, first_plane + plane - image * channels.value, {}};
    }
};

// The factors of what the windows of a tile of outputs divide by: those of its rows, then those of its columns.
__device__ inline void fill_divisors(const Problem<Small>& problem, const Tiles& tiles, const Tile& tile, int32_t* to) {
    for (int32_t i = threadIdx.x; i < tiles.rows + tiles.columns; i += kThreads) {
        const bool is_row = i < tiles.rows;
        const int32_t output = is_row ? tile.first_row + i : tile.first_column + i - tiles.rows;
        const auto& axis = problem.axes[is_row ? 1 : 2];
        to[i] = output < axis.output ? counted_taps(axis, output, problem.parameters.divisor) : 0;
    }
}

}  // namespace onnxpool::cuda
