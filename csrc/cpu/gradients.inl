// Part of kernels.inl: see there.
// Gradients of sums: what windows send back is prepared and then pooled as the data were, only that each element adds
// up the windows that cover it.

// What is added up, as a reduction.
template <class A>
struct GradientSum : Sum<A> {
    using Element = A;
    template <class V>
    V lift(V x) const {
        return x;
    }
};

template <class A>
constexpr bool has_result_phases<GradientSum<A>> = true;

// What is added up is an accumulator already.
template <class A>
AsItIs<A> lift_rows(const GradientSum<A>&, const std::vector<int64_t>&) {
    return {};
}

// An average sends grad_y / divisor.
template <class T>
struct AverageGradient {
    using Element = T;
    using Accumulator = accumulator_t<T>;
    static constexpr bool kNeedsData = false;

    explicit AverageGradient(const Parameters&) {}

    template <class V, class Divisor>
    auto prepare(V grad_y, V, Divisor divisor) const {
        return convert<Accumulator>(grad_y) / divisor;
    }
    template <class V, class X>
    V finish(V sum, X) const {
        return sum;
    }
};

// A norm's derivative, sign(x) (|x| / y)^(p-1), is a product of y^(1-p), sent by the window, and of sign(x) |x|^(p-1).
// In float64 neither leaves the range for p up to kLargestExponent, whatever the smaller type holds.
template <class R>
struct NormGradient;

template <class T, int kExponent>
struct NormGradient<LpNorm<T, kExponent>> {
    using Element = T;
    using Accumulator = double;
    static constexpr bool kNeedsData = true;
    static constexpr int kLargestExponent = 7;

    explicit NormGradient(const Parameters& parameters)
        : p_(parameters.p), whole_exponent_(whole_number(p_, kLargestExponent)) {}

    template <class V, class Divisor>
    auto prepare(V grad_y, V result, Divisor) const {
        const auto y = convert<double>(result);
        const decltype(convert<double>(result)) nothing{};
        const auto sent = convert<double>(grad_y) / power(y);
        return y == 0 ? nothing : sent;
    }
    template <class V, class X>
    V finish(V sum, X data) const {
        const auto x = convert<double>(data);
        const decltype(convert<double>(data)) zero{};
        const auto sign = x > 0 ? zero + 1 : x < 0 ? zero - 1 : x;
        return sum * (sign * power(magnitude(x)));
    }

private:
    // base^(p-1)
    template <class V>
    V power(V base) const {
        if constexpr (kExponent > 0) return whole_power<kExponent - 1>(base);
        if constexpr (kExponent == kOneThreeOrFour) return small_power(base, whole_exponent_ - 1);
        return whole_exponent_ > 0 ? whole_power(base, whole_exponent_ - 1) : power_of(base, p_ - 1);
    }

    double p_;
    int whole_exponent_;  // p where it is a whole number, or 0
};

inline std::vector<AxisTable> covering_tables(const Geometry& geometry) {
    std::vector<AxisTable> tables;
    for (int a = 0; a < geometry.rank; ++a) tables.push_back(AxisTable::of_coverings(geometry.axes[a]));
    return tables;
}

// Where the rows of windows end that cover a row of elements, or 0 without any.
inline int64_t end_of_covering_rows(const std::vector<AxisTable>& coverings, const int64_t* outer) {
    int64_t row = 0;
    for (size_t a = 0; a + 1 < coverings.size(); ++a) {
        const Range& windows = coverings[a].taps[outer[a]];
        if (windows.count == 0) return 0;
        row = row * coverings[a].input + windows.begin + (windows.count - 1) * windows.step;
    }
    return row + 1;
}

// The tensors that a gradient looks at, or others of their shapes where it looks at none.
template <class G>
const Operand& data_of(const Call& call) {
    return G::kNeedsData ? call.x : call.grad_x;
}
template <class G>
const Operand& result_of(const Call& call) {
    return G::kNeedsData ? call.y : call.grad_y;
}

