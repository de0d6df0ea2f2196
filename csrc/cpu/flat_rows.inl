// Part of kernels.inl: see there.
// Rows of results that follow each other without a gap are one run of vectors, whatever their length: lanes whose tap
// lies beyond the end of their row leave it out. Planes need not be padded or transposed.

// Whether results may lie in phases: those of gradients do, which AlongRow::of_coverings() describes.
template <class R>
constexpr bool has_result_phases = false;

// kMayBeDirect: whether combine_directly() does the windows that it can do.
template <class R, bool kMayBeDirect = false>
class FlatRows {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // Elements of x along the last axis follow each other. If x lies in memory, what comes next is prefetched.
    FlatRows(const R& reduction, const Call& call, const std::vector<AxisTable>& tables, const AlongRow& along,
             int64_t most_rows, bool is_in_memory)
        : reduction_(reduction),
          call_(call),
          columns_(along.columns),
          outputs_(along.outputs),
          phases_(along.phases),
          result_phases_(along.result_phases),
          pitch_(along.pitch()),
          read_pitch_(phases_ > kMostPhases ? columns_ : pitch_),
          elements_follow_(along.elements_follow()),
          results_follow_(along.results_follow()),
          is_one_run_(along.is_one_run(kCount)),
          vector_step_(along.vector_step(kCount)),
          prefetches_at_once_(along.columns * static_cast<int64_t>(sizeof(T)) < kLeastBytesPrefetched),
          rows_(call.geometry, output_size, tables, call.x.strides + 2, elements_follow_ ? columns_ : 0),
          planes_are_one_run_(elements_follow_ && rows_.rows.size() == 1 && rows_.most_taps == 1 &&
                              rows_of_plane(call.geometry, input_size) == 1 &&
                              is_contiguous(call.geometry, call.x, input_size)),
          is_vector_by_row_(columns_ <= kCount && 2 * vectors_of_runs() > static_cast<int64_t>(rows_.rows.size())),
          // Of two columns side by side in one run, vectors are deinterleaved from a buffer in less time.
          is_direct_(is_direct(along) && !(planes_are_one_run_ && along.taps.size() == 2)),
          shares_(call, rows_, 1, columns_, is_in_memory) {
        for (const AlongRow::Tap& tap : along.taps) tap_positions_.push_back(tap.position);
        if (!is_direct_) prepare_taps(along, most_rows);
    }

    FlatRows(const FlatRows&) = delete;  // refers to itself

    // finish(i, accumulators) for the windows of `count` rows of the output, numbered through all planes, from `first`
    // on. Those of windows without data mean nothing, nor do those beyond the last row: of them there may be as many as
    // `room`. Whether any is out of the reduction's range.
    template <class Finish>
    bool compute(int64_t first, int64_t count, int64_t room, const Finish& finish) {
        const int64_t all = count * outputs_;
        if (is_one_run_ && !results_follow_) {
            const int64_t pitch = result_phases_ * pitch_, size = count * pitch;
            sums_.resize(std::max<size_t>(sums_.size(), size + result_phases_ * kCount));
            read(first, count, 0, rows_.most_taps);
            combine_along<false>(0, size, Keep<Accumulator>{sums_.data()});
            for (int64_t row = 1; row < count; ++row) {
                std::copy_n(sums_.data() + row * pitch, outputs_, sums_.data() + row * outputs_);
            }
            return finish_sums(reduction_, sums_.data(), all, finish);
        }
        sums_.resize(std::max<size_t>(sums_.size(), all + result_phases_ * kCount));
        if constexpr (kHasDirect) {
            if (is_direct_) {
                combine_directly(first, count);
                return finish_sums(reduction_, sums_.data(), all, finish);
            }
        }
        if constexpr (R::kInOrder) {
            std::fill(sums_.begin(), sums_.end(), reduction_.identity());
            for (int64_t tap = 0; tap < rows_.most_taps; ++tap) {
                read(first, count, tap, tap + 1);
                combine_along<true>(0, all, Keep<Accumulator>{sums_.data()});
            }
            return finish_sums(reduction_, sums_.data(), all, finish);
        }
        read(first, count, 0, rows_.most_taps);
        if constexpr (may_leave_range<R>) {
            combine_along<false>(0, all, Keep<Accumulator>{sums_.data()});
            return finish_sums(reduction_, sums_.data(), all, finish);
        }
        // Vectors reach beyond the ends of lines: where there is no room for that, the last ones make a detour.
        const int64_t vector = result_phases_ * kCount;
        const int64_t line = is_one_run_ ? vector : outputs_, reach = ceil_div(line, vector) * vector;
        const int64_t direct = all + room < reach ? 0 : std::min(all, ((all + room - reach) / line + 1) * line);
        if (direct == all) return combine_along<false>(0, all, finish), false;
        combine_along<false>(0, direct, finish);
        combine_along<false>(direct, all, Keep<Accumulator>{sums_.data()});
        return finish_sums(reduction_, sums_.data() + direct, all - direct,
                           [&](int64_t i, auto sums) { finish(direct + i, sums); });
    }

