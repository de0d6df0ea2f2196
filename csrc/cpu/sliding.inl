// Part of kernels.inl: see there.
// Large windows: the reductions of 2, 4, 8, ... neighbouring taps are shared by all windows, each of which combines a
// few of them. Nothing is ever subtracted, and sums of many taps err less than one after the other.

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

// Whether axes are reduced one after the other, rather than all outer ones at once.
template <class R>
bool is_separable(const std::vector<AxisTable>& tables) {
    if (R::kInOrder || is_keyed<R>) return false;
    double taps = 1;
    for (size_t a = 0; a + 1 < tables.size(); ++a) {
        int64_t most = 0;
        for (const Range& range : tables[a].taps) most = std::max(most, range.count);
        taps *= static_cast<double>(most);
        if (tables[a].level_count > 1) return true;
    }
    return tables.size() > 2 && taps > 32;
}

// Level l holds at position i the reduction of the 2^l taps from i on, `dilation` apart. All levels but the first are
// built, of `size` positions with `run` accumulators each, one level after the other.
template <class Combiner>
void build_levels(const Combiner& combiner, typename Combiner::Accumulator* levels, int64_t count, int64_t size,
                  int64_t dilation, int64_t run) {
    constexpr int lanes = kLanes<typename Combiner::Accumulator>;
    for (int64_t level = 1; level < count; ++level) {
        const auto* below = levels + (level - 1) * size * run;
        auto* target = levels + level * size * run;
        const int64_t half = dilation << (level - 1);
        const int64_t positions = size - 2 * half + dilation;
        if (positions <= 0) return;
        in_vectors<lanes>(positions * run, [&](int64_t i, auto n) {
            store(target + i, combiner.combine(load<n>(below + i), load<n>(below + i + half * run)));
        });
    }
}

// Windows that overlap a lot along an axis, in three combinations for each position whatever their size (van Herk,
// 1992; Gil and Werman, 1993): positions are divided into blocks as long as the longest window. No window reaches over
// more than two of them, and one that does is what its first block has from its first tap on and what its second block
// has up to its last tap.
template <class R>
class OverlappingWindows {
public:
    using Accumulator = typename R::Accumulator;

    OverlappingWindows(const R& reduction, const AxisTable& table) : reduction_(reduction), table_(table) {
        const int64_t step = table.step;
        for (int64_t output = 0; output < table.output; ++output) {
            const Range& taps = table.taps[output];
            if (taps.count == 0) {
                empty_.push_back(output);
                continue;
            }
            const int64_t begin = taps.begin / step;
            windows_.push_back({taps.begin % step, begin, begin + taps.count - 1, output});
            block_ = std::max(block_, taps.count);
        }
        std::stable_sort(windows_.begin(), windows_.end(), [](const Window& a, const Window& b) {
            return std::pair(a.first_position, a.last) < std::pair(b.first_position, b.last);
        });
    }

    // `run` accumulators at each position, strip by strip: a block of each stays in the first-level cache.
    template <class Take>
    void reduce(const typename Take::Source* source, int64_t source_step, const Take& take, Accumulator* target,
                int64_t target_step, int64_t run) {
        constexpr int64_t cached = 32768 / sizeof(Accumulator), lanes = kLanes<Accumulator>;
        const int64_t strips = ceil_div(run, std::max(2 * lanes, cached / block_));
        const int64_t strip = ceil_div(ceil_div(run, strips), lanes) * lanes;
        rows_.resize(block_ * strip);
        prefixes_.resize(2 * strip);
        for (int64_t begin = 0; begin < run; begin += strip) {
            const int64_t size = std::min(strip, run - begin);
            for (int64_t output : empty_)
                std::fill_n(target + output * target_step + begin, size, reduction_.identity());
            NextWindow next = windows_.begin();
            while (next != windows_.end()) {
                next = reduce_positions(next, source + begin, source_step, take, target + begin, target_step, size);
            }
        }
    }

private:
    // Where taps are `step` apart, every step-th position has nothing to do with the others: first and last tap are
    // counted among those that first_position + i * step are.
    struct Window {
        int64_t first_position, begin, last, output;
    };
    using NextWindow = typename std::vector<Window>::const_iterator;