// The elements of a plane that no window covers: their gradient is 0, whatever the data are.
class Uncovered {
public:
    Uncovered(const Geometry& geometry, const std::vector<AxisTable>& coverings) : columns_(coverings.back().output) {
        const int64_t nothing[kMaxSpatialRank] = {};
        for_each_row_of_plane<1>(geometry, input_size, {nothing},
                                 [&](const int64_t* outer, int64_t, const int64_t (&)[1]) {
                                     rows_.push_back(outer_factor(coverings, outer) == 0);
                                     any_ |= rows_.back();
                                 });
        const std::vector<double>& factors = coverings.back().factors;
        for (int64_t i = 0; i < columns_; ++i) {
            if (factors[i] == 0) uncovered_columns_.push_back(i);
        }
        any_ |= !uncovered_columns_.empty();
    }

    bool any() const { return any_; }

    // The row_index-th row of the plane.
    bool has_row(int64_t row_index) const { return rows_[row_index]; }

    template <class T>
    void fill(T* row, int64_t row_index) const {
        if (has_row(row_index)) {
            std::fill_n(row, columns_, static_cast<T>(0.0f));
        } else {
            for (const int64_t i : uncovered_columns_) row[i] = static_cast<T>(0.0f);
        }
    }

private:
    const int64_t columns_;
    bool any_ = false;
    std::vector<bool> rows_;
    std::vector<int64_t> uncovered_columns_;
};

// Where the gradients of a row go: finish(sum, x).
template <class G>
struct FinishGradient {
    using T = typename G::Element;
    const G& gradient;
    const T* x;
    T* grad_x;
    bool streams = false;
    template <class V>
    void operator()(int64_t i, V sum) const {
        if constexpr (G::kNeedsData) {
            prefetch_line_ahead<8192>(x + i);
            store_prefetching(grad_x + i, convert<T>(gradient.finish(sum, load<lanes_of<V>>(x + i))), streams);
        } else {
            store_prefetching(grad_x + i, convert<T>(gradient.finish(sum, sum)), streams);
        }
    }
};

// The same for lanes, see Results.
template <class G>
struct GradientResults {
    using T = typename G::Element;
    const G& gradient;
    const T* x;
    int64_t x_step;
    T* grad_x;
    int64_t step;
    bool streams;

    FinishGradient<G> at(int64_t position, typename G::Accumulator) const {
        return {gradient, x + position * x_step, grad_x + position * step, streams};
    }
    void fill_empty(int64_t position, int64_t lanes) const {
        std::fill_n(grad_x + position * step, lanes, static_cast<T>(0.0f));
    }
    bool is_one_run(int64_t lanes) const { return step == lanes && x_step == lanes; }
};

// `size` elements that lie `step` apart, brought together in `buffer` where they are not.
template <class T>
inline const T* together(const T* source, int64_t step, int64_t size, Buffer<T>& buffer) {
    if (step == 1) return source;
    buffer.resize(std::max<size_t>(buffer.size(), size));
    for (int64_t i = 0; i < size; ++i) buffer[i] = source[i * step];
    return buffer.data();
}

// The gradients of some lanes.
template <class G>
class LaneGradients {
public:
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;

    explicit LaneGradients(const Call& call)
        : geometry_(call.geometry),
          gradient_(call.parameters),
          windows_(axis_tables(call)),
          coverings_(covering_tables(call.geometry)),
          rows_in_slice_(rows_of_plane(call.geometry, output_size) / call.geometry.axes[0].output),
          rows_(sum_, coverings_, false) {}

    // The lanes whose rows come next, in their order: what windows send is prepared little by little.
    void set_lanes(const T* grad_y, const int64_t* grad_y_strides, const T* y, const int64_t* y_strides,
                   int64_t lanes) {
        grad_y_ = {grad_y, grad_y_strides};
        y_ = {y, y_strides};
        lanes_ = lanes;
        prepared_rows_ = 0;
        int64_t size = packed_strides(geometry_, lanes, output_size, prepared_strides_) * lanes;
        if (rows_.reduces_axis_by_axis()) size = rows_.positions_together(lanes) * prepared_strides_[0];
        prepared_.clear();
        prepared_.resize(size);
        rows_.set_lanes(prepared_.data(), prepared_strides_, lanes);
    }