    // Windows of two or three neighbouring columns that begin two from each other, the first one at the row's begin or
    // one before, or of a few columns side by side, along rows that fill vectors: see combine_directly().
    static bool is_direct(const AlongRow& along) {
        const auto taps = static_cast<int64_t>(along.taps.size());
        const bool are_two_apart = along.phases == 2 && (taps == 2 || taps == 3);
        const bool are_side_by_side = along.phases > 2 && along.phases <= kMostDirectPhases && taps == along.phases;
        if (!kHasDirect || along.result_phases != 1 || !(are_two_apart || are_side_by_side)) return false;
        const int64_t first = along.taps.front().position;
        const bool fill_vectors = along.columns >= along.phases * kCount && are_mostly_taken(along.outputs, kCount);
        return fill_vectors && (first == 0 || (first == -1 && are_two_apart)) &&
               along.taps.back().position == first + taps - 1;
    }

    const RowTaps& taps() const { return rows_; }

    // Whether vectors follow each other from the first row's first result on.
    bool is_one_run() const { return is_one_run_; }

    // After a call of compute() that found some out of range: whether this one is.
    bool is_out_of_range(int64_t i) const { return reduction_.out_of_range(sums_[i]); }

protected:
    static constexpr int kCount = kLanes<Accumulator>;
    static constexpr int kMostVectors = ONNXPOOL_VECTOR_BYTES < 64 ? 4 : 2;  // enough to pay for finding their lanes
    // Vectors of bytes are expensive to shift.
    static constexpr bool kHasDirect = kMayBeDirect && !R::kInOrder && sizeof(Accumulator) > 1;
    static constexpr int64_t kMostDirectPhases = 4;
    static constexpr int64_t kLeastBytesPrefetched = 3 * 64;  // for each row: shorter ones are prefetched together
    using V = Vector<Accumulator, kCount>;

    using Lanes = LanesOf<V>;
    using Row = RowTaps::Row;

    // The vectors that a plane's runs of rows take.
    int64_t vectors_of_runs() const {
        int64_t vectors = 0;
        for (size_t row = 0; row < rows_.rows.size(); row += rows_.rows[row].together) {
            vectors += ceil_div(rows_.rows[row].together * columns_, kCount);
        }
        return vectors;
    }

    void prepare_taps(const AlongRow& along, int64_t most_rows) {
        int64_t longest = 0;
        for (const AlongRow::Tap& tap : along.taps) {
            longest = std::max(longest, std::abs(tap.shift));
            ++taps_of_phase_[tap.result_phase];
        }
        const int64_t room = (ceil_div(longest, kCount) + 2) * kCount;
        phase_size_ = ceil_div(most_rows * pitch_, kCount) * kCount + room;
        buffer_.resize(room + phases_ * phase_size_);
        phase_begin_ = buffer_.data() + room;
        const auto phase_at = [&](int64_t phase) { return phase_begin_ + phase * phase_size_; };
        for (const AlongRow::Tap& tap : along.taps) sources_.push_back(phase_at(tap.phase) + tap.shift);
        if (phases_ <= kMostPhases) {
            for (int64_t phase = 0; phase < phases_; ++phase) read_[phase] = phase_at(phase);
        } else if (!is_deinterleaved_in_place()) {
            whole_rows_.resize(most_rows * read_pitch_ + 2 * kCount);
            read_[0] = whole_rows_.data();
        }
        const size_t taps = along.taps.size();
        lanes_.assign(ceil_div(pitch_, vector_step_) * taps, Lanes{});
        for (int64_t first = 0, kind = 0; first < pitch_; first += vector_step_, ++kind) {
            for (size_t i = 0; i < taps; ++i) {
                const AlongRow::Tap& tap = along.taps[i];
                const int64_t begin = -tap.shift - first;
                const int64_t limit = along.elements_in(tap.phase) - tap.shift;
                const int64_t end = std::min(limit, along.results_in(tap.result_phase)) - first;
                // What follows the end of a row is the next one, or nothing.
                for (int64_t row = 0; row < (is_one_run_ ? first + kCount : 1); row += pitch_) {
                    lanes_[kind * taps + i] |= lanes_between<V>(std::max(begin, -first) + row, end + row);
                }
            }
        }
    }

    // These rows' share of their plane.
    Range share_of(const Row* row, const Row* end) const {
        return shares_.of(row - rows_.rows.data(), end - rows_.rows.data());
    }

