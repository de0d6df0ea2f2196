// Part of kernels.inl: see there.

// Visits a box given as one range for each axis, in row-major order, a row along the last axis at a time.
// `row(offsets, outer)` gets the offset of the row's first element in each of the layouts and the outer coordinates.
template <int kLayouts, class Row>
inline void for_each_row(const Range* ranges, int rank, const int64_t* const (&strides)[kLayouts], Row row) {
    int64_t offsets[kLayouts] = {};
    int64_t outer[kMaxSpatialRank];
    for (int a = 0; a < rank; ++a) {
        if (ranges[a].count == 0) return;
        outer[a] = ranges[a].begin;
        for (int l = 0; l < kLayouts; ++l) offsets[l] += ranges[a].begin * strides[l][a];
    }
    for (;;) {
        row(offsets, outer);
        int a = rank - 2;
        for (; a >= 0; --a) {
            const Range& range = ranges[a];
            const bool more = outer[a] < range.begin + (range.count - 1) * range.step;
            const int64_t move = more ? range.step : range.begin - outer[a];
            outer[a] += move;
            for (int l = 0; l < kLayouts; ++l) offsets[l] += move * strides[l][a];
            if (more) break;
        }
        if (a < 0) return;
    }
}

inline int64_t output_size(const Axis& axis) { return axis.output; }
inline int64_t input_size(const Axis& axis) { return axis.input; }

// Work comes in rows: all positions along the last spatial axis of the written tensor, for one channel or, with
// channels innermost, for a block of channels.
constexpr int64_t kChannelBlock = 512;

inline int64_t lanes_per_row(const Call& call) {
    return call.channels_innermost ? std::min(kChannelBlock, call.geometry.channels) : 1;
}

// Where whole planes are worked on: as many channels as these accumulators are enough for, but not few. Reading long
// runs of memory is worth more than what caches hold.
inline int64_t lanes_per_block(const Call& call, double accumulators = 1 << 19) {
    double plane = 1;
    for (int a = 0; a < call.geometry.rank; ++a) {
        plane *= static_cast<double>(std::max(call.geometry.axes[a].input, call.geometry.axes[a].output));
    }
    int64_t lanes = lanes_per_row(call);
    while (lanes > 64 && static_cast<double>(lanes) * plane > accumulators) lanes = (lanes + 1) / 2;
    return lanes;
}

// The number of rows of a plane with these sizes along its axes.
template <class Size>
int64_t rows_of_plane(const Geometry& geometry, Size size_of_axis) {
    int64_t rows = 1;
    for (int a = 0; a + 1 < geometry.rank; ++a) rows *= size_of_axis(geometry.axes[a]);
    return rows;
}

// The number of elements of such a plane.
template <class Size>
int64_t plane_size(const Geometry& geometry, Size size_of_axis) {
    return rows_of_plane(geometry, size_of_axis) * size_of_axis(geometry.axes[geometry.rank - 1]);
}

// The number of rows of the whole tensor, whose planes are like that.
template <class Size>
int64_t count_rows(const Call& call, Size size_of_axis) {
    const Geometry& geometry = call.geometry;
    return geometry.batch * ceil_div(geometry.channels, lanes_per_row(call)) * rows_of_plane(geometry, size_of_axis);
}

// The rows of elements that windows of a plane consist of.
inline double rows_of_windows(const Geometry& geometry) {
    double rows = 1;
    for (int a = 0; a + 1 < geometry.rank; ++a) {
        const Axis& axis = geometry.axes[a];
        rows *= static_cast<double>(axis.output) * static_cast<double>(std::min(axis.kernel, axis.input));
    }
    return rows;
}

// Elements that all windows of a plane look at.
inline double plane_elements(const Call& call) {
    double elements = 1;
    for (int a = 0; a < call.geometry.rank; ++a) {
        const Axis& axis = call.geometry.axes[a];
        elements *= static_cast<double>(axis.output) * static_cast<double>(std::min(axis.kernel, axis.input));
    }
    return elements;
}

#if !defined(ONNXPOOL_SEGMENT)  // elements of rows that are done in segments; tests have shorter ones
#define ONNXPOOL_SEGMENT 2048
#endif

