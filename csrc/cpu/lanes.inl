// Part of kernels.inl: see there.
// Vectors of lanes: neighbouring elements in memory belong to as many channels, or planes, at the same position. The
// channels of a channels-last tensor are lanes as they are; planes of contiguous tensors are packed into lanes.

// Sums over the outer axes, of a part of a row that stays in the first-level cache.
constexpr int64_t kRowBufferBytes = 16384;

// Windows of so few elements are combined as they are.
constexpr int64_t kMostTapsInPlace = 9;

// Where a row of results goes, `step` from one position to the next.
template <class R>
struct Results {
    const R& reduction;
    typename R::Element* y;
    int64_t step;
    bool streams;

    Finish<R> at(int64_t output, typename R::Accumulator divisor) const {
        return {reduction, y + output * step, divisor, streams};
    }
    void fill_empty(int64_t output, int64_t lanes) const { std::fill_n(y + output * step, lanes, reduction.empty()); }
    // Whether the lanes of neighbouring positions follow each other.
    bool is_one_run(int64_t lanes) const { return step == lanes; }
};

// The same with Indices, which lie as y does: first_index is that of the first lane's first element, and index_step how
// far apart those of lanes are.
template <class T>
struct Results<KeyedMax<T>> {
    const KeyedMax<T>& reduction;
    T* y;
    int64_t step;
    int64_t* indices;
    int64_t first_index;
    int64_t index_step;

    FinishKeys<KeyedMax<T>> at(int64_t output, typename KeyedMax<T>::Accumulator) const {
        return {reduction, y + output * step, indices + output * step, first_index, index_step};
    }
    void fill_empty(int64_t output, int64_t lanes) const {
        std::fill_n(y + output * step, lanes, reduction.empty());
        std::fill_n(indices + output * step, lanes, -1);
    }
    bool is_one_run(int64_t) const { return false; }
};

// Rows of elements that cost much to lift: lifted when a window first needs them, and kept for those that come back.
template <class R>
class LiftedRows {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    LiftedRows(const R& reduction, const std::vector<AxisTable>& tables)
        : reduction_(reduction), columns_(tables.back().input) {
        int64_t rows = 1, reach = 0;  // in numbers of rows of a plane
        for (size_t a = tables.size() - 1; a-- > 0; rows *= tables[a].input) {
            int64_t longest = 0;
            for (const Range& taps : tables[a].taps) longest = std::max(longest, (taps.count - 1) * taps.step);
            numbers_[a] = rows;
            reach += longest * rows;
        }
        numbers_[tables.size() - 1] = 0;
        kept_.resize(reach + 1);
    }

    // To be called before other elements, or other lanes, are asked for.
    void forget(int64_t lanes) {
        lanes_ = lanes;
        std::fill(kept_.begin(), kept_.end(), nullptr);
        accumulators_.resize(std::max<size_t>(accumulators_.size(), kept_.size() * columns_ * lanes));
    }

    // The rows at these taps along the outer axes, densely.
    const std::vector<const Accumulator*>& at(const Range* taps, int rank, const T* x, const int64_t* strides) {
        rows_.clear();
        for_each_row<2>(taps, rank, {strides, numbers_}, [&](const int64_t (&offsets)[2], const int64_t*) {
            const int64_t place = offsets[1] % static_cast<int64_t>(kept_.size());
            Accumulator* row = accumulators_.data() + place * columns_ * lanes_;
            if (kept_[place] != x + offsets[0]) lift(x + offsets[0], strides[rank - 1], row);
            kept_[place] = x + offsets[0];
            rows_.push_back(row);
        });
        return rows_;
    }

private:
    void lift(const T* source, int64_t step, Accumulator* target) {
        const bool one_run = step == lanes_;
        for (int64_t column = 0; column < (one_run ? 1 : columns_); ++column) {
            combine_taps(combiner_of(reduction_), &source, 1, one_run ? columns_ * lanes_ : lanes_, Lift<R>{reduction_},
                         Keep<Accumulator>{target});
            source += step;
            target += lanes_;
        }
    }

    const R& reduction_;
    const int64_t columns_;
    int64_t lanes_ = 0;
    int64_t numbers_[kMaxSpatialRank];  // how far the numbers of rows are apart along each axis
    std::vector<const T*> kept_;        // which row is where
    Buffer<Accumulator> accumulators_;
    std::vector<const Accumulator*> rows_;
};

