// Gradients are gathered: every input element adds up what each window that covers it sends back, in a fixed order.
#pragma once

#include "planes.cuh"

namespace onnxpool::cuda {

// How gradients are added up.
template <class R>
struct GradientArithmetic {
    using T = typename R::Element;
    using PlainSum = wide_accumulator_t<T>;
    // |x| / y is at most 1, but grad_y / y may be more than float32 holds.
    static constexpr bool kMayLeaveRange = is_norm<R> && std::is_same_v<T, BFloat16>;
    using Sum = std::conditional_t<kMayLeaveRange, double, PlainSum>;
    // The derivative of the norm with p = 2 is linear in x. Not so in float64, where grad_y / y may overflow.
    static constexpr bool kIsLinear = is_square_norm<R> && !std::is_same_v<T, double>;

    template <class Number = Sum>
    static __device__ Number widened(T value) {
        return static_cast<Number>(static_cast<comparable_t<T>>(value));
    }
    template <class Number>
    static __device__ T rounded(Number value) {
        return static_cast<T>(static_cast<comparable_t<T>>(value));
    }

    // What a window with result y sends to its datum x, if that is linear in x, divided by x.
    template <class Number>
    static __device__ Number linear_factor(Number grad_y, T y) {
        return widened<Number>(y) == 0 ? Number(0) : quotient_for_narrower(grad_y, widened<Number>(y));
    }
};

// Computes and writes the gradients at one place of the inputs, kLanes channels side by side in memory.
template <class R, class Space, int kLanes>
__device__ inline void write_gradients(const R& reduction, const Problem<Space>& problem,
                                       const Position<Space>& input) {
    using T = typename R::Element;
    using Index = typename Space::Index;
    using Sum = wide_accumulator_t<T>;
    // grad_y's neighbour, Y or Indices, is walked along with it.
    using Neighbour = std::conditional_t<R::kIndexed, int64_t, T>;
    constexpr bool kHasNeighbour = R::kIndexed || R::kGradientNeedsData;
    const int rank = Space::rank(problem.rank), last = rank - 1;
    const View<Space>& neighbours = R::kIndexed ? problem.indices : problem.y;
    const T* grad_y = problem.grad_y.template plane<const T>(input.image, input.channel);
    const Neighbour* beside = neighbours.template plane<const Neighbour>(input.image, input.channel);
    const int64_t own_index = input.image * problem.flat.image_stride + input.channel * problem.flat.channel_stride +
                              problem.flat.offset(input.spatial, rank);
    [[maybe_unused]] T x[kLanes];
    if constexpr (R::kGradientNeedsData) {
        load(problem.x.template plane<const T>(input.image, input.channel) + problem.x.offset(input.spatial, rank), x);
    }
    Box<Space> windows;
#pragma unroll
    for (int a = 0; a < rank; ++a) windows.axes[a] = covering_windows(problem.axes[a], input.spatial[a]);
    const auto& along = windows.axes[last];

    Sum sums[kLanes] = {};
    // Gradients of windows that divide by the same number are added before they are divided.
    Sum undivided[kLanes] = {};
    typename Space::Count divisor = 1;
    // Windows with all of their taps in the data do so.
    bool all_inside = R::kDivides;
    if constexpr (R::kDivides) {
#pragma unroll
        for (int a = 0; a < rank; ++a) {
            const auto& axis = problem.axes[a];
            const auto& range = windows.axes[a];
            const Index start = range.begin * axis.stride - axis.pad_begin;
            const Index end = start + (range.count - 1) * range.step * axis.stride + (axis.kernel - 1) * axis.dilation;
            all_inside = all_inside && start >= 0 && end < axis.input;
            divisor *= axis.kernel;
        }
    }
    const auto divide = [&] {
        if constexpr (R::kDivides) {
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                sums[lane] += reduction.gradient(undivided[lane] / static_cast<Sum>(divisor), 0, 0);
                undivided[lane] = 0;
            }
        }
    };
    const auto add_row = [&](const auto& offsets, const auto& outer) {
        typename Space::Count outer_divisor = 1;
        if (R::kDivides && !all_inside) {
#pragma unroll
            for (int a = 0; a < last; ++a) {
                outer_divisor *= counted_taps(problem.axes[a], outer[a], problem.parameters.divisor);
            }
        }
        for (Index i = 0; i < along.count; ++i) {
            const Index window = along.begin + i * along.step;
            T gradients[kLanes];
            load(grad_y + offsets[0] + window * problem.grad_y.strides[last], gradients);
            [[maybe_unused]] Neighbour others[kLanes];
            if constexpr (kHasNeighbour) load(beside + offsets[1] + window * neighbours.strides[last], others);
            if (R::kDivides && !all_inside) {
                const auto own_divisor =
                    outer_divisor * counted_taps(problem.axes[last], window, problem.parameters.divisor);
                if (own_divisor != divisor) divide();
                divisor = own_divisor;
            }
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                const Sum gradient = static_cast<Sum>(gradients[lane]);
                if constexpr (R::kIndexed) {
                    if (others[lane] == own_index + lane * problem.flat.channel_stride) sums[lane] += gradient;
                } else if constexpr (R::kDivides) {
                    undivided[lane] += gradient;
                } else {
                    sums[lane] +=
                        reduction.gradient(gradient, static_cast<Sum>(x[lane]), static_cast<Sum>(others[lane]));
                }
            }
        }
    };
    for_each_row<Space, 2>(windows, rank, {&problem.grad_y, &neighbours}, add_row);
    divide();

    T grad_x[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) grad_x[lane] = static_cast<T>(sums[lane]);
    store(grad_x,
          problem.grad_x.template plane<T>(input.image, input.channel) + problem.grad_x.offset(input.spatial, rank));
}