// The rows that flat_rows.inl makes tables of: those of the windows' taps, or of elements if these are more.
inline double rows_to_look_up(const Geometry& geometry) {
    return std::max(rows_of_windows(geometry), static_cast<double>(rows_of_plane(geometry, input_size)));
}

inline double most_rows_to_look_up() { return 32 * ONNXPOOL_SEGMENT; }

inline bool has_few_rows(const Geometry& geometry) { return rows_to_look_up(geometry) <= most_rows_to_look_up(); }

// The last digit of a number in a mixed-radix system, which it loses.
inline int64_t take_digit(int64_t& number, int64_t radix) {
    const int64_t rest = quotient(number, radix), digit = number - rest * radix;
    number = rest;
    return digit;
}

// The outer coordinates of a plane's row with this number.
template <class Size>
inline void find_row(const Geometry& geometry, Size size_of_axis, int64_t number, int64_t* outer) {
    for (int a = geometry.rank - 2; a >= 0; --a) outer[a] = take_digit(number, size_of_axis(geometry.axes[a]));
}

// Where a row lies: its image, its first channel and its coordinates along all spatial axes but the last. Rows are
// numbered in the order of memory: [N, C, D1, ..., Dr-1], or [N, D1, ..., Dr-1, C] with channels innermost.
class RowPosition {
public:
    int64_t image = 0;
    int64_t channel = 0;
    int64_t lanes = 1;  // channels in this row
    int64_t outer[kMaxSpatialRank];

    template <class Size>
    RowPosition(const Call& call, int64_t row, Size size_of_axis)
        : channels_(call.geometry.channels),
          block_(lanes_per_row(call)),
          outer_rank_(call.geometry.rank - 1),
          channels_innermost_(call.channels_innermost) {
        const int64_t blocks = ceil_div(channels_, block_);
        if (channels_innermost_) channel = take_digit(row, blocks) * block_;
        for (int a = outer_rank_ - 1; a >= 0; --a) {
            sizes_[a] = size_of_axis(call.geometry.axes[a]);
            outer[a] = take_digit(row, sizes_[a]);
        }
        if (!channels_innermost_) channel = take_digit(row, blocks) * block_;
        image = row;
        lanes = std::min(block_, channels_ - channel);
    }

    // The number of the row among those of its plane.
    int64_t row_in_plane() const {
        int64_t row = 0;
        for (int a = 0; a < outer_rank_; ++a) row = row * sizes_[a] + outer[a];
        return row;
    }

    void advance() {
        if (channels_innermost_ && next_channel()) return;
        for (int a = outer_rank_ - 1; a >= 0; --a) {
            if (++outer[a] < sizes_[a]) return;
            outer[a] = 0;
        }
        if (!channels_innermost_ && next_channel()) return;
        ++image;
    }

private:
    bool next_channel() {
        channel += block_;
        const bool more = channel < channels_;
        if (!more) channel = 0;
        lanes = std::min(block_, channels_ - channel);
        return more;
    }

    int64_t channels_;
    int64_t block_;
    int outer_rank_;
    bool channels_innermost_;
    int64_t sizes_[kMaxSpatialRank];
};

template <class T>
inline T* plane_at(const Operand& operand, int64_t image, int64_t channel) {
    return static_cast<T*>(operand.data) + image * operand.strides[0] + channel * operand.strides[1];
}

// The part of an operand's address that a row fixes: image and channel, or all but the last spatial axis.
template <class T>
inline T* plane_of(const Operand& operand, const RowPosition& position) {
    return plane_at<T>(operand, position.image, position.channel);
}

// The index of a plane's first element.
inline int64_t first_index(const Call& call, int64_t image, int64_t channel) {
    return call.first_index + image * call.index_strides[0] + channel * call.index_strides[1];
}

// Where a row lies in its plane, of a tensor with these strides [N, C, D1, ..., Dr].
inline int64_t offset_of_row(const int64_t* outer, const int64_t* strides, int rank) {
    int64_t offset = 0;
    for (int a = 0; a + 1 < rank; ++a) offset += outer[a] * strides[2 + a];
    return offset;
}

template <class T>
inline T* row_of(const Operand& operand, const RowPosition& position, int rank) {
    return plane_of<T>(operand, position) + offset_of_row(position.outer, operand.strides, rank);
}