// Along an axis, the windows that follow each other with as many taps, the same factor and at the same distance, which
// is not backwards: with dilation, an element's first window may come before that of the element before it.
class RunsOfWindows {
public:
    explicit RunsOfWindows(const AxisTable& axis) : period_(axis.period), alike_(axis.output, 1) {
        for (int64_t output = axis.output - 1 - period_; output >= 0; --output) {
            const int64_t next = output + period_;
            const Range &taps = axis.taps[output], &next_taps = axis.taps[next];
            const int64_t step = next_taps.begin - taps.begin;
            const bool is_alike = taps.count > 0 && taps.count == next_taps.count &&
                                  axis.factors[output] == axis.factors[next] && step >= 0;
            if (!is_alike) continue;
            const bool goes_on = alike_[next] > 1 && axis.taps[next + period_].begin - next_taps.begin == step;
            alike_[output] = goes_on ? alike_[next] + 1 : 2;
        }
    }

    struct Run {
        int64_t length, period;
    };

    // How often `period` windows from this one on are repeated.
    Run at(int64_t output) const {
        int64_t length = alike_[output];
        for (int64_t i = 1; i < period_ && length > 1; ++i) length = std::min(length, alike_[output + i]);
        return length > 1 ? Run{length, period_} : Run{1, 1};
    }

private:
    const int64_t period_;
    std::vector<int64_t> alike_;  // windows that follow, `period` apart, themselves included
};

// Rows of some lanes, those next to each other in memory: for each position, the taps that its tables name.
template <class R>
class LaneRows {
public:
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;

    // Elements come from memory or are in the caches. Positions are counted with these strides, where R has any.
    LaneRows(const R& reduction, std::vector<AxisTable> tables, bool come_from_memory,
             const int64_t* position_strides = nullptr)
        : reduction_(reduction),
          rank_(static_cast<int>(tables.size())),
          tables_(std::move(tables)),
          axis_(tables_.back()),
          divisors_(axis_.output),
          runs_(axis_),
          come_from_memory_(come_from_memory),
          new_rows_(rank_ > 1 ? window_step(tables_[rank_ - 2]) : 1),
          new_slices_(rank_ > 2 ? window_step(tables_[rank_ - 3]) : 1),
          new_columns_(window_step(axis_)),
          columns_overlap_(std::accumulate(axis_.taps.begin(), axis_.taps.end(), int64_t{0},
                                           [](int64_t sum, const Range& taps) { return sum + taps.count; }) >
                           axis_.input),
          is_separable_(is_separable<R>(tables_)),
          position_strides_(position_strides),
          outer_axes_(outer_axes(reduction, tables_, is_separable_, position_strides)) {
        if constexpr (is_expensive<R>) {
            if (!is_separable_) lifted_.emplace(reduction, tables_);  // otherwise each is lifted once anyway
        }
        if (axis_.windows_share && !R::kInOrder) {
            overlapping_.emplace(combiner_of(reduction), reduction.identity(), axis_);
        }
    }

    LaneRows(const LaneRows&) = delete;  // refers to itself

    // The lanes whose rows are computed next, and the strides of their spatial axes.
    void set_lanes(const T* x, const int64_t* x_strides, int64_t lanes) {
        x_ = x;
        x_strides_ = x_strides;
        lanes_ = lanes;
        // Where several rows are new at a time, they are read little by little.
        room_ = columns_in(new_rows_ == 1 ? kRowBufferBytes : kRowBufferBytes / 4);
        windows_at_once_ = columns_in(kRowBufferBytes / 2) / axis_.period;
        if (is_separable_) outer_axes_.set_plane(x_strides, lanes);
        if (lifted_) lifted_->forget(lanes);
    }

    // Whether axes are reduced one after the other: then so many positions of the first one, for so many lanes, are
    // looked at together.
    bool reduces_axis_by_axis() const { return is_separable_; }
    int64_t positions_together(int64_t lanes) const { return outer_axes_.positions_together(lanes); }

    // The row at the coordinates `outer` along all spatial axes but the last, the row_index-th of the plane.
    template <class Target>
    void compute(const int64_t* outer, int64_t row_index, const Target& target) {
        compute(outer, row_index, target, [&](int64_t, int64_t) { return x_; });
    }

