// Part of kernels.inl: see there.
// The last spatial axis is contiguous: for each row of the output, the window's rows of the input are combined into a
// buffer that stays in the first-level cache, and the buffer is then combined with itself, shifted along the row.

// target[i] = source[i * kStep].
template <int kStep, class A>
__attribute__((noinline)) void take_every(const A* source, A* target, int64_t size) {
    in_vectors<kStep == 2 ? kLanes<A> : kShuffled<A>>(size, [&](int64_t i, auto n) {
        if constexpr (n == 1) {
            target[i] = source[kStep * i];
        } else if constexpr (kStep > 2) {
            store(target + i, load_every<kStep, n>(source + kStep * i));
        } else if constexpr (sizeof(A) == 1) {  // the lower halves of integers of two bytes
            Vector<uint16_t, n> pairs;
            std::memcpy(&pairs, source + 2 * i, sizeof(pairs));
            store(target + i, convert<A>(pairs));
        } else {
            store(target + i, every_second<0>(load<n>(source + 2 * i), load<n>(source + 2 * i + n)));
        }
    });
}

// The same for any step.
template <class A>
void take_every(int64_t step, const A* source, A* target, int64_t size) {
    constexpr int most = sizeof(A) < 4 && ONNXPOOL_VECTOR_BYTES < 32 ? 2 : 8;  // SSE2 moves small numbers one by one
    if (step <= most) {
        with_number<2, most>(step, [&](auto known) { take_every<known>(source, target, size); });
    } else {
        for (int64_t i = 0; i < size; ++i) target[i] = source[i * step];
    }
}

// How many powers of two there are up to `taps`.
constexpr int levels_of(int64_t taps) {
    int levels = 1;
    while (taps >> levels) ++levels;
    return levels;
}

// A window's taps as few pieces: use(level, position) from left to right. Maxima may take a tap twice.
template <bool kMayOverlap, class Use>
inline void for_each_piece(const Range& taps, const Use& use) {
    int level = levels_of(taps.count) - 1;
    int64_t taken = int64_t{1} << level;
    use(level, taps.begin);
    if (kMayOverlap && taken < taps.count) return use(level, taps.begin + (taps.count - taken) * taps.step);
    while (taken < taps.count) {
        const int64_t size = int64_t{1} << --level;
        if (taps.count - taken < size) continue;
        use(level, taps.begin + taken * taps.step);
        taken += size;
    }
}

template <class R>
constexpr bool kMayOverlap = std::is_base_of_v<Largest<typename R::Accumulator>, R>;

// The lanes of first and second together that begin with number kBy of them.
template <int kBy, class V, int... i>
inline V shifted(V first, V second, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(first, second, (kBy + i)...);
}
template <int kBy, class V>
inline V shifted(V first, V second) {
    return shifted<kBy>(first, second, std::make_integer_sequence<int, lanes_of<V>>());
}

// Level l holds at position i the reduction of the 2^l taps from i on, `step` apart: of the level below, what is there
// and what is half as many taps further on. Each has room for level_size accumulators. What is built of them reaches as
// far as the first one, of `size`, allows, where it is needed: `needed` has one bit for each level.

// Builds the levels 1 ... kLevels in one pass, for taps next to each other and whole vectors: two vectors of the level
// below are shifted in registers. Loading what has just been stored, from where no vector begins, would cost more.
template <int kLevels, class Combiner>
void build_low_levels(const Combiner& combiner, typename Combiner::Accumulator* levels, int64_t level_size,
                      int64_t size, uint64_t needed) {
    constexpr int lanes = kLanes<typename Combiner::Accumulator>;
    using V = Vector<typename Combiner::Accumulator, lanes>;
    const int64_t vectors = size / lanes;
    V before[kLevels]{};  // of each level but the highest, the vector that came last
    // A level is one vector behind the one below, whose next one it waits for.
    const auto advance = [&](int64_t vector, auto is_inside) {
        V next{};
        if (is_inside || vector < vectors) next = load<lanes>(levels + vector * lanes);
        for_each_of<kLevels>([&](auto below) {
            constexpr int level = below + 1;
            const V made = combiner.combine(before[below], shifted<(1 << below)>(before[below], next));
            before[below] = next;
            next = made;
            const int64_t place = vector - level;
            if ((needed >> level & 1) == 0 || !(is_inside || (place >= 0 && place < vectors))) return;
            store(levels + level * level_size + place * lanes, made);
        });
    };
    int64_t vector = 0;
    for (; vector < std::min<int64_t>(kLevels, vectors); ++vector) advance(vector, std::false_type());
    for (; vector < vectors; ++vector) advance(vector, std::true_type());
    for (; vector < vectors + kLevels; ++vector) advance(vector, std::false_type());
}

