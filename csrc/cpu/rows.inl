// Part of kernels.inl: see there.
// The last spatial axis is contiguous: for each row of the output, the window's rows of the input are combined into a
// buffer that stays in the first-level cache, and the buffer is then combined with itself, shifted along the row.

// target[i] = source[i * step].
template <class A>
inline void take_every(int64_t step, const A* source, A* target, int64_t size) {
    if (step == 2) {
        return in_vectors<kLanes<A>>(size, [&](int64_t i, auto n) {
            if constexpr (n == 1) {
                target[i] = source[2 * i];
            } else {
                store(target + i, every_second(load<n>(source + 2 * i), load<n>(source + 2 * i + n)));
            }
        });
    }
    for (int64_t i = 0; i < size; ++i) target[i] = source[i * step];
}

// A row with its padding, as the windows along it need it.
template <class R>
class PaddedRow {
public:
    using Accumulator = typename R::Accumulator;

    PaddedRow(const R& reduction, const Axis& axis, const AxisTable& table)
        : reduction_(reduction),
          axis_(axis),
          phase_size_(ceil_div(row_reach(axis), axis.stride)),
          size_(std::max(phase_size_ * axis.stride, axis.pad_begin + axis.input)),
          level_count_(table.level_count > 1 ? levels_of(axis.kernel) : 1) {
        // Behind it, room for what take_every() reads too far.
        padded_.assign(size_ * level_count_ + kLanes<Accumulator> + axis.stride, reduction.identity());
        const Range window{0, axis.kernel, axis.dilation};
        if (level_count_ > 1) {
            for_each_piece<kMayOverlap<R>>(window, [&](int64_t level, int64_t position) { add(level, position); });
        } else {
            for (int64_t j = 0; j < axis.kernel; ++j) add(0, j * axis.dilation);
        }
        phases_.resize(sources_.size() * phase_size_);
        for (const auto& [source, position] : places_) {
            taps_.push_back(axis.stride > 1 ? phases_.data() + source * phase_size_ + position
                                            : padded_.data() + sources_[source] + position);
        }
    }

    Accumulator* data() { return padded_.data() + axis_.pad_begin; }

    // To be called when data() has been filled: the pieces of window o are then taps[0][o], taps[1][o], ...
    const std::vector<const Accumulator*>& taps() {
        build_levels(combiner_of(reduction_), padded_.data(), level_count_, size_, axis_.dilation, 1);
        for (size_t i = 0; i < sources_.size() && axis_.stride > 1; ++i) {
            take_every(axis_.stride, padded_.data() + sources_[i], phases_.data() + i * phase_size_, phase_size_);
        }
        return taps_;
    }

private:
    // Positions of neighbouring windows are a stride apart: those of one phase (position modulo stride) are brought
    // together.
    void add(int64_t level, int64_t position) {
        const int64_t source = level * size_ + position % axis_.stride;
        const auto found = std::find(sources_.begin(), sources_.end(), source);
        places_.emplace_back(found - sources_.begin(), position / axis_.stride);
        if (found == sources_.end()) sources_.push_back(source);
    }

    const R& reduction_;
    const Axis& axis_;
    const int64_t phase_size_;
    const int64_t size_;
    const int64_t level_count_;
    std::vector<Accumulator> padded_, phases_;
    std::vector<int64_t> sources_;                     // where phases begin in padded_
    std::vector<std::pair<int64_t, int64_t>> places_;  // of pieces: number of the phase, position in it
    std::vector<const Accumulator*> taps_;
};

