// Part of kernels.inl: see there.
// Small planes: rows would fill no vector, so that as many planes as a vector has lanes are packed side by side.

// How many: whole vectors of them, as long as they stay in the caches.
template <class A>
int64_t packed_planes(const Geometry& geometry, int64_t element_size) {
    constexpr int64_t least = 64 / sizeof(A) > 16 ? 64 / sizeof(A) : 16, most = 8 * least;
    constexpr double cached_bytes = 1 << 17;
    double bytes = static_cast<double>(element_size);
    for (int a = 0; a < geometry.rank; ++a) {
        bytes *= static_cast<double>(std::max(geometry.axes[a].input, geometry.axes[a].output));
    }
    int64_t planes = least;
    while (planes < most && 2 * bytes * static_cast<double>(planes) <= cached_bytes &&
           2 * planes <= geometry.batch * geometry.channels) {
        planes *= 2;
    }
    return planes;
}

// Blocks of this many rows and columns are transposed in registers.
template <class T>
constexpr int kTransposed = std::min<int>(16, ONNXPOOL_VECTOR_BYTES / sizeof(T));

// target[j * target_step + i] = source[i * source_step + j] for a block.
template <class T>
inline void transpose_block(const T* source, int64_t source_step, T* target, int64_t target_step) {
    constexpr int count = kTransposed<T>;
    BitsVector<T, count> rows[count], shuffled[count];
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) std::memcpy(&rows[i], source + i * source_step, sizeof(rows[i]));
    // After log2(count) perfect shuffles rows have become columns.
#pragma GCC unroll 4
    for (int size = count; size > 1; size /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < count / 2; ++i) {
            shuffled[2 * i] = interleave<0>(rows[i], rows[i + count / 2]);
            shuffled[2 * i + 1] = interleave<count / 2>(rows[i], rows[i + count / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < count; ++i) rows[i] = shuffled[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) std::memcpy(target + i * target_step, &rows[i], sizeof(rows[i]));
}

template <class T>
void transpose(const T* source, int64_t source_step, T* target, int64_t target_step, int64_t rows, int64_t columns) {
    constexpr int64_t count = kTransposed<T>;
    if (rows < count || columns < count) {
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < columns; ++j) target[j * target_step + i] = source[i * source_step + j];
        }
        return;
    }
    for (int64_t row = 0; row < rows; row += count) {
        const int64_t i = std::min(row, rows - count);
        for (int64_t column = 0; column < columns; column += count) {  // the last block may overlap
            const int64_t j = std::min(column, columns - count);
            transpose_block(source + i * source_step + j, source_step, target + j * target_step + i, target_step);
        }
    }
}

// The dense strides of packed planes along their spatial axes; returns the elements of a plane.
template <class Size>
int64_t packed_strides(const Geometry& geometry, int64_t lanes, Size size_of_axis, int64_t* strides) {
    int64_t size = 1;
    for (int a = geometry.rank - 1; a >= 0; --a) {
        strides[a] = size * lanes;
        size *= size_of_axis(geometry.axes[a]);
    }
    return size;
}

// A unit is a group of planes, neighbours in the numbering n * C + c.
template <class R>
void forward_packed(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const int64_t lanes = packed_planes<typename R::Accumulator>(call.geometry, sizeof(T));
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    LaneRows<R> rows = rows_of_windows(reduction, call);

    int64_t x_strides[kMaxSpatialRank], y_strides[kMaxSpatialRank];
    const int64_t x_size = packed_strides(geometry, lanes, input_size, x_strides);
    const int64_t y_size = packed_strides(geometry, lanes, output_size, y_strides);
    Buffer<T> x(x_size * lanes), y(y_size * lanes);
    std::vector<int64_t> indices(is_keyed<R> ? y.size() : 0);

    for (int64_t group = begin; group < end; ++group) {
        const int64_t first_plane = group * lanes;
        const int64_t planes = std::min(lanes, geometry.batch * geometry.channels - first_plane);
        const T* source = static_cast<const T*>(call.x.data) + first_plane * call.x.strides[1];
        transpose(source, call.x.strides[1], x.data(), lanes, planes, x_size);
        rows.set_lanes(x.data(), x_strides, lanes);
        for_each_row_of_plane<1>(
            geometry, output_size, {y_strides}, [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[1]) {
                T* y_row = y.data() + offsets[0];
                int64_t* indices_row = indices.data() + offsets[0];
                rows.compute(outer, row, results_of(reduction, call, y_row, lanes, indices_row, 0, first_plane));
                if constexpr (may_leave_range<R>) {
                    rows.redo([&](const Range* taps, int64_t output, int64_t lane) {
                        if (lane >= planes) return;
                        y_row[output * lanes + lane] = rescaled_norm<T>(call, taps, source + lane * call.x.strides[1]);
                    });
                }
            });
        const auto unpack = [&](const auto* packed, const Operand& operand) {
            const int64_t step = operand.strides[1];
            auto* target = static_cast<std::remove_const_t<std::remove_pointer_t<decltype(packed)>>*>(operand.data);
            transpose(packed, lanes, target + first_plane * step, step, y_size, planes);
        };
        unpack(y.data(), call.y);
        if constexpr (is_keyed<R>) unpack(indices.data(), call.indices);
    }
}
