// Part of kernels.inl: see there.
// Gradients of sums: what windows send back is prepared, added up along one axis after the other over the windows that
// cover each element, and finished.

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
    using Accumulator = wide_accumulator_t<T>;
    static constexpr bool kNeedsData = false;

    explicit AverageGradient(const Parameters&) {}

    template <class V>
    auto prepare(V grad_y, V, double divisor) const {
        return convert<Accumulator>(grad_y) / static_cast<Accumulator>(divisor);
    }
    template <class V, class X>
    V finish(V sum, X) const {
        return sum;
    }
};

// A norm's derivative, sign(x) (|x| / y)^(p-1), is a product of y^(1-p), sent by the window, and of sign(x) |x|^(p-1).
// In float64 neither leaves the range for p up to 4, whatever the smaller type holds.
template <class T>
struct NormGradient {
    using Element = T;
    using Accumulator = double;
    static constexpr bool kNeedsData = true;

    int p;

    explicit NormGradient(const Parameters& parameters) : p(static_cast<int>(parameters.p)) {}

    template <class V>
    auto prepare(V grad_y, V result, double) const {
        const auto y = convert<double>(result);
        const auto grad = convert<double>(grad_y);
        const auto sent = p == 1 ? grad : p == 2 ? grad / y : p == 3 ? grad / (y * y) : grad / (y * y * y);
        return y == 0 ? 0 * y : sent;
    }
    template <class V, class X>
    V finish(V sum, X data) const {
        const auto x = convert<double>(data);
        if (p == 1) return sum * (x > 0 ? 0 * x + 1 : x < 0 ? 0 * x - 1 : x);
        return sum * (p == 2 ? x : p == 3 ? x * magnitude(x) : x * x * x);
    }
};

inline std::vector<AxisTable> covering_tables(const Geometry& geometry) {
    std::vector<AxisTable> tables;
    for (int a = 0; a < geometry.rank; ++a) tables.push_back(AxisTable::of_coverings(geometry.axes[a]));
    return tables;
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
          sums_(sum_, coverings_, call.geometry.rank) {
        int64_t size = 1;
        for (int a = geometry_.rank - 1; a >= 0; --a) {
            dense_[a] = size;
            size *= geometry_.axes[a].output;
        }
        prepared_size_ = size;
    }

    // Strides are those of the spatial axes; x and y are null where they are not needed.
    void compute(const T* grad_y, const int64_t* grad_y_strides, const T* y, const int64_t* y_strides, const T* x,
                 const int64_t* x_strides, T* grad_x, const int64_t* grad_x_strides, int64_t lanes) {
        constexpr int vector = kLanes<Accumulator>;
        const int rank = geometry_.rank;
        prepared_.resize(prepared_size_ * lanes);
        Range all[kMaxSpatialRank + 1];
        for (int a = 0; a < rank; ++a) all[a] = {0, geometry_.axes[a].output, 1};
        all[rank] = {0, 1, 1};
        int64_t strides[3][kMaxSpatialRank + 1];
        for (int a = 0; a < rank; ++a) {
            strides[0][a] = grad_y_strides[a];
            strides[1][a] = y ? y_strides[a] : 0;
            strides[2][a] = dense_[a] * lanes;
        }
        for (auto& stride : strides) stride[rank] = 0;
        for_each_row<3>(all, rank + 1, {strides[0], strides[1], strides[2]},
                        [&](const int64_t (&offsets)[3], const int64_t* position) {
                            double divisor = 1;
                            for (int a = 0; a < rank; ++a) divisor *= windows_[a].factors[position[a]];
                            const T* grad = grad_y + offsets[0];
                            const T* result = y ? y + offsets[1] : grad;
                            Accumulator* target = prepared_.data() + offsets[2];
                            if (divisor == 0) return std::fill_n(target, lanes, Accumulator(0)), void();
                            in_vectors<vector>(lanes, [&](int64_t i, auto n) {
                                store(target + i, gradient_.prepare(load<n>(grad + i), load<n>(result + i), divisor));
                            });
                        });
        int64_t prepared_strides[kMaxSpatialRank];
        for (int a = 0; a < rank; ++a) prepared_strides[a] = dense_[a] * lanes;
        const Accumulator* sum = sums_.compute(prepared_.data(), prepared_strides, lanes);
        for (int a = 0; a < rank; ++a) {
            all[a] = {0, geometry_.axes[a].input, 1};
            strides[0][a] = x ? x_strides[a] : 0;
            strides[1][a] = grad_x_strides[a];
        }
        for_each_row<2>(all, rank + 1, {strides[0], strides[1]}, [&](const int64_t (&offsets)[2], const int64_t*) {
            const T* data = x ? x + offsets[0] : grad_y;
            T* target = grad_x + offsets[1];
            in_vectors<vector>(lanes, [&](int64_t i, auto n) {
                store(target + i, convert<T>(gradient_.finish(load<n>(sum + i), load<n>(data + i))));
            });
            sum += lanes;
        });
    }

private:
    const Geometry& geometry_;
    const G gradient_;
    const GradientSum<Accumulator> sum_{};
    const std::vector<AxisTable> windows_, coverings_;
    AxisByAxis<GradientSum<Accumulator>> sums_;
    int64_t dense_[kMaxSpatialRank];
    int64_t prepared_size_;
    std::vector<Accumulator> prepared_;
};