    // A row of grad_x, the row_index-th of its plane.
    void compute(const int64_t* outer, int64_t row_index, const T* x, int64_t x_step, T* grad_x, int64_t step,
                 bool streams = false) {
        const GradientResults<G> results{gradient_, x, x_step, grad_x, step, streams};
        if (!rows_.reduces_axis_by_axis()) {
            const int64_t end = end_of_covering_rows(coverings_, outer);
            prepare(prepared_rows_, end, prepared_.data());
            prepared_rows_ = std::max(prepared_rows_, end);
        }
        rows_.compute(outer, row_index, results, [&](int64_t begin, int64_t end) {
            Accumulator* const plane = prepared_.data() - begin * prepared_strides_[0];
            prepare(begin * rows_in_slice_, end * rows_in_slice_, plane);
            return plane;
        });
    }

private:
    struct Lanes {
        const T* data;
        const int64_t* strides;  // [N, C, D1, ..., Dr]
    };

    // Rows of windows, for the plane that lies here.
    void prepare(int64_t begin, int64_t end, Accumulator* plane) {
        const int last = geometry_.rank - 1;
        for (int64_t row = begin; row < end; ++row) {
            int64_t outer[kMaxSpatialRank];
            find_row(geometry_, output_size, row, outer);
            const T* const grad_y = grad_y_.data + offset_of_row(outer, grad_y_.strides, geometry_.rank);
            const T* const y = y_.data + offset_of_row(outer, y_.strides, geometry_.rank);
            const int64_t outputs = geometry_.axes[last].output;
            const double factor = outer_factor(windows_, outer);
            Accumulator* target = plane + row * outputs * lanes_;
            for (int64_t o = 0; o < outputs; ++o, target += lanes_) {
                // Windows without data send nothing.
                const auto divisor = static_cast<Accumulator>(std::max(1.0, factor * windows_[last].factors[o]));
                const T* grads =
                    together(grad_y + o * grad_y_.strides[2 + last], grad_y_.strides[1], lanes_, grad_y_lanes_);
                const T* results =
                    G::kNeedsData ? together(y + o * y_.strides[2 + last], y_.strides[1], lanes_, y_lanes_) : grads;
                prefetch_ahead(grads, lanes_);
                if (G::kNeedsData) prefetch_ahead(results, lanes_);
                in_vectors<kLanes<Accumulator>>(lanes_, [&](int64_t i, auto n) {
                    store(target + i, gradient_.prepare(load<n>(grads + i), load<n>(results + i), divisor));
                });
            }
        }
    }

    const Geometry& geometry_;
    const G gradient_;
    const GradientSum<Accumulator> sum_{};
    const std::vector<AxisTable> windows_, coverings_;
    const int64_t rows_in_slice_;  // rows of windows at one position of the first axis
    LaneRows<GradientSum<Accumulator>> rows_;
    Lanes grad_y_{}, y_{};
    int64_t lanes_ = 0;
    int64_t prepared_rows_ = 0;
    int64_t prepared_strides_[kMaxSpatialRank];
    Buffer<Accumulator> prepared_;
    Buffer<T> grad_y_lanes_, y_lanes_;
};

template <class G>
ChannelBlocks gradient_blocks(const Call& call) {
    using Sum = GradientSum<typename G::Accumulator>;
    const std::vector<AxisTable> tables = covering_tables(call.geometry);
    if (is_separable<Sum>(tables)) return ChannelBlocks::axis_by_axis<typename G::Accumulator>(call, tables);
    return {lanes_per_row(call), tables[0].output, 1};
}