// One place of the inputs for each thread. Calls of the library keep registers: as many blocks at once as without them.
template <class R, class Space, int kLanes>
__global__ void __launch_bounds__(kThreads, std::is_same_v<Space, Small> ? 3 : 0)
    backward_by_window(int64_t first_block, const __grid_constant__ Problem<Space> problem) {
    const R reduction(problem.parameters);
    visit_place(problem, first_block, &DeviceAxis<typename Space::Index>::input,
                [&](const auto& input) { write_gradients<R, Space, kLanes>(reduction, problem, input); });
}

// ---- One window spans a plane ----

// What a window that spans a plane sends to the plane's elements.
template <class R>
class PlaneGradient {
    using T = typename R::Element;
    using Gradient = GradientArithmetic<R>;
    using Sum = typename Gradient::PlainSum;
    static constexpr bool kIsLinear = Gradient::kIsLinear, kNeedsData = R::kGradientNeedsData;
    // What goes to elements as it is waits for being rounded to halves, which is done to two at once.
    using Sent = std::conditional_t<kNeedsData, T, comparable_t<T>>;

public:
    // For bfloat16, float32 may not hold the factor of the data. Then each datum is divided by the norm.
    static constexpr bool kMayLoseFactor = kIsLinear && Gradient::kMayLeaveRange;

    PlaneGradient() = default;
    // `index` counts within the plane.
    __device__ PlaneGradient(T grad_y, [[maybe_unused]] T y, [[maybe_unused]] int64_t index,
                             [[maybe_unused]] int32_t plane_size) {
        if constexpr (R::kIndexed) {
            index_ = index >= 0 && index < plane_size ? static_cast<int32_t>(index) : -1;
        }
        if constexpr (R::kDivides) {
            grad_y_ = static_cast<Sent>(widened(grad_y) / static_cast<Sum>(plane_size));
        } else {
            grad_y_ = static_cast<Sent>(grad_y);
        }
        if constexpr (kNeedsData) y_ = y;
        if constexpr (kIsLinear) factor_ = Gradient::linear_factor(widened(grad_y), y);
        if constexpr (kMayLoseFactor) {
            using Limits = std::numeric_limits<Sum>;
            const Sum size = std::abs(factor_);
            const bool is_safe = widened(grad_y) == 0 || widened(y) == 0;
            if (!is_safe && !(size >= Limits::min() && size <= Limits::max())) factor_ = Limits::quiet_NaN();
        }
    }
    // The gradient of plane number `plane`.
    static __device__ PlaneGradient of(const Problem<Small>& problem, int64_t plane, int32_t plane_size) {
        const Position<Small> place = problem.places[plane];
        T y{};
        if constexpr (kNeedsData) y = *problem.y.template plane<const T>(place.image, place.channel);
        int64_t index = 0;
        if constexpr (R::kIndexed) {
            index = *problem.indices.template plane<const int64_t>(place.image, place.channel) -
                    place.image * problem.flat.image_stride - place.channel * problem.flat.channel_stride;
        }
        return {*problem.grad_y.template plane<const T>(place.image, place.channel), y, index, plane_size};
    }

