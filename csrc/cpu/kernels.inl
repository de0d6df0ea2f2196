// The kernels, compiled once for each instruction set: kernels.cpp includes this file with ONNXPOOL_ISA naming the
// namespace and the compiler's target set. Nothing is included from here.

namespace onnxpool::cpu::ONNXPOOL_ISA {

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

// Where a row lies: its image, its first channel and its coordinates along all spatial axes but the last.
struct RowPosition {
    int64_t image;
    int64_t channel;
    int64_t lanes;  // channels in this row
    int64_t outer[kMaxSpatialRank];
};

// Rows are numbered in the order of memory: [N, C, D1, ..., Dr-1], or [N, D1, ..., Dr-1, C] with channels innermost.
template <class Size>
inline RowPosition locate_row(const Call& call, int64_t row, Size size_of_axis) {
    const Geometry& geometry = call.geometry;
    const int64_t lanes = lanes_per_row(call);
    const int64_t blocks = ceil_div(geometry.channels, lanes);
    RowPosition position;
    int64_t block = 0;
    if (call.channels_innermost) {
        block = row % blocks;
        row /= blocks;
    }
    for (int a = geometry.rank - 2; a >= 0; --a) {
        const int64_t size = size_of_axis(geometry.axes[a]);
        position.outer[a] = row % size;
        row /= size;
    }
    if (!call.channels_innermost) {
        block = row % blocks;
        row /= blocks;
    }
    position.image = row;
    position.channel = block * lanes;
    position.lanes = std::min(lanes, geometry.channels - position.channel);
    return position;
}

// The part of an operand's address that a row fixes: image and channel, or all but the last spatial axis.
template <class T>
inline T* plane_of(const Operand& operand, const RowPosition& position) {
    return static_cast<T*>(operand.data) + position.image * operand.strides[0] + position.channel * operand.strides[1];
}

template <class T>
inline T* row_of(const Operand& operand, const RowPosition& position, int rank) {
    T* row = plane_of<T>(operand, position);
    for (int a = 0; a + 1 < rank; ++a) row += position.outer[a] * operand.strides[2 + a];
    return row;
}

// One window over `lanes` channels: accumulators[lane] takes in all its data.
template <class R>
inline void reduce_window(const R& reduction, const Call& call, const Range* taps, const typename R::Element* plane,
                          int64_t lanes, typename R::Accumulator* accumulators) {
    const int rank = call.geometry.rank;
    const int64_t* strides = call.x.strides + 2;
    const int64_t lane_stride = call.x.strides[1];
    const Range& last = taps[rank - 1];
    const int64_t step = last.step * strides[rank - 1];
    for (int64_t lane = 0; lane < lanes; ++lane) accumulators[lane] = reduction.identity();
    if constexpr (R::kIndexed) {
        const int64_t* index_strides = call.index_strides + 2;
        const int64_t index_step = last.step * index_strides[rank - 1];
        for_each_row<2>(taps, rank, {strides, index_strides}, [&](const int64_t (&offsets)[2], const int64_t*) {
            for (int64_t i = 0; i < last.count; ++i) {
                const auto* x = plane + offsets[0] + i * step;
                const int64_t index = offsets[1] + i * index_step;
                for (int64_t lane = 0; lane < lanes; ++lane) {
                    reduction.accumulate(accumulators[lane], x[lane * lane_stride], index);
                }
            }
        });
    } else {
        for_each_row<1>(taps, rank, {strides}, [&](const int64_t (&offsets)[1], const int64_t*) {
            const auto* row = plane + offsets[0];
            if (lanes == 1) {
                typename R::Accumulator accumulator = accumulators[0];
                for (int64_t i = 0; i < last.count; ++i) reduction.accumulate(accumulator, row[i * step], 0);
                accumulators[0] = accumulator;
            } else {
                for (int64_t i = 0; i < last.count; ++i) {
                    for (int64_t lane = 0; lane < lanes; ++lane) {
                        reduction.accumulate(accumulators[lane], row[i * step + lane], 0);
                    }
                }
            }
        });
    }
}

// The p-norm of a window whose powers overflow or vanish.
template <class T>
inline T rescaled_norm(const Call& call, const Range* taps, const T* plane) {
    comparable_t<T> largest;
    reduce_window(LargestMagnitude<T>(), call, taps, plane, 1, &largest);
    if (!(largest > 0) || std::isinf(largest)) return static_cast<T>(largest);  // 0, NaN or infinite
    const ScaledLpNorm<T> reduction(call.parameters, static_cast<double>(largest));
    double sum;
    reduce_window(reduction, call, taps, plane, 1, &sum);
    return reduction.finish(sum, {});
}

template <class R>
void forward(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& last_axis = geometry.axes[last];
    typename R::Accumulator accumulators[kChannelBlock];
    Range taps[kMaxSpatialRank];

    for (int64_t row = begin; row < end; ++row) {
        const RowPosition position = locate_row(call, row, [](const Axis& axis) { return axis.output; });
        const T* plane = plane_of<const T>(call.x, position);
        T* y = row_of<T>(call.y, position, geometry.rank);
        TapCounts outer_counts{1, 1};
        for (int a = 0; a < last; ++a) {
            taps[a] = data_taps(geometry.axes[a], position.outer[a]);
            outer_counts.data *= taps[a].count;
            outer_counts.declared *= declared_count(geometry.axes[a], position.outer[a]);
        }
        for (int64_t output = 0; output < last_axis.output; ++output) {
            taps[last] = data_taps(last_axis, output);
            const TapCounts counts{outer_counts.data * taps[last].count,
                                   outer_counts.declared * declared_count(last_axis, output)};
            reduce_window(reduction, call, taps, plane, position.lanes, accumulators);
            for (int64_t lane = 0; lane < position.lanes; ++lane) {
                y[output * call.y.strides[2 + last] + lane * call.y.strides[1]] =
                    reduction.finish(accumulators[lane], counts);
            }
            if constexpr (std::is_same_v<R, LpNorm<T>>) {
                for (int64_t lane = 0; lane < position.lanes; ++lane) {
                    if (!reduction.out_of_range(accumulators[lane])) continue;
                    y[output * call.y.strides[2 + last] + lane * call.y.strides[1]] =
                        rescaled_norm<T>(call, taps, plane + lane * call.x.strides[1]);
                }
            }
            if constexpr (R::kIndexed) {
                int64_t* indices = row_of<int64_t>(call.indices, position, geometry.rank);
                const int64_t first = position.image * call.index_strides[0] + position.channel * call.index_strides[1];
                for (int64_t lane = 0; lane < position.lanes; ++lane) {
                    const int64_t index = accumulators[lane].index;
                    indices[output * call.indices.strides[2 + last] + lane * call.indices.strides[1]] =
                        index < 0 ? -1 : first + lane * call.index_strides[1] + index;
                }
            }
        }
    }
}

// Gradients are gathered: every input element adds up what each window that covers it sends back, in a fixed order.
template <class R>
void backward(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Sum = accumulator_t<T>;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& last_axis = geometry.axes[last];
    // grad_y's neighbour (Y or Indices, whichever the reduction needs) is walked along with it.
    const Operand& companion = R::kIndexed ? call.indices : R::kGradientNeedsData ? call.y : call.grad_y;
    using CompanionType = std::conditional_t<R::kIndexed, const int64_t, const T>;
    Sum sums[kChannelBlock];
    Range windows[kMaxSpatialRank];

    for (int64_t row = begin; row < end; ++row) {
        const RowPosition position = locate_row(call, row, [](const Axis& axis) { return axis.input; });
        const T* grad_y = plane_of<const T>(call.grad_y, position);
        CompanionType* beside = plane_of<CompanionType>(companion, position);
        T* grad_x = row_of<T>(call.grad_x, position, geometry.rank);
        const T* x = R::kGradientNeedsData ? row_of<const T>(call.x, position, geometry.rank) : nullptr;
        int64_t first_index = 0;
        if constexpr (R::kIndexed) {
            first_index = position.image * call.index_strides[0] + position.channel * call.index_strides[1];
            for (int a = 0; a < last; ++a) first_index += position.outer[a] * call.index_strides[2 + a];
        }
        for (int a = 0; a < last; ++a) windows[a] = covering_windows(geometry.axes[a], position.outer[a]);

        for (int64_t input = 0; input < last_axis.input; ++input) {
            windows[last] = covering_windows(last_axis, input);
            const Range& along = windows[last];
            for (int64_t lane = 0; lane < position.lanes; ++lane) sums[lane] = 0;
            for_each_row<2>(
                windows, geometry.rank, {call.grad_y.strides + 2, companion.strides + 2},
                [&](const int64_t (&offsets)[2], const int64_t* outer) {
                    TapCounts outer_counts{1, 1};
                    if constexpr (R::kGradientNeedsCounts) {
                        for (int a = 0; a < last; ++a) {
                            outer_counts.data *= data_taps(geometry.axes[a], outer[a]).count;
                            outer_counts.declared *= declared_count(geometry.axes[a], outer[a]);
                        }
                    }
                    for (int64_t i = 0; i < along.count; ++i) {
                        TapCounts counts = outer_counts;
                        if constexpr (R::kGradientNeedsCounts) {
                            counts.data *= data_taps(last_axis, along.begin + i * along.step).count;
                            counts.declared *= declared_count(last_axis, along.begin + i * along.step);
                        }
                        const int64_t grad_offset = offsets[0] + i * along.step * call.grad_y.strides[2 + last];
                        const int64_t beside_offset = offsets[1] + i * along.step * companion.strides[2 + last];
                        for (int64_t lane = 0; lane < position.lanes; ++lane) {
                            const Sum grad = static_cast<Sum>(grad_y[grad_offset + lane * call.grad_y.strides[1]]);
                            const auto other = beside[beside_offset + lane * companion.strides[1]];
                            if constexpr (R::kIndexed) {
                                const int64_t index =
                                    first_index + input * call.index_strides[2 + last] + lane * call.index_strides[1];
                                if (other == index) sums[lane] += grad;
                            } else {
                                Sum data = 0;
                                if constexpr (R::kGradientNeedsData) {
                                    data = static_cast<Sum>(
                                        x[input * call.x.strides[2 + last] + lane * call.x.strides[1]]);
                                }
                                sums[lane] += reduction.gradient(grad, data, static_cast<Sum>(other), counts);
                            }
                        }
                    }
                });
            for (int64_t lane = 0; lane < position.lanes; ++lane) {
                grad_x[input * call.grad_x.strides[2 + last] + lane * call.grad_x.strides[1]] =
                    static_cast<T>(sums[lane]);
            }
        }
    }
}

template <class R>
constexpr Kernels kernels_of() {
    if constexpr (R::kDifferentiable) return {forward<R>, backward<R>};
    return {forward<R>, nullptr};
}

template <template <class> class R>
Kernels for_floating_point(ElementType type) {
    switch (type) {
        case ElementType::kFloat16:
            return kernels_of<R<Half>>();
        case ElementType::kBFloat16:
            return kernels_of<R<BFloat16>>();
        case ElementType::kFloat32:
            return kernels_of<R<float>>();
        case ElementType::kFloat64:
            return kernels_of<R<double>>();
        default:
            return {};
    }
}

template <template <class> class R>
Kernels for_bytes(ElementType type) {
    switch (type) {
        case ElementType::kInt8:
            return kernels_of<R<int8_t>>();
        case ElementType::kUInt8:
            return kernels_of<R<uint8_t>>();
        default:
            return {};
    }
}

Kernels find_kernels(Reduction reduction, ElementType type) {
    const bool bytes = type == ElementType::kInt8 || type == ElementType::kUInt8;
    switch (reduction) {
        case Reduction::kAverage:
            return for_floating_point<Average>(type);
        case Reduction::kLpNorm:
            return for_floating_point<LpNorm>(type);
        case Reduction::kMax:
            return bytes ? for_bytes<Max>(type) : for_floating_point<Max>(type);
        case Reduction::kMaxWithIndex:
            return bytes ? for_bytes<MaxWithIndex>(type) : for_floating_point<MaxWithIndex>(type);
        case Reduction::kQuantizedGlobalAverage:
            return for_bytes<QuantizedGlobalAverage>(type);
    }
    return {};
}

}  // namespace onnxpool::cpu::ONNXPOOL_ISA
