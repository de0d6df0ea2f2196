// Part of kernels.inl: see there.
// Short rows: the rows of a window are combined in a few registers, and what the windows along the row take of these
// are permutations of them, of several rows at a time. Planes need not be transposed. For processors that permute the
// lanes of two registers at once.

constexpr int64_t kMostRegisters = 8;  // for the rows that are permuted together

template <class R>
class ShortRows {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // Elements of x along the last axis follow each other.
    ShortRows(const R& reduction, const Call& call, const std::vector<AxisTable>& tables)
        : reduction_(reduction),
          call_(call),
          outputs_(tables.back().output),
          registers_(ceil_div(tables.back().input, kCount)),
          prefetched_(elements_per_output_row(tables)),
          last_lanes_(first_lanes(tables.back().input - (registers_ - 1) * kCount)) {
        const int last = static_cast<int>(tables.size()) - 1;
        Range taps[kMaxSpatialRank];
        taps[last] = {0, 1, 1};
        const int64_t nothing[kMaxSpatialRank] = {};
        for_each_row_of_plane<1>(
            call.geometry, output_size, {nothing}, [&](const int64_t* outer, int64_t, const int64_t (&)[1]) {
                const auto begin = static_cast<int64_t>(taps_.size());
                for (int a = 0; a < last; ++a) taps[a] = tables[a].taps[outer[a]];
                for_each_row<1>(taps, last + 1, {call.x.strides + 2},
                                [&](const int64_t (&offsets)[1], const int64_t*) { taps_.push_back(offsets[0]); });
                plane_.push_back({begin, static_cast<int64_t>(taps_.size())});
                most_taps_ = std::max(most_taps_, plane_.back().end - begin);
            });
        // As many rows at a time as share permutations best. For a few rows, looking for that is not worth it.
        const int64_t worth_a_try = count_rows(call, output_size) / 256;
        for (int64_t rows = 1; rows == 1 || (rows <= worth_a_try && rows * registers_ <= kMostRegisters); rows *= 2) {
            Permutations candidate = permutations_for(tables.back().taps, rows);
            if (rows == 1 || candidate.all.size() * permutations_.rows < permutations_.all.size() * rows) {
                permutations_ = std::move(candidate);
            }
        }
    }

    // finish(i, accumulators) for the windows of `count` rows of the output, numbered through all planes, from `first`
    // on. Those of windows without data mean nothing. Whether any is out of the reduction's range.
    template <class Finish>
    bool compute(int64_t first, int64_t count, const Finish& finish) {
        const int64_t times = ceil_div(count, permutations_.rows), all = count * outputs_;
        const int64_t step = permutations_.rows * outputs_;
        const auto reach = static_cast<int64_t>(permutations_.ends.size()) * kCount;
        buffer_.resize(times * permutations_.rows * registers_ * kCount);
        sums_.resize(times * step + kCount);
        if constexpr (R::kInOrder) {
            std::fill(sums_.begin(), sums_.end(), reduction_.identity());
            for (int64_t tap = 0; tap < most_taps_; ++tap) {
                read(first, count, tap, tap + 1);
                combine_along<true>(0, times, Keep<Accumulator>{sums_.data()});
            }
            return finish_sums(reduction_, sums_.data(), all, finish);
        }
        read(first, count, 0, most_taps_);
        if constexpr (may_leave_range<R>) {
            combine_along<false>(0, times, Keep<Accumulator>{sums_.data()});
            return finish_sums(reduction_, sums_.data(), all, finish);
        }
        // Vectors reach beyond their rows: the last ones make a detour.
        const int64_t direct = all < reach ? 0 : (all - reach) / step + 1;
        combine_along<false>(0, direct, finish);
        combine_along<false>(direct, times, Keep<Accumulator>{sums_.data()});
        return finish_sums(reduction_, sums_.data() + direct * step, all - direct * step,
                           [&](int64_t i, auto sums) { finish(direct * step + i, sums); });
    }

    // After a call of compute() that found some out of range: whether this one is.
    bool is_out_of_range(int64_t i) const { return reduction_.out_of_range(sums_[i]); }

private:
    static constexpr int kCount = kLanes<Accumulator>;
    using V = Vector<Accumulator, kCount>;
    using Lane = number_t<bits_t<V>>;

    struct Taps {
        int64_t begin, end;
    };

    // What a vector of windows takes in one go: from two registers that follow each other, lane by lane.
    struct Permutation {
        Lane from[kCount];  // for lanes that take nothing, the accumulator of no data
        int64_t first, second;
        LaneMask lanes;
    };

