// Part of kernels.inl: see there.
// Maxima of small windows and where they are first reached, for windows that are next to each other along long rows,
// 1 or 2 elements apart: as lane_maxima.inl finds them for channels, from all data of a window at once. Elements of
// other types than float32, and those of windows that look beyond the ends of rows, are copied to where they are
// float32 and have padding, which is never larger than data.

// Which windows look at copies of their elements, at both ends of a row, and which at these.
struct WindowsBySource {
    Range copied[2];
    Range direct;

    static WindowsBySource of(const Axis& axis, bool may_be_direct) {
        constexpr int64_t vector = kLanes<float>;
        const Range inside = windows_inside(axis);
        const int64_t all = axis.output, inside_end = inside.begin + inside.count;
        const int64_t first = inside.begin > 0 ? vector : 0, last = inside_end < all ? all - vector : all;
        if (!may_be_direct || inside.begin > first || inside_end < last || last - first < vector) {
            return {{{0, all, 1}, {all, 0, 1}}, {all, 0, 1}};
        }
        return {{{0, first, 1}, {last, all - last, 1}}, {first, last - first, 1}};
    }

    bool any_copied() const { return copied[0].count + copied[1].count > 0; }
};

// Where, in the row with number 0, the first window of a row begins: at data[first], which need not be there.
struct Elements {
    const float* data;
    int64_t first;
    int64_t step;  // from one row to the next
};

// The maxima of a plane's rows of windows.
class RowMaxima {
public:
    static constexpr int kCount = kLanes<float>;

    // row_strides: of the outer axes, to number the rows of elements that find() is given.
    RowMaxima(const Call& call, const std::vector<AxisTable>& tables, const int64_t* row_strides)
        : axis_(call.geometry.axes[call.geometry.rank - 1]),
          step_(static_cast<int32_t>(call.index_strides[1 + call.geometry.rank])),
          rows_(call.geometry, output_size, tables, row_strides, 0) {
        const RowTaps positions(call.geometry, output_size, tables, call.index_strides + 2, 0);
        positions_of_rows_.assign(positions.offsets.begin(), positions.offsets.end());
        for (int64_t window = 0; window < axis_.output; ++window) {
            const int64_t begin = window * axis_.stride - axis_.pad_begin;
            begins_.push_back(static_cast<int32_t>(begin * step_));
            first_taps_.push_back(static_cast<int32_t>((tables.back().taps[window].begin - begin) * step_));
        }
    }

    const RowTaps& taps() const { return rows_; }

    // Whether a row of windows looks at no row of elements, and the number of the last one that it looks at.
    bool is_empty(int64_t row) const { return rows_.rows[row].begin == rows_.rows[row].end; }
    int64_t last_row(int64_t row) const { return rows_.offsets[rows_.rows[row].end - 1]; }

    // The maxima of a row that is not empty, and where in their plane they are: of these windows, which fill a vector
    // at least.
    void find(int64_t row, const Elements& x, const Range& windows, float* maxima, int32_t* positions) const {
        const auto find_with = [&](auto stride) {
            if (axis_.kernel == 2) return find_all<stride, 2>(rows_.rows[row], x, windows, maxima, positions);
            if (axis_.kernel == 3) return find_all<stride, 3>(rows_.rows[row], x, windows, maxima, positions);
            find_all<stride, 0>(rows_.rows[row], x, windows, maxima, positions);
        };
        if (axis_.stride == 1) return find_with(std::integral_constant<int, 1>());
        find_with(std::integral_constant<int, 2>());
    }

private:
    using V = Vector<float, kCount>;
    using Positions = Vector<int32_t, kCount>;

    // Comparisons depend on each other: those of several vectors are interleaved, of about as many as registers hold
    // twice.
    static constexpr int kMostVectors = ONNXPOOL_VECTOR_BYTES == 32 ? 2 : 4;

    // What some vectors have found.
    template <int kVectors>
    struct Found {
        V largest[kVectors];
        Positions positions[kVectors];

        void take(int v, V value, Positions position) {
            take_larger(~LanesOf<V>{}, value, position, largest[v], positions[v]);
        }
    };