    // Where axes are reduced one after the other, the lanes lie at data(begin, end): see AxisByAxis.
    template <class Target, class Data>
    void compute(const int64_t* outer, int64_t row_index, const Target& target, const Data& data) {
        const double factor = outer_factor(tables_, outer);
        if (factor == 0) {
            for (int64_t output = 0; output < axis_.output; ++output) target.fill_empty(output, lanes_);
            return;
        }
        for (int a = 0; a + 1 < rank_; ++a) taps_[a] = tables_[a].taps[outer[a]];
        set_divisors(factor);
        const int64_t x_step = x_strides_[rank_ - 1];
        if (is_separable_) {
            const Accumulator* row = outer_axes_.row(row_index, data);
            return along_row(&row, 1, lanes_, AsItIs<Accumulator>(), target);
        }
        if constexpr (R::kInOrder) {
            for (int64_t output = 0, run; output < axis_.output; output += run) {
                run = runs_.at(output).length;
                if (divisors_[output] == 0) {
                    target.fill_empty(output, lanes_);
                    continue;
                }
                taps_[rank_ - 1] = axis_.taps[output];
                gather_taps();
                const auto count = static_cast<int64_t>(elements_.size());
                const int64_t step = run > 1 ? axis_.taps[output + 1].begin - axis_.taps[output].begin : 0;
                finish({elements_.data(), count, 1, 1, run, step * x_step, new_rows<Lift<R>>(0, 1)}, output, 1,
                       Lift<R>{reduction_}, target);
            }
        } else {
            taps_[rank_ - 1] = {0, 1, 1};
            if constexpr (is_expensive<R>) {
                const auto& rows = lifted_->at(taps_, rank_, x_, x_strides_);
                return along_row(rows.data(), static_cast<int64_t>(rows.size()), lanes_, AsItIs<Accumulator>(), target);
            }
            gather_taps();
            const auto count = static_cast<int64_t>(elements_.size());
            along_row(elements_.data(), count, x_step, lift_rows(reduction_, positions_), target);
        }
    }

    // The windows of the last row that need the slow way: again(taps, output, lane).
    template <class Redo>
    void redo(const Redo& again) {
        for (const auto& [output, lane] : out_of_range_) {
            taps_[rank_ - 1] = tables_[rank_ - 1].taps[output];
            again(taps_, output, lane);
        }
        out_of_range_.clear();
    }

private:
    void set_divisors(double factor) {
        if (factor == divided_for_) return;
        divided_for_ = factor;
        const std::vector<double>& own = tables_[rank_ - 1].factors;
        for (int64_t output = 0; output < axis_.output; ++output) divisors_[output] = factor * own[output];
    }

    // The elements at taps_, in row-major order, and their positions where they matter.
    void gather_taps() {
        const Range& along = taps_[rank_ - 1];
        const int64_t step = along.step * x_strides_[rank_ - 1];
        elements_.clear();
        new_elements_.clear();
        const auto is_new = [&](const int64_t* outer, int a, int64_t count) {
            return a < 0 || outer[a] > taps_[a].begin + (taps_[a].count - 1 - count) * taps_[a].step;
        };
        for_each_row<1>(taps_, rank_, {x_strides_}, [&](const int64_t (&offsets)[1], const int64_t* outer) {
            for (int64_t i = 0; i < along.count; ++i) elements_.push_back(x_ + offsets[0] + i * step);
            if (come_from_memory_ && is_new(outer, rank_ - 2, new_rows_) && is_new(outer, rank_ - 3, new_slices_)) {
                new_elements_.push_back(elements_.back());
            }
        });
        if (!is_keyed<R>) return;
        positions_.clear();
        for_each_row<1>(taps_, rank_, {position_strides_},
                        [&](const int64_t (&offsets)[1], const int64_t*) { positions_.push_back(offsets[0]); });
    }