// Units are blocks of channels of an image.
template <class G>
void backward_channel_blocks(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    LaneGradients<G> gradients(call);
    const int64_t block = lanes_per_block(call), blocks = ceil_div(call.geometry.channels, block);
    const auto* x = G::kNeedsData ? static_cast<const T*>(call.x.data) : nullptr;
    const auto* y = G::kNeedsData ? static_cast<const T*>(call.y.data) : nullptr;
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / blocks, channel = unit % blocks * block;
        const auto at = [&](const Operand& operand) { return image * operand.strides[0] + channel; };
        gradients.compute(static_cast<const T*>(call.grad_y.data) + at(call.grad_y), call.grad_y.strides + 2,
                          y ? y + at(call.y) : nullptr, y ? call.y.strides + 2 : nullptr, x ? x + at(call.x) : nullptr,
                          x ? call.x.strides + 2 : nullptr, static_cast<T*>(call.grad_x.data) + at(call.grad_x),
                          call.grad_x.strides + 2, std::min(block, call.geometry.channels - channel));
    }
}

// Units are groups of planes.
template <class G>
void backward_packed(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    constexpr int64_t lanes = 16;
    const Geometry& geometry = call.geometry;
    LaneGradients<G> gradients(call);
    int64_t x_strides[kMaxSpatialRank], y_strides[kMaxSpatialRank];
    int64_t x_size = 1, y_size = 1;
    for (int a = geometry.rank - 1; a >= 0; --a) {
        x_strides[a] = x_size * lanes;
        y_strides[a] = y_size * lanes;
        x_size *= geometry.axes[a].input;
        y_size *= geometry.axes[a].output;
    }
    std::vector<T> grad_y(y_size * lanes), y(G::kNeedsData ? y_size * lanes : 0);
    std::vector<T> x(G::kNeedsData ? x_size * lanes : 0), grad_x(x_size * lanes);
    for (int64_t group = begin; group < end; ++group) {
        const int64_t first = group * lanes;
        const int64_t planes = std::min(lanes, geometry.batch * geometry.channels - first);
        const auto pack = [&](const Operand& operand, std::vector<T>& target, int64_t size) {
            const int64_t step = operand.strides[1];
            transpose(static_cast<const T*>(operand.data) + first * step, step, target.data(), lanes, planes, size);
        };
        pack(call.grad_y, grad_y, y_size);
        if (G::kNeedsData) {
            pack(call.x, x, x_size);
            pack(call.y, y, y_size);
        }
        gradients.compute(grad_y.data(), y_strides, G::kNeedsData ? y.data() : nullptr, y_strides,
                          G::kNeedsData ? x.data() : nullptr, x_strides, grad_x.data(), x_strides, lanes);
        const int64_t step = call.grad_x.strides[1];
        transpose(grad_x.data(), lanes, static_cast<T*>(call.grad_x.data) + first * step, step, x_size, planes);
    }
}