    // visit(plane, its first row and the end of its rows, how many came before), for these rows, plane by plane.
    template <class Visit>
    void for_each_plane(int64_t first, int64_t count, const Visit& visit) {
        const auto plane_rows = static_cast<int64_t>(rows_.rows.size());
        const int64_t channels = call_.geometry.channels;
        int64_t plane = first / plane_rows, row = first % plane_rows;
        for (int64_t done = 0, rows; done < count; done += rows, ++plane, row = 0) {
            const int64_t image = plane / channels, channel = plane % channels;
            const T* const x = shares_.begin_plane(image, channel);
            rows = std::min(plane_rows - row, count - done);
            const Row* const row_begin = rows_.rows.data() + row;
            visit(x, row_begin, row_begin + rows, done);
        }
    }

    // Whether rows are deinterleaved from where they are, without being read into a buffer before.
    bool is_deinterleaved_in_place() const { return lifts_nothing<R> && phases_ > kMostPhases && rows_.most_taps == 1; }

    // Reads rows into the phases: for each row of windows, its taps from `begin` to `end`, combined.
    void read(int64_t first, int64_t count, int64_t begin, int64_t end) {
        if constexpr (lifts_nothing<R>) {
            if (is_deinterleaved_in_place()) return deinterleave_in_place(first, count);
        }
        if (planes_are_one_run_) {
            read_run(first, count);
        } else {
            read_rows(first, count, begin, end);
        }
        if (phases_ > kMostPhases) deinterleave_rows(count);
    }

    // Reads rows into two phases at once, or as they are.
    void read_rows(int64_t first, int64_t count, int64_t begin, int64_t end) {
        const bool is_interleaved = phases_ == 2;
        for_each_plane(first, count, [&](const T* x, const Row* row_begin, const Row* row_end, int64_t done) {
            const int64_t target = done * read_pitch_;
            if (begin == 0 && prefetches_at_once_) shares_.prefetch_next(share_of(row_begin, row_end));
            if (is_vector_by_row_) {
                is_interleaved ? combine_short_rows<2, 1>(x, row_begin, row_end, begin, end, target)
                               : combine_short_rows<1, 1>(x, row_begin, row_end, begin, end, target);
            } else if (columns_ <= 2 * kCount && !rows_.any_run) {
                is_interleaved ? combine_short_rows<2, 2>(x, row_begin, row_end, begin, end, target)
                               : combine_short_rows<1, 2>(x, row_begin, row_end, begin, end, target);
            } else {
                is_interleaved ? combine_rows<2>(x, row_begin, row_end, begin, end, target)
                               : combine_rows<1>(x, row_begin, row_end, begin, end, target);
            }
        });
    }

    // Deinterleaves the elements of a row into more phases than two.
    void deinterleave_row(const Accumulator* elements, Accumulator* target) const {
        const int64_t places = columns_ / phases_;
        deinterleave_runs(elements, phases_, places, target, phase_size_);
        for (int64_t i = places * phases_; i < columns_; ++i) {
            target[(i - places * phases_) * phase_size_ + places] = elements[i];
        }
    }

    // Deinterleaves rows that have been read as they are.
    void deinterleave_rows(int64_t count) const {
        const Accumulator* elements = read_[0];
        Accumulator* target = phase_begin_;
        if (elements_follow_) return deinterleave_runs(elements, phases_, count * pitch_, target, phase_size_);
        for (int64_t row = 0; row < count; ++row, elements += read_pitch_, target += pitch_) {
            deinterleave_row(elements, target);
        }
    }

    // Deinterleaves rows of one tap each from where they are.
    void deinterleave_in_place(int64_t first, int64_t count) {
        Accumulator* target = phase_begin_;
        for_each_plane(first, count, [&](const T* x, const Row* row, const Row* row_end, int64_t) {
            for (; row != row_end; ++row, target += pitch_) {
                if (row->begin < row->end) {
                    const T* const elements = x + rows_.offsets[row->begin];
                    prefetch_ahead(elements, columns_);
                    deinterleave_row(elements, target);
                } else {
                    for (int64_t phase = 0; phase < phases_; ++phase) {
                        std::fill_n(target + phase * phase_size_, pitch_, reduction_.identity());
                    }
                }
            }
        });
    }