// How far a window's last tap is from its first one.
inline int64_t window_reach(const Axis& axis) { return (axis.kernel - 1) * axis.dilation; }

// Elements from the first tap of the first window to the last tap of the last one.
inline int64_t row_reach(const Axis& axis) { return (axis.output - 1) * axis.stride + window_reach(axis) + 1; }

// The windows that do not look beyond the ends of an axis.
inline Range windows_inside(const Axis& axis) {
    const int64_t room = axis.input - 1 - window_reach(axis) + axis.pad_begin;
    const int64_t end = room < 0 ? 0 : std::min(axis.output, room / axis.stride + 1);
    const int64_t begin = std::min(end, ceil_div(std::max<int64_t>(0, axis.pad_begin), axis.stride));
    return {begin, end - begin, 1};
}

inline double taps_of_window(const Geometry& geometry) {
    double taps = 1;
    for (int a = 0; a < geometry.rank; ++a) taps *= static_cast<double>(geometry.axes[a].kernel);
    return taps;
}

// Whether 32 bits hold how far indices in a plane are from its first one, also where this is a part of a larger one.
inline bool has_positions_of_32_bits(const Call& call) {
    double last = 0;
    for (int a = 0; a < call.geometry.rank; ++a) {
        last += static_cast<double>(call.geometry.axes[a].input) * static_cast<double>(call.index_strides[2 + a]);
    }
    return last < std::numeric_limits<int32_t>::max();
}

// Whether the planes of a tensor are dense in memory, but for what is between elements that are `stride` apart.
template <class Size>
bool has_dense_planes(const Geometry& geometry, const Operand& operand, Size size_of_axis, int64_t stride = 1) {
    for (int a = geometry.rank - 1; a >= 0; --a) {
        const int64_t size = size_of_axis(geometry.axes[a]);
        if (size > 1 && operand.strides[2 + a] != stride) return false;
        stride *= size;
    }
    return true;
}

// Whether they also lie at even distances, in the order [N, C].
template <class Size>
bool has_planes_in_order(const Geometry& geometry, const Operand& operand, Size size_of_axis) {
    return has_dense_planes(geometry, operand, size_of_axis) &&
           (geometry.batch == 1 || operand.strides[0] == geometry.channels * operand.strides[1]);
}

template <class Size>
bool is_contiguous(const Geometry& geometry, const Operand& operand, Size size_of_axis) {
    return has_planes_in_order(geometry, operand, size_of_axis) &&
           (geometry.batch * geometry.channels == 1 || operand.strides[1] == plane_size(geometry, size_of_axis));
}

// Whether elements follow each other in the order [N, D1, ..., Dr, C].
template <class Size>
bool is_channels_last(const Geometry& geometry, const Operand& operand, Size size_of_axis) {
    const int64_t channels = geometry.channels;
    return operand.strides[1] == 1 && has_dense_planes(geometry, operand, size_of_axis, channels) &&
           (geometry.batch == 1 || operand.strides[0] == plane_size(geometry, size_of_axis) * channels);
}

// Whether one window has all data, and no padding, along all axes where it has several elements, which folding and
// segments leave as it is.
inline bool spans_pooled_axes(const Geometry& geometry) {
    return std::all_of(geometry.axes, geometry.axes + geometry.rank,
                       [](const Axis& axis) { return axis.kernel == 1 || is_spanned(axis); });
}

#if !defined(ONNXPOOL_LEAST_STREAMED_BYTES)  // tests stream less
#define ONNXPOOL_LEAST_STREAMED_BYTES (1 << 22)
#endif

// Whether a result, Y or grad_X, had better bypass the caches: X and Y exceed those of a core several times. Then the
// result is not in them before, and would be evicted before it is read, or evict something else.
template <class T>
bool exceeds_caches([[maybe_unused]] const Call& call) {
#if defined(ONNXPOOL_X86)
    const Geometry& geometry = call.geometry;
    const auto positions = static_cast<double>(plane_size(geometry, input_size) + plane_size(geometry, output_size));
    const double elements = positions * static_cast<double>(geometry.batch * geometry.channels);
    return elements * sizeof(T) >= ONNXPOOL_LEAST_STREAMED_BYTES;
#else
    return false;
#endif
}