    // Those of some rows, for vectors of windows that go on from one row to the next.
    struct Permutations {
        int64_t rows = 0;
        std::vector<Permutation> all;
        std::vector<int64_t> ends;  // of each vector's
    };

    Permutations permutations_for(const std::vector<Range>& windows, int64_t rows) const {
        Permutations permutations{rows, {}, {}};
        for (int64_t begin = 0; begin < rows * outputs_; begin += kCount) {
            const int64_t count = std::min<int64_t>(kCount, rows * outputs_ - begin);
            LaneMask missing = first_lanes(count);
            for (int64_t tap = 0;; ++tap) {
                int64_t places[kCount];  // where lanes find this tap in the registers
                for (int64_t i = 0; i < count; ++i) {
                    const Range& window = windows[(begin + i) % outputs_];
                    places[i] = (begin + i) / outputs_ * registers_ * kCount + window.begin + tap * window.step;
                    if (tap >= window.count) missing &= ~(LaneMask{1} << i);
                }
                if (!missing) break;
                for (LaneMask left = missing; left;) {
                    int64_t first = std::numeric_limits<int64_t>::max();
                    for (int64_t i = 0; i < count; ++i) {
                        if (left >> i & 1) first = std::min(first, places[i] / kCount * kCount);
                    }
                    Permutation permutation{{}, first, std::min(first + kCount, (rows * registers_ - 1) * kCount), 0};
                    for (int64_t i = 0; i < kCount; ++i) {
                        const bool taken = left >> i & 1 && places[i] < first + 2 * kCount;
                        permutation.lanes |= LaneMask{taken} << i;
                        permutation.from[i] =
                            taken ? static_cast<Lane>(places[i] - first) : bits_of(reduction_.identity());
                    }
                    left &= ~permutation.lanes;
                    permutations.all.push_back(permutation);
                }
            }
            permutations.ends.push_back(static_cast<int64_t>(permutations.all.size()));
        }
        return permutations;
    }

    // Into the buffer, each row of windows: the rows of these taps of it, combined.
    void read(int64_t first, int64_t count, int64_t begin, int64_t end) {
        const auto plane_rows = static_cast<int64_t>(plane_.size());
        Accumulator* target = buffer_.data();
        int64_t plane = first / plane_rows, row = first % plane_rows;
        while (count > 0) {
            const int64_t rows = std::min(plane_rows - row, count);
            const T* x = plane_at<const T>(call_.x, plane / call_.geometry.channels, plane % call_.geometry.channels);
            if (registers_ == 1) {
                read_plane<true>(x, plane_.data() + row, rows, begin, end, target);
            } else {
                read_plane<false>(x, plane_.data() + row, rows, begin, end, target);
            }
            target += rows * registers_ * kCount;
            count -= rows;
            ++plane;
            row = 0;
        }
    }

    // This loop and the next one are functions of their own: inlined, they run out of registers for addresses.
    template <bool kOneRegister>
    __attribute__((noinline)) void read_plane(const T* plane, const Taps* row, int64_t rows, int64_t begin, int64_t end,
                                              Accumulator* target) const {
        const int64_t full = kOneRegister ? 0 : (registers_ - 1) * kCount;
        const LaneMask rest = last_lanes_;
        const int64_t* const taps = taps_.data();
        for (; rows > 0; --rows, ++row) {
            const int64_t* const first = taps + row->begin + begin;
            const int64_t* const last = taps + (R::kInOrder ? std::min(row->begin + end, row->end) : row->end);
            if (first < last) prefetch_ahead(plane + *first, prefetched_);
            for (int64_t i = 0; i < full; i += kCount) {
                store(target, combined(first, last, [&](int64_t tap) { return load<kCount>(plane + tap + i); }));
                target += kCount;
            }
            store(target,
                  combined(first, last, [&](int64_t tap) { return load_lanes<kCount>(plane + tap + full, rest); }));
            target += kCount;
        }
    }

    template <class Load>
    V combined(const int64_t* tap, const int64_t* end, const Load& load_tap) const {
        if (tap >= end) return filled<V>(reduction_.identity());
        V sum = reduction_.lift(load_tap(*tap));
        while (++tap < end) sum = reduction_.combine(sum, V(reduction_.lift(load_tap(*tap))));
        return sum;
    }