    // All windows over the positions that the next one's taps are among. Returns what comes after them.
    template <class Take>
    NextWindow reduce_positions(NextWindow next, const typename Take::Source* source, int64_t source_step,
                                const Take& take, Accumulator* target, int64_t target_step, int64_t size) {
        const auto& combiner = combiner_of(reduction_);
        const int64_t first_position = next->first_position;
        const int64_t count = ceil_div(table_.input - first_position, table_.step);
        const int64_t row_size = ceil_div(size, kLanes<Accumulator>) * kLanes<Accumulator>;
        const auto row = [&](int64_t i) { return rows_.data() + i * row_size; };
        const auto is_left = [&] { return next != windows_.end() && next->first_position == first_position; };
        source += first_position * source_step;
        source_step *= table_.step;
        for (int64_t begin = 0; begin < count && is_left(); begin += block_) {
            // Rows hold what the block before has from each position on, and then, one by one, what this block has at
            // each position.
            const int64_t end = std::min(begin + block_, count);
            const Accumulator* prefix = row(0);
            inside_.clear();
            for (int64_t i = begin; i < end; ++i) {
                const auto* x = source + i * source_step;
                if (i == begin) {
                    combine_taps(combiner, &x, 1, size, take, Keep<Accumulator>{row(0)});
                } else {
                    prefix = extend(prefix, x, take, row(i - begin), prefixes_.data() + i % 2 * row_size, size);
                }
                for (; is_left() && next->last == i; ++next) {
                    const Keep<Accumulator> result{target + next->output * target_step};
                    const Accumulator* parts[] = {prefix, nullptr};
                    if (next->begin > begin) {
                        inside_.push_back(*next);
                    } else if (next->begin == begin) {
                        combine_taps(combiner, parts, 1, size, AsItIs<Accumulator>(), result);
                    } else {
                        parts[1] = parts[0];
                        parts[0] = row(next->begin - begin + block_);
                        combine_taps(combiner, parts, 2, size, AsItIs<Accumulator>(), result);
                    }
                }
            }
            for (const Window& window : inside_) {
                if (window.last == end - 1) continue;
                pieces_.clear();
                for (int64_t i = window.begin; i <= window.last; ++i) pieces_.push_back(row(i - begin));
                combine_taps(combiner, pieces_.data(), static_cast<int64_t>(pieces_.size()), size,
                             AsItIs<Accumulator>(), Keep<Accumulator>{target + window.output * target_step});
            }
            for (int64_t i = end - begin - 2; i > 0; --i) {
                const Accumulator* parts[] = {row(i), row(i + 1)};
                combine_taps(combiner, parts, 2, row_size, AsItIs<Accumulator>(), Keep<Accumulator>{row(i)});
            }
            for (const Window& window : inside_) {
                if (window.last < end - 1) continue;
                std::copy_n(row(window.begin - begin), size, target + window.output * target_step);
            }
        }
        return next;
    }

    // The prefix that is one element longer, and that element.
    template <class Take>
    const Accumulator* extend(const Accumulator* prefix, const typename Take::Source* x, const Take& take,
                              Accumulator* element, Accumulator* longer, int64_t size) const {
        in_vectors<kLanes<Accumulator>>(size, [&](int64_t i, auto n) {
            const auto lifted = take(load<n>(x + i), 0);
            store(element + i, lifted);
            store(longer + i, combiner_of(reduction_).combine(load<n>(prefix + i), lifted));
        });
        return longer;
    }

    const R& reduction_;
    const AxisTable& table_;
    int64_t block_ = 1;
    std::vector<Window> windows_;  // in the order in which they are complete
    std::vector<int64_t> empty_;   // the others
    Buffer<Accumulator> rows_, prefixes_;
    std::vector<Window> inside_;  // a block, from its second position on or later
    std::vector<const Accumulator*> pieces_;
};

// Sums, or maxima, along the first spatial axes, one after the other: of one plane, or of some lanes.
template <class R>
class AxisByAxis {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    AxisByAxis(const R& reduction, const std::vector<AxisTable>& tables, int reduced_axes)
        : reduction_(reduction), tables_(tables), reduced_axes_(reduced_axes) {
        overlapping_.resize(reduced_axes);
        for (int a = 0; a < reduced_axes; ++a) {
            if (tables[a].level_count > 1) overlapping_[a].emplace(reduction, tables[a]);
        }
    }