// Units are blocks of channels of an image, or parts of them: see ChannelBlocks.
template <class G>
void backward_channel_blocks(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    const Geometry& geometry = call.geometry;
    LaneGradients<G> gradients(call);
    const ChannelBlocks blocks = gradient_blocks<G>(call);
    const Operand &x = data_of<G>(call), &y = result_of<G>(call);
    const int64_t x_step = x.strides[1 + geometry.rank], step = call.grad_x.strides[1 + geometry.rank];
    const bool streams = is_streamed<T>(call, call.grad_x, blocks.lanes);
    int64_t plane = -1;
    for (int64_t number = begin; number < end; ++number) {
        const auto unit = blocks.at(number, geometry);
        const T* x_plane = plane_at<const T>(x, unit.image, unit.channel);
        T* grad_x = plane_at<T>(call.grad_x, unit.image, unit.channel);
        if (unit.plane != std::exchange(plane, unit.plane)) {
            gradients.set_lanes(plane_at<const T>(call.grad_y, unit.image, unit.channel), call.grad_y.strides,
                                plane_at<const T>(y, unit.image, unit.channel), y.strides, unit.lanes);
        }
        for_each_row_of_slices<2>(geometry, input_size, unit.positions, {x.strides + 2, call.grad_x.strides + 2},
                                  [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                                      gradients.compute(outer, row, x_plane + offsets[0], x_step, grad_x + offsets[1],
                                                        step, streams);
                                  });
    }
    finish_streaming(streams);
}

template <class G>
int64_t planes_packed_for_gradient(const Geometry& geometry) {
    constexpr int64_t size = sizeof(typename G::Element);
    return packed_planes<typename G::Accumulator>(geometry, size, size);
}

// Units are groups of planes. A row of gradients is unpacked as soon as it is complete.
template <class G>
void backward_packed(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    const Geometry& geometry = call.geometry;
    const int64_t lanes = planes_packed_for_gradient<G>(geometry);
    LaneGradients<G> gradients(call);
    int64_t y_strides[2 + kMaxSpatialRank] = {0, 1};
    const int64_t y_size = packed_strides(geometry, lanes, output_size, y_strides + 2);
    const int64_t columns = geometry.axes[geometry.rank - 1].input;
    Buffer<T> grad_y(y_size * lanes), y(G::kNeedsData ? y_size * lanes : 0);
    Buffer<T> x(G::kNeedsData ? columns * lanes : 0), grad_x(columns * lanes);
    const int64_t* x_strides = data_of<G>(call).strides;
    const int64_t step = call.grad_x.strides[1];
    for (int64_t group = begin; group < end; ++group) {
        const int64_t first = group * lanes;
        const int64_t planes = std::min(lanes, geometry.batch * geometry.channels - first);
        const auto take = [&](const Operand& operand, int64_t offset, Buffer<T>& target, int64_t size) {
            const int64_t plane_step = operand.strides[1];
            pack(static_cast<const T*>(operand.data) + first * plane_step + offset, plane_step, planes, size,
                 target.data(), lanes);
        };
        take(call.grad_y, 0, grad_y, y_size);
        if (G::kNeedsData) take(call.y, 0, y, y_size);
        gradients.set_lanes(grad_y.data(), y_strides, G::kNeedsData ? y.data() : grad_y.data(), y_strides, lanes);
        for_each_row_of_plane<2>(
            geometry, input_size, {x_strides + 2, call.grad_x.strides + 2},
            [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                if (G::kNeedsData) take(call.x, offsets[0], x, columns);
                gradients.compute(outer, row, G::kNeedsData ? x.data() : grad_x.data(), lanes, grad_x.data(), lanes);
                unpack(grad_x.data(), lanes, static_cast<T*>(call.grad_x.data) + first * step + offsets[1], step,
                       planes, columns);
            });
    }
}

// Along the last axis, what windows send lies a stride apart; sums of nothing between make of it a pooling with
// stride 1.
inline Axis spread_axis(const Axis& axis) {
    Axis spread = axis;
    spread.input = (axis.output - 1) * axis.stride + 1;
    spread.output = axis.input;
    spread.stride = 1;
    spread.pad_begin = window_reach(axis) - axis.pad_begin;
    return spread;
}

// Whether rows of elements are worth a buffer, in which what windows send lies a stride apart, and paddings are not
// much longer than rows: then backward_rows() takes them.
inline bool has_long_rows(const Geometry& geometry, const Operand& x, const Operand& grad_x) {
    const Axis& axis = geometry.axes[geometry.rank - 1];
    const Axis spread = spread_axis(axis);
    return spread.pad_begin >= 0 &&
           std::max(row_reach(spread), spread.input) <= 2 * (2 * axis.input + axis.output) + 64 &&
           x.strides[1 + geometry.rank] == 1 && grad_x.strides[1 + geometry.rank] == 1;
}

