// Part of kernels.inl: see there.
// The last spatial axis is contiguous: for each row of the output, the window's rows of the input are combined into a
// buffer that stays in the first-level cache, and the buffer is then combined with itself, shifted along the row.

// What depends on the position along the last axis only. The buffer holds the padded row, one phase (position modulo
// stride) after the other, so that the same tap of neighbouring windows lies in neighbouring elements.
template <class R>
struct RowPlan {
    using Accumulator = typename R::Accumulator;

    struct Phase {
        Accumulator* target;  // where the phase's first datum goes
        int64_t first;        // which element of the input row that is
        int64_t count;
    };

    const Axis& axis;
    bool has_empty_window = false;
    std::vector<Accumulator> buffer;
    std::vector<Accumulator> results;
    std::vector<Phase> phases;
    std::vector<const Accumulator*> taps;  // tap j of window o is taps[j][o]
    std::vector<TapCounts> counts;
    std::vector<Accumulator> divisors;
    TapCounts divided_for{0, 0, 0};

    RowPlan(const R& reduction, const Axis& axis) : axis(axis), results(axis.output) {
        const int64_t reach = row_reach(axis);
        const int64_t phase_size = ceil_div(reach, axis.stride);
        buffer.assign(phase_size * axis.stride, reduction.identity());
        std::vector<bool> is_used(axis.stride);
        for (int64_t j = 0; j < axis.kernel; ++j) {
            const int64_t position = j * axis.dilation;
            taps.push_back(buffer.data() + position % axis.stride * phase_size + position / axis.stride);
            is_used[position % axis.stride] = true;
        }
        const int64_t data_end = std::min(axis.pad_begin + axis.input, reach);
        for (int64_t phase = 0; phase < axis.stride; ++phase) {
            const int64_t skipped = axis.pad_begin > phase ? ceil_div(axis.pad_begin - phase, axis.stride) : 0;
            const int64_t position = phase + skipped * axis.stride;
            if (!is_used[phase] || position >= data_end) continue;
            phases.push_back({buffer.data() + phase * phase_size + skipped, position - axis.pad_begin,
                              ceil_div(data_end - position, axis.stride)});
        }
        for (int64_t output = 0; output < axis.output; ++output) {
            counts.push_back(TapCounts::of(axis, output));
            has_empty_window |= counts.back().data == 0;
        }
    }

    // Divisors of the windows in a row whose outer taps number `outer`.
    void set_divisors(const TapCounts& outer, const Parameters& parameters) {
        if (outer.data == divided_for.data && outer.declared == divided_for.declared) return;
        divided_for = outer;
        divisors.resize(axis.output);
        for (int64_t output = 0; output < axis.output; ++output) {
            divisors[output] = static_cast<Accumulator>(std::max(1.0, (outer * counts[output]).divisor(parameters)));
        }
    }
};

template <class R>
void forward_rows_contiguous(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& axis = geometry.axes[last];
    RowPlan<R> plan(reduction, axis);
    std::vector<const T*> rows;
    Range taps[kMaxSpatialRank];

    RowPosition position(call, begin, [](const Axis& a) { return a.output; });
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* plane = plane_of<const T>(call.x, position);
        T* __restrict y = row_of<T>(call.y, position, geometry.rank);
        const TapCounts outer = outer_taps(call, position.outer, taps);
        if (outer.data == 0) {
            std::fill(y, y + axis.output, reduction.empty());
            continue;
        }
        rows.clear();
        taps[last] = {0, 1, 1};
        for_each_row<1>(taps, geometry.rank, {call.x.strides + 2},
                        [&](const int64_t (&offsets)[1], const int64_t*) { rows.push_back(plane + offsets[0]); });
        for (const auto& phase : plan.phases) {
            combine_elements(reduction, phase.target, rows, phase.first, phase.count, axis.stride);
        }
        Accumulator* results = plan.results.data();
        combine_rows<1>(combiner_of(reduction), results, plan.taps, 0, axis.output, 1, AsItIs<Accumulator>());

        if constexpr (R::kDivides) {
            plan.set_divisors(outer, call.parameters);
            const Accumulator* divisors = plan.divisors.data();
            for (int64_t o = 0; o < axis.output; ++o) {
                y[o] = reduction.finish(results[o] / divisors[o]);
            }
        } else {
            for (int64_t o = 0; o < axis.output; ++o) y[o] = reduction.finish(results[o]);
        }
        if constexpr (is_norm<R>) {
            bool any = false;
            for (int64_t o = 0; o < axis.output; ++o) any |= reduction.out_of_range(results[o]);
            for (int64_t o = 0; any && o < axis.output; ++o) {
                taps[last] = data_taps(axis, o);
                if (reduction.out_of_range(results[o])) y[o] = rescaled_norm<T>(call, taps, plane);
            }
        }
        for (int64_t o = 0; plan.has_empty_window && o < axis.output; ++o) {
            if (plan.counts[o].data == 0) y[o] = reduction.empty();
        }
    }
}
