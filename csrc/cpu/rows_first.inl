// Part of kernels.inl: see there.
// Maxima of windows that span the last axis: those of all rows are found first, once, whatever windows along the other
// axes have in common, and then the maxima of these. Sums would be added up in another order.

template <Task (*plan)(const Call& call)>
void run_folded(const Call& whole) {
    const FoldedCall folded(whole);
    const Task task = plan(folded.call());
    task.run(folded.call(), 0, task.units);
}

// Units are planes or, with channels innermost, images.
template <class T, Task (*plan)(const Call& call)>
void run_rows_first(const Call& call, int64_t begin, int64_t end) {
    const int last = call.geometry.rank - 1, dimension = call.channels_innermost ? 0 : 1;  // that units are
    Geometry rows = call.geometry, columns = call.geometry;
    for (int a = 0; a < last; ++a) rows.axes[a] = unpooled_axis(call.geometry.axes[a].input);
    --columns.rank;

    const int64_t lanes = call.channels_innermost ? call.geometry.channels : 1;
    int64_t strides[2 + kMaxSpatialRank] = {};  // of the rows' maxima
    const int64_t unit = packed_strides(columns, lanes, input_size, strides + 2) * lanes;
    const int64_t most = std::max<int64_t>(1, kRowBufferBytes / static_cast<int64_t>(sizeof(T)) / unit);
    Buffer<T> maxima(std::min(most, end - begin) * unit);
    strides[0] = strides[1] = strides[2 + last] = 1;
    strides[dimension] = unit;

    const auto part_of = [&](const Operand& operand, int64_t first) -> Operand {
        return {static_cast<T*>(operand.data) + first * operand.strides[dimension], operand.strides};
    };
    for (int64_t first = begin; first < end; first += most) {
        const int64_t count = std::min(most, end - first);
        for (Geometry* geometry : {&rows, &columns}) {
            geometry->batch = call.channels_innermost ? count : 1;
            geometry->channels = call.channels_innermost ? call.geometry.channels : count;
        }
        Call along_rows(rows, call.parameters), along_columns(columns, call.parameters);
        along_rows.channels_innermost = along_columns.channels_innermost = call.channels_innermost;
        along_rows.x = part_of(call.x, first);
        along_rows.y = along_columns.x = {maxima.data(), strides};
        along_columns.y = part_of(call.y, first);  // whose last axis has one position
        run_folded<plan>(along_rows);
        run_folded<plan>(along_columns);
    }
}

// Null where windows do not span the last axis, or rows are short. With channels innermost, rows that belong to one
// window each are as good as any.
template <class R, Task (*plan)(const Call& call)>
Task plan_rows_first(const Call& call) {
    constexpr int64_t least = 16;
    const Geometry& geometry = call.geometry;
    const Axis& axis = geometry.axes[geometry.rank - 1];
    if (geometry.rank == 1 || !is_spanned(axis) || axis.input < least) return {};
    const bool have_rows_in_common =
        rows_of_windows(geometry) > static_cast<double>(rows_of_plane(geometry, input_size));
    if (call.channels_innermost ? !have_rows_in_common || call.x.strides[1] != 1 || call.y.strides[1] != 1
                                : !has_planes_in_order(geometry, call.x, input_size) ||
                                      !has_planes_in_order(geometry, call.y, output_size)) {
        return {};
    }
    const int64_t units = call.channels_innermost ? geometry.batch : geometry.batch * geometry.channels;
    return {run_rows_first<typename R::Element, plan>, units,
            plane_elements(call) * static_cast<double>(call.channels_innermost ? geometry.channels : 1)};
}
