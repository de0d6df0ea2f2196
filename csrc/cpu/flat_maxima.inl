// Part of kernels.inl: see there.
// Maxima and where they are first reached: a datum takes a maximum's place if it is larger, or the first NaN. They are
// found along each row of elements, once for all windows that look at it, and kept for as long as any does. Those of a
// window's rows are then compared in their order, so that the first one in row-major order stays.
template <class T>
class FlatMaxima : FlatRows<ComparedMax<T>> {
    using Rows = FlatRows<ComparedMax<T>>;
    using Rows::kCount;
    using typename Rows::Lanes;
    using typename Rows::V;

public:
    using Accumulator = typename Rows::Accumulator;
    using Position = integer_t<sizeof(Accumulator), true>;

    // alone: the same call for windows of a single row each, so many of which are done together.
    FlatMaxima(const ComparedMax<T>& reduction, const Call& call, const std::vector<AxisTable>& tables,
               const Call& alone, const AlongRow& along, int64_t together)
        : Rows(reduction, alone, axis_tables(alone), along, together, true),
          together_(together),
          in_plane_(rows_of_plane(call.geometry, input_size)),
          all_(count_rows(alone, input_size)) {
        Geometry outer_axes = call.geometry;
        --outer_axes.rank;
        int64_t row_numbers[kMaxSpatialRank] = {};
        packed_strides(outer_axes, 1, input_size, row_numbers);
        windows_ = RowTaps(call.geometry, output_size, tables, row_numbers, 1);
        const RowTaps positions(call.geometry, output_size, tables, call.index_strides + 2, row_position_step());
        positions_of_rows_.assign(positions.offsets.begin(), positions.offsets.end());
        for (size_t row = 0; row < windows_.rows.size(); ++row) {  // in column-major order, slices are in other places
            windows_.rows[row].together = std::min(windows_.rows[row].together, positions.rows[row].together);
        }
        places_.resize(windows_.most_taps);
        if (windows_.any_run) most_compared_ = std::max<int64_t>(1, kMostCompared / this->outputs_);
        prepare_ring();
        prepare_positions(tables.back(), call.geometry.axes[call.geometry.rank - 1],
                          call.index_strides[1 + call.geometry.rank]);
    }

    // To be called before compute(), with the first row of windows that it will be given.
    void start(int64_t first) {
        const auto rows = static_cast<int64_t>(windows_.rows.size());
        found_until_ = first / rows * in_plane_ + needed_from_[first % rows];
    }

    // Y and Indices of the windows of `count` rows of the output from `first` on. Those of windows without data mean
    // nothing, nor do those beyond the last row, of which there are fewer than a vector holds.
    void compute(int64_t first, int64_t count, T* y, int64_t* indices) {
        const auto rows = static_cast<int64_t>(windows_.rows.size());
        int64_t plane = first / rows, row = first % rows;
        for (int64_t i = 0; i < count; ++plane, row = 0) {
            const int64_t channels = this->call_.geometry.channels;
            const int64_t index = first_index(this->call_, plane / channels, plane % channels);
            while (row < rows && i < count) {
                const int64_t compared =
                    compare_rows(plane * in_plane_, windows_.rows[row], count - i, index, y, indices);
                row += compared;
                i += compared;
                y += compared * this->outputs_;
                indices += compared * this->outputs_;
            }
        }
    }

private:
    using Positions = Vector<Position, kCount>;
    static constexpr int64_t kMostCompared = 512;  // results, in one run of rows

    // Where windows need rows from, and how many rows there are at most until they need no more.
    void prepare_ring() {
        const auto rows = static_cast<int64_t>(windows_.rows.size());
        needed_from_.assign(rows, in_plane_);
        for (int64_t row = rows - 1, needed = in_plane_; row >= 0; --row) {
            const RowTaps::Row& taps = windows_.rows[row];
            if (taps.begin < taps.end) needed = std::min(needed, windows_.offsets[taps.begin]);
            needed_from_[row] = needed;
        }
        int64_t most = 0, end = 0;
        for (int64_t row = 0; row < rows; ++row) {
            const RowTaps::Row& taps = windows_.rows[row];
            if (taps.begin < taps.end) end = std::max(end, windows_.offsets[taps.end - 1] + 1);
            most = std::max(most, end - needed_from_[row]);
        }
        // Rows are found some at a time, and vectors reach beyond the last one.
        const int64_t least = most + most_compared_ + together_ + ceil_div(kCount, this->outputs_);
        while (kept_ < least) kept_ *= 2;
        found_.resize(kept_ * this->outputs_ + kCount);
        found_at_.resize(found_.size());
    }