// Whether these elements are whole cache lines.
template <class T>
bool are_whole_lines(const T* elements, int64_t size) {
    constexpr int64_t bytes = 64;
    return reinterpret_cast<uintptr_t>(elements) % bytes == 0 && size % (bytes / static_cast<int64_t>(sizeof(T))) == 0;
}

// Whether the channels of each position are, in blocks of so many, which are innermost.
template <class T>
bool has_whole_lines(const Geometry& geometry, const Operand& operand, int64_t block) {
    const auto* const data = static_cast<const T*>(operand.data);
    bool whole = operand.strides[1] == 1 && are_whole_lines(data, geometry.channels) && are_whole_lines(data, block);
    for (int d = 0; d < 2 + geometry.rank; ++d) whole &= d == 1 || are_whole_lines(data, operand.strides[d]);
    return whole;
}

// Whether such a result bypasses the caches.
template <class T>
bool is_streamed(const Call& call, const Operand& result, int64_t block) {
    return exceeds_caches<T>(call) && has_whole_lines<T>(call.geometry, result, block);
}

// Norms whose powers can overflow or vanish: not those of float32 with small exponents, whose powers are float64.
template <class R>
constexpr bool may_leave_range = false;
template <class T, int kExponent>
constexpr bool may_leave_range<LpNorm<T, kExponent>> = !std::is_same_v<T, float> || kExponent == kAnyExponent;

// Whether elements cost much to lift: a power with any exponent.
template <class R>
constexpr bool is_expensive = false;
template <class T>
constexpr bool is_expensive<LpNorm<T, kAnyExponent>> = true;

// Whether elements are accumulators as they are.
template <class R>
constexpr bool lifts_nothing = std::is_floating_point_v<typename R::Element> &&
                               std::is_same_v<typename R::Element, typename R::Accumulator> && !is_norm<R>;

// Sharing has to save more than it costs: the taps of all results, and the most that one of them has. The same for all
// reductions and layouts, since the order of additions depends on it.
inline bool sharing_pays(double taps, int64_t most, int64_t input, int64_t output) {
    return most >= 8 && taps > 6 * static_cast<double>(input) + 3 * static_cast<double>(output);
}

// The taps of all windows of an axis, and the most that one of them has: only those at its borders are looked at.
struct TapCount {
    double all = 0;
    int64_t most = 0;

    explicit TapCount(const Axis& axis) {
        int64_t first = 0, last = axis.output;
        const auto add_unless_full = [&](int64_t window) {
            const int64_t taps = data_taps(axis, window).count;
            if (taps == axis.kernel) return false;
            all += static_cast<double>(taps);
            most = std::max(most, taps);
            return true;
        };
        while (first < last && add_unless_full(first)) ++first;
        while (first < last && add_unless_full(last - 1)) --last;
        if (first < last) most = axis.kernel;
        all += static_cast<double>(last - first) * static_cast<double>(axis.kernel);
    }
};

inline bool sharing_pays_for_windows(const Axis& axis) {
    const TapCount taps(axis);
    return sharing_pays(taps.all, taps.most, axis.input, axis.output);
}

// The same for the windows that cover elements, of an axis longer than windows.
inline bool sharing_pays_for_coverings(const Axis& axis) {
    const int64_t taps_apart = axis.stride / std::gcd(axis.stride, axis.dilation);  // of those on one element
    return sharing_pays(TapCount(axis).all, ceil_div(axis.kernel, taps_apart), axis.output, axis.input);
}

// Along one axis, what every result is made of: looked up rather than computed for every row.
struct AxisTable {
    int64_t input;
    int64_t output;
    int64_t step;    // between the taps of a result
    int64_t period;  // results that lie so far apart look alike, but for the borders
    std::vector<Range> taps;
    std::vector<double> factors;  // of divisors, 0 without taps; float64: three huge axes have more than int64 counts
    bool windows_share = false;   // what several of them have in common is combined once: see sliding.inl

    AxisTable(int64_t input, int64_t output, int64_t step, int64_t period)
        : input(input), output(output), step(step), period(period), taps(output), factors(output) {}

