// Part of kernels.inl: see there.
// Gradients of averages where windows lie side by side along the last axis but one: all rows of elements of a row of
// windows are alike. One of them is computed, as if that axis were not pooled, and copied to where the others are. Rows
// that no window covers may be left at the end.

// Elements that stay in a second cache.
template <class T>
constexpr int64_t kMostRepeated = (1 << 17) / sizeof(T);

// Units are planes.
template <class T, Task (*plan)(const Call& call)>
void run_repeated_rows(const Call& call, int64_t begin, int64_t end) {
    const int last = call.geometry.rank - 1;
    const int64_t columns = call.geometry.axes[last].input;
    const Axis& axis = call.geometry.axes[last - 1];
    const int64_t uncovered = (axis.input - axis.output * axis.stride) * columns;
    Geometry rows = call.geometry;
    rows.batch = 1;
    rows.axes[last - 1] = unpooled_axis(axis.output);
    int64_t strides[2 + kMaxSpatialRank] = {};
    const int64_t size = strides[1] = packed_strides(rows, 1, input_size, strides + 2);
    const int64_t together = std::min(kMostRepeated<T> / size, end - begin);
    Buffer<T> gradients(together * size);
    const bool streams = exceeds_caches<T>(call) && are_whole_lines(static_cast<T*>(call.grad_x.data), columns);
    const Stores stores = streams ? Stores::kStreaming : Stores::kPrefetching;
    for (int64_t first = begin; first < end; first += together) {
        rows.channels = std::min(together, end - first);
        Call part(rows, call.parameters);
        part.repeats = axis.stride;
        if (call.segmented_axis != last - 1) {  // windows side by side have no data in other segments
            part.segmented_axis = call.segmented_axis;
            part.data_before = call.data_before;
            part.data_after = call.data_after;
        }
        part.grad_x = {gradients.data(), strides};
        part.grad_y = {static_cast<T*>(call.grad_y.data) + first * call.grad_y.strides[1], call.grad_y.strides};
        const Task task = plan(part);
        task.run(part, 0, task.units);
        T* target = static_cast<T*>(call.grad_x.data) + first * call.grad_x.strides[1];
        for (int64_t row = 0, window = 0; row < rows.channels * size; row += columns) {
            for (int64_t i = 0; i < part.repeats; ++i, target += columns) {
                in_vectors<kLanes<accumulator_t<T>>>(columns, [&](int64_t column, auto n) {
                    store(target + column, load<n>(gradients.data() + row + column), stores);
                });
            }
            if (++window % axis.output == 0) target = std::fill_n(target, uncovered, static_cast<T>(0.0f));
        }
    }
    finish_streaming(streams);
}

// Null where rows that are alike are few, large planes had better be done in segments, or there may be no plan for
// rows.
template <class T, Task (*plan)(const Call& call)>
Task plan_repeated_rows(const Call& call) {
    constexpr int64_t least_repeats = 3;
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    if (last == 0 || call.channels_innermost) return {};
    const Axis& axis = geometry.axes[last - 1];
    if (!has_windows_side_by_side(axis) || axis.stride < least_repeats || spans_plane(geometry) ||
        plane_size(geometry, input_size) / axis.stride > kMostRepeated<T> ||
        !has_long_rows(geometry, call.grad_x, call.grad_x) || !is_contiguous(geometry, call.grad_x, input_size) ||
        !is_contiguous(geometry, call.grad_y, output_size)) {
        return {};
    }
    return {run_repeated_rows<T, plan>, geometry.batch * geometry.channels, plane_elements(call)};
}