    // Reads rows of one tap each that are one run.
    void read_run(int64_t first, int64_t count) {
        constexpr int64_t bytes = 2048;  // that are prefetched at a time
        const int64_t together = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(T)) / columns_);
        const int64_t* const tap = rows_.offsets.data();
        const T* x = static_cast<const T*>(call_.x.data) + first * columns_;
        for (int64_t row = 0; row < count; row += together) {
            const int64_t size = std::min(together, count - row) * columns_;
            if (shares_.any()) prefetch_ahead(x, size);
            phases_ == 2 ? combine_run<2>(x, tap, tap + 1, size, row * read_pitch_)
                         : combine_run<1>(x, tap, tap + 1, size, row * read_pitch_);
            x += size;
        }
    }

    // Those of a row's taps, counted from its first one.
    Row limited(const Row& row, int64_t begin, int64_t end) const {
        return {row.begin + begin, R::kInOrder ? std::min(row.begin + end, row.end) : row.end, row.together};
    }

    // Reads rows that fit into one vector, which costs less than finding out which of them are one run unless these are
    // long, or into two, where none are. What is stored beyond a row's end is overwritten by the next one. This loop
    // and the next ones are functions of their own: inlined, they run out of registers for addresses.
    template <int kPhases, int kVectors>
    __attribute__((noinline)) void combine_short_rows(const T* plane, const Row* row, const Row* row_end, int64_t begin,
                                                      int64_t end, int64_t target) const {
        const int64_t* const taps = rows_.offsets.data();
        const int64_t pitch = read_pitch_, rest = columns_ - (kVectors - 1) * kCount;
        const R reduction = reduction_;
        Accumulator *even = read_[0] + target, *odd = read_[kPhases - 1] + target;
        const auto lift = [&](int64_t tap, int v) -> V {
            const T* const elements = plane + taps[tap] + v * kCount;
            return reduction.lift(v + 1 < kVectors ? load<kCount>(elements) : load_first<kCount>(elements, rest));
        };
        for (; row != row_end; ++row, even += pitch, odd += pitch) {
            const auto [tap, last_tap, together] = limited(*row, begin, end);
            V sums[kVectors];
            for (int v = 0; v < kVectors; ++v) sums[v] = filled<V>(reduction_.identity());
            if (tap < last_tap) {
                for (int v = 0; v < kVectors; ++v) sums[v] = lift(tap, v);
                for (int64_t i = tap + 1; i < last_tap; ++i) {
                    for (int v = 0; v < kVectors; ++v) sums[v] = reduction_.combine(sums[v], lift(i, v));
                }
            }
            if constexpr (kPhases == 1) {
                for (int v = 0; v < kVectors; ++v) store(even + v * kCount, sums[v]);
            } else {
                store_deinterleaved(sums[0], sums[kVectors - 1], even, odd);
            }
        }
    }

    template <int kPhases>
    __attribute__((noinline)) void combine_rows(const T* plane, const Row* row, const Row* row_end, int64_t begin,
                                                int64_t end, int64_t target) const {
        while (row != row_end) {
            const auto [tap, last_tap, together] = limited(*row, begin, end);
            const int64_t rows = std::min<int64_t>(together, row_end - row);
            const bool prefetches = begin == 0 && !prefetches_at_once_;
            if (tap < last_tap) {
                const int64_t* const taps = rows_.offsets.data() + tap;
                const int64_t* const taps_end = rows_.offsets.data() + last_tap;
                const int64_t size = (rows - 1) * kPhases * read_pitch_ + columns_;
                if (size > kPrefetchedTogether<T> && prefetches) {
                    combine_parts<kPhases>(plane, row, row + rows, taps, taps_end, size, target);
                } else {
                    if (prefetches) shares_.prefetch_next(share_of(row, row + rows));
                    combine_run<kPhases>(plane, taps, taps_end, size, target);
                }
            } else {
                for (Accumulator* phase : read_) {
                    if (phase) std::fill_n(phase + target, rows * read_pitch_, reduction_.identity());
                }
            }
            target += rows * read_pitch_;
            row += rows;
        }
    }

    // As combine_run(), part by part, of which each is prefetched some way ahead.
    template <int kPhases>
    __attribute__((noinline)) void combine_parts(const T* plane, const Row* row, const Row* end,
                                                 const int64_t* first_tap, const int64_t* taps_end, int64_t size,
                                                 int64_t target) const {
        const Range share = share_of(row, end);
        int64_t prefetched = 0;
        for (int64_t done = 0; done < size; done += kPrefetchedTogether<T>) {
            const int64_t part = std::min(kPrefetchedTogether<T>, size - done);
            const int64_t next = share.count * (done + part) / size;
            shares_.prefetch_next({share.begin + prefetched, next - prefetched, 1});
            prefetched = next;
            combine_run<kPhases>(plane + done, first_tap, taps_end, part, target + done / kPhases);
        }
    }

    // Combines `size` elements of a run at each of these offsets. What is stored beyond its end is overwritten by what
    // follows.
    template <int kPhases>
    __attribute__((noinline)) void combine_run(const T* plane, const int64_t* first, const int64_t* end, int64_t size,
                                               int64_t target) const {
        const R reduction = reduction_;
        Accumulator *even = read_[0] + target, *odd = read_[kPhases - 1] + target;
        const auto combine = [&](auto count, const auto& load_at) {
            V sums[count];
            for (int v = 0; v < count; ++v) sums[v] = reduction.lift(load_at(plane + *first, v));
            for (const int64_t* tap = first + 1; tap != end; ++tap) {
                for (int v = 0; v < count; ++v) {
                    sums[v] = reduction.combine(sums[v], V(reduction.lift(load_at(plane + *tap, v))));
                }
            }
            if constexpr (kPhases == 1) {
                for (int v = 0; v < count; ++v) store(even + v * kCount, sums[v]);
                even += count * kCount;
            } else {
                store_deinterleaved(sums[0], sums[count - 1], even, odd);
                even += kCount;
                odd += kCount;
            }
        };
        constexpr std::integral_constant<int, 1> one;
        constexpr std::integral_constant<int, 2> two;
        int64_t i = 0;
        for (; i + 2 * kCount <= size; i += 2 * kCount) {
            combine(two, [&](const T* row, int v) { return load<kCount>(row + i + v * kCount); });
        }
        if (size - i > kCount) {
            const int64_t rest = size - i - kCount;
            combine(two, [&](const T* row, int v) {
                return v == 0 ? load<kCount>(row + i) : load_first<kCount>(row + i + kCount, rest);
            });
        } else if (size > i) {
            const int64_t rest = size - i;
            combine(one, [&](const T* row, int) { return load_first<kCount>(row + i, rest); });
        }
    }

    // Computes windows with neither phases in a buffer nor lanes: the rows of some columns are combined in registers,
    // and then these columns with each other.
    void combine_directly(int64_t first, int64_t count) {
        for_each_plane(first, count, [&](const T* x, const Row* row_begin, const Row* row_end, int64_t done) {
            Accumulator* const target = sums_.data() + done * outputs_;
            if (phases_ == 2) {
                with_number<2, 3>(static_cast<int64_t>(tap_positions_.size()), [&](auto taps) {
                    with_number<0, 1>(-tap_positions_[0], [&](auto padding) {
                        combine_columns<2, taps, padding>(x, row_begin, row_end, target);
                    });
                });
            } else {
                with_number<3, kMostDirectPhases>(
                    phases_, [&](auto taps) { combine_columns<taps, taps, 0>(x, row_begin, row_end, target); });
            }
        });
    }

    // The columns that kStep vectors hold: a vector for each remainder that they leave when divided by kStep.
    template <int kStep>
    struct Columns {
        V phases[kStep];
    };

    // For windows of kTaps columns that begin kStep from each other, the first one kPadding before the row. What is
    // stored beyond the end of a row of results is overwritten by the next one.
    template <int kStep, int kTaps, int kPadding>
    __attribute__((noinline)) void combine_columns(const T* plane, const Row* row, const Row* row_end,
                                                   Accumulator* target) const {
        static_assert(kTaps == kStep || (kStep == 2 && kTaps == 3));
        static_assert(kPadding == 0 || (kStep == 2 && kPadding == 1));
        constexpr bool looks_ahead = kTaps > kStep && kPadding == 0;  // at the first one of the next columns
        constexpr int64_t step = kStep * kCount;
        const int64_t outputs = outputs_, columns = columns_, vectors = ceil_div(outputs, kCount);
        const R reduction = reduction_;
        const V nothing = filled<V>(reduction.identity());
        Columns<kStep> none;
        for (V& phase : none.phases) phase = nothing;
        for (; row != row_end; ++row, target += outputs) {
            if (row->begin == row->end) {
                std::fill_n(target, outputs, reduction.identity());
                continue;
            }
            const int64_t* const first = rows_.offsets.data() + row->begin;
            const int64_t* const end = rows_.offsets.data() + row->end;
            const auto combine_rows = [&](const T* x, const auto& load_at, V(&sums)[kStep]) {
                for (int v = 0; v < kStep; ++v) sums[v] = reduction.lift(load_at(x + *first, v));
                for (const int64_t* tap = first + 1; tap != end; ++tap) {
                    for (int v = 0; v < kStep; ++v) {
                        sums[v] = reduction.combine(sums[v], V(reduction.lift(load_at(x + *tap, v))));
                    }
                }
            };
            const auto in_phases = [](const V(&sums)[kStep]) {
                Columns<kStep> columns;
                deinterleave<kStep>(sums, columns.phases);
                return columns;
            };
            const auto whole_columns = [&](int64_t column) {
                V sums[kStep];
                combine_rows(plane + column, [](const T* x, int v) { return load<kCount>(x + v * kCount); }, sums);
                return in_phases(sums);
            };
            // Where the row ends among them, or before: nothing is behind it.
            const auto last_columns = [&](int64_t column) {
                if (column >= columns) return none;
                const auto there = [&](int v) { return std::clamp<int64_t>(columns - column - v * kCount, 0, kCount); };
                V sums[kStep];
                combine_rows(
                    plane + column, [&](const T* x, int v) { return load_first<kCount>(x + v * kCount, there(v)); },
                    sums);
                for (int v = 0; v < kStep; ++v) sums[v] = where(lanes_between<V>(0, there(v)), sums[v], nothing);
                return in_phases(sums);
            };
            const auto windows = [&](const Columns<kStep>& before, const Columns<kStep>& here,
                                     const Columns<kStep>& next) {
                V sum = here.phases[0];
                if constexpr (kPadding == 1) {
                    sum = reduction.combine(shifted<kCount - 1>(before.phases[1], here.phases[1]), sum);
                }
                for (int i = 1; i < std::min(kTaps - kPadding, kStep); ++i) {
                    sum = reduction.combine(sum, here.phases[i]);
                }
                return looks_ahead ? reduction.combine(sum, shifted<1>(here.phases[0], next.phases[0])) : sum;
            };
            const Range share = share_of(row, row + 1);
            const int64_t prefetched = ceil_div(share.count, vectors);  // with each vector
            Columns<kStep> before = none, here = looks_ahead ? whole_columns(0) : none;
            int64_t vector = 0;
            const auto advance = [&](const auto& next_columns) {
                shares_.prefetch_next({share.begin + vector * prefetched, prefetched, 1});
                const Columns<kStep> next = next_columns((vector + looks_ahead) * step);
                if (!looks_ahead) here = next;
                store(target + vector * kCount, windows(before, here, next));
                before = here;
                here = next;
                ++vector;
            };
            const int64_t whole = std::min(vectors, columns / step - looks_ahead);
            while (vector < whole) advance(whole_columns);
            while (vector < vectors) advance(last_columns);
        }
    }

    // visit(how many vectors, as a type, where the first one begins): all vectors of so many accumulators, kMost at a
    // time. The last one may reach beyond them.
    template <int kMost = kMostVectors, class Visit>
    __attribute__((always_inline)) static void in_groups_of_vectors(int64_t size, const Visit& visit) {
        constexpr std::integral_constant<int, 1> one;
        constexpr std::integral_constant<int, std::min(kMost, 2)> two;
        constexpr std::integral_constant<int, kMost> many;
        int64_t i = 0;
        const auto visit_next = [&](auto count) {
            visit(count, i);
            i += count * kCount;
        };
        while (i + (kMost - 1) * kCount < size) visit_next(many);
        if (kMost > 1 && i + kCount < size) visit_next(two);
        if (i < size) visit_next(one);
    }

    // visit(how many vectors, as a type, the first one's place in phases, its output, their kinds): all vectors of
    // these outputs. Those of a kind begin with the same column.
    template <int kMost = kMostVectors, class Visit>
    __attribute__((always_inline)) void for_each_vector(int64_t begin, int64_t end, const Visit& visit) const {
        const int64_t pitch = pitch_, phases = result_phases_, line = is_one_run_ ? end - begin : outputs_;
        const int64_t places = ceil_div(line, phases);
        const int64_t kinds = ceil_div(pitch, vector_step_), step = is_one_run_ ? kCount / vector_step_ % kinds : 1;
        const auto next = [&](int64_t kind) { return kind + step >= kinds ? kind + step - kinds : kind + step; };
        for (int64_t first = begin; first < end; first += line) {
            const int64_t place = is_one_run_ ? first / phases : first / outputs_ * pitch;
            int64_t kind = is_one_run_ ? place % pitch / vector_step_ : 0;
            in_groups_of_vectors<kMost>(places, [&](auto count, int64_t i) {
                int64_t kinds_of_vectors[count];
                for (int v = 0; v < count; ++v) kinds_of_vectors[v] = std::exchange(kind, next(kind));
                visit(count, place + i, first + i * phases, kinds_of_vectors);
            });
        }
    }

    // put(output, what the windows from there on take along the row), for these outputs; where it goes on, added to
    // the sums so far.
    template <bool kGoesOn, class Put>
    void combine_along(int64_t begin, int64_t end, const Put& put) const {
        if constexpr (kGoesOn) {
            combine_phases<true, 1, 0>(begin, end, put);
        } else {
            if constexpr (has_result_phases<R>) {
                const auto combine = [&](auto phases) { combine_phases<false, phases, 0>(begin, end, put); };
                if (result_phases_ > 1) return with_number<2, kMostResultPhases>(result_phases_, combine);
            }
            with_known_taps(static_cast<int64_t>(sources_.size()),
                            [&](auto taps) { combine_phases<false, 1, taps>(begin, end, put); });
        }
    }

    // body(taps), as a type where most windows have so many, or 0.
    template <class Body>
    __attribute__((always_inline)) static void with_known_taps(int64_t taps, const Body& body) {
        if (taps == 2) return body(std::integral_constant<int, 2>());
        if (taps == 3) return body(std::integral_constant<int, 3>());
        if (taps == 5) return body(std::integral_constant<int, 5>());
        body(std::integral_constant<int, 0>());
    }

    // Adds what some vectors take of these of all taps, whose sources are given.
    template <int kVectors>
    __attribute__((always_inline)) void combine_taps_at(V (&sums)[kVectors], int64_t place,
                                                        const int64_t (&kinds)[kVectors],
                                                        const Accumulator* const* sources, int64_t taps, int64_t tap,
                                                        int64_t last) const {
        const Lanes* const lanes = lanes_.data();
        for (; tap < last; ++tap) {
            const Accumulator* const source = sources[tap] + place;
            for (int v = 0; v < kVectors; ++v) {
                const V taken = load<kCount>(source + v * kCount);
                sums[v] = where(lanes[kinds[v] * taps + tap], reduction_.combine(sums[v], taken), sums[v]);
            }
        }
    }

    template <bool kGoesOn, int kPhases, int kTaps, class Put>
    __attribute__((noinline)) void combine_phases(int64_t begin, int64_t end, const Put put) const {
        static_assert(kPhases == 1 || (!kGoesOn && kTaps == 0));
        const Accumulator* kept[kTaps + 1];  // in registers
        std::copy_n(sources_.begin(), kTaps, kept);
        const Accumulator* const* const sources = kTaps > 0 ? kept : sources_.data();
        const int64_t taps = kTaps > 0 ? kTaps : static_cast<int64_t>(sources_.size());
        int64_t begins[kPhases + 1] = {0};  // of each phase's taps
        for (int phase = 1; phase < kPhases; ++phase) begins[phase] = begins[phase - 1] + taps_of_phase_[phase - 1];
        begins[kPhases] = taps;
        constexpr int most = std::clamp(2 * kMostVectors / kPhases, 1, kMostVectors);  // sums stay in registers
        for_each_vector<most>(begin, end, [&](auto count, int64_t place, int64_t output, const auto& kinds) {
            V sums[kPhases][count];
            for_each_of<kPhases>([&](auto phase) {
                for (int v = 0; v < count; ++v) {
                    sums[phase][v] =
                        kGoesOn ? load<kCount>(sums_.data() + output + v * kCount) : filled<V>(reduction_.identity());
                }
                combine_taps_at(sums[phase], place, kinds, sources, taps, begins[phase], begins[phase + 1]);
            });
            for_each_of<count>([&](auto v) {
                V results[kPhases];
                for_each_of<kPhases>([&](auto phase) { results[phase] = sums[phase][v]; });
                interleave_runs(results);
                for_each_of<kPhases>([&](auto part) { put(output + (v * kPhases + part) * kCount, results[part]); });
            });
        });
    }

    const R& reduction_;
    const Call& call_;
    const int64_t columns_, outputs_;  // of a row
    const int64_t phases_, result_phases_;
    const int64_t pitch_, read_pitch_;             // from one row to the next, in phases and where rows are read into
    const bool elements_follow_, results_follow_;  // over rows as they do in phases
    const bool is_one_run_;                        // vectors go on from one row to the next
    const int64_t vector_step_;                    // they begin with columns that are multiples of it
    const bool prefetches_at_once_;                // what comes after all rows of a group, rather than after each
    const RowTaps rows_;
    const bool planes_are_one_run_;  // of one row each
    const bool is_vector_by_row_;    // each row takes one
    const bool is_direct_;           // see combine_directly()
    PlaneShares<T> shares_;
    Accumulator* read_[kMostPhases] = {};            // where rows are read into
    Accumulator* phase_begin_ = nullptr;             // of the first one
    int64_t phase_size_ = 0;                         // from one to the next
    int64_t taps_of_phase_[kMostResultPhases] = {};  // of the results
    std::vector<const Accumulator*> sources_;        // of taps along the row: what the first window takes
    std::vector<int64_t> tap_positions_;             // and the columns that this is at
    Buffer<Lanes> lanes_;  // by kind of vector and tap: which take it, none beyond the line's end
    Buffer<Accumulator> buffer_, whole_rows_, sums_;
};