    __device__ bool has_lost_factor() const {
        if constexpr (kMayLoseFactor) return factor_ != factor_;
        return false;
    }

    // The gradient of the plane's element `number`; by the factor, if kByFactor and there is one.
    template <bool kByFactor>
    __device__ T at([[maybe_unused]] const R& reduction, int32_t number, T x) const {
        if constexpr (R::kIndexed) {
            return Gradient::rounded(number == index_ ? grad_y_ : Sent(0));
        } else if constexpr (kIsLinear && kByFactor) {
            return Gradient::rounded(widened(x) * factor_);
        } else if constexpr (kNeedsData) {
            return Gradient::rounded(reduction.gradient(widened(grad_y_), widened(x), widened(y_)));
        } else {
            return Gradient::rounded(grad_y_);
        }
    }

private:
    static __device__ Sum widened(T value) { return Gradient::template widened<Sum>(value); }

    Sent grad_y_;  // of an average, its share of each element
    std::conditional_t<R::kIndexed, int32_t, Nothing> index_;
    std::conditional_t<kNeedsData, T, Nothing> y_;
    std::conditional_t<kIsLinear, Sum, Nothing> factor_;  // NaN if it is lost
};

// The gradients of planes whose channels lie side by side, from `channel` on.
template <class R, int kLanes>
__device__ inline void gradients_of_channels(const Problem<Small>& problem, bool in_vectors, int64_t image,
                                             int32_t channel, int32_t plane_size,
                                             PlaneGradient<R> (&gradients)[kLanes]) {
    using T = typename R::Element;
    const auto read = [&](const View<Small>& view, auto(&values)[kLanes]) {
        using Value = std::remove_reference_t<decltype(values[0])>;
        if (in_vectors) {
            load(view.template plane<const Value>(image, channel), values);
        } else {
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                values[lane] = *view.template plane<const Value>(image, channel + lane);
            }
        }
    };
    T grad_y[kLanes], y[kLanes] = {};
    int64_t indices[kLanes] = {};
    read(problem.grad_y, grad_y);
    if constexpr (R::kGradientNeedsData) read(problem.y, y);
    if constexpr (R::kIndexed) read(problem.indices, indices);
    const int64_t first = image * problem.flat.image_stride + channel * problem.flat.channel_stride;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        gradients[lane] = {grad_y[lane], y[lane], indices[lane] - first - lane * problem.flat.channel_stride,
                           plane_size};
    }
}

// Calls function(by_factor), which is known when compiling.
template <class R, class Function>
__device__ inline void with_factors([[maybe_unused]] bool some_are_lost, const Function& function) {
    if constexpr (PlaneGradient<R>::kMayLoseFactor) {
        if (some_are_lost) return function(std::false_type());
    }
    function(std::true_type());
}

constexpr int kVectorsOfThread = 4;