// Elements of a row that the same windows cover: all of them get the same sum, of what these windows send.
class CoveredRuns {
public:
    explicit CoveredRuns(const AxisTable& coverings) : elements_(coverings.output) {
        for (int64_t i = 0; i < coverings.output; ++i) {
            const Range& windows = coverings.taps[i];
            if (runs_.empty() || !are_same(runs_.back().windows, windows)) runs_.push_back({i, i, windows});
            runs_.back().end = i + 1;
        }
    }

    // Whether they do, more or less.
    bool fill_vectors() const { return static_cast<int64_t>(runs_.size()) * kMostResultPhases < elements_; }

    // put(i, sums) for all elements of the row, to which its windows send these values.
    template <class A, class Put>
    void expand(const A* sent, const Put& put) const {
        const GradientSum<A> reduction;
        for (const Run& run : runs_) {
            A sum = reduction.identity();
            for (int64_t i = 0; i < run.windows.count; ++i) {
                const A value = sent[run.windows.begin + i * run.windows.step];
                sum = i == 0 ? value : reduction.combine(sum, value);
            }
            in_vectors<kLanes<A>>(run.end - run.begin, [&](int64_t i, auto count) {
                using V = decltype(load<count>(sent));
                put(run.begin + i, filled<V>(sum));
            });
        }
    }

private:
    struct Run {
        int64_t begin, end;
        Range windows;
    };

    static bool are_same(const Range& a, const Range& b) {
        return a.count == b.count && (a.count == 0 || a.begin == b.begin) && (a.count < 2 || a.step == b.step);
    }

    const int64_t elements_;
    std::vector<Run> runs_;
};

// Units are planes, in which rows are contiguous.
template <class G>
void backward_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;
    constexpr int vector = kLanes<Accumulator>;
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& axis = geometry.axes[last];
    const G gradient(call.parameters);
    const GradientSum<Accumulator> sum;
    const std::vector<AxisTable> windows = axis_tables(call);
    RowDivisors<Accumulator> divisors(windows[last]);
    std::vector<AxisTable> coverings = covering_tables(geometry);
    const Uncovered uncovered(geometry, coverings);
    const bool coverings_share = coverings[last].windows_share;
    const CoveredRuns runs(coverings[last]);
    const bool has_runs = runs.fill_vectors() && !coverings_share;  // then rows are summed as windows send them
    const Axis along = has_runs ? Axis{axis.output, axis.output, 1, 1, 1, 0, 0} : spread_axis(axis);
    const int64_t sent_step = has_runs ? 1 : axis.stride;
    coverings[last] = AxisTable::of_windows(along, Divisor::kKernel);
    coverings[last].windows_share = coverings_share;  // additions have the same order in all kernels
    const int64_t plane_rows = rows_of_plane(geometry, input_size);
    PlaneRows<GradientSum<Accumulator>> rows(sum, coverings, along, plane_rows);

    int64_t sent_strides[kMaxSpatialRank];
    int64_t size = 1;
    for (int a = last; a >= 0; --a) {
        sent_strides[a] = size;
        size *= a == last ? along.input : geometry.axes[a].output;
    }
    Buffer<Accumulator> sent(size), sent_row(axis.output), row_sums(has_runs ? rows.capacity() * axis.output : 0);
    std::fill(sent.begin(), sent.end(), sum.identity());
    Buffer<T> grad_y_row, y_row;
    const Operand &x = data_of<G>(call), &y = result_of<G>(call);
    std::vector<FinishGradient<G>> targets;
    std::vector<int64_t> row_indices;
    const auto finish = [&] {
        const auto never = [](int64_t, int64_t) {};
        if (has_runs) {
            rows.finish(KeepParts<Accumulator>{row_sums.data(), axis.output}, never);
        } else {
            rows.finish([&](int64_t row) { return targets[row]; }, never);
        }
        for (size_t i = 0; i < targets.size(); ++i) {
            if (has_runs) runs.expand(row_sums.data() + i * axis.output, targets[i]);
            uncovered.fill(targets[i].grad_x, row_indices[i]);
        }
        targets.clear();
        row_indices.clear();
    };

    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / geometry.channels, channel = unit % geometry.channels;
        const T* grad_y_plane = plane_at<const T>(call.grad_y, image, channel);
        const T* y_plane = plane_at<const T>(y, image, channel);
        const T* x_plane = plane_at<const T>(x, image, channel);
        T* grad_x_plane = plane_at<T>(call.grad_x, image, channel);
        for_each_row_of_plane<3>(
            geometry, output_size, {call.grad_y.strides + 2, y.strides + 2, sent_strides},
            [&](const int64_t* outer, int64_t, const int64_t (&offsets)[3]) {
                const Accumulator* divisor = divisors.of(outer_factor(windows, outer));
                const T* grad =
                    together(grad_y_plane + offsets[0], call.grad_y.strides[2 + last], axis.output, grad_y_row);
                const T* result =
                    G::kNeedsData ? together(y_plane + offsets[1], y.strides[2 + last], axis.output, y_row) : grad;
                Accumulator* target = sent_step == 1 ? sent.data() + offsets[2] : sent_row.data();
                in_vectors<vector>(axis.output, [&](int64_t i, auto n) {
                    store(target + i, gradient.prepare(load<n>(grad + i), load<n>(result + i), load<n>(divisor + i)));
                });
                for (int64_t o = 0; sent_step > 1 && o < axis.output; ++o) {
                    sent[offsets[2] + o * sent_step] = sent_row[o];
                }
            });
        rows.set_plane(sent.data(), sent_strides);
        for_each_row_of_plane<2>(geometry, input_size, {x.strides + 2, call.grad_x.strides + 2},
                                 [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                                     T* grad_x = grad_x_plane + offsets[1];
                                     if (uncovered.has_row(row)) return uncovered.fill(grad_x, row);
                                     rows.add(outer, row);
                                     targets.push_back({gradient, x_plane + offsets[0], grad_x});
                                     row_indices.push_back(row);
                                     if (rows.is_full()) finish();
                                 });
        finish();
    }
}