    void prepare_positions(const AxisTable& table, const Axis& axis, int64_t step) {
        for (int64_t i = 0; i < this->pitch_ + kCount; ++i) {
            const int64_t output = i % this->pitch_ % this->outputs_, begin = output * axis.stride;
            begins_.push_back(static_cast<Position>(begin * step));
            first_taps_.push_back(static_cast<Position>((table.taps[output].begin - begin) * step));
        }
        for (const int64_t position : this->tap_positions_) {
            positions_of_taps_.push_back(static_cast<Position>(position * step));
        }
        for (int64_t i = 0; i < most_compared_ * this->outputs_ + kCount; ++i) {
            positions_in_run_.push_back(static_cast<Position>(i / this->outputs_ * row_position_step()));
        }
    }

    // Between rows that follow each other along the second last axis.
    int64_t row_position_step() const {
        const int rank = this->call_.geometry.rank;
        return rank > 1 ? this->call_.index_strides[rank] : 0;
    }

    // Finds maxima along the rows of elements before this one.
    void find_until(int64_t end) {
        while (found_until_ < end) {
            const int64_t place = found_until_ & (kept_ - 1);
            const int64_t count = std::min({together_, kept_ - place, all_ - found_until_});
            this->read(found_until_, count, 0, 1);
            find_along(count, found_.data() + place * this->outputs_, found_at_.data() + place * this->outputs_);
            found_until_ += count;
        }
    }

    // Finds the maxima along `count` rows that have been read, and how far into their rows they are.
    __attribute__((noinline)) void find_along(int64_t count, Accumulator* maxima, Position* positions) const {
        const auto taps = static_cast<int64_t>(this->sources_.size());
        const Accumulator* const* const sources = this->sources_.data();
        const Lanes* const lanes = this->lanes_.data();
        const Position *const begins = begins_.data(), *const first_taps = first_taps_.data();
        const Position* const positions_of_taps = positions_of_taps_.data();
        const V identity = filled<V>(this->reduction_.identity());
        const int64_t step = this->vector_step_;
        if (taps == 0) return;  // no window has data
        this->for_each_vector(0, count * this->outputs_, [&](auto n, int64_t place, int64_t output, const auto& kinds) {
            V largest[n];
            Positions found[n];
            for (int v = 0; v < n; ++v) {
                const V value = load<kCount>(sources[0] + place + v * kCount);
                largest[v] = where(lanes[kinds[v] * taps], value, identity);
                found[v] = load<kCount>(first_taps + kinds[v] * step);
            }
            for (int64_t tap = 1; tap < taps; ++tap) {
                const Accumulator* const source = sources[tap] + place;
                const Positions position = filled<Positions>(positions_of_taps[tap]);
                for (int v = 0; v < n; ++v) {
                    take_larger(lanes[kinds[v] * taps + tap], load<kCount>(source + v * kCount), position, largest[v],
                                found[v]);
                }
            }
            for (int v = 0; v < n; ++v) {
                store(maxima + output + v * kCount, largest[v]);
                store(positions + output + v * kCount, found[v] + load<kCount>(begins + kinds[v] * step));
            }
        });
    }

    // Compares what was found along the rows that a row of windows takes, of the plane whose rows begin with
    // `first_row`; and for the rows of windows that follow in one run with it, `limit` of them at most. Returns how
    // many.
    int64_t compare_rows(int64_t first_row, const RowTaps::Row& taps, int64_t limit, int64_t index, T* y,
                         int64_t* indices) {
        if (taps.begin == taps.end) return 1;
        const int64_t count = taps.end - taps.begin;
        int64_t rows = std::min({taps.together, limit, most_compared_});
        int64_t* const places = places_.data();
        for (int64_t tap = 0; tap < count; ++tap) {
            const int64_t place = (first_row + windows_.offsets[taps.begin + tap]) & (kept_ - 1);
            rows = std::min(rows, kept_ - place);
            places[tap] = place * this->outputs_;
        }
        find_until(first_row + windows_.offsets[taps.end - 1] + rows);
        const Position* const row_positions = positions_of_rows_.data() + taps.begin;
        if (rows == 1) {
            compare_at_places<false>(count, row_positions, this->outputs_, index, y, indices);
        } else {
            compare_at_places<true>(count, row_positions, rows * this->outputs_, index, y, indices);
        }
        return rows;
    }

