// Part of kernels.inl: see there.
// Small planes: rows would fill no vector, so that as many planes as a vector has lanes are packed side by side.

// How many, for accumulators of type A: whole vectors of them, as long as a group's inputs and outputs, which take so
// many bytes each, stay in the caches.
template <class A>
int64_t packed_planes(const Geometry& geometry, int64_t input_bytes, int64_t output_bytes) {
    constexpr int64_t least = 64 / sizeof(A) > 16 ? 64 / sizeof(A) : 16, most = 8 * least;
    constexpr double cached_bytes = 144 << 10;
    auto inputs = static_cast<double>(input_bytes), outputs = static_cast<double>(output_bytes);
    for (int a = 0; a < geometry.rank; ++a) {
        inputs *= static_cast<double>(geometry.axes[a].input);
        outputs *= static_cast<double>(geometry.axes[a].output);
    }
    int64_t planes = least;
    while (planes < most && 2 * static_cast<double>(planes) * (inputs + outputs) <= cached_bytes &&
           2 * planes <= geometry.batch * geometry.channels) {
        planes *= 2;
    }
    return planes;
}

// For a reduction: those of keys have an index beside each result.
template <class R>
int64_t planes_packed_for(const Geometry& geometry) {
    constexpr int64_t size = sizeof(typename R::Element), index_size = is_keyed<R> ? sizeof(int64_t) : 0;
    return packed_planes<typename R::Accumulator>(geometry, size, size + index_size);
}

// body(plane, position, size) for blocks of `size` planes and positions that cover all of them, in the order in which
// planes lie in memory. The last ones may overlap. Where there are few, blocks are smaller, or single elements.
template <int kSize, class Body>
inline void in_blocks(int64_t planes, int64_t positions, const Body& body) {
    if constexpr (kSize > 1) {
        constexpr int smaller = kSize > 4 ? kSize / 2 : 1;
        if (std::min(planes, positions) < kSize) return in_blocks<smaller>(planes, positions, body);
    }
    for (int64_t plane = 0; plane < planes; plane += kSize) {
        for (int64_t position = 0; position < positions; position += kSize) {
            body(std::min(plane, planes - kSize), std::min(position, positions - kSize),
                 std::integral_constant<int, kSize>());
        }
    }
}

template <class T>
constexpr int kTransposed = std::min<int>(16, ONNXPOOL_VECTOR_BYTES / sizeof(T));

// Of a group of as many planes as there are lanes, or fewer, the elements at some positions become lanes. Those of the
// next group are prefetched.
template <class T>
void pack(const T* planes, int64_t plane_step, int64_t count, int64_t positions, T* target, int64_t lanes) {
    in_blocks<kTransposed<T>>(count, positions, [&](int64_t plane, int64_t position, auto size) {
        const T* source = planes + plane * plane_step + position;
        for (int i = 0; i < size; ++i) prefetch(source + (lanes + i) * plane_step, 1);
        transpose_block<size>(source, plane_step, target + position * lanes + plane, lanes);
    });
}

// The inverse of pack().
template <class T>
void unpack(const T* source, int64_t lanes, T* planes, int64_t plane_step, int64_t count, int64_t positions) {
    in_blocks<kTransposed<T>>(count, positions, [&](int64_t plane, int64_t position, auto size) {
        T* target = planes + plane * plane_step + position;
        for (int i = 0; i < size; ++i) prefetch(target + (lanes + i) * plane_step, 1);
        transpose_block<size>(source + position * lanes + plane, lanes, target, plane_step);
    });
}

// targets[r * run_step + i] = source[i * runs + r] for any number of runs: many are columns of a matrix.
template <class T>
__attribute__((noinline)) void deinterleave_runs(const T* source, int64_t runs, int64_t size, T* targets,
                                                 int64_t run_step) {
    if (runs <= kMostResultPhases) {
        return with_number<2, kMostResultPhases>(
            runs, [&](auto known) { deinterleave_runs<known>(source, size, targets, run_step); });
    }
    in_blocks<kTransposed<T>>(size, runs, [&](int64_t i, int64_t run, auto block) {
        transpose_block<block>(source + i * runs + run, runs, targets + run * run_step + i, run_step);
    });
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
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int64_t lanes = planes_packed_for<R>(geometry);
    LaneRows<R> rows = rows_of_windows(reduction, call, false);

    int64_t x_strides[kMaxSpatialRank], y_strides[kMaxSpatialRank];
    const int64_t x_size = packed_strides(geometry, lanes, input_size, x_strides);
    const int64_t y_size = packed_strides(geometry, lanes, output_size, y_strides);
    Buffer<T> x(x_size * lanes), y(y_size * lanes);
    std::vector<int64_t> indices(is_keyed<R> ? y.size() : 0);

    for (int64_t group = begin; group < end; ++group) {
        const int64_t first_plane = group * lanes;
        const int64_t planes = std::min(lanes, geometry.batch * geometry.channels - first_plane);
        const T* source = static_cast<const T*>(call.x.data) + first_plane * call.x.strides[1];
        pack(source, call.x.strides[1], planes, x_size, x.data(), lanes);
        rows.set_lanes(x.data(), x_strides, lanes);
        for_each_row_of_plane<1>(
            geometry, output_size, {y_strides}, [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[1]) {
                T* y_row = y.data() + offsets[0];
                int64_t* indices_row = is_keyed<R> ? indices.data() + offsets[0] : nullptr;
                rows.compute(outer, row, results_of(reduction, call, y_row, lanes, indices_row, 0, first_plane));
                if constexpr (may_leave_range<R>) {
                    rows.redo([&](const Range* taps, int64_t output, int64_t lane) {
                        if (lane >= planes) return;
                        y_row[output * lanes + lane] = rescaled_norm<T>(call, taps, source + lane * call.x.strides[1]);
                    });
                }
            });
        const auto put = [&](const auto& packed, const Operand& operand) {
            using Element = typename std::decay_t<decltype(packed)>::value_type;
            const int64_t step = operand.strides[1];
            unpack(packed.data(), lanes, static_cast<Element*>(operand.data) + first_plane * step, step, planes,
                   y_size);
        };
        put(y, call.y);
        if constexpr (is_keyed<R>) put(indices, call.indices);
    }
}
