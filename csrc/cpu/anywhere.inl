// Part of kernels.inl: see there.

// Any layout, any geometry: window by window.

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
                    accumulators[lane] =
                        reduction.combine(accumulators[lane], reduction.lift(x[lane * lane_stride], index));
                }
            }
        });
    } else if constexpr (R::kInOrder) {
        for_each_row<1>(taps, rank, {strides}, [&](const int64_t (&offsets)[1], const int64_t*) {
            for (int64_t i = 0; i < last.count; ++i) {
                const auto* x = plane + offsets[0] + i * step;
                for (int64_t lane = 0; lane < lanes; ++lane) {
                    accumulators[lane] =
                        reduction.combine(accumulators[lane], reduction.lift(load<1>(x + lane * lane_stride)));
                }
            }
        });
    } else {  // rows first, then along the row, as all kernels do
        typename R::Accumulator column[kChannelBlock];
        for (int64_t i = 0; i < last.count; ++i) {
            for (int64_t lane = 0; lane < lanes; ++lane) column[lane] = reduction.identity();
            for_each_row<1>(taps, rank, {strides}, [&](const int64_t (&offsets)[1], const int64_t*) {
                const auto* x = plane + offsets[0] + i * step;
                for (int64_t lane = 0; lane < lanes; ++lane) {
                    column[lane] = reduction.combine(column[lane], reduction.lift(load<1>(x + lane * lane_stride)));
                }
            });
            for (int64_t lane = 0; lane < lanes; ++lane) {
                accumulators[lane] = reduction.combine(accumulators[lane], column[lane]);
            }
        }
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
    return reduction.finish(sum);
}

// A window's result. `divisor` is the number of its taps that count.
template <class R>
inline typename R::Element finish_window(const R& reduction, const Call& call, const Range* taps,
                                         const typename R::Element* plane, const typename R::Accumulator& accumulator,
                                         double divisor) {
    using T = typename R::Element;
    if (divisor == 0) return reduction.empty();
    if constexpr (R::kDivides) {
        return static_cast<T>(reduction.finish(accumulator / static_cast<typename R::Accumulator>(divisor)));
    }
    if constexpr (is_norm<R>) {
        if (reduction.out_of_range(accumulator)) return rescaled_norm<T>(call, taps, plane);
    }
    return static_cast<T>(reduction.finish(accumulator));
}

template <class R>
void forward_anywhere(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& last_axis = geometry.axes[last];
    const int64_t y_step = call.y.strides[2 + last];
    const std::vector<AxisTable> tables = axis_tables(call);
    typename R::Accumulator accumulators[kChannelBlock];
    Range taps[kMaxSpatialRank];

    RowPosition position(call, begin, output_size);
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* plane = plane_of<const T>(call.x, position);
        T* y = row_of<T>(call.y, position, geometry.rank);
        const double factor = outer_factor(tables, position.outer);
        for (int a = 0; a < last; ++a) taps[a] = tables[a].taps[position.outer[a]];
        for (int64_t output = 0; output < last_axis.output; ++output) {
            taps[last] = tables[last].taps[output];
            const double divisor = factor * tables[last].factors[output];
            reduce_window(reduction, call, taps, plane, position.lanes, accumulators);
            for (int64_t lane = 0; lane < position.lanes; ++lane) {
                y[output * y_step + lane * call.y.strides[1]] =
                    finish_window(reduction, call, taps, plane + lane * call.x.strides[1], accumulators[lane], divisor);
            }
            if constexpr (R::kIndexed) {
                int64_t* indices = row_of<int64_t>(call.indices, position, geometry.rank);
                const int64_t first = first_index(call, position.image, position.channel);
                for (int64_t lane = 0; lane < position.lanes; ++lane) {
                    const int64_t index = accumulators[lane].index;
                    indices[output * call.indices.strides[2 + last] + lane * call.indices.strides[1]] =
                        index < 0 ? -1 : first + lane * call.index_strides[1] + index;
                }
            }
        }
    }
}

// Gradients of sums are gathered: every input element adds up what each window that covers it sends back, in a fixed
// order.
template <class R>
void backward_anywhere(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Sum = wide_accumulator_t<T>;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const Axis& last_axis = geometry.axes[last];
    const Operand& result = R::kGradientNeedsData ? call.y : call.grad_y;  // walked along with grad_y
    const std::vector<AxisTable> tables = axis_tables(call);
    Range windows[kMaxSpatialRank];

    RowPosition position(call, begin, input_size);
    for (int64_t row = begin; row < end; ++row, position.advance()) {
        const T* grad_y = plane_of<const T>(call.grad_y, position);
        const T* y = plane_of<const T>(result, position);
        T* grad_x = row_of<T>(call.grad_x, position, geometry.rank);
        const T* x = R::kGradientNeedsData ? row_of<const T>(call.x, position, geometry.rank) : nullptr;
        for (int a = 0; a < last; ++a) windows[a] = covering_windows(geometry.axes[a], position.outer[a]);

        for (int64_t input = 0; input < last_axis.input; ++input) {
            windows[last] = covering_windows(last_axis, input);
            const Range& along = windows[last];
            for (int64_t lane = 0; lane < position.lanes; ++lane) {
                Sum data = 0, sum = 0;
                if (x) data = static_cast<Sum>(x[input * call.x.strides[2 + last] + lane * call.x.strides[1]]);
                for_each_row<2>(
                    windows, geometry.rank, {call.grad_y.strides + 2, result.strides + 2},
                    [&](const int64_t (&offsets)[2], const int64_t* outer) {
                        const double factor = outer_factor(tables, outer);
                        for (int64_t i = 0; i < along.count; ++i) {
                            const int64_t output = along.begin + i * along.step;
                            // Both strides begin at the row's first window.
                            const int64_t ahead = i * along.step;
                            auto grad = static_cast<Sum>(grad_y[offsets[0] + ahead * call.grad_y.strides[2 + last] +
                                                                lane * call.grad_y.strides[1]]);
                            if constexpr (R::kDivides) {
                                grad /= static_cast<Sum>(factor * tables[last].factors[output]);
                            }
                            const auto norm = static_cast<Sum>(
                                y[offsets[1] + ahead * result.strides[2 + last] + lane * result.strides[1]]);
                            sum += reduction.gradient(grad, data, norm);
                        }
                    });
                grad_x[input * call.grad_x.strides[2 + last] + lane * call.grad_x.strides[1]] = static_cast<T>(sum);
            }
        }
    }
}