    // Compares what was found along `count` rows, which begin at places_ and at these positions. kIsRun: for several
    // rows of windows, each of which takes rows that lie one further on than those of the one before.
    template <bool kIsRun>
    void compare_at_places(int64_t count, const Position* row_positions, int64_t size, int64_t index, T* y,
                           int64_t* indices) const {
        const int64_t* const places = places_.data();
        const Accumulator* const found = found_.data();
        const Position* const found_at = found_at_.data();
        const Position* const positions_in_run = positions_in_run_.data();
        this->in_groups_of_vectors(size, [&](auto n, int64_t i) {
            V largest[n];
            Positions at[n];
            const auto load_row = [&](int64_t row, V(&values)[n], Positions(&positions)[n]) {
                for (int v = 0; v < n; ++v) {
                    const int64_t place = places[row] + i + v * kCount;
                    values[v] = load<kCount>(found + place);
                    positions[v] = load<kCount>(found_at + place) + row_positions[row];
                }
            };
            const auto take_row = [&](int64_t row, V(&values)[n], Positions(&positions)[n]) {
                V next[n];
                Positions next_at[n];
                load_row(row, next, next_at);
                for (int v = 0; v < n; ++v) take_larger(~Lanes{}, next[v], next_at[v], values[v], positions[v]);
            };
            load_row(0, largest, at);
            if (count % 2 == 0) take_row(1, largest, at);
            // Two rows at a time: comparisons depend on each other.
            for (int64_t row = 2 - count % 2; row < count; row += 2) {
                V next[n];
                Positions next_at[n];
                load_row(row, next, next_at);
                take_row(row + 1, next, next_at);
                for (int v = 0; v < n; ++v) take_larger(~Lanes{}, next[v], next_at[v], largest[v], at[v]);
            }
            for (int v = 0; v < n; ++v, i += kCount) {
                store(y + i, this->reduction_.finish(largest[v]), Stores::kPrefetching);
                if constexpr (kIsRun) at[v] += load<kCount>(positions_in_run + i);
                for_each_part<kLanes<int64_t>>(at[v], [&](int k, auto part) {
                    store(indices + i + k, convert<int64_t>(part) + index, Stores::kPrefetching);
                });
            }
        });
    }

    const int64_t together_;     // rows of elements
    int64_t most_compared_ = 1;  // rows of windows, in one run
    const int64_t in_plane_, all_;
    RowTaps windows_;                       // which rows of elements rows of windows take, by number
    Buffer<Position> positions_of_rows_;    // and the positions that these begin at
    std::vector<int64_t> needed_from_;      // the first row that a row of windows or a later one takes
    Buffer<Position> begins_, first_taps_;  // of windows, by columns: position of the tap at 0, and how
                                            // far the first datum is from there
    std::vector<Position> positions_of_taps_;
    Buffer<Position> positions_in_run_;  // by columns of a run of rows: how far their row is from the first one
    int64_t kept_ = 1;                   // rows of elements, a power of two
    int64_t found_until_ = 0;            // this row of elements, of all planes
    Buffer<Accumulator> found_;
    Buffer<Position> found_at_;
    std::vector<int64_t> places_;  // of a window's rows
};

// What windows without data have, in `count` rows of results from this one on, which follow each other.
template <class R, class T>
void fill_empty_windows(const R& reduction, const std::vector<AxisTable>& tables, RowPosition position, int64_t count,
                        T* y, int64_t* indices) {
    for (int64_t row = 0; row < count; ++row, position.advance()) {
        const double factor = outer_factor(tables, position.outer);
        for (const double along : tables.back().factors) {
            if (factor * along == 0) {
                *y = reduction.empty();
                *indices = -1;
            }
            ++y;
            ++indices;
        }
    }
}

// Units are groups of rows.
template <class T>
void forward_flat_maxima(const Call& call, int64_t begin, int64_t end) {
    const ComparedMax<T> reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const std::vector<AxisTable> tables = axis_tables(call);
    const RowsOfWindows<ComparedMax<T>> windows(call);
    const int64_t outputs = tables.back().output;
    const bool has_empty = has_empty_window(tables);

    Geometry rows_alone = geometry;
    for (int a = 0; a + 1 < geometry.rank; ++a) rows_alone.axes[a] = unpooled_axis(geometry.axes[a].input);
    Call alone(rows_alone, call.parameters);
    alone.x = call.x;
    alone.index_strides = call.index_strides;
    alone.first_index = call.first_index;
    FlatMaxima<T> rows(reduction, call, tables, alone, windows.along, RowsOfWindows<ComparedMax<T>>(alone).together);
    rows.start(windows.group(begin).first);

    constexpr int64_t room = kLanes<typename FlatMaxima<T>::Accumulator>;
    Buffer<T> last_y(windows.together * outputs + room);
    Buffer<int64_t> last_indices(last_y.size());
    for (int64_t unit = begin; unit < end; ++unit) {
        const auto group = windows.group(unit);
        const int64_t first = group.first, count = group.rows, size = count * outputs;
        const RowPosition position(call, first, output_size);
        T* const y = row_of<T>(call.y, position, geometry.rank);
        int64_t* const indices = row_of<int64_t>(call.indices, position, geometry.rank);
        if (windows.room_behind(group, end) * outputs >= room) {
            rows.compute(first, count, y, indices);
        } else {
            rows.compute(first, count, last_y.data(), last_indices.data());
            std::copy_n(last_y.data(), size, y);
            std::copy_n(last_indices.data(), size, indices);
        }
        if (has_empty) fill_empty_windows(reduction, tables, position, count, y, indices);
    }
}