    // The taps of windows. Divisors count them on `counted`, which is the axis where it is not a part of a longer one.
    static AxisTable of_windows(const Axis& axis, Divisor divisor) { return of_windows(axis, divisor, axis); }
    static AxisTable of_windows(const Axis& axis, Divisor divisor, const Axis& counted) {
        AxisTable table(axis.input, axis.output, axis.dilation, 1);
        for (int64_t output = 0; output < axis.output; ++output) {
            table.taps[output] = data_taps(axis, output);
            table.factors[output] = static_cast<double>(counted_taps(counted, output, divisor));
        }
        table.windows_share = sharing_pays_for_windows(axis);
        return table;
    }

    bool has_empty_window() const { return std::count(factors.begin(), factors.end(), 0.0) > 0; }

    // For gradients: the windows that cover each element.
    static AxisTable of_coverings(const Axis& axis) {
        AxisTable table(axis.output, axis.input, 1, axis.stride);
        // Between these, the elements a stride apart have the same windows but for one step; divisions would cost more.
        const int64_t first_inside = window_reach(axis) - axis.pad_begin + axis.stride;
        const int64_t end_inside = axis.output * axis.stride - axis.pad_begin;
        int64_t most = 0;
        for (int64_t input = 0; input < axis.input; ++input) {
            Range& windows = table.taps[input];
            if (input >= std::max(first_inside, axis.stride) && input < end_inside) {
                const Range& before = table.taps[input - axis.stride];
                windows = {before.begin + (before.count > 0), before.count, before.step};
            } else {
                windows = covering_windows(axis, input);
            }
            table.factors[input] = windows.count > 0;
            if (windows.count > 1) table.step = windows.step;
            most = std::max(most, windows.count);
        }
        table.windows_share = sharing_pays(TapCount(axis).all, most, table.input, table.output);
        return table;
    }
};

// What the outer axes make of the divisors of a row at these coordinates: 0 if its windows have no data.
inline double outer_factor(const std::vector<AxisTable>& tables, const int64_t* outer) {
    double factor = 1;
    for (size_t a = 0; a + 1 < tables.size(); ++a) factor *= tables[a].factors[outer[a]];
    return factor;
}

// Elements of the input for each row of the output, along the last two axes.
// By how much windows, but for those at the borders, follow each other; at least 1.
inline int64_t window_step(const AxisTable& axis) {
    const int64_t middle = axis.output / 2;
    return middle == 0 ? axis.input : std::max<int64_t>(1, axis.taps[middle].begin - axis.taps[middle - 1].begin);
}

inline int64_t elements_per_output_row(const std::vector<AxisTable>& tables) {
    const size_t last = tables.size() - 1;
    return tables[last].input * (last == 0 ? 1 : ceil_div(tables[last - 1].input, tables[last - 1].output));
}

inline std::vector<AxisTable> axis_tables(const Call& call) {
    std::vector<AxisTable> tables;
    tables.reserve(call.geometry.rank);
    for (int a = 0; a < call.geometry.rank; ++a) {
        const Axis& axis = call.geometry.axes[a];
        Axis counted = axis;
        if (a == call.segmented_axis) {
            counted.input += call.data_before + call.data_after;
            counted.pad_begin -= call.data_before;
        }
        tables.push_back(AxisTable::of_windows(axis, call.parameters.divisor, counted));
    }
    if (call.repeats > 1) {
        for (double& factor : tables[0].factors) factor *= static_cast<double>(call.repeats);
    }
    return tables;
}

// Visits the rows of a plane with these sizes, at some positions of the first axis, unless that is the last one, too:
// row(outer coordinates, number of the row, its offset in each layout).
template <int kLayouts, class Size, class Row>
inline void for_each_row_of_slices(const Geometry& geometry, Size size_of_axis, const Range& slices,
                                   const int64_t* const (&strides)[kLayouts], const Row& row) {
    Range all[kMaxSpatialRank];
    int64_t rows = 1;  // in a slice
    for (int a = 0; a + 1 < geometry.rank; ++a) {
        all[a] = a == 0 ? slices : Range{0, size_of_axis(geometry.axes[a]), 1};
        if (a > 0) rows *= all[a].count;
    }
    all[geometry.rank - 1] = {0, 1, 1};
    int64_t number = slices.begin * rows;
    for_each_row<kLayouts>(all, geometry.rank, strides, [&](const int64_t (&offsets)[kLayouts], const int64_t* outer) {
        row(outer, number++, offsets);
    });
}