template <class R>
void forward_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& axis = geometry.axes[last];
    const std::vector<AxisTable> tables = axis_tables(call);
    const bool has_empty_window = std::count(tables[last].factors.begin(), tables[last].factors.end(), 0.0) > 0;
    const bool separable = !is_keyed<R> && is_separable(tables);
    AxisByAxis<R> outer_reduction(reduction, tables, last);
    const Accumulator* reduced_rows = nullptr;
    const T* reduced_plane = nullptr;
    PaddedRow<R> padded(reduction, axis, tables[last]);
    std::vector<Accumulator> divisors(axis.output), sums(axis.output);
    double divided_for = -1;
    std::vector<const T*> rows;
    std::vector<int64_t> positions;
    Range taps[kMaxSpatialRank];

    RowPosition position(call, begin, [](const Axis& a) { return a.output; });
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* plane = plane_of<const T>(call.x, position);
        T* y = row_of<T>(call.y, position, geometry.rank);
        int64_t* indices = is_keyed<R> ? row_of<int64_t>(call.indices, position, geometry.rank) : nullptr;
        double factor = 1;
        for (int a = 0; a < last; ++a) {
            taps[a] = tables[a].taps[position.outer[a]];
            factor *= tables[a].factors[position.outer[a]];
        }
        if (factor == 0) {
            std::fill(y, y + axis.output, reduction.empty());
            if (is_keyed<R>) std::fill_n(indices, axis.output, -1);
            continue;
        }
        if (separable) {
            if (plane != reduced_plane) reduced_rows = outer_reduction.compute(plane, call.x.strides + 2, 1);
            reduced_plane = plane;
            std::copy_n(reduced_rows + position.row_in_plane() * axis.input, axis.input, padded.data());
        } else {
            rows.clear();
            taps[last] = {0, 1, 1};
            for_each_row<1>(taps, geometry.rank, {call.x.strides + 2},
                            [&](const int64_t (&offsets)[1], const int64_t*) { rows.push_back(plane + offsets[0]); });
            const auto count = static_cast<int64_t>(rows.size());
            if constexpr (is_keyed<R>) {
                positions.clear();
                for_each_row<1>(taps, geometry.rank, {call.index_strides + 2},
                                [&](const int64_t (&offsets)[1], const int64_t*) { positions.push_back(offsets[0]); });
                combine_taps(combiner_of(reduction), rows.data(), count, axis.input,
                             LiftRows<R>{reduction, positions.data()}, KeepColumns<R>{reduction, padded.data(), 0, 1});
            } else {
                combine_taps(combiner_of(reduction), rows.data(), count, axis.input, Lift<R>{reduction},
                             Keep<Accumulator>{padded.data()});
            }
        }
        if (R::kDivides && factor != divided_for) {
            divided_for = factor;
            for (int64_t o = 0; o < axis.output; ++o) {
                divisors[o] = static_cast<Accumulator>(std::max(1.0, factor * tables[last].factors[o]));
            }
        }
        const std::vector<const Accumulator*>& pieces = padded.taps();
        const FinishEach<R> finish{reduction, y, divisors.data()};
        const auto count = static_cast<int64_t>(pieces.size());
        const AsItIs<Accumulator> take;
        if constexpr (is_keyed<R>) {
            const int64_t index = position.image * call.index_strides[0] + position.channel * call.index_strides[1];
            combine_taps(combiner_of(reduction), pieces.data(), count, axis.output, take,
                         FinishKeys<R>{reduction, y, indices, index, 0});
        } else if constexpr (may_leave_range<R>) {
            combine_taps(combiner_of(reduction), pieces.data(), count, axis.output, take,
                         Keep<Accumulator>{sums.data()});
            const bool any = finish_sums(reduction, sums.data(), axis.output, finish);
            for (int64_t o = 0; any && o < axis.output; ++o) {
                taps[last] = tables[last].taps[o];
                if (reduction.out_of_range(sums[o])) y[o] = rescaled_norm<T>(call, taps, plane);
            }
        } else {
            combine_taps(combiner_of(reduction), pieces.data(), count, axis.output, take, finish);
        }
        for (int64_t o = 0; has_empty_window && o < axis.output; ++o) {
            if (tables[last].factors[o] != 0) continue;
            y[o] = reduction.empty();
            if (is_keyed<R>) indices[o] = -1;
        }
    }
}
