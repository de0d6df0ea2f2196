// Part of kernels.inl: see there.
// Large windows: axes are reduced one after the other, and what windows along an axis have in common is combined once.
// Nothing is ever subtracted, and sums of many taps err less than one after the other.

// Whether axes are reduced one after the other, rather than all outer ones at once.
template <class R>
bool is_separable(const std::vector<AxisTable>& tables) {
    if (R::kInOrder || is_keyed<R>) return false;
    double taps = 1;
    for (size_t a = 0; a + 1 < tables.size(); ++a) {
        int64_t most = 0;
        for (const Range& range : tables[a].taps) most = std::max(most, range.count);
        taps *= static_cast<double>(most);
        if (tables[a].windows_share) return true;
    }
    return tables.size() > 2 && taps > 32;
}

// Windows that overlap a lot along an axis, in three combinations for each position whatever their size (van Herk,
// 1992; Gil and Werman, 1993): positions are divided into blocks as long as the longest window. No window reaches over
// more than two of them, and one that does is what its first block has from its first tap on and what its second block
// has up to its last tap. One that does not begins or ends where its block does: windows are as long as a block or, in
// gradients, shorter by one, but for those that the border cuts off.
template <class Combiner>
class OverlappingWindows {
public:
    using Accumulator = typename Combiner::Accumulator;

    // `identity` is the accumulator of no data.
    OverlappingWindows(const Combiner& combiner, Accumulator identity, const AxisTable& table)
        : combiner_(combiner), identity_(identity), step_(table.step) {
        for (int64_t output = 0; output < table.output; ++output) {
            const Range& taps = table.taps[output];
            if (taps.count == 0) {
                empty_.push_back(output);
                continue;
            }
            const int64_t begin = taps.begin / step_;
            windows_.push_back({taps.begin % step_, begin, begin + taps.count - 1, output});
            block_ = std::max(block_, taps.count);
        }
        std::stable_sort(windows_.begin(), windows_.end(), [](const Window& a, const Window& b) {
            return std::pair(a.first_position, a.last) < std::pair(b.first_position, b.last);
        });
        for (size_t i = 0; i < windows_.size();) {
            const int64_t first_position = windows_[i].first_position;
            const int64_t positions = ceil_div(table.input - first_position, step_);
            for (int64_t begin = 0; i < windows_.size() && windows_[i].first_position == first_position;) {
                const int64_t end = std::min(begin + block_, positions);
                const size_t first_window = i;
                while (i < windows_.size() && windows_[i].first_position == first_position && windows_[i].last < end)
                    ++i;
                blocks_.push_back({first_position, begin, end, first_window, i});
                begin = end;
            }
        }
    }

    // `run` accumulators at each position.
    template <class Take>
    void reduce(const typename Take::Source* source, int64_t source_step, const Take& take, Accumulator* target,
                int64_t target_step, int64_t run) {
        constexpr int64_t pair = 2 * kLanes<Accumulator>, cached = (1 << 17) / sizeof(Accumulator);
        for (int64_t output : empty_) std::fill_n(target + output * target_step, run, identity_);
        const int64_t strip = std::min(run, std::max<int64_t>(1, cached / (block_ * pair)) * pair);
        rows_.resize((strip + pair) * block_);
        for (int64_t begin = 0; begin < run; begin += strip) {
            for (const Block& block : blocks_) {
                Accumulator* rows = rows_.data();
                in_columns<kLanes<Accumulator>>(std::min(strip, run - begin), [&](int64_t i, auto count, auto vectors) {
                    reduce_column<count, vectors>(block, source + begin + i, source_step, take, rows,
                                                  target + begin + i, target_step);
                    rows += count * vectors * block_;
                });
            }
        }
    }

private:
    // Where taps are `step` apart, every step-th position has nothing to do with the others: first and last tap are
    // counted among those that first_position + i * step are.
    struct Window {
        int64_t first_position, begin, last, output;
    };
    struct Block {
        int64_t first_position, begin, end;
        size_t first_window, end_window;  // of those that end in it
    };