// Builds the levels 1 ... count - 1.
template <class Combiner>
void build_levels(const Combiner& combiner, typename Combiner::Accumulator* levels, int64_t count, int64_t level_size,
                  int64_t size, int64_t step, uint64_t needed) {
    using Accumulator = typename Combiner::Accumulator;
    constexpr int lanes = kLanes<Accumulator>;
    constexpr int fewest = 3, most = levels_of(lanes);  // low levels: windows that share taps have as many
    int64_t level = 1;
    if constexpr (most >= fewest && sizeof(Accumulator) >= 4) {  // smaller numbers are shifted by many instructions
        if (step == 1 && count > fewest && size % lanes == 0) {
            const int64_t low = std::min<int64_t>(count - 1, most);
            if (low + 1 < count) needed |= uint64_t{1} << low;  // by the next one
            with_number<fewest, most>(
                low, [&](auto known) { build_low_levels<known>(combiner, levels, level_size, size, needed); });
            level = low + 1;
        }
    }
    for (; level < count; ++level) {
        const Accumulator* below = levels + (level - 1) * level_size;
        Accumulator* target = levels + level * level_size;
        const int64_t half = step << (level - 1);
        in_vectors<lanes>(size - 2 * half + step, [&](int64_t i, auto n) {
            store(target + i, combiner.combine(load<n>(below + i), load<n>(below + i + half)));
        });
    }
}

// Some rows with their padding, as the windows along them need them. They are worked on together: what has just been
// written cannot be read at once in vectors that begin elsewhere.
template <class Combiner>
class PaddedRows {
public:
    using Accumulator = typename Combiner::Accumulator;

    // For as many as `rows`. `identity` is the accumulator of no data.
    PaddedRows(const Combiner& combiner, Accumulator identity, const Axis& axis, bool windows_share, int64_t rows)
        : combiner_(combiner),
          identity_(identity),
          axis_(axis),
          level_count_(windows_share ? levels_of(axis.kernel) : 1),
          takes_phases_together_(sizeof(Accumulator) >= 4 && axis.stride > 1 && axis.kernel >= axis.stride &&
                                 axis.dilation == 1 && level_count_ == 1),
          size_(padded_size(axis)),
          capacity_(std::clamp<int64_t>(kRowBufferBytes / sizeof(Accumulator) / (size_ * level_count_), 1,
                                        std::clamp<int64_t>(rows, 1, 8))) {
        // Behind them, room for what take_every() reads too far.
        padded_.assign(level_count_ * capacity_ * size_ + kLanes<Accumulator> + axis.stride, identity);
        const Range window{0, axis.kernel, axis.dilation};
        // Positions of neighbouring windows are a stride apart: those of one phase (position modulo stride) are brought
        // together.
        const int64_t phases = std::min(axis.stride, size_);
        std::vector<int64_t> numbers(level_count_ * phases, -1);  // in sources_, by level and phase
        const auto add = [&](int64_t level, int64_t position) {
            const int64_t phase = position % axis.stride;
            int64_t& number = numbers[level * phases + phase];
            if (number < 0) {
                number = static_cast<int64_t>(sources_.size());
                sources_.push_back(level * capacity_ * size_ + phase);
            }
            places_.emplace_back(number, position / axis.stride);
        };
        if (level_count_ > 1) {
            for_each_piece<kMayOverlap<Combiner>>(window, [&](int64_t level, int64_t position) {
                needed_levels_ |= uint64_t{1} << level;
                add(level, position);
            });
        } else {
            for (int64_t j = 0; j < axis.kernel; ++j) add(0, j * axis.dilation);
        }
        if (axis.stride > 1) phases_.resize(sources_.size() * phase_size());
        for (const auto& [source, position] : places_) {
            taps_.push_back(axis.stride > 1 ? phases_.data() + source * phase_size() + position
                                            : padded_.data() + sources_[source] + position);
        }
    }

