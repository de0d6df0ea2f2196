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
            } else if constexpr (sizeof(A) == 1) {  // the lower halves of integers of two bytes
                Vector<uint16_t, n> pairs;
                std::memcpy(&pairs, source + 2 * i, sizeof(pairs));
                store(target + i, convert<A>(pairs));
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
        if (axis.stride > 1) phases_.resize(sources_.size() * phase_size_);
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
    Buffer<Accumulator> padded_, phases_;
    std::vector<int64_t> sources_;                     // where phases begin in padded_
    std::vector<std::pair<int64_t, int64_t>> places_;  // of pieces: number of the phase, position in it
    std::vector<const Accumulator*> taps_;
};

// Rows of a plane, each along the last axis: for each position, the taps that the tables name along the outer axes and
// the window of the last one.
template <class R>
class PlaneRows {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // Positions are counted with these strides, where R has any.
    PlaneRows(const R& reduction, std::vector<AxisTable> tables, const Axis& axis,
              const int64_t* position_strides = nullptr)
        : reduction_(reduction),
          tables_(std::move(tables)),
          axis_(axis),
          last_(static_cast<int>(tables_.size()) - 1),
          is_separable_(is_separable<R>(tables_)),
          outer_reduction_(reduction, tables_, last_),
          padded_(reduction, axis_, tables_[last_]),
          sums_(axis.output),
          position_strides_(position_strides) {
        if constexpr (is_dear<R>) lifted_.emplace(reduction, tables_);
    }

    PlaneRows(const PlaneRows&) = delete;  // refers to itself

    // The plane whose rows are asked for next, and the strides of its axes; the last one is 1.
    void set_plane(const T* x, const int64_t* strides) {
        x_ = x;
        strides_ = strides;
        if (is_separable_) reduced_rows_ = outer_reduction_.compute(x, strides, 1);
        if (lifted_) lifted_->forget(1);
    }

    // The row at these outer coordinates, the row_index-th of the plane: put(i, results). At least one of its windows
    // has data.
    template <class Put>
    void compute(const int64_t* outer, int64_t row_index, const Put& put) {
        for (int a = 0; a < last_; ++a) taps_[a] = tables_[a].taps[outer[a]];
        if (is_separable_) {
            std::copy_n(reduced_rows_ + row_index * axis_.input, axis_.input, padded_.data());
        } else {
            combine_rows();
        }
        const std::vector<const Accumulator*>& pieces = padded_.taps();
        const auto count = static_cast<int64_t>(pieces.size());
        const AsItIs<Accumulator> take;
        any_out_of_range_ = false;
        if constexpr (may_leave_range<R>) {
            combine_taps(combiner_of(reduction_), pieces.data(), count, axis_.output, take,
                         Keep<Accumulator>{sums_.data()});
            any_out_of_range_ = finish_sums(reduction_, sums_.data(), axis_.output, put);
        } else {
            combine_taps(combiner_of(reduction_), pieces.data(), count, axis_.output, take, put);
        }
    }

    // The windows of the last row that need the slow way: again(taps, output).
    template <class Redo>
    void redo(const Redo& again) {
        for (int64_t output = 0; any_out_of_range_ && output < axis_.output; ++output) {
            taps_[last_] = tables_[last_].taps[output];
            if (reduction_.out_of_range(sums_[output])) again(taps_, output);
        }
    }

private:
    void combine_rows() {
        taps_[last_] = {0, 1, 1};
        if constexpr (is_dear<R>) {
            const auto& rows = lifted_->at(taps_, last_ + 1, x_, strides_);
            return combine_taps(combiner_of(reduction_), rows.data(), static_cast<int64_t>(rows.size()), axis_.input,
                                AsItIs<Accumulator>(), Keep<Accumulator>{padded_.data()});
        }
        rows_.clear();
        for_each_row<1>(taps_, last_ + 1, {strides_},
                        [&](const int64_t (&offsets)[1], const int64_t*) { rows_.push_back(x_ + offsets[0]); });
        if (is_keyed<R>) {
            positions_.clear();
            for_each_row<1>(taps_, last_ + 1, {position_strides_},
                            [&](const int64_t (&offsets)[1], const int64_t*) { positions_.push_back(offsets[0]); });
        }
        combine_taps(combiner_of(reduction_), rows_.data(), static_cast<int64_t>(rows_.size()), axis_.input,
                     lift_rows(reduction_, positions_), keep_columns(reduction_, padded_.data(), 0, 1));
    }

    const R& reduction_;
    const std::vector<AxisTable> tables_;
    const Axis axis_;  // the last one
    const int last_;
    const bool is_separable_;
    AxisByAxis<R> outer_reduction_;
    std::optional<LiftedRows<R>> lifted_;
    PaddedRow<R> padded_;
    Buffer<Accumulator> sums_;
    const int64_t* const position_strides_;

    const T* x_ = nullptr;
    const int64_t* strides_ = nullptr;
    const Accumulator* reduced_rows_ = nullptr;
    bool any_out_of_range_ = false;
    Range taps_[kMaxSpatialRank];
    std::vector<const T*> rows_;
    std::vector<int64_t> positions_;
};

// The divisors of a row of windows, of which `factor` is what the outer axes make of them. Windows without data get
// any.
template <class A>
class RowDivisors {
public:
    explicit RowDivisors(const AxisTable& table) : table_(table), divisors_(table.output) {}

    const A* of(double factor) {
        if (factor == factor_) return divisors_.data();
        factor_ = factor;
        for (int64_t o = 0; o < table_.output; ++o) {
            divisors_[o] = static_cast<A>(std::max(1.0, factor * table_.factors[o]));
        }
        return divisors_.data();
    }

private:
    const AxisTable& table_;
    double factor_ = -1;
    Buffer<A> divisors_;
};

// Units are rows.
template <class R>
void forward_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const std::vector<AxisTable> tables = axis_tables(call);
    const AxisTable& table = tables[last];
    const bool has_empty_window = table.has_empty_window();
    PlaneRows<R> rows(reduction, tables, geometry.axes[last], position_strides<R>(call));
    RowDivisors<typename R::Accumulator> divisors(table);
    const T* current_plane = nullptr;

    RowPosition position(call, begin, output_size);
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* plane = plane_of<const T>(call.x, position);
        T* y = row_of<T>(call.y, position, geometry.rank);
        int64_t* indices = is_keyed<R> ? row_of<int64_t>(call.indices, position, geometry.rank) : nullptr;
        const double factor = outer_factor(tables, position.outer);
        if (factor != 0) {
            if (plane != current_plane) rows.set_plane(plane, call.x.strides + 2);
            current_plane = plane;
            if constexpr (is_keyed<R>) {
                const int64_t index = first_index(call, position.image, position.channel);
                rows.compute(position.outer, 0, FinishKeys<R>{reduction, y, indices, index, 0});
            } else {
                rows.compute(position.outer, position.row_in_plane(), FinishEach<R>{reduction, y, divisors.of(factor)});
            }
            if constexpr (may_leave_range<R>) {
                rows.redo([&](const Range* taps, int64_t output) { y[output] = rescaled_norm<T>(call, taps, plane); });
            }
        }
        if (factor != 0 && !has_empty_window) continue;
        for (int64_t output = 0; output < table.output; ++output) {
            if (factor * table.factors[output] != 0) continue;
            y[output] = reduction.empty();
            if (is_keyed<R>) indices[output] = -1;
        }
    }
}