// The gradient of a maximum goes where its index says: planes are added up in the order of their windows.
template <class T>
void backward_by_index(const Call& call, int64_t begin, int64_t end) {
    using Accumulator = wide_accumulator_t<T>;
    const Geometry& geometry = call.geometry;
    const int rank = geometry.rank;
    int64_t size = 1, dense[kMaxSpatialRank + 1];
    Range outputs[kMaxSpatialRank + 1], inputs[kMaxSpatialRank + 1];
    for (int a = rank - 1; a >= 0; --a) {
        outputs[a] = {0, geometry.axes[a].output, 1};
        inputs[a] = {0, geometry.axes[a].input, 1};
        dense[a] = size;
        size *= geometry.axes[a].input;
    }
    const int64_t block = lanes_per_block(call), blocks = ceil_div(geometry.channels, block);
    const int64_t* index_strides = call.index_strides + 2;
    bool row_major = true;
    for (int a = 0; a < rank; ++a) row_major &= index_strides[a] == dense[a] || geometry.axes[a].input == 1;
    // Where the element that an index names lies among `sums`.
    std::vector<int64_t> places(row_major ? 0 : size);
    if (!row_major) {
        for_each_row<2>(inputs, rank, {index_strides, dense}, [&](const int64_t (&offsets)[2], const int64_t*) {
            for (int64_t i = 0; i < inputs[rank - 1].count; ++i) {
                places[offsets[0] + i * index_strides[rank - 1]] = offsets[1] + i * dense[rank - 1];
            }
        });
    }
    std::vector<Accumulator> sums(size * block);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / blocks, channel = unit % blocks * block;
        const int64_t lanes = std::min(block, geometry.channels - channel);
        const auto at = [&](const Operand& operand) {
            return image * operand.strides[0] + channel * operand.strides[1];
        };
        const T* grad_y = static_cast<const T*>(call.grad_y.data) + at(call.grad_y);
        const int64_t* indices = static_cast<const int64_t*>(call.indices.data) + at(call.indices);
        T* grad_x = static_cast<T*>(call.grad_x.data) + at(call.grad_x);
        const int64_t first_index = image * call.index_strides[0] + channel * call.index_strides[1];
        std::fill_n(sums.begin(), size * lanes, Accumulator(0));
        for_each_row<2>(outputs, rank, {call.grad_y.strides + 2, call.indices.strides + 2},
                        [&](const int64_t (&offsets)[2], const int64_t*) {
                            const int64_t grad_step = call.grad_y.strides[1 + rank];
                            const int64_t index_step = call.indices.strides[1 + rank];
                            for (int64_t o = 0; o < outputs[rank - 1].count; ++o) {
                                const T* grad = grad_y + offsets[0] + o * grad_step;
                                const int64_t* index = indices + offsets[1] + o * index_step;
                                for (int64_t lane = 0; lane < lanes; ++lane) {
                                    const int64_t inner = index[lane * call.indices.strides[1]] - first_index -
                                                          lane * call.index_strides[1];
                                    if (static_cast<uint64_t>(inner) >= static_cast<uint64_t>(size)) continue;
                                    const int64_t place = row_major ? inner : places[inner];
                                    sums[place * lanes + lane] +=
                                        static_cast<Accumulator>(load<1>(grad + lane * call.grad_y.strides[1]));
                                }
                            }
                        });
        const Accumulator* sum = sums.data();
        const int64_t step = call.grad_x.strides[1 + rank], lane_step = call.grad_x.strides[1];
        for_each_row<1>(inputs, rank, {call.grad_x.strides + 2}, [&](const int64_t (&offsets)[1], const int64_t*) {
            const int64_t count = inputs[rank - 1].count;
            if (lane_step == 1 || lanes == 1) {
                const bool one_run = step == lanes;
                for (int64_t i = 0; i < (one_run ? 1 : count); ++i) {
                    T* target = grad_x + offsets[0] + i * step;
                    in_vectors<kLanes<Accumulator>>(one_run ? count * lanes : lanes, [&](int64_t j, auto n) {
                        store(target + j, convert<T>(load<n>(sum + i * lanes + j)));
                    });
                }
            } else {
                for (int64_t i = 0; i < count * lanes; ++i) {
                    grad_x[offsets[0] + i / lanes * step + i % lanes * lane_step] = static_cast<T>(sum[i]);
                }
            }
            sum += count * lanes;
        });
    }
}