    int64_t capacity() const { return capacity_; }

    // Where the data of a row are to be put, unless take() does it.
    Accumulator* data(int64_t row) { return padded_.data() + row * size_ + axis_.pad_begin; }

    // Takes the data of a row from x. Either all rows are given in this way, or none.
    void take(int64_t row, const Accumulator* x) {
        if (!takes_phases_together_) {
            const int64_t most = kHardwarePrefetchesRuns ? axis_.input : kPrefetchedTogether<Accumulator>;
            for (int64_t i = 0; i < axis_.input; i += most) {
                const int64_t size = std::min(most, axis_.input - i);
                if (!kHardwarePrefetchesRuns) prefetch_ahead(x + i, size);
                std::copy_n(x + i, size, data(row) + i);
            }
            return;
        }
        are_in_phases_ = true;
        const int64_t stride = axis_.stride, places = size_ / stride;
        const int64_t begin = std::min(ceil_div(axis_.pad_begin, stride), places);
        const int64_t end = std::clamp((axis_.pad_begin + axis_.input) / stride, begin, places);
        Accumulator* const target = phases_.data() + row * places;
        for (int64_t place = begin, next; place < end; place = next) {
            next = std::min(place + kPrefetchedTogether<Accumulator> / stride, end);
            const Accumulator* const source = x + place * stride - axis_.pad_begin;
            if (!kHardwarePrefetchesRuns) prefetch_ahead(source, (next - place) * stride);
            take_phases(source, next - place, target + place);
        }
        const auto take_single = [&](int64_t place) {  // where not all are data
            for (int64_t phase = 0; phase < stride; ++phase) {
                const int64_t i = place * stride + phase - axis_.pad_begin;
                target[phase * phase_size() + place] = i >= 0 && i < axis_.input ? x[i] : identity_;
            }
        };
        for (int64_t place = 0; place < begin; ++place) take_single(place);
        for (int64_t place = end; place < places; ++place) take_single(place);
    }

    // To be called when the data of the first `rows` are there.
    void prepare(int64_t rows) {
        build_levels(combiner_, padded_.data(), level_count_, capacity_ * size_, rows * size_, axis_.dilation,
                     needed_levels_);
        if (are_in_phases_) return;
        if (takes_phases_together_) return take_phases(padded_.data(), rows * (size_ / axis_.stride), phases_.data());
        for (size_t i = 0; i < sources_.size() && axis_.stride > 1; ++i) {
            take_every(axis_.stride, padded_.data() + sources_[i], phases_.data() + i * phase_size(),
                       rows * (size_ / axis_.stride));
        }
    }

    // What windows along a prepared row are made of: the pieces of window o are taps[0][o], taps[1][o], ...
    const std::vector<const Accumulator*>& taps(int64_t row) {
        const int64_t move = (row - current_row_) * (size_ / axis_.stride);
        for (const Accumulator*& tap : taps_) tap += move;
        current_row_ = row;
        return taps_;
    }

private:
    // Rows begin where vectors do, those of phases too if there are few of these.
    static int64_t padded_size(const Axis& axis) {
        const int64_t unit = axis.stride <= 2 ? axis.stride * kLanes<Accumulator> : axis.stride;
        return ceil_div(std::max(row_reach(axis), axis.pad_begin + axis.input), unit) * unit;
    }

    // Deinterleaves all phases of a row at x, of so many places each.
    void take_phases(const Accumulator* x, int64_t places, Accumulator* target) const {
        deinterleave_runs(x, axis_.stride, places, target, phase_size());
    }

    int64_t phase_size() const { return capacity_ * (size_ / axis_.stride); }

