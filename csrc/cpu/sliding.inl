// Part of kernels.inl: see there.
// Large windows: the reductions of 2, 4, 8, ... neighbouring taps are shared by all windows, each of which combines a
// few of them. Nothing is ever subtracted, and sums of many taps err less than one after the other.

// Whether sharing is worth it. The same for all reductions and layouts, since the order of additions depends on it.
inline bool slides(const Axis& axis) {
    if (axis.kernel < 8) return false;
    double taps = 0;
    for (int64_t output = 0; output < axis.output; ++output) {
        taps += static_cast<double>(data_taps(axis, output).count);
    }
    double shared = 0;
    for (int64_t size = 2; size <= std::min(axis.kernel, axis.input); size *= 2) shared += 1;
    return taps > 1.5 * (shared * static_cast<double>(axis.input) + 2 * static_cast<double>(axis.output));
}

// Level l of an axis holds at position i the reduction of the 2^l taps from i on.
inline int level_count(int64_t taps) {
    int levels = 1;
    while (taps >> levels) ++levels;
    return levels;
}

// A window's taps as few pieces: use(level, position) from left to right. Maxima may take a tap twice.
template <bool kMayOverlap, class Use>
inline void for_each_piece(const Range& taps, const Use& use) {
    int level = level_count(taps.count) - 1;
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

template <class A>
constexpr bool may_overlap(const Largest<A>*) {
    return true;
}
constexpr bool may_overlap(const void*) { return false; }
template <class R>
constexpr bool kMayOverlap = may_overlap(static_cast<const R*>(nullptr));

// Whether axes are reduced one after the other, rather than all outer ones at once.
inline bool is_separable(const Geometry& geometry) {
    double taps = 1;
    for (int a = 0; a + 1 < geometry.rank; ++a) {
        if (slides(geometry.axes[a])) return true;
        taps *= static_cast<double>(std::min(geometry.axes[a].kernel, geometry.axes[a].input));
    }
    return geometry.rank > 2 && taps > 32;
}

// All levels but the first, of `size` positions `dilation` apart with `run` accumulators each: level l follows level
// l - 1 after size * run accumulators.
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

// Sums, or maxima, over all spatial axes but the last: of one plane, or of some lanes.
template <class R>
class OuterReduction {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    OuterReduction(const R& reduction, const Geometry& geometry, const std::vector<AxisTable>& tables)
        : reduction_(reduction), geometry_(geometry), tables_(tables) {}

    // For all rows of the output, one after the other: a row of the input's width, `lanes` accumulators at each
    // position.
    const Accumulator* compute(const T* x, const int64_t* strides, int64_t lanes) {
        const int last = geometry_.rank - 1;
        const bool rows_are_runs = geometry_.axes[last].input == 1 || strides[last] == lanes;
        // The axes to be reduced, the runs along which nothing happens, and what lies around them.
        int64_t sizes[kMaxSpatialRank], dense[kMaxSpatialRank];
        for (int a = 0; a <= last; ++a) sizes[a] = geometry_.axes[a].input;
        for (int axis = 0; axis < last; ++axis) {
            int64_t size = lanes;
            for (int a = last; a >= 0; --a) {
                dense[a] = size;
                size *= a == axis ? geometry_.axes[a].output : sizes[a];
            }
            target_.resize(size);
            if (axis == 0) {
                // Around the first axis everything still lies as in x.
                const int runs_from = rows_are_runs ? last : last + 1;
                const int64_t run = rows_are_runs ? sizes[last] * lanes : lanes;
                Range around[kMaxSpatialRank];
                int64_t from[kMaxSpatialRank], to[kMaxSpatialRank];
                int rank = 0;
                for (int a = 1; a < runs_from; ++a) {
                    around[rank] = {0, sizes[a], 1};
                    from[rank] = strides[a];
                    to[rank++] = dense[a];
                }
                around[rank] = {0, 1, 1};
                from[rank] = to[rank] = 0;
                for_each_row<2>(around, rank + 1, {from, to}, [&](const int64_t (&offsets)[2], const int64_t*) {
                    reduce(axis, x + offsets[0], strides[0], Lift<R>{reduction_}, target_.data() + offsets[1], dense[0],
                           run);
                });
            } else {
                const int64_t outside = size / (dense[axis] * geometry_.axes[axis].output);
                for (int64_t i = 0; i < outside; ++i) {
                    reduce(axis, source_.data() + i * sizes[axis] * dense[axis], dense[axis], AsItIs<Accumulator>(),
                           target_.data() + i * geometry_.axes[axis].output * dense[axis], dense[axis], dense[axis]);
                }
            }
            sizes[axis] = geometry_.axes[axis].output;
            std::swap(source_, target_);
        }
        return source_.data();
    }

private:
    // Along one axis: `run` accumulators at every position, strip by strip.
    template <class Take>
    void reduce(int axis_index, const typename Take::Source* source, int64_t source_step, const Take& take,
                Accumulator* target, int64_t target_step, int64_t run) {
        const Axis& axis = geometry_.axes[axis_index];
        const std::vector<Range>& windows = tables_[axis_index].taps;
        const int64_t count = slides(axis) ? level_count(std::min(axis.kernel, axis.input)) : 1;
        constexpr int64_t strip = 128 / sizeof(Accumulator);
        levels_.resize(count * axis.input * strip);
        for (int64_t begin = 0; begin < run; begin += strip) {
            const int64_t size = std::min(strip, run - begin);
            for (int64_t i = 0; i < axis.input; ++i) {
                const auto* position = source + i * source_step + begin;
                combine_taps(combiner_of(reduction_), &position, 1, size, take,
                             Keep<Accumulator>{levels_.data() + i * size});
            }
            build_levels(combiner_of(reduction_), levels_.data(), count, axis.input, axis.dilation, size);
            for (int64_t output = 0; output < axis.output; ++output) {
                Accumulator* result = target + output * target_step + begin;
                if (windows[output].count == 0) {  // contributes nothing, and the window is empty
                    std::fill(result, result + size, reduction_.identity());
                    continue;
                }
                pieces_.clear();
                const auto piece = [&](int level, int64_t position) {
                    pieces_.push_back(levels_.data() + (level * axis.input + position) * size);
                };
                if (count > 1) {
                    for_each_piece<kMayOverlap<R>>(windows[output], piece);
                } else {
                    const Range& taps = windows[output];
                    for (int64_t i = 0; i < taps.count; ++i) piece(0, taps.begin + i * taps.step);
                }
                combine_taps(combiner_of(reduction_), pieces_.data(), static_cast<int64_t>(pieces_.size()), size,
                             AsItIs<Accumulator>(), Keep<Accumulator>{result});
            }
        }
    }

    const R& reduction_;
    const Geometry& geometry_;
    const std::vector<AxisTable>& tables_;
    std::vector<Accumulator> source_, target_, levels_;
    std::vector<const Accumulator*> pieces_;
};