    // put(output, what the windows from there on take along the row), for these groups of rows; where it goes on, added
    // to the sums so far.
    template <bool kGoesOn, class Put>
    __attribute__((noinline)) void combine_along(int64_t begin, int64_t end, const Put& put) const {
        const int64_t registers_step = permutations_.rows * registers_ * kCount;
        const Permutation* const all = permutations_.all.data();
        const int64_t *const ends = permutations_.ends.data(), *const last_end = ends + permutations_.ends.size();
        for (int64_t group = begin; group < end; ++group) {
            const Accumulator* registers = buffer_.data() + group * registers_step;
            int64_t output = group * permutations_.rows * outputs_;
            const Permutation* permutation = all;
            for (const int64_t* vector_end = ends; vector_end != last_end; ++vector_end, output += kCount) {
                V sum = kGoesOn ? load<kCount>(sums_.data() + output) : filled<V>(reduction_.identity());
                for (; permutation != all + *vector_end; ++permutation) {
                    const V taken = permuted(load<kCount>(registers + permutation->first),
                                             load<kCount>(registers + permutation->second),
                                             load<kCount>(permutation->from), permutation->lanes);
                    sum = reduction_.combine(sum, taken);
                }
                put(output, sum);
            }
        }
    }

    const R& reduction_;
    const Call& call_;
    const int64_t outputs_;
    const int64_t registers_;  // of a row
    const int64_t prefetched_;
    const LaneMask last_lanes_;
    int64_t most_taps_ = 0;
    std::vector<int64_t> taps_;  // offsets of the rows that are combined, one row of windows after the other
    std::vector<Taps> plane_;    // which of them belong to each row of windows
    Permutations permutations_;
    Buffer<Accumulator> buffer_, sums_;
};

// Maxima of bytes in 16 bits: bytes cannot be permuted across registers.
template <class T>
struct WideMax : Largest<int16_t> {
    using Element = T;

    explicit WideMax(const Parameters&) {}

    template <class V>
    auto lift(V x) const {
        return convert<int16_t>(x);
    }
    template <class V>
    auto finish(V maximum) const {
        return convert<T>(maximum);
    }
    T empty() const { return lowest_finite<T>(); }
};

template <class R>
struct InRegisters {
    using type = R;
};
template <class T>
struct InRegisters<Max<T>> {
    using type = std::conditional_t<std::is_integral_v<T>, WideMax<T>, Max<T>>;
};

// How many rows of the output are done together: they stay in the first-level cache.
template <class R>
int64_t rows_together(const Call& call) {
    const Axis& axis = call.geometry.axes[call.geometry.rank - 1];
    constexpr int64_t lanes = kLanes<typename R::Accumulator>, registers = 128;
    return std::max<int64_t>(8, registers / ceil_div(std::max(axis.input, axis.output), lanes));
}

// Units are such groups of rows.
template <class R>
void forward_short_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const std::vector<AxisTable> tables = axis_tables(call);
    ShortRows<R> rows(reduction, call, tables);

    const int64_t together = rows_together<R>(call), outputs = tables.back().output;
    const int64_t planes = geometry.batch * geometry.channels, all_rows = count_rows(call, output_size);
    const int64_t plane_rows = all_rows / std::max<int64_t>(1, planes);
    const bool has_empty =
        std::any_of(tables.begin(), tables.end(), [](const AxisTable& table) { return table.has_empty_window(); });
    // Those of a plane, and again until rows that are done together find theirs in one run.
    const bool any_divisors = R::kDivides || has_empty;
    const int64_t size = any_divisors ? std::min(plane_rows + together, all_rows) * outputs : 0;
    Buffer<Accumulator> divisors(size + kLanes<Accumulator>);
    const int64_t nothing[kMaxSpatialRank] = {};
    const auto fill_row = [&](const int64_t* outer, int64_t row, const int64_t (&)[1]) {
        const double factor = outer_factor(tables, outer);
        Accumulator* target = divisors.data() + row * outputs;
        for (int64_t o = 0; o < outputs; ++o) target[o] = static_cast<Accumulator>(factor * tables.back().factors[o]);
    };
    if (any_divisors) for_each_row_of_plane<1>(geometry, output_size, {nothing}, fill_row);
    const int64_t plane_size = plane_rows * outputs;
    for (int64_t i = plane_size; i < size; ++i) divisors[i] = divisors[i - plane_size];

    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t first = unit * together, count = std::min(together, all_rows - first);
        const Accumulator* own = any_divisors ? divisors.data() + first % plane_rows * outputs : nullptr;
        T* y = static_cast<T*>(call.y.data) + first * outputs;
        const bool any_out_of_range = rows.compute(first, count, FinishEach<R>{reduction, y, own});
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
}
