// Gradients are gathered: every input element adds up what each window that covers it sends back, in a fixed order.
#pragma once

#include "planes.cuh"

namespace onnxpool::cuda {

// One input place for each thread, with kLanes channels side by side in memory.
template <class R, class Space, int kLanes>
__global__ void __launch_bounds__(kThreads)
    backward_by_window(int64_t first_block, const __grid_constant__ Problem<Space> problem) {
    using T = typename R::Element;
    using Index = typename Space::Index;
    using Sum = wide_accumulator_t<T>;
    // grad_y's neighbour, Y or Indices, is walked along with it.
    using Neighbour = std::conditional_t<R::kIndexed, int64_t, T>;
    constexpr bool kHasNeighbour = R::kIndexed || R::kGradientNeedsData;
    const int64_t number = (first_block + blockIdx.x) * kThreads + threadIdx.x;
    if (number >= problem.places.count) return;
    const R reduction(problem.parameters);
    Position<Space> input = problem.places[number];
    const int rank = Space::rank(problem.rank), last = rank - 1;
    const View<Space>& neighbours = R::kIndexed ? problem.indices : problem.y;
    const T* grad_y = problem.grad_y.template plane<const T>(input.image, input.channel);
    const Neighbour* beside = neighbours.template plane<const Neighbour>(input.image, input.channel);
    const int64_t first_index = input.image * problem.flat.image_stride + input.channel * problem.flat.channel_stride;

    for_each_row_of_place(problem, input, &DeviceAxis<Index>::input, [&] {
        const int64_t own_index = first_index + problem.flat.offset(input.spatial, rank);
        [[maybe_unused]] T x[kLanes];
        if constexpr (R::kGradientNeedsData) {
            load(problem.x.template plane<const T>(input.image, input.channel) + problem.x.offset(input.spatial, rank),
                 x);
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
                const Index end =
                    start + (range.count - 1) * range.step * axis.stride + (axis.kernel - 1) * axis.dilation;
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
        store(grad_x, problem.grad_x.template plane<T>(input.image, input.channel) +
                          problem.grad_x.offset(input.spatial, rank));
    });
}

// Planes of one window each, one behind the other in memory: every thread takes as many elements as one access moves,
// wherever planes begin and end.
template <class R>
__global__ void __launch_bounds__(kThreads)
    backward_planes(int64_t first_block, const __grid_constant__ Problem<Small> problem, Divider<int32_t> plane_size) {
    using T = typename R::Element;
    using Sum = wide_accumulator_t<T>;
    constexpr int lanes = kVectorLanes<T>;
    const int64_t first = ((first_block + blockIdx.x) * kThreads + threadIdx.x) * lanes;
    const int64_t size = problem.places.count * plane_size.value;
    if (first >= size) return;
    const R reduction(problem.parameters);
    const int64_t first_plane = first / plane_size;
    const bool is_whole = first + lanes <= size;

    [[maybe_unused]] T x[lanes] = {};
    if constexpr (R::kGradientNeedsData) {
        const T* from = static_cast<const T*>(problem.x.data) + first;
        if (is_whole) {
            load(from, x);
        } else {
            for (int lane = 0; lane < size - first; ++lane) x[lane] = from[lane];
        }
    }
    T grad_x[lanes];
    Sum grad_y = 0;
    [[maybe_unused]] Sum y = 0;
    [[maybe_unused]] int64_t index = -1;
    int64_t plane = first_plane - 1;
    auto number = static_cast<int32_t>(first - first_plane * plane_size.value);  // of an element in its plane
    number += plane_size.value;
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane, ++number) {
        if (number >= plane_size && plane + 1 < problem.places.count) {  // the next plane
            number -= plane_size;
            ++plane;
            const Position<Small> position = problem.places[plane];
            grad_y = static_cast<Sum>(*problem.grad_y.template plane<const T>(position.image, position.channel));
            if constexpr (R::kDivides) grad_y /= static_cast<Sum>(plane_size.value);
            if constexpr (R::kGradientNeedsData) {
                y = static_cast<Sum>(*problem.y.template plane<const T>(position.image, position.channel));
            }
            if constexpr (R::kIndexed) {
                index = *problem.indices.template plane<const int64_t>(position.image, position.channel) -
                        position.image * problem.flat.image_stride - position.channel * problem.flat.channel_stride;
            }
        }
        if constexpr (R::kIndexed) {
            grad_x[lane] = static_cast<T>(number == index ? grad_y : Sum(0));
        } else {
            grad_x[lane] = static_cast<T>(reduction.gradient(grad_y, static_cast<Sum>(x[lane]), y));
        }
    }
    T* to = static_cast<T*>(problem.grad_x.data) + first;
    if (is_whole) {
        store(grad_x, to);
    } else {
        for (int lane = 0; lane < size - first; ++lane) to[lane] = grad_x[lane];
    }
}

// False if the planes do not lie so.
template <class R>
bool backward_planes(const Call& call, const Context& context) {
    const Geometry& geometry = call.geometry;
    const auto is_dense_for = [&](const Operand& operand) {
        return !operand.data || (is_dense(geometry, operand.strides) && is_aligned(operand.data));
    };
    if (!is_dense_for(call.grad_x) || (R::kGradientNeedsData && !is_dense_for(call.x))) return false;
    if (R::kIndexed && element_stride(geometry, call.index_strides) != 1) return false;
    Problem<Small> problem(call);
    problem.number(call, &Problem<Small>::AxisType::output, 1);
    const int64_t size = problem.places.count * plane_size(geometry);
    launch(backward_planes<R>, blocks_for(ceil_div(size, kVectorLanes<typename R::Element>)), 0, context.stream,
           problem, Divider<int32_t>(static_cast<int32_t>(plane_size(geometry))));
    return true;
}

}  // namespace onnxpool::cuda