    // Combines rows, whose positions are x_step apart, and then what that gives along the row.
    template <class Take, class Target>
    void along_row(const typename Take::Source* const* rows, int64_t count, int64_t x_step, const Take& take,
                   const Target& target) {
        if (overlapping_) return along_row_of_overlapping(rows, count, x_step, take, target);
        int64_t buffer_end = 0;  // the buffer holds the columns buffer_begin ... buffer_end - 1
        int64_t buffer_begin = 0;
        int64_t seen = 0;  // columns that windows before looked at
        for (int64_t output = 0; output < axis_.output;) {
            const Range& taps = axis_.taps[output];
            if (divisors_[output] == 0) {
                target.fill_empty(output, lanes_);
                ++output;
                continue;
            }
            const bool in_place = is_in_place<Take>(count, taps.count);
            auto [run, period] = runs_.at(output);
            const Columns needed = columns_of(output, period);
            if (!in_place && (needed.begin < buffer_begin || needed.end > buffer_end)) {
                // A later window with dilation may begin a little earlier.
                buffer_begin = std::max<int64_t>(0, needed.begin - axis_.step + 1);
                buffer_end = std::min(
                    axis_.input, std::max(needed.end, buffer_begin + std::max(room_, 4 * (needed.end - needed.begin))));
                fill_buffer(rows, count, buffer_begin, buffer_end, x_step, take);
            }
            const int64_t available = in_place ? axis_.input : buffer_end;
            // What is written every other time stays in the cache until the rest comes.
            if (period > 1) run = std::clamp<int64_t>(windows_at_once_, 1, run);
            const auto step_from = [&](int64_t window) {
                return run > 1 ? axis_.taps[window + period].begin - axis_.taps[window].begin : 0;
            };
            for (int64_t window = output; window < output + period; ++window) {
                const int64_t step = step_from(window);
                if (step > 0) run = std::min(run, quotient(available - columns_of(window, 1).end, step) + 1);
            }
            for (int64_t first = output; first < output + period; ++first) {
                const Range& window = axis_.taps[first];
                const int64_t step = step_from(first);
                if (in_place) {
                    auto& shifted = sources<Take>();
                    shifted.assign(rows, rows + count);
                    for (auto& row : shifted) row += window.begin * x_step;
                    const int64_t end = columns_of(first, 1).end;
                    const int64_t columns = ceil_div(run > 1 ? step : std::max<int64_t>(0, end - seen), window.step);
                    seen = end + (run - 1) * step;
                    finish({shifted.data(), count, window.count, window.step * x_step, run, step * x_step,
                            new_rows<Take>(window.begin, std::min(columns, window.count))},
                           first, period, take, target);
                } else {
                    const Accumulator* row = buffer_.data() + (window.begin - buffer_begin) * lanes_;
                    finish({&row, 1, window.count, window.step * lanes_, run, step * lanes_}, first, period,
                           AsItIs<Accumulator>(), target);
                }
            }
            output += run * period;
        }
    }

    int64_t columns_in(int64_t bytes) const {
        return quotient(bytes, static_cast<int64_t>(sizeof(Accumulator)) * lanes_);
    }

    struct Columns {
        int64_t begin, end;
    };

    // The columns that any of so many windows needs; all of them have data. One that comes later may begin earlier.
    Columns columns_of(int64_t output, int64_t windows) const {
        Columns columns{axis_.input, 0};
        for (int64_t end = output + windows; output < end; ++output) {
            const Range& taps = axis_.taps[output];
            columns.begin = std::min(columns.begin, taps.begin);
            columns.end = std::max(columns.end, taps.begin + (taps.count - 1) * taps.step + 1);
        }
        return columns;
    }

    // Whether windows of so many rows and columns are computed without a buffer for what rows combine to. One row whose
    // elements cost nothing to look at, or are looked at once, need not be copied. Small windows are read several
    // times: those with few rows in common and, while elements come from memory, all that stay in the first-level cache
    // and are not converted too often.
    template <class Take>
    bool is_in_place(int64_t rows, int64_t columns) const {
        constexpr bool are_lifted = std::is_same_v<Take, AsItIs<Accumulator>>;
        if (is_keyed<R> && !are_lifted) return false;
        const bool are_expensive = is_norm<R> && !are_lifted;
        if (are_expensive && (columns_overlap_ || rows > new_rows_)) return false;
        const int64_t taps = rows * columns;
        if (rows == 1 || (new_rows_ > 1 && taps <= kMostTapsInPlace)) return true;
        if (!come_from_memory_ || taps * lanes_ * int64_t{sizeof(T)} > 2 * kRowBufferBytes) return false;
        constexpr int64_t most = kMostTapsInPlace / (sizeof(Accumulator) > sizeof(T) ? 2 : 1);  // for a new element
        return taps <= most * std::min<int64_t>(new_slices_ * new_rows_ * new_columns_, 3);
    }

