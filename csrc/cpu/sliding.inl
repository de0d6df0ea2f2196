// Part of kernels.inl: see there.
// Large windows: axes are reduced one after the other, and what windows along an axis have in common is combined once.
// Nothing is ever subtracted, and sums of many taps err less than one after the other.

inline int64_t most_taps(const AxisTable& table) {
    int64_t most = 0;
    for (const Range& taps : table.taps) most = std::max(most, taps.count);
    return most;
}

// Whether axes are reduced one after the other, rather than all outer ones at once.
template <class R>
bool is_separable(const std::vector<AxisTable>& tables) {
    if (R::kInOrder) return false;
    double taps = 1;
    for (size_t a = 0; a + 1 < tables.size(); ++a) {
        taps *= static_cast<double>(most_taps(tables[a]));
        if (tables[a].windows_share) return true;
    }
    return tables.size() > 2 && taps > 32;
}

// Whether the first axis of a large plane, with this many lanes of accumulators, is reduced block by block (see below),
// so that what is made of a block is looked at while it is in the caches, the last ones at least. Where taps are apart,
// windows that follow each other are not complete with the same block.
template <class A>
bool is_reduced_by_blocks(const std::vector<AxisTable>& tables, int64_t lanes) {
    const int64_t large = 64 * ONNXPOOL_SEGMENT;
    constexpr int64_t most = (1 << 24) / sizeof(A);
    const AxisTable& axis = tables[0];
    int64_t slice = lanes;  // accumulators at each position
    for (size_t a = 1; a < tables.size(); ++a) slice *= tables[a].input;
    return axis.windows_share && axis.step == 1 && slice * axis.output > large && 2 * most_taps(axis) * slice <= most;
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
            if (taps.count == 0) continue;
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

    // put(output, i, results) for `run` accumulators at each position, and all windows that have data.
    template <class Take, class Put>
    void reduce(const typename Take::Source* source, int64_t source_step, const Take& take, int64_t run,
                const Put& put) {
        constexpr int64_t pair = 2 * kLanes<Accumulator>, cached = (1 << 17) / sizeof(Accumulator);
        const int64_t strip = std::min(run, std::max<int64_t>(1, cached / (block_ * pair)) * pair);
        rows_.resize(room(strip));
        for (int64_t begin = 0; begin < run; begin += strip) {
            const auto put_strip = [&](int64_t output, int64_t i, auto results) { put(output, begin + i, results); };
            for (const Block& block : blocks_) {
                reduce_block(block, source + begin, source_step, block_ * step_ * source_step, take,
                             std::min(strip, run - begin), rows_.data(), put_strip);
            }
        }
    }

    int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
    int64_t block_size() const { return block_; }  // of the longest

    // The positions of a block, the first and the one behind the last.
    std::pair<int64_t, int64_t> block(int64_t number) const { return {blocks_[number].begin, blocks_[number].end}; }

    // The window behind those that are complete with a block.
    int64_t windows_end(int64_t number) const {
        const size_t end = blocks_[number].end_window;
        return end == 0 ? 0 : windows_[end - 1].output + 1;
    }

    // Reduces a block's part of one of the runs of a slice, which begins at `place` of it. The block before has been
    // done for all runs, if only for what windows of this one have of it: then nothing is put. What lies `ahead` is
    // prefetched.
    template <class Take, class Put>
    void reduce_run(int64_t number, int64_t place, const typename Take::Source* source, int64_t source_step,
                    int64_t ahead, const Take& take, int64_t run, bool puts, const Put& put) {
        const int64_t begin = room(run) * quotient(place, run);
        rows_.resize(std::max<size_t>(rows_.size(), begin + room(run)));
        Block block = blocks_[number];
        if (!puts) block.first_window = block.end_window;
        reduce_block(block, source, source_step, ahead, take, run, rows_.data() + begin, put);
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

    // Vectors that are reduced at a time: along the axis, each accumulator depends on the one before.
    static constexpr int kMostVectors = 4;

    // column(i, lanes, vectors) for vectors that cover 0 ... size - 1, as many at a time as there is room for; or for a
    // smaller one. The last ones may overlap.
    template <int kCount, int kVectors = kMostVectors, class Column>
    static void in_columns(int64_t size, const Column& column) {
        constexpr int64_t width = kCount * kVectors;
        if (size < width) {
            if constexpr (kVectors > 1) {
                return in_columns<kCount, kVectors / 2>(size, column);
            } else if constexpr (kCount > 1) {
                return in_columns<(kCount >= 16 ? kCount / 4 : kCount >= 8 ? kCount / 2 : 1), 1>(size, column);
            }
        }
        int64_t i = 0;
        for (; i + width <= size; i += width) {
            column(i, std::integral_constant<int, kCount>(), std::integral_constant<int, kVectors>());
        }
        if (i < size) in_last_columns<kCount, kVectors>(size, size - i, column);
    }

    template <int kCount, int kVectors, class Column>
    static void in_last_columns(int64_t size, int64_t rest, const Column& column) {
        if constexpr (kVectors > 1) {
            if (2 * rest <= kCount * kVectors) return in_last_columns<kCount, kVectors / 2>(size, rest, column);
        }
        column(size - kCount * kVectors, std::integral_constant<int, kCount>(),
               std::integral_constant<int, kVectors>());
    }

    // Accumulators for the rows of a block.
    int64_t room(int64_t run) const {
        constexpr int64_t vector = kLanes<Accumulator>;
        int64_t width = vector;
        while (width < kMostVectors * vector && run >= 2 * width) width *= 2;
        return ceil_div(run, width) * width * block_;
    }

    // What lies `ahead` is prefetched: positions are too far apart for the hardware prefetcher.
    template <class Take, class Put>
    void reduce_block(const Block& block, const typename Take::Source* source, int64_t source_step, int64_t ahead,
                      const Take& take, int64_t run, Accumulator* rows, const Put& put) {
        in_columns<kLanes<Accumulator>>(run, [&](int64_t i, auto count, auto vectors) {
            reduce_column<count, vectors>(
                block, source + i, source_step, ahead, take, rows,
                [&](int64_t output, int v, auto results) { put(output, i + v * count, results); });
            rows += count * vectors * block_;
        });
    }

    // Reduces a block's part of a few vectors next to each other. Its rows, one for each position, hold what the block
    // before has from there on, and then what this block has.
    template <int kCount, int kVectors, class Take, class Put>
    void reduce_column(const Block& block, const typename Take::Source* x, int64_t x_step, int64_t ahead,
                       const Take& take, Accumulator* rows, const Put& put_vector) const {
        using V = decltype(load<kCount>(rows));
        constexpr int64_t size = kCount * kVectors;
        const Window* const first_window = windows_.data() + block.first_window;
        const Window* const end_window = windows_.data() + block.end_window;
        const auto row = [&](int64_t i) { return rows + (i - block.begin) * size; };
        const auto put = [&](const Window& window, const V(&result)[kVectors]) {
            for (int v = 0; v < kVectors; ++v) put_vector(window.output, v, result[v]);
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
                prefetch(x + v * kCount + ahead, 1);
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
    Buffer<Accumulator> rows_;
};

template <class R>
using WindowsOf = OverlappingWindows<CombinerOf<R>>;

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
            if (a > 0) rows_apart_ *= tables[a].output;
            if (!tables[a].windows_share) continue;
            overlapping_[a].emplace(combiner_of(reduction), reduction.identity(), tables[a]);
        }
    }

    // The plane, or its lanes, whose rows are computed next.
    void set_plane(const int64_t* strides, int64_t lanes) {
        const int last = static_cast<int>(tables_.size()) - 1;
        strides_ = strides;
        lanes_ = lanes;
        has_whole_rows_ = tables_[last].input == 1 || strides[last] == lanes;
        row_pitch_ = tables_[last].input * lanes;
        if (reduced_axes_ == 1) {  // an odd number of lines: different places in the first cache
            constexpr int64_t line = 64 / sizeof(Accumulator);
            row_pitch_ = (ceil_div(row_pitch_, line) | 1) * line;
        }
        blocks_ = is_reduced_by_blocks<Accumulator>(tables_, lanes) ? overlapping_[0]->blocks() : 0;
        block_ = -1;
        begin_ = end_ = 0;
    }

    // What a row of windows, the row_index-th of the plane, is made of: `lanes` accumulators at each position. Those
    // before and after it are there as well, as many as stay in the caches. The plane lies at data(begin, end), which
    // is called when its elements between these positions of the first axis are looked at.
    template <class Data>
    const Accumulator* row(int64_t row_index, const Data& data) {
        const int64_t window = row_index / rows_apart_;
        if (window < begin_ || window >= end_) compute(window, data);
        return source_.data() + (row_index - begin_ * rows_apart_) * row_pitch_;
    }

    // The most positions of the first axis that are looked at together, for so many lanes.
    int64_t positions_together(int64_t lanes) const {
        return is_reduced_by_blocks<Accumulator>(tables_, lanes) ? overlapping_[0]->block_size() : tables_[0].input;
    }

private:
    int64_t windows_end(int64_t block) const {
        return block + 1 < blocks_ ? overlapping_[0]->windows_end(block) : tables_[0].output;
    }

    int64_t block_of(int64_t window) const {
        int64_t block = window >= begin_ ? std::max<int64_t>(block_, 0) : 0;
        while (window >= windows_end(block)) ++block;
        return block;
    }

    // Whatever row() is given: it is called so seldom that the functions below need not be made for each.
    using AnyData = std::function<const T*(int64_t begin, int64_t end)>;

    // The windows of the first axis that this one is complete with.
    void compute(int64_t window, const AnyData& data) {
        const int64_t block = blocks_ > 0 ? block_of(window) : 0;
        begin_ = block > 0 ? windows_end(block - 1) : 0;
        end_ = blocks_ > 0 ? windows_end(block) : tables_[0].output;
        const int last = static_cast<int>(tables_.size()) - 1;
        int64_t sizes[kMaxSpatialRank], dense[kMaxSpatialRank];
        for (int a = 0; a <= last; ++a) sizes[a] = tables_[a].input;
        for (int axis = 0; axis < reduced_axes_; ++axis) {
            const int64_t outputs = axis == 0 ? end_ - begin_ : tables_[axis].output;
            int64_t size = lanes_;
            for (int a = last; a >= 0; --a) {
                dense[a] = size;
                size *= a == axis ? outputs : sizes[a];
            }
            if (reduced_axes_ == 1) {
                dense[0] = row_pitch_;
                size = outputs * row_pitch_;
            }
            target_.clear();  // nothing has to be kept
            target_.resize(size);
            if (axis == 0) {
                reduce_first(block, sizes, dense, data);
            } else {
                const int64_t outside = size / (dense[axis] * outputs);
                for (int64_t i = 0; i < outside; ++i) {
                    reduce(axis, source_.data() + i * sizes[axis] * dense[axis], dense[axis], AsItIs<Accumulator>(),
                           target_.data() + i * outputs * dense[axis], dense[axis], dense[axis]);
                }
            }
            sizes[axis] = outputs;
            std::swap(source_, target_);
        }
        block_ = block;
    }

    void reduce_first(int64_t block, const int64_t* sizes, const int64_t* dense, const AnyData& data) {
        constexpr int64_t vectors_ahead = 8;
        const int last = static_cast<int>(tables_.size()) - 1;
        // Around the first axis everything still lies as in x: in runs of whole rows, or of lanes.
        Range around[kMaxSpatialRank];
        int64_t from[kMaxSpatialRank], to[kMaxSpatialRank];
        int rank = 0;
        for (int a = 1; a <= (has_whole_rows_ ? last - 1 : last); ++a) {
            around[rank] = {0, sizes[a], 1};
            from[rank] = strides_[a];
            to[rank++] = dense[a];
        }
        around[rank] = {0, 1, 1};
        from[rank] = to[rank] = 0;
        const int64_t run = has_whole_rows_ ? sizes[last] * lanes_ : lanes_;
        const int64_t ahead = vectors_ahead * kLanes<Accumulator>;
        const int64_t elements_ahead = has_whole_rows_ ? ahead : ceil_div(ahead, run) * strides_[last];
        const auto for_each_run = [&](const T* x, const auto& visit) {
            for_each_row<2>(around, rank + 1, {from, to}, [&](const int64_t (&start)[2], const int64_t*) {
                visit(x + start[0], start[1], target_.data() + start[1]);
            });
        };
        const Lift<R> lift{reduction_};
        if (blocks_ == 0) {
            return for_each_run(data(0, tables_[0].input), [&](const T* x, int64_t, Accumulator* target) {
                reduce(0, x, strides_[0], lift, target, dense[0], run);
            });
        }
        const auto reduce_block = [&](int64_t number, bool puts) {
            const auto [begin, end] = overlapping_[0]->block(number);
            for_each_run(data(begin, end), [&](const T* x, int64_t place, Accumulator* target) {
                overlapping_[0]->reduce_run(number, place, x, strides_[0], elements_ahead, lift, run, puts,
                                            KeepParts<Accumulator>{target, dense[0], begin_});
            });
        };
        fill_empty(0, begin_, end_, dense[0], target_.data(), dense[0]);
        if (block > 0 && block_ + 1 != block) reduce_block(block - 1, false);
        reduce_block(block, true);
    }

    // Fills in the windows begin ... end - 1 that have no data.
    void fill_empty(int axis, int64_t begin, int64_t end, int64_t run, Accumulator* target, int64_t target_step) const {
        for (int64_t output = begin; output < end; ++output, target += target_step) {
            if (tables_[axis].taps[output].count == 0) std::fill_n(target, run, reduction_.identity());
        }
    }

    // Reduces along one axis: `run` accumulators at every position, strip by strip.
    template <class Take>
    void reduce(int axis, const typename Take::Source* source, int64_t source_step, const Take& take,
                Accumulator* target, int64_t target_step, int64_t run) {
        const AxisTable& table = tables_[axis];
        fill_empty(axis, 0, table.output, run, target, target_step);
        if (overlapping_[axis]) {
            return overlapping_[axis]->reduce(source, source_step, take, run,
                                              KeepParts<Accumulator>{target, target_step});
        }
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
                if (taps.count == 0) continue;
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
    int64_t rows_apart_ = 1;  // of windows that follow each other along the first axis

    const int64_t* strides_ = nullptr;
    int64_t lanes_ = 0;
    int64_t row_pitch_ = 0;            // from one row to the next
    bool has_whole_rows_ = false;      // that follow each other in memory
    int64_t blocks_ = 0, block_ = -1;  // of the first axis, where they are done one by one; the last one that was
    int64_t begin_ = 0, end_ = 0;      // the windows of the first axis that are there
    Buffer<Accumulator> source_, target_, lifted_;
    std::vector<const Accumulator*> pieces_;
};

// The same for keys. Those of elements are made first, since only whole ones know where they are.
template <class R>
class KeysByAxis {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // Positions are counted with these strides.
    KeysByAxis(const R& reduction, const std::vector<AxisTable>& tables, int reduced_axes,
               const int64_t* position_strides)
        : reduction_(reduction),
          tables_(tables),
          last_(static_cast<int>(tables.size()) - 1),
          position_strides_(position_strides),
          keys_by_axis_(largest_, tables, reduced_axes) {}

    KeysByAxis(const KeysByAxis&) = delete;  // refers to itself

    // As in AxisByAxis.
    void set_plane(const int64_t* strides, int64_t lanes) {
        strides_ = strides;
        lanes_ = lanes;
        dense_[last_] = lanes;
        for (int a = last_; a > 0; --a) dense_[a - 1] = dense_[a] * tables_[a].input;
        keys_.resize(std::max<size_t>(keys_.size(), positions_together(lanes) * dense_[0]));
        keys_by_axis_.set_plane(dense_, lanes);
    }

    template <class Data>
    const Accumulator* row(int64_t row_index, const Data& data) {
        return keys_by_axis_.row(row_index, [&](int64_t begin, int64_t end) {
            Accumulator* const plane = keys_.data() - begin * dense_[0];
            lift(data(begin, end), {begin, end - begin, 1}, plane);
            return plane;
        });
    }

    int64_t positions_together(int64_t lanes) const { return keys_by_axis_.positions_together(lanes); }

private:
    void lift(const T* plane, const Range& slices, Accumulator* keys) const {
        Range all[kMaxSpatialRank];
        for (int a = 0; a < last_; ++a) all[a] = a == 0 ? slices : Range{0, tables_[a].input, 1};
        all[last_] = {0, 1, 1};
        const int64_t columns = tables_[last_].input;
        for_each_row<3>(all, last_ + 1, {strides_, dense_, position_strides_},
                        [&](const int64_t (&offsets)[3], const int64_t*) {
                            const T* x = plane + offsets[0];
                            Accumulator* target = keys + offsets[1];
                            if (lanes_ == 1 && strides_[last_] == 1) return lift_row(x, columns, offsets[2], 1, target);
                            for (int64_t column = 0; column < columns; ++column) {
                                lift_row(x, lanes_, offsets[2] + column, 0, target);
                                x += strides_[last_];
                                target += lanes_;
                            }
                        });
    }

    // Neighbours in memory, at positions that are one step apart, or none.
    void lift_row(const T* x, int64_t size, int64_t position, int64_t step, Accumulator* target) const {
        prefetch_ahead(x, size);
        in_vectors<kLanes<Accumulator>>(size, [&](int64_t i, auto n) {
            const auto key = reduction_.lift(load<n>(x + i));
            store(target + i, reduction_.moved(key, columns_from<R>(position + step * i, step, key)));
        });
    }

    const R& reduction_;
    const std::vector<AxisTable>& tables_;
    const int last_;
    const int64_t* const position_strides_;
    const LargestKey<Accumulator> largest_{};
    AxisByAxis<LargestKey<Accumulator>> keys_by_axis_;

    const int64_t* strides_ = nullptr;
    int64_t lanes_ = 0;
    int64_t dense_[kMaxSpatialRank];
    Buffer<Accumulator> keys_;
};

// What reduces all axes but the last one, or none.
template <class R>
auto outer_axes(const R& reduction, const std::vector<AxisTable>& tables, bool are_reduced,
                [[maybe_unused]] const int64_t* position_strides) {
    const int reduced_axes = are_reduced ? static_cast<int>(tables.size()) - 1 : 0;
    if constexpr (is_keyed<R>) {
        return KeysByAxis<R>(reduction, tables, reduced_axes, position_strides);
    } else {
        return AxisByAxis<R>(reduction, tables, reduced_axes);
    }
}

template <class R>
using OuterAxes = std::conditional_t<is_keyed<R>, KeysByAxis<R>, AxisByAxis<R>>;