    // column(i, lanes, vectors) for pairs of vectors that cover 0 ... size - 1, or single and then smaller ones where
    // there is no room for a pair. The last two may overlap.
    template <int kCount, class Column>
    static void in_columns(int64_t size, const Column& column) {
        constexpr int smaller = kCount >= 16 ? kCount / 4 : kCount >= 8 ? kCount / 2 : 1;
        const auto cover = [&](auto vectors) {
            constexpr int64_t width = kCount * vectors;
            for (int64_t i = 0; i < size; i += width) {
                column(std::min(i, size - width), std::integral_constant<int, kCount>(), vectors);
            }
        };
        if constexpr (kCount == kLanes<Accumulator>) {
            if (size >= 2 * kCount) return cover(std::integral_constant<int, 2>());
        }
        if constexpr (kCount > 1) {
            if (size < kCount) return in_columns<smaller>(size, column);
        }
        cover(std::integral_constant<int, 1>());
    }

    // A block's part of a few vectors next to each other. Its rows, one for each position, hold what the block before
    // has from there on, and then what this block has.
    template <int kCount, int kVectors, class Take>
    void reduce_column(const Block& block, const typename Take::Source* x, int64_t x_step, const Take& take,
                       Accumulator* rows, Accumulator* target, int64_t target_step) const {
        using V = decltype(load<kCount>(rows));
        constexpr int64_t size = kCount * kVectors;
        const Window* const first_window = windows_.data() + block.first_window;
        const Window* const end_window = windows_.data() + block.end_window;
        const auto row = [&](int64_t i) { return rows + (i - block.begin) * size; };
        const auto put = [&](const Window& window, const V(&result)[kVectors]) {
            for (int v = 0; v < kVectors; ++v) store(target + window.output * target_step + v * kCount, result[v]);
        };
        const auto combine_row = [&](V(&sums)[kVectors], const Accumulator* other) {
            for (int v = 0; v < kVectors; ++v) sums[v] = combiner_.combine(load<kCount>(other + v * kCount), sums[v]);
        };

        V prefix[kVectors];
        for (V& sum : prefix) sum = filled<V>(identity_);
        bool any_inside = false;
        const Window* window = first_window;
        x += (block.first_position + block.begin * step_) * x_step;
        x_step *= step_;
        for (int64_t i = block.begin; i < block.end; ++i, x += x_step) {
            V element[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                element[v] = take(load<kCount>(x + v * kCount), 0);
                prefetch(x + v * kCount + block_ * x_step, 1);  // too far apart for processors to foresee
                prefix[v] = combiner_.combine(prefix[v], element[v]);
            }
            for (; window != end_window && window->last == i; ++window) {
                if (window->begin < block.begin) {
                    V sums[kVectors];
                    std::copy_n(prefix, kVectors, sums);
                    combine_row(sums, row(window->begin + block_));
                    put(*window, sums);
                } else if (window->begin == block.begin) {
                    put(*window, prefix);
                } else {
                    any_inside = true;
                }
            }
            for (int v = 0; v < kVectors; ++v) store(row(i) + v * kCount, element[v]);
        }

        V suffix[kVectors];
        for (V& sum : suffix) sum = filled<V>(identity_);
        for (int64_t i = block.end - 1; i > block.begin; --i) {
            combine_row(suffix, row(i));
            for (int v = 0; v < kVectors; ++v) store(row(i) + v * kCount, suffix[v]);
        }
        for (window = first_window; any_inside && window != end_window; ++window) {
            if (window->begin <= block.begin) continue;
            for (int v = 0; v < kVectors; ++v) suffix[v] = load<kCount>(row(window->begin) + v * kCount);
            put(*window, suffix);
        }
    }

    const Combiner& combiner_;
    const Accumulator identity_;
    const int64_t step_;
    int64_t block_ = 1;
    std::vector<Window> windows_;  // in the order in which they are complete
    std::vector<Block> blocks_;
    std::vector<int64_t> empty_;  // the other windows
    Buffer<Accumulator> rows_;
};

template <class R>
using WindowsOf = OverlappingWindows<std::decay_t<decltype(combiner_of(std::declval<const R&>()))>>;

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
            if (!tables[a].windows_share) continue;
            overlapping_[a].emplace(combiner_of(reduction), reduction.identity(), tables[a]);
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
    std::vector<std::optional<WindowsOf<R>>> overlapping_;
    Buffer<Accumulator> source_, target_, lifted_;
    std::vector<const Accumulator*> pieces_;
};