    template <class Take, class Target>
    void along_row_of_overlapping(const typename Take::Source* const* rows, int64_t count, int64_t x_step,
                                  const Take& take, const Target& target) {
        const Accumulator* row = nullptr;
        if constexpr (std::is_same_v<Take, AsItIs<Accumulator>>) {
            if (count == 1) row = rows[0];
        }
        if (!row) {
            fill_buffer(rows, count, 0, axis_.input, x_step, take);
            row = buffer_.data();
            x_step = lanes_;
        }
        finish_overlapping(row, x_step, target);
    }

    template <class Target>
    void finish_overlapping(const Accumulator* row, int64_t x_step, const Target& target) {
        const auto reduce = [&](const auto& put) {
            overlapping_->reduce(row, x_step, AsItIs<Accumulator>(), lanes_, put);
        };
        if constexpr (may_leave_range<R>) {
            windows_.resize(std::max<size_t>(windows_.size(), axis_.output * lanes_));
            reduce(KeepParts<Accumulator>{windows_.data(), lanes_});
        } else {
            reduce([&](int64_t output, int64_t i, auto sums) {
                target.at(output, static_cast<Accumulator>(divisors_[output]))(i, sums);
            });
        }
        for (int64_t output = 0; output < axis_.output; ++output) {
            if (divisors_[output] == 0) {
                target.fill_empty(output, lanes_);
            } else if constexpr (may_leave_range<R>) {
                const Accumulator* window = windows_.data() + output * lanes_;
                finish({&window, 1, 1, 0, 1, 0}, output, 1, AsItIs<Accumulator>(), target);
            }
        }
    }

    // What is new in the rows that are gathered, for windows that begin in this column and with so many new ones.
    template <class Take>
    NewRows<typename Take::Source> new_rows(int64_t begin, int64_t columns) const {
        if constexpr (std::is_same_v<Take, AsItIs<Accumulator>>) {
            return {};
        } else {
            const int64_t x_step = x_strides_[rank_ - 1], size = axis_.input * x_step;
            const int64_t skip = rank_ > 1 ? new_rows_ * x_strides_[rank_ - 2] - size : 0;
            const auto count = static_cast<int64_t>(new_elements_.size());
            return {new_elements_.data(), count, begin * x_step, columns, size, skip};
        }
    }

    template <class Take>
    auto& sources() {
        if constexpr (std::is_same_v<typename Take::Source, Accumulator>) {
            return shifted_accumulators_;
        } else {
            return shifted_elements_;
        }
    }

    template <class Take>
    void fill_buffer(const typename Take::Source* const* rows, int64_t count, int64_t begin, int64_t end,
                     int64_t x_step, const Take& take) {
        const int64_t columns = end - begin;
        buffer_.resize(std::max<size_t>(buffer_.size(), columns * lanes_));
        const bool one_run = x_step == lanes_ && !is_keyed<R>;
        auto& shifted = sources<Take>();
        shifted.assign(rows, rows + count);
        for (auto& row : shifted) row += begin * x_step;
        for (int64_t column = 0; column < (one_run ? 1 : columns); ++column) {
            Accumulator* target = buffer_.data() + column * lanes_;
            const int64_t size = one_run ? columns * lanes_ : lanes_;
            const auto keep = keep_columns(reduction_, target, begin + column, 0);
            const auto& combiner = combiner_of(reduction_);
            // The last two rows are new for the windows that come next; with more axes, those one step along the third
            // last before them, too.
            const auto last = [&](int64_t row) { return shifted[std::max<int64_t>(0, count - row)]; };
            const int64_t rows_in_step = rank_ > 1 ? taps_[rank_ - 2].count : 1;
            const typename Take::Source* const ahead[] = {last(1), last(2), last(rows_in_step + 1),
                                                          last(rows_in_step + 2)};
            if (new_rows_ == 1) {
                combine_taps<1, 8192>(combiner, shifted.data(), count, size, take, keep, ahead);
            } else if (rank_ < 3) {
                combine_taps<2, 2048>(combiner, shifted.data(), count, size, take, keep, ahead);
            } else {
                combine_taps<4, 2048>(combiner, shifted.data(), count, size, take, keep, ahead);
            }
            for (auto& row : shifted) row += x_step;
        }
    }