    const Combiner& combiner_;
    const Accumulator identity_;
    const Axis& axis_;
    const int64_t level_count_;
    const bool takes_phases_together_;  // all are needed, in their order
    bool are_in_phases_ = false;        // what take() was given
    const int64_t size_;                // of a row
    const int64_t capacity_;            // rows
    int64_t current_row_ = 0;           // that taps_ point into
    Buffer<Accumulator> padded_, phases_;
    uint64_t needed_levels_ = 0;                       // one bit for each
    std::vector<int64_t> sources_;                     // where phases begin in padded_
    std::vector<std::pair<int64_t, int64_t>> places_;  // of pieces: number of the phase, position in it
    std::vector<const Accumulator*> taps_;             // of the current row
};

// Rows of a plane, each along the last axis: for each position, the taps that the tables name along the outer axes and
// the window of the last one. Some are gathered and then finished together.
template <class R>
class PlaneRows {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // For as many rows. Positions are counted with these strides, where R has any.
    PlaneRows(const R& reduction, std::vector<AxisTable> tables, const Axis& axis, int64_t rows,
              const int64_t* position_strides = nullptr)
        : reduction_(reduction),
          tables_(std::move(tables)),
          axis_(axis),
          last_(static_cast<int>(tables_.size()) - 1),
          is_separable_(is_separable<R>(tables_)),
          outer_axes_(outer_axes(reduction, tables_, is_separable_, position_strides)),
          padded_(combiner_of(reduction), reduction.identity(), axis_, tables_[last_].windows_share && !R::kInOrder,
                  rows),
          sums_(axis.output),
          prefetched_(kHardwarePrefetchesRuns && last_ == 0 ? 0 : elements_per_output_row(tables_)),
          position_strides_(position_strides) {
        if constexpr (is_expensive<R>) {
            if (!is_separable_) lifted_.emplace(reduction, tables_);  // otherwise each is lifted once anyway
        }
    }

    PlaneRows(const PlaneRows&) = delete;  // refers to itself

    // The plane whose rows come next, and the strides of its axes; the last one is 1.
    void set_plane(const T* x, const int64_t* strides) {
        x_ = x;
        strides_ = strides;
        if (is_separable_) outer_axes_.set_plane(strides, 1);
        if (lifted_) lifted_->forget(1);
    }

    // The row at these outer coordinates, the row_index-th of the plane. At least one of its windows has data.
    void add(const int64_t* outer, int64_t row_index) {
        const int64_t number = count_++;
        if (is_separable_) {
            return padded_.take(number, outer_axes_.row(row_index, [&](int64_t, int64_t) { return x_; }));
        }
        if constexpr (lifts_nothing<R>) {
            if (last_ == 0) return padded_.take(number, x_);
        }
        for (int a = 0; a < last_; ++a) taps_[a] = tables_[a].taps[outer[a]];
        combine_rows(padded_.data(number));
    }

    int64_t capacity() const { return padded_.capacity(); }
    bool is_full() const { return count_ == capacity(); }

    // Finishes the rows that have been added: put_of(row)(i, results). Windows that need the slow way:
    // again(row, output).
    template <class PutOf, class Again>
    void finish(const PutOf& put_of, [[maybe_unused]] const Again& again) {
        padded_.prepare(count_);
        for (int64_t row = 0; row < count_; ++row) {
            const std::vector<const Accumulator*>& pieces = padded_.taps(row);
            const auto count = static_cast<int64_t>(pieces.size());
            const AsItIs<Accumulator> take;
            if constexpr (may_leave_range<R>) {
                combine_taps(combiner_of(reduction_), pieces.data(), count, axis_.output, take,
                             Keep<Accumulator>{sums_.data()});
                if (!finish_sums(reduction_, sums_.data(), axis_.output, put_of(row))) continue;
                for (int64_t output = 0; output < axis_.output; ++output) {
                    if (reduction_.out_of_range(sums_[output])) again(row, output);
                }
            } else {
                combine_taps(combiner_of(reduction_), pieces.data(), count, axis_.output, take, put_of(row));
            }
        }
        count_ = 0;
    }

private:
    void combine_rows(Accumulator* target) {
        taps_[last_] = {0, 1, 1};
        if constexpr (is_expensive<R>) {
            const auto& rows = lifted_->at(taps_, last_ + 1, x_, strides_);
            return combine_taps(combiner_of(reduction_), rows.data(), static_cast<int64_t>(rows.size()), axis_.input,
                                AsItIs<Accumulator>(), Keep<Accumulator>{target});
        }
        rows_.clear();
        for_each_row<1>(taps_, last_ + 1, {strides_},
                        [&](const int64_t (&offsets)[1], const int64_t*) { rows_.push_back(x_ + offsets[0]); });
        prefetch_ahead(rows_.back(), prefetched_);
        if (is_keyed<R>) {
            positions_.clear();
            for_each_row<1>(taps_, last_ + 1, {position_strides_},
                            [&](const int64_t (&offsets)[1], const int64_t*) { positions_.push_back(offsets[0]); });
        }
        combine_taps(combiner_of(reduction_), rows_.data(), static_cast<int64_t>(rows_.size()), axis_.input,
                     lift_rows(reduction_, positions_), keep_columns(reduction_, target, 0, 1));
    }