    // Densely: `lanes` accumulators at each position.
    const Accumulator* compute(const T* x, const int64_t* strides, int64_t lanes) {
        const int last = static_cast<int>(tables_.size()) - 1;
        int64_t sizes[kMaxSpatialRank], dense[kMaxSpatialRank];
        for (int a = 0; a <= last; ++a) sizes[a] = tables_[a].input;
        for (int axis = 0; axis < reduced_axes_; ++axis) {
            int64_t size = lanes;
            for (int a = last; a >= 0; --a) {
                dense[a] = size;
                size *= a == axis ? tables_[a].output : sizes[a];
            }
            target_.resize(size);
            if (axis == 0) {
                // Around the first axis everything still lies as in x: in runs of whole rows, or of lanes.
                const bool whole_rows = last > 0 && (sizes[last] == 1 || strides[last] == lanes);
                Range around[kMaxSpatialRank];
                int64_t from[kMaxSpatialRank], to[kMaxSpatialRank];
                int rank = 0;
                for (int a = 1; a <= (whole_rows ? last - 1 : last); ++a) {
                    around[rank] = {0, sizes[a], 1};
                    from[rank] = strides[a];
                    to[rank++] = dense[a];
                }
                around[rank] = {0, 1, 1};
                from[rank] = to[rank] = 0;
                const int64_t run = whole_rows ? sizes[last] * lanes : lanes;
                for_each_row<2>(around, rank + 1, {from, to}, [&](const int64_t (&start)[2], const int64_t*) {
                    reduce(axis, x + start[0], strides[0], Lift<R>{reduction_}, target_.data() + start[1], dense[0],
                           run);
                });
            } else {
                const int64_t outside = size / (dense[axis] * tables_[axis].output);
                for (int64_t i = 0; i < outside; ++i) {
                    reduce(axis, source_.data() + i * sizes[axis] * dense[axis], dense[axis], AsItIs<Accumulator>(),
                           target_.data() + i * tables_[axis].output * dense[axis], dense[axis], dense[axis]);
                }
            }
            sizes[axis] = tables_[axis].output;
            std::swap(source_, target_);
        }
        return source_.data();
    }

private:
    // Along one axis: `run` accumulators at every position, strip by strip.
    template <class Take>
    void reduce(int axis, const typename Take::Source* source, int64_t source_step, const Take& take,
                Accumulator* target, int64_t target_step, int64_t run) {
        if (overlapping_[axis]) {
            return overlapping_[axis]->reduce(source, source_step, take, target, target_step, run);
        }
        const AxisTable& table = tables_[axis];
        constexpr int64_t strip = 128 / sizeof(Accumulator);
        lifted_.resize(table.input * strip);
        for (int64_t begin = 0; begin < run; begin += strip) {
            const int64_t size = std::min(strip, run - begin);
            for (int64_t i = 0; i < table.input; ++i) {
                const auto* position = source + i * source_step + begin;
                combine_taps(combiner_of(reduction_), &position, 1, size, take,
                             Keep<Accumulator>{lifted_.data() + i * size});
            }
            for (int64_t output = 0; output < table.output; ++output) {
                Accumulator* result = target + output * target_step + begin;
                const Range& taps = table.taps[output];
                if (taps.count == 0) {
                    std::fill(result, result + size, reduction_.identity());
                    continue;
                }
                pieces_.clear();
                for (int64_t i = 0; i < taps.count; ++i) {
                    pieces_.push_back(lifted_.data() + (taps.begin + i * taps.step) * size);
                }
                combine_taps(combiner_of(reduction_), pieces_.data(), taps.count, size, AsItIs<Accumulator>(),
                             Keep<Accumulator>{result});
            }
        }
    }

    const R& reduction_;
    const std::vector<AxisTable>& tables_;
    const int reduced_axes_;
    std::vector<std::optional<OverlappingWindows<R>>> overlapping_;
    Buffer<Accumulator> source_, target_, lifted_;
    std::vector<const Accumulator*> pieces_;
};