    // visit(v, values, number of the tap), in the order of taps, for those of a row of elements. With a stride of 2,
    // the lanes of two vectors are those of two taps. The windows of vectors follow each other but for those of the
    // last one, which begin with window number `last`.
    template <int kStride, int kKernel, int kVectors, class Visit>
    __attribute__((always_inline)) void for_each_tap(const float* x, int64_t last, const Visit& visit) const {
        const int64_t kernel = kKernel > 0 ? kKernel : axis_.kernel, dilation = axis_.dilation;
        const auto element = [=](int v, int64_t i) {
            return x + ((v + 1 < kVectors ? v * kCount : last) * kStride + i);
        };
        int64_t tap = 0;
        if constexpr (kStride == 2) {
            for (; tap + 1 < kernel; tap += 2) {
                for (int v = 0; v < kVectors; ++v) {
                    const V front = load<kCount>(element(v, tap)), back = load<kCount>(element(v, tap + kCount));
                    visit(v, every_second<0>(front, back), tap);
                    visit(v, every_second<1>(front, back), tap + 1);
                }
            }
            if (tap < kernel) {  // nothing behind it is read
                for (int v = 0; v < kVectors; ++v) {
                    const float* const x_before = element(v, tap - 1);
                    visit(v, every_second<1>(load<kCount>(x_before), load<kCount>(x_before + kCount)), tap);
                }
            }
        } else {
            for (; tap < kernel; ++tap) {
                for (int v = 0; v < kVectors; ++v) visit(v, load<kCount>(element(v, tap * dilation)), tap);
            }
        }
    }

    template <int kStride, int kKernel>
    __attribute__((noinline)) void find_all(const RowTaps::Row& taps, const Elements& x, const Range& windows,
                                            float* maxima, int32_t* positions) const {
        const int64_t* const numbers = rows_.offsets.data();
        const int32_t *const positions_of_rows = positions_of_rows_.data(), *const begins = begins_.data();
        const int32_t *const first_taps = first_taps_.data(), step = static_cast<int32_t>(step_ * axis_.dilation);
        const int64_t row_begin = taps.begin, row_end = taps.end, end = windows.begin + windows.count;
        const auto find = [&](auto count, int64_t window) {
            const int64_t last = std::min<int64_t>((count - 1) * kCount, end - kCount - window);
            const auto window_at = [&](int v) { return window + (v + 1 < count ? v * kCount : last); };
            const auto find_in_row = [&](int64_t row, Found<count>& found) {
                const float* const elements = x.data + (x.first + numbers[row] * x.step + window * kStride);
                const int32_t position = positions_of_rows[row];
                for_each_tap<kStride, kKernel, count>(elements, last, [&](int v, V value, int64_t tap) {
                    if (tap > 0) {
                        const int32_t position_of_tap = position + static_cast<int32_t>(tap) * step;
                        return found.take(v, value, filled<Positions>(position_of_tap));
                    }
                    // If it is padding, no datum needs to be larger than that.
                    found.largest[v] = value;
                    found.positions[v] = load<kCount>(first_taps + window_at(v)) + position;
                });
            };
            Found<count> found;
            find_in_row(row_begin, found);
            for (int64_t row = row_begin + 1; row < row_end; ++row) {
                Found<count> next;
                find_in_row(row, next);
                for (int v = 0; v < count; ++v) found.take(v, next.largest[v], next.positions[v]);
            }
            for (int v = 0; v < count; ++v) {
                store(maxima + window_at(v), found.largest[v]);
                store(positions + window_at(v), found.positions[v] + load<kCount>(begins + window_at(v)));
            }
        };
        for (int64_t window = windows.begin; window < end; window += kMostVectors * kCount) {
            with_number<1, kMostVectors>(std::min<int64_t>(ceil_div(end - window, kCount), kMostVectors),
                                         [&](auto count) { find(count, window); });
        }
    }

    const Axis& axis_;
    const int32_t step_;  // between positions along the row
    const RowTaps rows_;
    Buffer<int32_t> positions_of_rows_;    // that their first elements are at
    Buffer<int32_t> begins_, first_taps_;  // of windows: how far they are from there, and from them their first data
};

// What some windows look at of the rows of a plane: as float32, with padding.
template <class T>
class CopiedRows {
public:
    // windows: along a row; most_rows: of windows, that look at what is there at a time.
    CopiedRows(const Call& call, const Range (&windows)[2], int64_t most_rows)
        : reduction_(call.parameters),
          x_step_(call.x.strides[call.geometry.rank]),
          padding_(call.geometry.axes[call.geometry.rank - 1].pad_begin),
          pitch_(row_reach(call.geometry.axes[call.geometry.rank - 1])) {
        const Axis& axis = call.geometry.axes[call.geometry.rank - 1];
        for (const Range& range : windows) {
            if (range.count == 0) continue;
            columns_.push_back(Segment::of_windows(axis, range.begin, range.begin + range.count));
        }
        if (columns_.empty()) return;
        Axis outer = call.geometry.rank == 1 ? unpooled_axis(1) : call.geometry.axes[0];
        outer.output = most_rows;
        buffer_.assign(std::min(outer.input, row_reach(outer)) * pitch_, reduction_.identity());
    }

    // Begins to copy rows of this plane, from this one on.
    void start(const T* plane, int64_t row) {
        plane_ = plane;
        begin_ = end_ = row;
    }

