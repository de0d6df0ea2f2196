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
template <class T>
struct NormGradient {
    using Element = T;
    using Accumulator = double;
    static constexpr bool kNeedsData = true;
    static constexpr double kLargestExponent = 7;

    double p;

    explicit NormGradient(const Parameters& parameters) : p(parameters.p) {}

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
        if (p == 1) return V{} + 1;
        if (p == 2) return base;
        if (p == 3) return base * base;
        if (p == 4) return base * base * base;
        return power_of(base, p - 1);
    }
};

inline std::vector<AxisTable> covering_tables(const Geometry& geometry) {
    std::vector<AxisTable> tables;
    for (int a = 0; a < geometry.rank; ++a) tables.push_back(AxisTable::of_coverings(geometry.axes[a]));
    return tables;
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

// Where the gradients of a row go: finish(sum, x).
template <class G>
struct FinishGradient {
    using T = typename G::Element;
    const G& gradient;
    const T* x;
    T* grad_x;
    template <class V>
    void operator()(int64_t i, V sum) const {
        if constexpr (G::kNeedsData) {
            store(grad_x + i, convert<T>(gradient.finish(sum, load<lanes_of<V>>(x + i))));
        } else {
            store(grad_x + i, convert<T>(gradient.finish(sum, sum)));
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

    FinishGradient<G> at(int64_t position, typename G::Accumulator) const {
        return {gradient, x + position * x_step, grad_x + position * step};
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

// All positions of a plane, for for_each_row(): the last axis is one more, of one element.
template <class Size>
inline void every_position(const Geometry& geometry, Size size_of_axis, Range* ranges) {
    for (int a = 0; a < geometry.rank; ++a) ranges[a] = {0, size_of_axis(geometry.axes[a]), 1};
    ranges[geometry.rank] = {0, 1, 1};
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
          rows_(sum_, covering_tables(call.geometry)) {}

    // What the windows send.
    void prepare(const T* grad_y, const int64_t* grad_y_strides, int64_t grad_y_lane_step, const T* y,
                 const int64_t* y_strides, int64_t y_lane_step, int64_t lanes) {
        const int rank = geometry_.rank;
        prepared_.resize(packed_strides(geometry_, lanes, output_size, prepared_strides_) * lanes);
        Range all[kMaxSpatialRank + 1];
        every_position(geometry_, output_size, all);
        int64_t strides[3][kMaxSpatialRank + 1];
        for (int a = 0; a < rank; ++a) {
            strides[0][a] = grad_y_strides[a];
            strides[1][a] = y_strides[a];
            strides[2][a] = prepared_strides_[a];
        }
        for (auto& stride : strides) stride[rank] = 0;
        for_each_row<3>(
            all, rank + 1, {strides[0], strides[1], strides[2]},
            [&](const int64_t (&offsets)[3], const int64_t* position) {
                const double factor = outer_factor(windows_, position) * windows_[rank - 1].factors[position[rank - 1]];
                const auto divisor = static_cast<Accumulator>(std::max(1.0, factor));  // without data nothing is sent
                const T* grad = together(grad_y + offsets[0], grad_y_lane_step, lanes, grad_y_lanes_);
                const T* result = G::kNeedsData ? together(y + offsets[1], y_lane_step, lanes, y_lanes_) : grad;
                Accumulator* target = prepared_.data() + offsets[2];
                in_vectors<kLanes<Accumulator>>(lanes, [&](int64_t i, auto n) {
                    store(target + i, gradient_.prepare(load<n>(grad + i), load<n>(result + i), divisor));
                });
            });
        rows_.set_lanes(prepared_.data(), prepared_strides_, lanes);
    }

    // A row of grad_x, the row_index-th of its plane.
    void compute(const int64_t* outer, int64_t row_index, const T* x, int64_t x_step, T* grad_x, int64_t step) {
        rows_.compute(outer, row_index, GradientResults<G>{gradient_, x, x_step, grad_x, step});
    }

private:
    const Geometry& geometry_;
    const G gradient_;
    const GradientSum<Accumulator> sum_{};
    const std::vector<AxisTable> windows_;
    LaneRows<GradientSum<Accumulator>> rows_;
    int64_t prepared_strides_[kMaxSpatialRank];
    Buffer<Accumulator> prepared_;
    Buffer<T> grad_y_lanes_, y_lanes_;
};

// Channels at a time: whole planes of them only have to stay in the caches where axes are added up one by one.
template <class G>
int64_t gradient_lanes(const Call& call) {
    using Sum = GradientSum<typename G::Accumulator>;
    return is_separable<Sum>(covering_tables(call.geometry)) ? lanes_per_block(call) : lanes_per_row(call);
}

// Units are blocks of channels of an image.
template <class G>
void backward_channel_blocks(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    const Geometry& geometry = call.geometry;
    LaneGradients<G> gradients(call);
    const int64_t block = gradient_lanes<G>(call), blocks = ceil_div(geometry.channels, block);
    const Operand &x = data_of<G>(call), &y = result_of<G>(call);
    const int64_t x_step = x.strides[1 + geometry.rank], step = call.grad_x.strides[1 + geometry.rank];
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / blocks, channel = unit % blocks * block;
        const T* x_plane = plane_at<const T>(x, image, channel);
        T* grad_x = plane_at<T>(call.grad_x, image, channel);
        gradients.prepare(plane_at<const T>(call.grad_y, image, channel), call.grad_y.strides + 2,
                          call.grad_y.strides[1], plane_at<const T>(y, image, channel), y.strides + 2, y.strides[1],
                          std::min(block, geometry.channels - channel));
        for_each_row_of_plane<2>(geometry, input_size, {x.strides + 2, call.grad_x.strides + 2},
                                 [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                                     gradients.compute(outer, row, x_plane + offsets[0], x_step, grad_x + offsets[1],
                                                       step);
                                 });
    }
}

// Units are groups of planes. A row of gradients is unpacked as soon as it is complete.
template <class G>
void backward_packed(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    const Geometry& geometry = call.geometry;
    const int64_t lanes = packed_planes<typename G::Accumulator>(geometry, sizeof(T));
    LaneGradients<G> gradients(call);
    int64_t y_strides[kMaxSpatialRank];
    const int64_t y_size = packed_strides(geometry, lanes, output_size, y_strides);
    const int64_t columns = geometry.axes[geometry.rank - 1].input;
    Buffer<T> grad_y(y_size * lanes), y(G::kNeedsData ? y_size * lanes : 0);
    Buffer<T> x(G::kNeedsData ? columns * lanes : 0), grad_x(columns * lanes);
    const int64_t* x_strides = data_of<G>(call).strides;
    const int64_t step = call.grad_x.strides[1];
    for (int64_t group = begin; group < end; ++group) {
        const int64_t first = group * lanes;
        const int64_t planes = std::min(lanes, geometry.batch * geometry.channels - first);
        const auto pack = [&](const Operand& operand, int64_t offset, Buffer<T>& target, int64_t size) {
            const int64_t plane_step = operand.strides[1];
            transpose(static_cast<const T*>(operand.data) + first * plane_step + offset, plane_step, target.data(),
                      lanes, planes, size);
        };
        pack(call.grad_y, 0, grad_y, y_size);
        if (G::kNeedsData) pack(call.y, 0, y, y_size);
        gradients.prepare(grad_y.data(), y_strides, 1, G::kNeedsData ? y.data() : grad_y.data(), y_strides, 1, lanes);
        for_each_row_of_plane<2>(
            geometry, input_size, {x_strides + 2, call.grad_x.strides + 2},
            [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                if (G::kNeedsData) pack(call.x, offsets[0], x, columns);
                gradients.compute(outer, row, G::kNeedsData ? x.data() : grad_x.data(), lanes, grad_x.data(), lanes);
                transpose(grad_x.data(), lanes, static_cast<T*>(call.grad_x.data) + first * step + offsets[1], step,
                          columns, planes);
            });
    }
}

// Along the last axis, what windows send lies a stride apart; zeros between make of their sums a pooling with stride 1.
inline Axis spread_axis(const Axis& axis) {
    Axis spread = axis;
    spread.input = (axis.output - 1) * axis.stride + 1;
    spread.output = axis.input;
    spread.stride = 1;
    spread.pad_begin = (axis.kernel - 1) * axis.dilation - axis.pad_begin;
    return spread;
}

// Units are planes, in which rows are contiguous.
template <class G>
void backward_rows(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;
    constexpr int vector = kLanes<Accumulator>;
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& axis = geometry.axes[last];
    const Axis spread = spread_axis(axis);
    const G gradient(call.parameters);
    const GradientSum<Accumulator> sum;
    const std::vector<AxisTable> windows = axis_tables(call);
    RowDivisors<Accumulator> divisors(windows[last]);
    std::vector<AxisTable> coverings = covering_tables(geometry);
    coverings[last] = AxisTable::of_windows(spread, Divisor::kKernel);
    const int64_t plane_rows = count_rows(call, input_size) / (geometry.batch * geometry.channels);
    PlaneRows<GradientSum<Accumulator>> rows(sum, coverings, spread, plane_rows);

    int64_t sent_strides[kMaxSpatialRank];
    int64_t size = 1;
    for (int a = last; a >= 0; --a) {
        sent_strides[a] = size;
        size *= a == last ? spread.input : geometry.axes[a].output;
    }
    Buffer<Accumulator> sent(size), sent_row(axis.output);
    Buffer<T> grad_y_row, y_row;
    const Operand &x = data_of<G>(call), &y = result_of<G>(call);
    std::vector<FinishGradient<G>> targets;
    const auto finish = [&] {
        rows.finish([&](int64_t row) { return targets[row]; }, [](int64_t, int64_t) {});
        targets.clear();
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
                Accumulator* target = axis.stride == 1 ? sent.data() + offsets[2] : sent_row.data();
                in_vectors<vector>(axis.output, [&](int64_t i, auto n) {
                    store(target + i, gradient.prepare(load<n>(grad + i), load<n>(result + i), load<n>(divisor + i)));
                });
                for (int64_t o = 0; axis.stride > 1 && o < axis.output; ++o) {
                    sent[offsets[2] + o * axis.stride] = sent_row[o];
                }
            });
        rows.set_plane(sent.data(), sent_strides);
        for_each_row_of_plane<2>(geometry, input_size, {x.strides + 2, call.grad_x.strides + 2},
                                 [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                                     T* grad_x = grad_x_plane + offsets[1];
                                     for (int a = 0; a < last; ++a) {
                                         if (coverings[a].taps[outer[a]].count > 0) continue;
                                         return std::fill_n(grad_x, axis.input, static_cast<T>(0.0f)), void();
                                     }
                                     rows.add(outer, row);
                                     targets.push_back({gradient, x_plane + offsets[0], grad_x});
                                     if (rows.is_full()) finish();
                                 });
        finish();
    }
}

// One window spans a contiguous plane. Units are planes.
template <class G>
void backward_planes(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using Accumulator = typename G::Accumulator;
    const Geometry& geometry = call.geometry;
    const G gradient(call.parameters);
    double size = 1;
    for (int a = 0; a < geometry.rank; ++a) size *= static_cast<double>(geometry.axes[a].input);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / geometry.channels, channel = unit % geometry.channels;
        const auto grad_y = load<1>(plane_at<const T>(call.grad_y, image, channel));
        const auto y = load<1>(plane_at<const T>(result_of<G>(call), image, channel));
        const Accumulator sent = gradient.prepare(grad_y, y, static_cast<Accumulator>(size));
        const FinishGradient<G> finish{gradient, plane_at<const T>(data_of<G>(call), image, channel),
                                       plane_at<T>(call.grad_x, image, channel)};
        in_vectors<kLanes<Accumulator>>(static_cast<int64_t>(size), [&](int64_t i, auto n) {
            if constexpr (n == 1) {
                finish(i, sent);
            } else {
                finish(i, Vector<Accumulator, n>{} + sent);
            }
        });
    }
}

// Channels at a time: all that are next to each other where sums are added up in place.
template <class T>
int64_t index_lanes(const Call& call) {
    return std::is_same_v<T, accumulator_t<T>> ? lanes_per_row(call) : lanes_per_block(call, 1 << 16);
}

// The gradient of a maximum goes where its index says: planes are added up in the order of their windows.
template <class T>
void backward_by_index(const Call& call, int64_t begin, int64_t end) {
    using Accumulator = accumulator_t<T>;
    constexpr bool in_place = std::is_same_v<T, Accumulator>;
    const Geometry& geometry = call.geometry;
    const int rank = geometry.rank;
    const int64_t block = index_lanes<T>(call), blocks = ceil_div(geometry.channels, block);
    // Sums are added up in grad_x, which is dense, or in a buffer of wider numbers.
    const int64_t step = in_place ? call.grad_x.strides[1 + rank] : block;
    const int64_t lane_step = in_place ? call.grad_x.strides[1] : 1;
    int64_t size = 1;
    int64_t dense[kMaxSpatialRank + 1];
    for (int a = rank - 1; a >= 0; --a) {
        dense[a] = size * step;
        size *= geometry.axes[a].input;
    }
    Range outputs[kMaxSpatialRank + 1], inputs[kMaxSpatialRank + 1];
    every_position(geometry, output_size, outputs);
    every_position(geometry, input_size, inputs);

    // Where the element that an index names lies among the sums.
    const int64_t* index_strides = call.index_strides + 2;
    bool row_major = true;
    for (int a = 0; a < rank; ++a) row_major &= index_strides[a] * step == dense[a] || geometry.axes[a].input == 1;
    std::vector<int64_t> places(row_major ? 0 : size);
    if (!row_major) {
        for_each_row<2>(inputs, rank, {index_strides, dense}, [&](const int64_t (&offsets)[2], const int64_t*) {
            for (int64_t i = 0; i < inputs[rank - 1].count; ++i) {
                places[offsets[0] + i * index_strides[rank - 1]] = offsets[1] + i * dense[rank - 1];
            }
        });
    }

    // Windows that follow each other in both tensors are one row.
    const int last = rank - 1;
    const auto follow_each_other = [&](const Operand& operand) {
        int64_t stride = operand.strides[2 + last];
        for (int a = last; a >= 0; stride *= outputs[a--].count) {
            if (outputs[a].count > 1 && operand.strides[2 + a] != stride) return false;
        }
        return true;
    };
    if (follow_each_other(call.grad_y) && follow_each_other(call.indices)) {
        for (int a = 0; a < last; ++a) {
            outputs[last].count *= outputs[a].count;
            outputs[a].count = 1;
        }
    }
    const int64_t grad_step = call.grad_y.strides[2 + last], grad_lane_step = call.grad_y.strides[1];
    const int64_t index_step = call.indices.strides[2 + last], index_lane_step = call.indices.strides[1];

    Buffer<Accumulator> buffer(in_place ? 0 : size * block);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / blocks, channel = unit % blocks * block;
        const int64_t lanes = std::min(block, geometry.channels - channel);
        const T* grad_y = plane_at<const T>(call.grad_y, image, channel);
        const int64_t* indices = plane_at<const int64_t>(call.indices, image, channel);
        T* grad_x = plane_at<T>(call.grad_x, image, channel);
        const int64_t first = first_index(call, image, channel);
        Accumulator* sums = buffer.data();
        if constexpr (in_place) sums = grad_x;
        if (lane_step == 1) {
            const bool one_run = step == lanes;
            for (int64_t i = 0; i < (one_run ? 1 : size); ++i) {
                std::fill_n(sums + i * step, one_run ? size * lanes : lanes, Accumulator(0));
            }
        } else {
            for (int64_t lane = 0; lane < lanes; ++lane) std::fill_n(sums + lane * lane_step, size, Accumulator(0));
        }
        // n windows: those of one lane that follow each other, or those of all lanes at one position.
        const auto scatter = [&](int64_t n, const T* grad, int64_t grad_step, const int64_t* index, int64_t index_step,
                                 int64_t plane_step, int64_t target_step) {
            for (int64_t i = 0; i < n; ++i) {
                const int64_t inner = index[i * index_step] - first - i * plane_step;
                if (static_cast<uint64_t>(inner) >= static_cast<uint64_t>(size)) continue;
                const int64_t place = row_major ? inner * step : places[inner];
                sums[place + i * target_step] += static_cast<Accumulator>(load<1>(grad + i * grad_step));
            }
        };
        for_each_row<2>(outputs, rank, {call.grad_y.strides + 2, call.indices.strides + 2},
                        [&](const int64_t (&offsets)[2], const int64_t*) {
                            const T* grad = grad_y + offsets[0];
                            const int64_t* index = indices + offsets[1];
                            const int64_t count = outputs[last].count;
                            if (lanes == 1) return scatter(count, grad, grad_step, index, index_step, 0, 0);
                            for (int64_t o = 0; o < count; ++o) {
                                scatter(lanes, grad + o * grad_step, grad_lane_step, index + o * index_step,
                                        index_lane_step, call.index_strides[1], lane_step);
                            }
                        });
        if constexpr (!in_place) {
            const int64_t target_step = call.grad_x.strides[2 + last], target_lane_step = call.grad_x.strides[1];
            const bool one_run = target_step == step && (lanes == 1 || target_lane_step == 1) && step == lanes;
            for (int64_t i = 0; i < (one_run ? 1 : size); ++i) {
                const Accumulator* sum = sums + i * step;
                T* target = grad_x + i * target_step;
                if (one_run || target_lane_step == 1) {
                    in_vectors<kLanes<Accumulator>>(one_run ? size * lanes : lanes, [&](int64_t j, auto n) {
                        store(target + j, convert<T>(load<n>(sum + j)));
                    });
                } else {
                    for (int64_t lane = 0; lane < lanes; ++lane)
                        target[lane * target_lane_step] = static_cast<T>(sum[lane]);
                }
            }
        }
    }
}