// Planes one behind the other in memory, which have at least as many elements as a vector has: every thread takes
// several vectors, wherever planes begin and end. What is rare must not take registers.
template <class R>
__global__ void __launch_bounds__(kThreads, PlaneGradient<R>::kMayLoseFactor ? 5 : 0)
    backward_planes(int64_t first_block, const __grid_constant__ Problem<Small> problem, Divider<int32_t> plane_size) {
    using T = typename R::Element;
    constexpr int lanes = kVectorLanes<T>;
    constexpr int32_t size = kThreads * kVectorsOfThread * lanes;  // elements of a block
    const R reduction(problem.parameters);
    const int64_t first = (first_block + blockIdx.x) * size;
    const int64_t first_plane = first / plane_size;
    const auto before = static_cast<int32_t>(first - first_plane * plane_size.value);
    const int64_t remaining = problem.places.count * plane_size.value - first;
    const int32_t end = remaining < size ? static_cast<int32_t>(remaining) : size;

    auto* const planes = shared<PlaneGradient<R>>();
    const int32_t planes_count = (before + end - 1) / plane_size + 1;
    bool some_are_lost = false;
    for (int32_t i = threadIdx.x; i < planes_count; i += kThreads) {
        planes[i] = PlaneGradient<R>::of(problem, first_plane + i, plane_size);
        some_are_lost = some_are_lost || planes[i].has_lost_factor();
    }
    if constexpr (PlaneGradient<R>::kMayLoseFactor) {
        some_are_lost = __syncthreads_or(some_are_lost) != 0;
    } else {
        __syncthreads();
    }

    const T* x = static_cast<const T*>(problem.x.data) + first;
    T* grad_x = static_cast<T*>(problem.grad_x.data) + first;
    T data[kVectorsOfThread][lanes];
    if constexpr (R::kGradientNeedsData) {
#pragma unroll
        for (int i = 0; i < kVectorsOfThread; ++i) {
            const int32_t begin = (i * kThreads + threadIdx.x) * lanes;
            if (begin + lanes <= end) {
                load(x + begin, data[i]);
            } else {
                for (int lane = 0; lane < lanes; ++lane) {
                    if (begin + lane < end) data[i][lane] = x[begin + lane];
                }
            }
        }
    }
    const auto write = [&](auto by_factor) {
#pragma unroll
        for (int i = 0; i < kVectorsOfThread; ++i) {
            const int32_t begin = (i * kThreads + threadIdx.x) * lanes;
            if (begin >= end) break;
            int32_t plane = (before + begin) / plane_size;
            int32_t number = before + begin - plane * plane_size.value;
            PlaneGradient<R> gradient = planes[plane];
            // Where planes are large, hardly any vector has elements of two.
            if (plane_size >= 32 * lanes && number + lanes <= plane_size) {
#pragma unroll
                for (int lane = 0; lane < lanes; ++lane) {
                    data[i][lane] = gradient.template at<by_factor>(reduction, number + lane, data[i][lane]);
                }
            } else {
#pragma unroll
                for (int lane = 0; lane < lanes; ++lane, ++number) {
                    if (number == plane_size.value) {
                        number = 0;
                        if (plane + 1 < planes_count) gradient = planes[plane + 1];
                    }
                    data[i][lane] = gradient.template at<by_factor>(reduction, number, data[i][lane]);
                }
            }
            if (begin + lanes <= end) {
                store(data[i], grad_x + begin);
            } else {
                for (int lane = 0; lane < lanes; ++lane) {
                    if (begin + lane < end) grad_x[begin + lane] = data[i][lane];
                }
            }
        }
    };
    with_factors<R>(some_are_lost, write);
}

