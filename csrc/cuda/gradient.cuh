// Gradients are gathered: every input element adds up what each window that covers it sends back, in a fixed order.
#pragma once

#include "window.cuh"

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
    const Position<Space> input = problem.places[number];
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
    const auto divide = [&] {
        if constexpr (R::kDivides) {
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                sums[lane] += reduction.gradient(undivided[lane] / static_cast<Sum>(divisor), 0, 0);
                undivided[lane] = 0;
            }
        }
    };
    for_each_row<Space, 2>(windows, rank, {&problem.grad_y, &neighbours}, [&](const auto& offsets, const auto& outer) {
        [[maybe_unused]] typename Space::Count outer_divisor = 1;
        if constexpr (R::kDivides) {
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
            if constexpr (R::kDivides) {
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
    });
    divide();

    T grad_x[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) grad_x[lane] = static_cast<T>(sums[lane]);
    store(grad_x,
          problem.grad_x.template plane<T>(input.image, input.channel) + problem.grad_x.offset(input.spatial, rank));
}

}  // namespace onnxpool::cuda
