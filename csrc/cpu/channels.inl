// Part of kernels.inl: see there.
// Channels are contiguous: a window's taps are rows of channels, combined into one.

template <class R>
void forward_channels_contiguous(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& axis = geometry.axes[last];
    std::vector<const T*> window;
    Accumulator results[kChannelBlock];
    Range taps[kMaxSpatialRank];

    RowPosition position(call, begin, [](const Axis& a) { return a.output; });
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* plane = plane_of<const T>(call.x, position);
        T* y_row = row_of<T>(call.y, position, geometry.rank);
        const TapCounts outer = outer_taps(call, position.outer, taps);
        const int64_t lanes = position.lanes;
        for (int64_t output = 0; output < axis.output; ++output) {
            T* __restrict y = y_row + output * call.y.strides[2 + last];
            taps[last] = data_taps(axis, output);
            const double divisor = (outer * TapCounts::of(axis, output)).divisor(call.parameters);
            if (divisor == 0) {
                std::fill(y, y + lanes, reduction.empty());
                continue;
            }
            window.clear();
            const int64_t step = taps[last].step * call.x.strides[2 + last];
            for_each_row<1>(taps, geometry.rank, {call.x.strides + 2},
                            [&](const int64_t (&offsets)[1], const int64_t*) {
                                for (int64_t i = 0; i < taps[last].count; ++i)
                                    window.push_back(plane + offsets[0] + i * step);
                            });
            combine_elements(reduction, results, window, 0, lanes, 1);
            if constexpr (R::kDivides) {
                const auto divided_by = static_cast<Accumulator>(divisor);
                for (int64_t lane = 0; lane < lanes; ++lane) {
                    y[lane] = reduction.finish(results[lane] / divided_by);
                }
            } else {
                for (int64_t lane = 0; lane < lanes; ++lane) y[lane] = reduction.finish(results[lane]);
            }
            if constexpr (is_norm<R>) {
                bool any = false;
                for (int64_t lane = 0; lane < lanes; ++lane) any |= reduction.out_of_range(results[lane]);
                for (int64_t lane = 0; any && lane < lanes; ++lane) {
                    if (reduction.out_of_range(results[lane])) y[lane] = rescaled_norm<T>(call, taps, plane + lane);
                }
            }
        }
    }
}