// The rows of windows of a call, in groups that are done together: over planes where these follow each other in memory,
// otherwise of each plane by itself.
template <class R>
struct RowsOfWindows {
    const AlongRow along;
    const int64_t all;
    const int64_t in_plane;
    const int64_t together;
    const bool planes_follow, rows_follow, are_dense;  // in all results; rows in planes, and elements in rows

    explicit RowsOfWindows(const Call& call)
        : along(AlongRow::of_windows(call.geometry.axes[call.geometry.rank - 1])),
          all(count_rows(call, output_size)),
          in_plane(rows_of_plane(call.geometry, output_size)),
          together(rows_together<typename R::Element, typename R::Accumulator>(along, in_plane, all)),
          planes_follow(all_results(
              call, [&](const Operand& results) { return is_contiguous(call.geometry, results, output_size); })),
          rows_follow(all_results(
              call, [&](const Operand& results) { return has_dense_planes(call.geometry, results, output_size); })),
          are_dense(all_results(
              call, [&](const Operand& results) { return results.strides[1 + call.geometry.rank] == 1; })) {}

    // Whether the rows of a group follow each other.
    bool follow() const {
        return planes_follow || (together <= in_plane && rows_follow) || (together == 1 && are_dense);
    }

    struct Group {
        int64_t first, rows;
    };