    // The results of windows, the first of them the one at `output`, `period` apart.
    template <class Take, class Target>
    void finish(Windows<typename Take::Source> windows, int64_t output, int64_t period, const Take& take,
                const Target& target) {
        const auto divisor = static_cast<Accumulator>(divisors_[output]);
        int64_t lanes = lanes_;
        if (period == 1 && windows.step == lanes_ && target.is_one_run(lanes_)) {
            lanes *= std::exchange(windows.count, 1);  // they follow each other in memory
        }
        const auto& combiner = combiner_of(reduction_);
        if constexpr (may_leave_range<R>) {
            sums_.resize(std::max<size_t>(sums_.size(), lanes * windows.count));
            combine_windows(combiner, windows, lanes, take, KeepParts<Accumulator>{sums_.data(), lanes});
            for (int64_t window = 0; window < windows.count; ++window) {
                const Accumulator* sums = sums_.data() + window * lanes;
                const int64_t first = output + window * period;
                if (!finish_sums(reduction_, sums, lanes, target.at(first, divisor))) continue;
                for (int64_t i = 0; i < lanes; ++i) {
                    if (reduction_.out_of_range(sums[i])) out_of_range_.push_back({first + i / lanes_, i % lanes_});
                }
            }
        } else {
            combine_windows(combiner, windows, lanes, take, [=, target = target](int64_t window) {
                return target.at(output + window * period, divisor);
            });
        }
    }

    const R& reduction_;
    const int rank_;
    const std::vector<AxisTable> tables_;
    const AxisTable& axis_;  // the last one
    std::vector<double> divisors_;
    double divided_for_ = -1;
    const RunsOfWindows runs_;
    const bool come_from_memory_;
    const int64_t new_rows_;                  // of the input, for each row of the output
    const int64_t new_slices_, new_columns_;  // the same along the axes before and after
    const bool columns_overlap_;              // those of different windows
    const bool is_separable_;
    const int64_t* const position_strides_;
    OuterAxes<R> outer_axes_;
    std::optional<WindowsOf<R>> overlapping_;  // along the last axis
    std::optional<LiftedRows<R>> lifted_;

    const T* x_ = nullptr;
    const int64_t* x_strides_ = nullptr;
    int64_t lanes_ = 0;
    int64_t room_ = 0;             // columns that the buffer is filled with at a time
    int64_t windows_at_once_ = 0;  // a period apart: how many are written before those between them

    Range taps_[kMaxSpatialRank];
    std::vector<const T*> elements_, new_elements_, shifted_elements_;
    std::vector<const Accumulator*> shifted_accumulators_;
    std::vector<int64_t> positions_;
    Buffer<Accumulator> buffer_, sums_, windows_;
    std::vector<std::pair<int64_t, int64_t>> out_of_range_;  // outputs and lanes
};

// Units of work where channels are next to each other: some channels of an image, and results at some positions of the
// first axis.
struct ChannelBlocks {
    int64_t lanes;      // channels at a time
    int64_t positions;  // of the first axis,
    int64_t parts;      // and how many parts these are done in

    struct Unit {
        int64_t plane;  // the number of these channels
        int64_t image, channel, lanes;
        Range positions;
    };

    int64_t blocks(const Geometry& geometry) const { return ceil_div(geometry.channels, lanes); }
    int64_t units(const Geometry& geometry) const { return geometry.batch * blocks(geometry) * parts; }

    Unit at(int64_t unit, const Geometry& geometry) const {
        const int64_t plane = quotient(unit, parts), part = unit - plane * parts;
        const int64_t image = quotient(plane, blocks(geometry)), channel = (plane - image * blocks(geometry)) * lanes;
        const int64_t begin = quotient(positions * part, parts), end = quotient(positions * (part + 1), parts);
        return {plane, image, channel, std::min(lanes, geometry.channels - channel), {begin, end - begin, 1}};
    }

    // Where axes are reduced one after the other, whole planes of channels had better stay in the caches, or blocks of
    // the first axis. With these, parts of a plane have little to do with each other: all need one block more, unless
    // they follow each other.
    template <class A>
    static ChannelBlocks axis_by_axis(const Call& call, const std::vector<AxisTable>& tables) {
        constexpr int64_t line = 64 / sizeof(A), most_parts = 32;
        const AxisTable& first = tables[0];
        const int64_t most = lanes_per_block(call);
        int64_t lanes = most;
        while (lanes >= line && !is_reduced_by_blocks<A>(tables, lanes)) lanes = lanes / 2 / line * line;
        if (lanes < line) lanes = most;
        const bool by_blocks = is_reduced_by_blocks<A>(tables, lanes);
        const int64_t parts = by_blocks ? std::clamp<int64_t>(first.output / most_taps(first), 1, most_parts) : 1;
        return {lanes, first.output, parts};
    }
};