    const R& reduction_;
    const std::vector<AxisTable> tables_;
    const Axis axis_;  // the last one
    const int last_;
    const bool is_separable_;
    OuterAxes<R> outer_axes_;
    std::optional<LiftedRows<R>> lifted_;
    PaddedRows<CombinerOf<R>> padded_;
    Buffer<Accumulator> sums_;
    const int64_t prefetched_;
    const int64_t* const position_strides_;

    const T* x_ = nullptr;
    const int64_t* strides_ = nullptr;
    int64_t count_ = 0;  // rows that have been added
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
    PlaneRows<R> rows(reduction, tables, geometry.axes[last], end - begin, position_strides<R>(call));
    RowDivisors<typename R::Accumulator> divisors(table);

    struct Target {
        int64_t row;
        double factor;  // what the outer axes make of its divisors
        T* y;
        int64_t* indices;
        int64_t first_index;
    };
    std::vector<Target> targets;
    const auto put_of = [&](int64_t i) {
        const Target& target = targets[i];
        if constexpr (is_keyed<R>) {
            return FinishKeys<R>{reduction, target.y, target.indices, target.first_index, 0};
        } else {
            return FinishEach<R>{reduction, target.y, divisors.of(target.factor), Stores::kPrefetching};
        }
    };
    const auto compute_again = [&](int64_t i, int64_t output) {
        if constexpr (is_norm<R>) {
            const RowPosition position(call, targets[i].row, output_size);
            Range taps[kMaxSpatialRank];
            for (int a = 0; a < last; ++a) taps[a] = tables[a].taps[position.outer[a]];
            taps[last] = table.taps[output];
            targets[i].y[output] = rescaled_norm<T>(call, taps, plane_of<const T>(call.x, position));
        }
    };
    const auto fill_empty = [&](const Target& target) {
        for (int64_t output = 0; output < table.output; ++output) {
            if (target.factor * table.factors[output] != 0) continue;
            target.y[output] = reduction.empty();
            if (is_keyed<R>) target.indices[output] = -1;
        }
    };

    const T* current_plane = nullptr;
    RowPosition position(call, begin, output_size);
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* plane = plane_of<const T>(call.x, position);
        Target target{row, outer_factor(tables, position.outer), row_of<T>(call.y, position, geometry.rank), nullptr,
                      0};
        if constexpr (is_keyed<R>) {
            target.indices = row_of<int64_t>(call.indices, position, geometry.rank);
            target.first_index = first_index(call, position.image, position.channel);
        }
        if (target.factor == 0) {
            fill_empty(target);
        } else {
            if (plane != current_plane) rows.set_plane(plane, call.x.strides + 2);
            current_plane = plane;
            rows.add(position.outer, position.row_in_plane());
            targets.push_back(target);
        }
        if (!rows.is_full() && row + 1 < end) continue;
        rows.finish(put_of, compute_again);
        for (size_t i = 0; has_empty_window && i < targets.size(); ++i) fill_empty(targets[i]);
        targets.clear();
    }
}