    int64_t groups() const {
        return planes_follow ? ceil_div(all, together) : quotient(all, in_plane) * ceil_div(in_plane, together);
    }

    Group group(int64_t number) const {
        if (planes_follow) return {number * together, std::min(together, all - number * together)};
        const int64_t in_plane_groups = ceil_div(in_plane, together), plane = quotient(number, in_plane_groups);
        const int64_t row = (number - plane * in_plane_groups) * together;
        return {plane * in_plane + row, std::min(together, in_plane - row)};
    }

    // How many rows follow this group that are done after it, as groups before the one with number `end` are.
    int64_t room_behind(const Group& group, int64_t end) const {
        if (!rows_follow) return 0;
        const Group last = this->group(end - 1);
        const int64_t behind = group.first + group.rows, plane_end = (quotient(group.first, in_plane) + 1) * in_plane;
        return (planes_follow ? last.first + last.rows : std::min(last.first + last.rows, plane_end)) - behind;
    }

private:
    template <class Predicate>
    static bool all_results(const Call& call, const Predicate& predicate) {
        return (!call.y.data || predicate(call.y)) && (!call.indices.data || predicate(call.indices));
    }
};

inline bool has_empty_window(const std::vector<AxisTable>& tables) {
    return std::any_of(tables.begin(), tables.end(), [](const AxisTable& table) { return table.has_empty_window(); });
}