    void copy_until(int64_t end) {
        for (; end_ < end; ++end_) {
            for (const Segment& columns : columns_) {
                const T* const x = plane_ + (end_ * x_step_ + columns.element);
                float* const target = buffer_.data() + ((end_ - begin_) * pitch_ + padding_ + columns.element);
                in_vectors<kLanes<float>>(columns.elements, [=, reduction = reduction_](int64_t i, auto n) {
                    store(target + i, reduction.lift(load<n>(x + i)));
                });
            }
        }
    }

    Elements elements() const { return {buffer_.data(), -begin_ * pitch_, pitch_}; }

private:
    const Max<T> reduction_;
    const int64_t x_step_, padding_, pitch_;
    std::vector<Segment> columns_;
    Buffer<float> buffer_;
    const T* plane_ = nullptr;
    int64_t begin_ = 0, end_ = 0;  // the rows that have been copied
};

// Units are groups of rows.
template <class T>
void forward_row_maxima(const Call& call, int64_t begin, int64_t end) {
    const Max<T> reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const Axis& last = geometry.axes[geometry.rank - 1];
    const std::vector<AxisTable> tables = axis_tables(call);
    const RowsOfWindows<Max<T>> windows(call);
    const int64_t in_plane = windows.in_plane, most_rows = std::min(windows.together, in_plane);
    const int64_t outputs = last.output, channels = geometry.channels;
    const auto sources = WindowsBySource::of(last, std::is_same_v<T, float>);
    const bool has_empty = has_empty_window(tables);
    const bool streams = exceeds_caches<T>(call) && !has_empty;

    CopiedRows<T> copies(call, sources.copied, most_rows);
    const bool any_copied = sources.any_copied();  // of two axes at most
    const int64_t by_one[kMaxSpatialRank] = {1}, x_step = any_copied ? call.x.strides[geometry.rank] : 1;
    const RowMaxima rows(call, tables, any_copied ? by_one : call.x.strides + 2);
    PlaneShares<T> shares(call, rows.taps(), x_step, last.input, true);
    Buffer<float> maxima(most_rows * outputs);
    Buffer<int32_t> positions(maxima.size());

    // Finds the maxima of `count` rows of windows from `first` on, of one plane.
    const auto find = [&](const T* plane, int64_t first, int64_t count) {
        if (any_copied) {
            const bool is_row = geometry.rank == 1;
            copies.start(plane, is_row ? 0 : Segment::of_windows(geometry.axes[0], first, first + count).element);
        }
        for (int64_t row = first, place = 0; row < first + count; ++row, place += outputs) {
            shares.prefetch_next(shares.of(row, row + 1));
            if (rows.is_empty(row)) continue;
            const auto find_in = [&](const Elements& x, const Range& windows) {
                if (windows.count > 0) rows.find(row, x, windows, maxima.data() + place, positions.data() + place);
            };
            if (any_copied) {
                copies.copy_until(rows.last_row(row) + 1);
                for (const Range& windows : sources.copied) find_in(copies.elements(), windows);
            }
            if constexpr (std::is_same_v<T, float>) find_in({plane, -last.pad_begin, x_step}, sources.direct);
        }
    };
    const auto write = [&](int64_t size, T* y, int64_t index, int64_t* indices) {
        const Stores stores = !streams                                                     ? Stores::kPrefetching
                              : are_whole_lines(y, size) && are_whole_lines(indices, size) ? Stores::kStreaming
                                                                                           : Stores::kPlain;
        in_vectors<kLanes<float>>(
            size, [&](int64_t i, auto n) { store(y + i, reduction.finish(load<n>(maxima.data() + i)), stores); });
        in_vectors<kLanes<int64_t>>(size, [&](int64_t i, auto n) {
            store(indices + i, convert<int64_t>(load<n>(positions.data() + i)) + index, stores);
        });
    };
    for (int64_t unit = begin; unit < end; ++unit) {
        const auto group = windows.group(unit);
        const RowPosition position(call, group.first, output_size);
        T* const y = row_of<T>(call.y, position, geometry.rank);
        int64_t* const indices = row_of<int64_t>(call.indices, position, geometry.rank);
        int64_t count;
        for (int64_t done = 0; done < group.rows; done += count) {
            const int64_t plane = quotient(group.first + done, in_plane), row = group.first + done - plane * in_plane;
            const int64_t image = quotient(plane, channels), channel = plane - image * channels;
            count = std::min(group.rows - done, in_plane - row);
            find(shares.begin_plane(image, channel), row, count);
            write(count * outputs, y + done * outputs, first_index(call, image, channel), indices + done * outputs);
        }
        if (has_empty) fill_empty_windows(reduction, tables, position, group.rows, y, indices);
    }
    finish_streaming(streams);
}
