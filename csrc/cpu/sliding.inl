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

// Sums, or maxima, along the first spatial axes, one after the other: of one plane, or of some lanes.
template <class R>
class AxisByAxis {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    AxisByAxis(const R& reduction, const std::vector<AxisTable>& tables, int reduced_axes)
        : reduction_(reduction), tables_(tables), reduced_axes_(reduced_axes) {}

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
        const AxisTable& table = tables_[axis];
        constexpr int64_t strip = 128 / sizeof(Accumulator);
        levels_.resize(table.level_count * table.input * strip);
        for (int64_t begin = 0; begin < run; begin += strip) {
            const int64_t size = std::min(strip, run - begin);
            for (int64_t i = 0; i < table.input; ++i) {
                const auto* position = source + i * source_step + begin;
                combine_taps(combiner_of(reduction_), &position, 1, size, take,
                             Keep<Accumulator>{levels_.data() + i * size});
            }
            build_levels(combiner_of(reduction_), levels_.data(), table.level_count, table.input, table.step, size);
            for (int64_t output = 0; output < table.output; ++output) {
                Accumulator* result = target + output * target_step + begin;
                const Range& taps = table.taps[output];
                if (taps.count == 0) {
                    std::fill(result, result + size, reduction_.identity());
                    continue;
                }
                pieces_.clear();
                const auto piece = [&](int64_t level, int64_t position) {
                    pieces_.push_back(levels_.data() + (level * table.input + position) * size);
                };
                if (table.level_count > 1) {
                    for_each_piece<kMayOverlap<R>>(taps, piece);
                } else {
                    for (int64_t i = 0; i < taps.count; ++i) piece(0, taps.begin + i * taps.step);
                }
                combine_taps(combiner_of(reduction_), pieces_.data(), static_cast<int64_t>(pieces_.size()), size,
                             AsItIs<Accumulator>(), Keep<Accumulator>{result});
            }
        }
    }

    const R& reduction_;
    const std::vector<AxisTable>& tables_;
    const int reduced_axes_;
    Buffer<Accumulator> source_, target_, levels_;
    std::vector<const Accumulator*> pieces_;
};