// The divisors of a plane's windows, repeated until there are so many, and as many more as a vector may reach beyond.
template <class A>
Buffer<A> repeated_divisors(const Geometry& geometry, const std::vector<AxisTable>& tables, int64_t size) {
    const int64_t plane = plane_size(geometry, output_size), outputs = tables.back().output;
    Buffer<A> divisors(std::max(plane, size) + kLanes<A>);
    const int64_t nothing[kMaxSpatialRank] = {};
    const auto fill_row = [&](const int64_t* outer, int64_t row, const int64_t (&)[1]) {
        const double factor = outer_factor(tables, outer);
        A* target = divisors.data() + row * outputs;
        for (int64_t o = 0; o < outputs; ++o) target[o] = static_cast<A>(factor * tables.back().factors[o]);
    };
    for_each_row_of_plane<1>(geometry, output_size, {nothing}, fill_row);
    for (size_t i = plane; i < divisors.size(); ++i) divisors[i] = divisors[i - plane];
    return divisors;
}

// Units are such groups of rows.
template <class R>
void forward_flat_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const std::vector<AxisTable> tables = axis_tables(call);
    const int64_t outputs = tables.back().output;
    const RowsOfWindows<R> windows(call);
    const int64_t plane_rows = windows.in_plane, together = windows.together;
    FlatRows<R, true> rows(reduction, call, tables, windows.along, together, true);

    const bool has_empty = has_empty_window(tables);
    Buffer<Accumulator> divisors;  // rows that are done together find theirs in one run
    if (R::kDivides || has_empty) {
        divisors =
            repeated_divisors<Accumulator>(geometry, tables, std::min(plane_rows + together, windows.all) * outputs);
    }

    const auto y_of = [&](int64_t row) {
        return row_of<T>(call.y, RowPosition(call, row, output_size), geometry.rank);
    };
    // What bypasses the caches had better be written once, and empty windows are filled afterwards; and as whole cache
    // lines: if the first group has none, others have none.
    bool streams = rows.is_one_run() && exceeds_caches<T>(call) && !has_empty && begin < end;
    if (streams) {
        const auto group = windows.group(begin);
        streams = are_whole_lines(y_of(group.first), group.rows * outputs);
    }
    for (int64_t unit = begin; unit < end; ++unit) {
        const auto group = windows.group(unit);
        const auto [first, count] = group;
        const Accumulator* own = !divisors.empty() ? divisors.data() + first % plane_rows * outputs : nullptr;
        T* const y = y_of(first);
        const int64_t room = windows.room_behind(group, end) * outputs;
        const Stores stores = !streams                              ? Stores::kPrefetching
                              : are_whole_lines(y, count * outputs) ? Stores::kStreaming
                                                                    : Stores::kPlain;
        const bool any_out_of_range = rows.compute(first, count, room, FinishEach<R>{reduction, y, own, stores});
        for (int64_t i = 0; has_empty && i < count * outputs; ++i) {
            if (own[i] == 0) y[i] = reduction.empty();
        }
        if constexpr (may_leave_range<R>) {
            for (int64_t i = 0; any_out_of_range && i < count * outputs; ++i) {
                if ((has_empty && own[i] == 0) || !rows.is_out_of_range(i)) continue;
                int64_t position = first * outputs + i;
                Range taps[kMaxSpatialRank];
                for (int a = geometry.rank - 1; a >= 0; --a) {
                    taps[a] = tables[a].taps[position % tables[a].output];
                    position /= tables[a].output;
                }
                const T* plane = plane_at<const T>(call.x, position / geometry.channels, position % geometry.channels);
                y[i] = rescaled_norm<T>(call, taps, plane);
            }
        }
    }
    finish_streaming(streams);
}