template <int kLayouts, class Size, class Row>
inline void for_each_row_of_plane(const Geometry& geometry, Size size_of_axis,
                                  const int64_t* const (&strides)[kLayouts], const Row& row) {
    for_each_row_of_slices<kLayouts>(geometry, size_of_axis, {0, size_of_axis(geometry.axes[0]), 1}, strides, row);
}

// Whether a run of this size leaves few lanes of the vectors that it takes empty.
inline bool are_mostly_taken(int64_t size, int64_t lanes) { return 4 * (ceil_div(size, lanes) * lanes) <= 5 * size; }

constexpr int64_t kMostPhases = 2;        // that kernels deinterleave in registers
constexpr int64_t kMostResultPhases = 8;  // that they interleave there

// Along the last axis, which elements results are made of. Where a stride lies between the elements of neighbouring
// results, or between the results of neighbouring elements, those at positions that leave the same remainder when
// divided by it are brought together: in a phase.
struct AlongRow {
    struct Tap {
        int64_t result_phase, phase;
        int64_t shift;     // place q of the result's phase takes what is at q + shift of the elements' phase
        int64_t position;  // where the result at 0 takes its element
    };

    int64_t columns, outputs;  // elements and results of a row
    int64_t phases, result_phases;
    std::vector<Tap> taps;  // that any result has, by their results' phases

    static AlongRow of_windows(const Axis& axis) {
        AlongRow row{axis.input, axis.output, axis.stride, 1, {}};
        row.taps.reserve(std::min(axis.kernel, axis.input + axis.output));
        for (int64_t tap = 0; tap < axis.kernel; ++tap) {
            const int64_t position = tap * axis.dilation - axis.pad_begin;
            const int64_t phase = (position % axis.stride + axis.stride) % axis.stride;
            row.add({0, phase, (position - phase) / axis.stride, position});
        }
        return row;
    }

    // For gradients: the windows that cover an element, from the first one on.
    static AlongRow of_coverings(const Axis& axis) {
        AlongRow row{axis.output, axis.input, 1, axis.stride, {}};
        row.taps.reserve(std::min(axis.kernel, axis.input + axis.output));
        for (int64_t phase = 0; phase < axis.stride; ++phase) {
            for (int64_t tap = axis.kernel - 1; tap >= 0; --tap) {
                const int64_t position = phase + axis.pad_begin - tap * axis.dilation;
                if (position % axis.stride == 0) row.add({phase, 0, position / axis.stride, position});
            }
        }
        return row;
    }

    // Columns from one row to the next, in a phase: room for its elements and for the results.
    int64_t pitch() const { return std::max(ceil_div(columns, phases), ceil_div(outputs, result_phases)); }

    // Whether elements follow each other over rows as they do in phases, and whether results do.
    bool elements_follow() const { return columns == phases * pitch(); }
    bool results_follow() const { return outputs == result_phases * pitch(); }

    // Whether vectors of so many lanes go on over rows: where results do, or where rows in more than two phases would
    // fill few vectors. Then gaps between rows are closed afterwards.
    bool is_one_run(int64_t lanes) const {
        const bool fill_vectors = pitch() > 2 * lanes && are_mostly_taken(pitch(), lanes);
        return results_follow() || (result_phases > 2 && !fill_vectors);
    }

    // What the columns are multiples of that they begin with.
    int64_t vector_step(int64_t lanes) const { return is_one_run(lanes) ? std::gcd(lanes, pitch()) : lanes; }

    int64_t elements_in(int64_t phase) const { return ceil_div(columns - phase, phases); }
    int64_t results_in(int64_t phase) const { return ceil_div(outputs - phase, result_phases); }

private:
    void add(const Tap& tap) {
        if (tap.shift > -results_in(tap.result_phase) && tap.shift < elements_in(tap.phase)) taps.push_back(tap);
    }
};