// Channels innermost, as in forward_channel_planes().
template <class R>
__global__ void __launch_bounds__(kThreads, PlaneGradient<R>::kMayLoseFactor ? 4 : 0)
    backward_channel_planes(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                            const __grid_constant__ Planes planes, ChannelGroups groups, int64_t grad_stride,
                            bool in_vectors) {
    using T = typename R::Element;
    constexpr int lanes = kVectorLanes<T>;
    constexpr int unroll = 4;
    const R reduction(problem.parameters);
    const auto channels = static_cast<int32_t>(problem.places.channel_blocks);
    const ChannelShare share(planes, groups, lanes, first_block + blockIdx.x);
    const int64_t image = share.image;
    const int32_t channel = share.channel, rows = share.rows;
    if (channel >= channels) return;
    const auto elements = planes.elements(share.part);
    const int32_t end = elements.begin + elements.count;

    PlaneGradient<R> gradients[lanes];
    gradients_of_channels(problem, in_vectors, image, channel, planes.size, gradients);
    const T* x = problem.x.template plane<const T>(image, channel);
    T* grad_x = problem.grad_x.template plane<T>(image, channel);
    bool some_are_lost = false;
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) some_are_lost = some_are_lost || gradients[lane].has_lost_factor();
    with_factors<R>(some_are_lost, [&](auto by_factor) {
        for (int32_t number = elements.begin + share.row; number < end; number += unroll * rows) {
            T data[unroll][lanes];
            if constexpr (R::kGradientNeedsData) {
#pragma unroll
                for (int i = 0; i < unroll; ++i) {
                    if (number + i * rows < end) load(x + (number + i * rows) * planes.stride, data[i]);
                }
            }
#pragma unroll
            for (int i = 0; i < unroll; ++i) {
                if (number + i * rows >= end) break;
#pragma unroll
                for (int lane = 0; lane < lanes; ++lane) {
                    data[i][lane] = gradients[lane].template at<by_factor>(reduction, number + i * rows, data[i][lane]);
                }
                store(data[i], grad_x + (number + i * rows) * grad_stride);
            }
        }
    });
}

// False if none of these kernels takes the planes.
template <class R>
bool backward_planes(const Call& call, const Context& context) {
    using T = typename R::Element;
    constexpr int lanes = kVectorLanes<T>;
    const Geometry& geometry = call.geometry;
    if (R::kIndexed && element_stride(geometry, call.index_strides) != 1) return false;
    const int64_t size = plane_size(geometry);
    Problem<Small> problem(call);
    problem.number(call, &Problem<Small>::AxisType::output, 1);

    const auto stride_of = [&](const Operand& operand) { return element_stride(geometry, operand.strides); };
    const std::optional<int64_t> grad_stride = stride_of(call.grad_x);
    const bool has_strides = grad_stride && (!R::kGradientNeedsData || stride_of(call.x));
    if (call.channels_innermost && has_strides && has_channel_vectors(call, call.grad_x, &Axis::input, sizeof(T)) &&
        (!R::kGradientNeedsData || has_channel_vectors(call, call.x, &Axis::input, sizeof(T)))) {
        Planes planes;
        planes.size = static_cast<int32_t>(size);
        planes.stride = R::kGradientNeedsData ? *stride_of(call.x) : 0;
        const ChannelGroups groups(geometry.channels / lanes, geometry.batch, 1);
        const int64_t blocks = geometry.batch * groups.count;
        planes.split(blocks, 4 * kThreads / groups.width);
        const bool in_vectors = has_channel_vectors(call, call.grad_y, &Axis::output, sizeof(T)) &&
                                has_channel_vectors(call, call.y, &Axis::output, sizeof(T)) &&
                                has_channel_vectors(call, call.indices, &Axis::output, sizeof(int64_t));
        launch(backward_channel_planes<R>, blocks * planes.parts, 0, context.stream, problem, planes, groups,
               *grad_stride, in_vectors);
        return true;
    }

    const auto is_dense_for = [&](const Operand& operand) {
        return !operand.data || (is_dense(geometry, operand.strides) && is_aligned(operand.data));
    };
    if (!is_dense_for(call.grad_x) || (R::kGradientNeedsData && !is_dense_for(call.x)) || size < lanes) return false;
    constexpr int64_t block_size = kThreads * kVectorsOfThread * lanes;
    const int64_t planes_of_block = ceil_div(block_size, size) + 1;
    launch(backward_planes<R>, ceil_div(problem.places.count * size, block_size),
           planes_of_block * sizeof(PlaneGradient<R>), context.stream, problem,
           Divider<int32_t>(static_cast<int32_t>(size)));
    return true;
}

}  // namespace onnxpool::cuda