// The rows of elements of type T that the windows of a call cover, with accumulators of type A.
template <class T, class A>
struct RowsOfCoverings {
    const AlongRow along;
    const int64_t in_plane;
    const int64_t planes;    // that are worked on together
    const int64_t together;  // rows of them

    explicit RowsOfCoverings(const Call& call)
        : along(AlongRow::of_coverings(call.geometry.axes[call.geometry.rank - 1])),
          in_plane(rows_of_plane(call.geometry, input_size)),
          planes(std::max<int64_t>(1, rows_together<T, A>(along, in_plane, count_rows(call, input_size)) / in_plane)),
          together(rows_together<T, A>(along, in_plane, planes * in_plane)) {}

    // Units are such planes: start(first plane, how many), and then for each group of their rows visit(first row, how
    // many, room): behind them there is room for elements, of which the next groups are made.
    template <class Start, class Visit>
    void for_each_group(const Call& call, int64_t begin, int64_t end, const Start& start, const Visit& visit) const {
        const int64_t all_planes = call.geometry.batch * call.geometry.channels;
        const bool planes_follow = is_contiguous(call.geometry, call.grad_x, input_size);
        for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t plane = unit * planes, count = std::min(planes, all_planes - plane);
            const int64_t last_row = (planes_follow ? std::min(end * planes, all_planes) - plane : count) * in_plane;
            start(plane, count);
            for (int64_t row = 0; row < count * in_plane; row += together) {
                const int64_t rows = std::min(together, count * in_plane - row);
                visit(row, rows, (last_row - row - rows) * along.outputs);
            }
        }
    }
};