// Where results go that belong to the plane at this image and channel.
template <class R>
Results<R> results_of(const R& reduction, const Call& call, typename R::Element* y, int64_t step, int64_t* indices,
                      int64_t image, int64_t channel, [[maybe_unused]] bool streams = false) {
    if constexpr (is_keyed<R>) {
        return {reduction, y, step, indices, first_index(call, image, channel), call.index_strides[1]};
    } else {
        return {reduction, y, step, streams};
    }
}

template <class R>
LaneRows<R> rows_of_windows(const R& reduction, const Call& call, bool come_from_memory) {
    return LaneRows<R>(reduction, axis_tables(call), come_from_memory, position_strides<R>(call));
}

// Units are blocks of channels of an image, or parts of them: see ChannelBlocks.
template <class R>
void forward_channel_blocks(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int64_t y_step = call.y.strides[1 + geometry.rank];
    const std::vector<AxisTable> tables = axis_tables(call);
    LaneRows<R> rows(reduction, tables, exceeds_caches<T>(call), position_strides<R>(call));
    const auto blocks = ChannelBlocks::axis_by_axis<typename R::Accumulator>(call, tables);
    const bool streams = is_streamed<T>(call, call.y, blocks.lanes);
    int64_t plane = -1;
    for (int64_t number = begin; number < end; ++number) {
        const auto unit = blocks.at(number, geometry);
        const T* x = plane_at<const T>(call.x, unit.image, unit.channel);
        T* y = plane_at<T>(call.y, unit.image, unit.channel);
        if (unit.plane != std::exchange(plane, unit.plane)) rows.set_lanes(x, call.x.strides + 2, unit.lanes);
        int64_t* indices = is_keyed<R> ? plane_at<int64_t>(call.indices, unit.image, unit.channel) : nullptr;
        const auto compute_row = [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[1]) {
            T* y_row = y + offsets[0];
            int64_t* indices_row = is_keyed<R> ? indices + offsets[0] : nullptr;
            rows.compute(outer, row,
                         results_of(reduction, call, y_row, y_step, indices_row, unit.image, unit.channel, streams));
            if constexpr (may_leave_range<R>) {
                rows.redo([&](const Range* taps, int64_t output, int64_t lane) {
                    y_row[output * y_step + lane] = rescaled_norm<T>(call, taps, x + lane);
                });
            }
        };
        for_each_row_of_slices<1>(geometry, output_size, unit.positions, {call.y.strides + 2}, compute_row);
    }
    finish_streaming(streams);
}

// Units are rows of such blocks.
template <class R>
void forward_channels(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const R reduction(call.parameters);
    const int rank = call.geometry.rank;
    const int64_t y_step = call.y.strides[1 + rank];
    LaneRows<R> rows = rows_of_windows(reduction, call, exceeds_caches<T>(call));
    const bool streams = is_streamed<T>(call, call.y, lanes_per_row(call));
    std::pair<const T*, int64_t> current{};  // images may overlap in memory: another block may begin there
    RowPosition position(call, begin, output_size);
    for (int64_t unit = begin; unit < end; ++unit, position.advance()) {
        const T* x = plane_of<const T>(call.x, position);
        T* y = row_of<T>(call.y, position, rank);
        int64_t* indices = is_keyed<R> ? row_of<int64_t>(call.indices, position, rank) : nullptr;
        const std::pair lanes{x, position.lanes};
        if (lanes != std::exchange(current, lanes)) rows.set_lanes(x, call.x.strides + 2, position.lanes);
        rows.compute(position.outer, 0,
                     results_of(reduction, call, y, y_step, indices, position.image, position.channel, streams));
        if constexpr (may_leave_range<R>) {
            rows.redo([&](const Range* taps, int64_t output, int64_t lane) {
                y[output * y_step + lane] = rescaled_norm<T>(call, taps, x + lane);
            });
        }
    }
    finish_streaming(streams);
}