// visit(taps along the outer axes, and one along the last, number of the row): the rows of results of a plane.
template <class Size, class Visit>
inline void for_each_row_of_taps(const Geometry& geometry, Size size_of_results, const std::vector<AxisTable>& tables,
                                 const Visit& visit) {
    const int last = geometry.rank - 1;
    const int64_t nothing[kMaxSpatialRank] = {};
    Range taps[kMaxSpatialRank];
    taps[last] = {0, 1, 1};
    for_each_row_of_plane<1>(geometry, size_of_results, {nothing},
                             [&](const int64_t* outer, int64_t row, const int64_t (&)[1]) {
                                 for (int a = 0; a < last; ++a) taps[a] = tables[a].taps[outer[a]];
                                 visit(taps, row);
                             });
}

// Along the other axes: for each row of results of a plane, the rows of elements that it is made of.
struct RowTaps {
    struct Row {
        int64_t begin, end;  // its taps
        int64_t together;  // how many rows from here on are one run: elements and taps of each follow the one's before
    };

    std::vector<int64_t> offsets;  // of the rows of elements, one row of results after the other
    std::vector<Row> rows;
    int64_t most_taps = 0;  // of a row
    bool any_run = false;   // of more than one row

    RowTaps() = default;

    // row_step: how far the rows of elements are apart that one run of rows of results may be made of; 0 if none may.
    template <class Size>
    RowTaps(const Geometry& geometry, Size size_of_results, const std::vector<AxisTable>& tables,
            const int64_t* strides, int64_t row_step) {
        int64_t all_taps = 1;
        for (int a = 0; a + 1 < geometry.rank; ++a) {
            const std::vector<Range>& taps = tables[a].taps;
            all_taps *= std::accumulate(taps.begin(), taps.end(), int64_t{0},
                                        [](int64_t sum, const Range& range) { return sum + range.count; });
        }
        offsets.reserve(all_taps);
        rows.reserve(rows_of_plane(geometry, size_of_results));
        for_each_row_of_taps(geometry, size_of_results, tables, [&](const Range* taps, int64_t) {
            const auto begin = static_cast<int64_t>(offsets.size());
            for_each_row<1>(taps, geometry.rank, {strides},
                            [&](const int64_t (&offset)[1], const int64_t*) { offsets.push_back(offset[0]); });
            rows.push_back({begin, static_cast<int64_t>(offsets.size()), 1});
            most_taps = std::max(most_taps, rows.back().end - begin);
        });
        for (size_t row = rows.size() - 1; row_step > 0 && row-- > 0;) {
            if (follows(rows[row], rows[row + 1], row_step)) {
                rows[row].together = rows[row + 1].together + 1;
                any_run = true;
            }
        }
    }

    // Where the elements end that `count` rows of results from `first` on are made of, all of one plane.
    int64_t elements_end(int64_t first, int64_t count, int64_t columns) const {
        int64_t end = -columns;
        for (int64_t i = rows[first].begin; i < rows[first + count - 1].end; ++i) end = std::max(end, offsets[i]);
        return end + columns;
    }

private:
    bool follows(const Row& row, const Row& next, int64_t row_step) const {
        const int64_t count = row.end - row.begin;
        if (count == 0 || next.end - next.begin != count) return false;
        return std::equal(offsets.begin() + row.begin, offsets.begin() + row.end, offsets.begin() + next.begin,
                          [&](int64_t offset, int64_t after) { return after == offset + row_step; });
    }
};

// How many rows of results of type T, with accumulators of type A, are done together, of `all` in planes of `in_plane`
// each: so few that processors read those of the next group while they still write this one's results; whole planes, or
// even parts of one, so that all groups are alike.
template <class T, class A>
int64_t rows_together(const AlongRow& along, int64_t in_plane, int64_t all) {
    constexpr int64_t bytes = 4096;
    const auto row = static_cast<int64_t>(sizeof(A)) * along.phases * along.result_phases * along.pitch();
    const int64_t rows = std::max<int64_t>(1, bytes / row);
    const int64_t even = rows < in_plane ? ceil_div(in_plane, ceil_div(in_plane, rows)) : rows / in_plane * in_plane;
    // Results that bypass the caches end where a cache line does.
    constexpr int64_t line = 64 / sizeof(T);
    const int64_t whole = line / std::gcd(line, along.outputs);
    return std::clamp<int64_t>(all, 1, even > whole ? even / whole * whole : whole * row <= 2 * bytes ? whole : even);
}