// Units are some planes that follow each other. What their windows send is prepared little by little, as the rows of
// elements that they cover need it.
template <class G>
void backward_flat_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const RowsOfCoverings<T, Accumulator> covered(call);
    const G gradient(call.parameters);
    const GradientSum<Accumulator> sum;

    // Elements are to windows what windows are to elements.
    Geometry mirrored = geometry;
    mirrored.batch = 1;
    mirrored.channels = covered.planes;
    for (int a = 0; a <= last; ++a) std::swap(mirrored.axes[a].input, mirrored.axes[a].output);
    int64_t strides[2 + kMaxSpatialRank];
    const int64_t plane_outputs = strides[1] = packed_strides(geometry, 1, output_size, strides + 2);
    strides[0] = covered.planes * plane_outputs;
    Buffer<Accumulator> sent(strides[0]), divisors(G::kNeedsData ? 0 : strides[0]);
    Call sums(mirrored, call.parameters);
    sums.x = {sent.data(), strides};
    const std::vector<AxisTable> tables = covering_tables(geometry);
    FlatRows<GradientSum<Accumulator>> rows(sum, sums, tables, covered.along, covered.together, false);

    if (!G::kNeedsData) {
        const std::vector<AxisTable> windows = axis_tables(call);
        RowDivisors<Accumulator> row_divisors(windows[last]);
        for_each_row_of_plane<1>(geometry, output_size, {strides + 2},
                                 [&](const int64_t* outer, int64_t, const int64_t (&offsets)[1]) {
                                     const Accumulator* row = row_divisors.of(outer_factor(windows, outer));
                                     std::copy_n(row, geometry.axes[last].output, divisors.begin() + offsets[0]);
                                 });
        for (int64_t i = plane_outputs; i < strides[0]; ++i) divisors[i] = divisors[i - plane_outputs];
    }
    const Uncovered uncovered(geometry, tables);

    const int64_t columns = covered.along.outputs;
    // What bypasses the caches had better be written once: elements without windows are filled afterwards.
    const bool streams = rows.is_one_run() && exceeds_caches<T>(call) && !uncovered.any();
    const T *grad_y = nullptr, *y = nullptr, *x = nullptr;
    T* grad_x = nullptr;
    int64_t planes = 0, prepared = 0;
    const auto start = [&](int64_t plane, int64_t count) {
        planes = count;
        prepared = 0;
        const int64_t image = plane / geometry.channels, channel = plane % geometry.channels;
        grad_y = plane_at<const T>(call.grad_y, image, channel);
        y = plane_at<const T>(result_of<G>(call), image, channel);
        x = plane_at<const T>(data_of<G>(call), image, channel);
        grad_x = plane_at<T>(call.grad_x, image, channel);
    };
    const auto prepare = [&](int64_t until) {
        if (until <= prepared) return;
        const T *const grads = grad_y + prepared, *const results = y + prepared;
        prefetch_ahead(grads, until - prepared);
        if (G::kNeedsData) prefetch_ahead(results, until - prepared);
        Accumulator* const target = sent.data() + prepared;
        const Accumulator* const divisor = G::kNeedsData ? target : divisors.data() + prepared;
        in_vectors<kLanes<Accumulator>>(until - prepared, [&](int64_t i, auto n) {
            store(target + i, gradient.prepare(load<n>(grads + i), load<n>(results + i), load<n>(divisor + i)));
        });
        prepared = until;
    };
    covered.for_each_group(call, begin, end, start, [&](int64_t first, int64_t count, int64_t room) {
        prepare(planes > 1 ? planes * plane_outputs : rows.taps().elements_end(first, count, covered.along.columns));
        T* const target = grad_x + first * columns;
        const bool whole = are_whole_lines(target, count * columns);
        rows.compute(first, count, room, FinishGradient<G>{gradient, x + first * columns, target, streams && whole});
        for (int64_t row = first; uncovered.any() && row < first + count; ++row) {
            uncovered.fill(grad_x + row * columns, row % covered.in_plane);
        }
    });
    finish_streaming(streams);
}

// One window spans the plane of each channel, and channels are next to each other. Units are rows of elements, in the
// order of memory.
template <class G>
void backward_plane_lanes(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;
    constexpr int vector = kLanes<Accumulator>;
    constexpr int64_t few_lanes = 512;
    const Geometry& geometry = call.geometry;
    const int rank = geometry.rank;
    const int64_t channels = geometry.channels, columns = geometry.axes[rank - 1].input;
    const int64_t rows = rows_of_plane(geometry, input_size);
    const auto divisor = static_cast<Accumulator>(plane_size(geometry, input_size));
    const G gradient(call.parameters);
    const Operand &x = data_of<G>(call), &y = result_of<G>(call);
    const int64_t x_step = x.strides[1 + rank], step = call.grad_x.strides[1 + rank];
    // Columns without anything between them are one run of lanes.
    const bool is_one_run = x_step == channels && step == channels;
    const int64_t most_columns = is_one_run ? std::clamp<int64_t>(quotient(few_lanes, channels), 1, columns) : 1;
    Buffer<Accumulator> sent(most_columns * channels);
    Buffer<T> grad_y_lanes, y_lanes;
    const auto prepare = [&](int64_t image) {
        const T* const grads =
            together(plane_at<const T>(call.grad_y, image, 0), call.grad_y.strides[1], channels, grad_y_lanes);
        const T* const results =
            G::kNeedsData ? together(plane_at<const T>(y, image, 0), y.strides[1], channels, y_lanes) : grads;
        in_vectors<vector>(channels, [&](int64_t i, auto n) {
            store(sent.data() + i, gradient.prepare(load<n>(grads + i), load<n>(results + i), divisor));
        });
        for (int64_t column = 1; column < most_columns; ++column) {
            std::copy_n(sent.data(), channels, sent.data() + column * channels);
        }
    };
    const bool streams = is_streamed<T>(call, call.grad_x, channels);
    int64_t prepared_image = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = quotient(unit, rows);
        if (image != std::exchange(prepared_image, image)) prepare(image);
        int64_t outer[kMaxSpatialRank];
        find_row(geometry, input_size, unit - image * rows, outer);
        const T* x_row = plane_at<const T>(x, image, 0) + offset_of_row(outer, x.strides, rank);
        T* grad_x_row = plane_at<T>(call.grad_x, image, 0) + offset_of_row(outer, call.grad_x.strides, rank);
        for (int64_t column = 0; column < columns; column += most_columns) {
            const FinishGradient<G> finish{gradient, x_row + column * x_step, grad_x_row + column * step, streams};
            in_vectors<vector>(std::min(most_columns, columns - column) * channels,
                               [&](int64_t i, auto n) { finish(i, load<n>(sent.data() + i)); });
        }
    }
    finish_streaming(streams);
}

// One window spans a contiguous plane. Units are planes.
template <class G>
void backward_planes(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;
    constexpr int64_t part = (1 << 13) / sizeof(Accumulator);  // several stay in a first cache
    const Geometry& geometry = call.geometry;
    const G gradient(call.parameters);
    const int64_t size = plane_size(geometry, input_size);
    // Where all elements of a large plane get the same, nothing but memory takes time: stores bypass the caches, in
    // whole lines, which planes may share.
    const bool in_order = !G::kNeedsData && size >= part / 2 && exceeds_caches<T>(call) &&
                          is_contiguous(geometry, call.grad_x, input_size);
    std::optional<SumsInOrder<T>> results;
    if (in_order) results.emplace(call, begin * size, 2 * part);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = quotient(unit, geometry.channels), channel = unit - image * geometry.channels;
        const auto grad_y = load<1>(plane_at<const T>(call.grad_y, image, channel));
        const auto y = load<1>(plane_at<const T>(result_of<G>(call), image, channel));
        const Accumulator sent = gradient.prepare(grad_y, y, static_cast<Accumulator>(size * call.repeats));
        if (in_order) {
            for (int64_t done = 0; done < size; done += part) {
                const int64_t count = std::min(part, size - done), first = unit * size + done;
                std::fill_n(results->between(first, first + count), count, static_cast<accumulator_t<T>>(sent));
            }
            continue;
        }
        const FinishGradient<G> finish{gradient, plane_at<const T>(data_of<G>(call), image, channel),
                                       plane_at<T>(call.grad_x, image, channel)};
        in_vectors<kLanes<Accumulator>>(size, [&](int64_t i, auto n) {
            if constexpr (n == 1) {
                finish(i, sent);
            } else {
                finish(i, Vector<Accumulator, n>{} + sent);
            }
        });
    }
    if (in_order) results->finish(end * size);
}
