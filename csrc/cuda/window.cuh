// One window, by one thread: what every kernel falls back on, for any layout and any geometry.
#pragma once

#include "vector.cuh"

namespace onnxpool::cuda {

template <class R>
constexpr bool is_square_norm = false;
template <class T>
constexpr bool is_square_norm<LpNorm<T, 2>> = true;

// combine(accumulator, lift(x)).
template <class R, class A = typename R::Accumulator>
__device__ inline A combine_datum(const R& reduction, A accumulator, typename R::Element x) {
    if constexpr (is_square_norm<R> && !std::is_same_v<A, typename R::Element>) {
        // Twice the digits hold the square as it is: adding it at once saves an instruction, and changes no bit of what
        // is in range.
        const A datum = convert<A>(x);
        return std::fma(datum, datum, accumulator);
    } else {
        return reduction.combine(accumulator, reduction.lift(x));
    }
}

template <class R>
constexpr bool may_be_out_of_range = false;
template <class T, int kExponent>
constexpr bool may_be_out_of_range<LpNorm<T, kExponent>> = !LpNorm<T, kExponent>::kAlwaysInRange;

namespace detail {
template <class T, int kExponent>
ScaledLpNorm<T, kExponent> scaled(const LpNorm<T, kExponent>&);
}
template <class R>
using ScaledNorm = decltype(detail::scaled(std::declval<R>()));

template <class R>
constexpr bool is_sum = is_norm<R>;
template <class T, class A>
constexpr bool is_sum<Average<T, A>> = true;
template <class T>
constexpr bool is_sum<QuantizedGlobalAverage<T>> = true;

// numerator / denominator, to be rounded later: of float64 to float32, where it is good to 2^-39, and of float32, which
// holds numbers of float16, to float16, where it is good to 2^-22.
template <class Number>
__device__ inline Number quotient_for_narrower(Number numerator, Number denominator) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(Number) == 8) {
        double guess;  // good to 2^-20
        asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(guess) : "d"(denominator));
        const double better = std::fma(std::fma(-denominator, guess, 1.0), guess, guess);
        return numerator * (guess == 0 ? guess : better);  // 1 / infinity
    } else {
        float reciprocal;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(denominator));
        return numerator * reciprocal;
    }
#endif
    return numerator / denominator;
}

template <class R>
constexpr bool is_max = R::kIndexed;
template <class T>
constexpr bool is_max<Max<T>> = true;

// A datum that changes nothing.
template <class R>
__device__ inline typename R::Element outside_of([[maybe_unused]] const R& reduction) {
    using T = typename R::Element;
    using Limits = std::numeric_limits<comparable_t<T>>;
    if constexpr (R::kInOrder) {
        return static_cast<T>(reduction.x_zero_point);
    } else if constexpr (is_sum<R>) {
        return static_cast<T>(-comparable_t<T>(0));
    } else {
        return static_cast<T>(Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
    }
}

struct Nothing {};

// The ranges of all axes: a window's taps, or the windows that cover an element.
template <class Space>
struct Box {
    RangeOf<typename Space::Index> axes[Space::kRank];
};

namespace detail {

template <int kAxis, class Space, int kLayouts, class Visit>
__device__ inline void visit_rows(const Box<Space>& box, const View<Space>* const (&layouts)[kLayouts],
                                  typename Space::Index (&outer)[Space::kRank],
                                  const typename Space::Index (&offsets)[kLayouts], Visit& visit) {
    if constexpr (kAxis == Space::kRank - 1) {
        visit(offsets, outer);
    } else {
        const auto& range = box.axes[kAxis];
        for (typename Space::Index i = 0; i < range.count; ++i) {
            outer[kAxis] = range.begin + i * range.step;
            typename Space::Index moved[kLayouts];
#pragma unroll
            for (int l = 0; l < kLayouts; ++l) moved[l] = offsets[l] + outer[kAxis] * layouts[l]->strides[kAxis];
            visit_rows<kAxis + 1>(box, layouts, outer, moved, visit);
        }
    }
}

}  // namespace detail

// Visits the rows along the last axis of a box, in row-major order. visit(offsets, outer) gets the offset of column 0
// of the row in each of the layouts and the row's coordinates.
template <class Space, int kLayouts, class Visit>
__device__ inline void for_each_row(const Box<Space>& box, int rank, const View<Space>* const (&layouts)[kLayouts],
                                    Visit visit) {
    using Index = typename Space::Index;
    Index outer[Space::kRank];
    Index offsets[kLayouts] = {};
    if constexpr (Space::kRank == Small::kRank) {  // loops within loops, all in registers
        detail::visit_rows<0>(box, layouts, outer, offsets, visit);
    } else {
        for (int a = 0; a + 1 < rank; ++a) {
            if (box.axes[a].count == 0) return;
            outer[a] = box.axes[a].begin;
            for (int l = 0; l < kLayouts; ++l) offsets[l] += outer[a] * layouts[l]->strides[a];
        }
        for (;;) {
            visit(offsets, outer);
            int a = rank - 2;
            for (; a >= 0; --a) {
                const auto& range = box.axes[a];
                const bool more = outer[a] < range.begin + (range.count - 1) * range.step;
                const Index move = more ? range.step : range.begin - outer[a];
                outer[a] += move;
                for (int l = 0; l < kLayouts; ++l) offsets[l] += move * layouts[l]->strides[a];
                if (more) break;
            }
            if (a < 0) return;
        }
    }
}

// accumulators[lane] takes in all data of the window, for kLanes channels side by side in memory from `plane` on.
// Indices are relative to the plane.
template <class R, class Space, int kLanes>
__device__ inline void reduce_window(const R& reduction, const Problem<Space>& problem, const Box<Space>& taps,
                                     const typename R::Element* plane,
                                     typename R::Accumulator (&accumulators)[kLanes]) {
    using Index = typename Space::Index;
    const int rank = Space::rank(problem.rank), last = rank - 1;
    const auto& along = taps.axes[last];
    const Index step = along.step * problem.x.strides[last];
    const Index begin = along.begin * problem.x.strides[last];
    typename R::Element x[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) accumulators[lane] = reduction.identity();
    if constexpr (R::kIndexed) {
        const Index index_begin = along.begin * problem.flat.strides[last];
        const Index index_step = along.step * problem.flat.strides[last];
        for_each_row<Space, 2>(taps, rank, {&problem.x, &problem.flat}, [&](const auto& offsets, const auto&) {
            for (Index i = 0; i < along.count; ++i) {
                load(plane + offsets[0] + begin + i * step, x);
                const int64_t index = offsets[1] + index_begin + i * index_step;
#pragma unroll
                for (int lane = 0; lane < kLanes; ++lane) {
                    accumulators[lane] = reduction.combine(accumulators[lane], reduction.lift(x[lane], index));
                }
            }
        });
    } else if constexpr (R::kInOrder) {
        for_each_row<Space, 1>(taps, rank, {&problem.x}, [&](const auto& offsets, const auto&) {
            for (Index i = 0; i < along.count; ++i) {
                load(plane + offsets[0] + begin + i * step, x);
#pragma unroll
                for (int lane = 0; lane < kLanes; ++lane) {
                    accumulators[lane] = combine_datum(reduction, accumulators[lane], x[lane]);
                }
            }
        });
    } else {  // rows first, then along the row, as all kernels do
        for (Index i = 0; i < along.count; ++i) {
            typename R::Accumulator column[kLanes];
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) column[lane] = reduction.identity();
            const auto* start = plane + begin + i * step;
            for_each_row<Space, 1>(taps, rank, {&problem.x}, [&](const auto& offsets, const auto&) {
                load(start + offsets[0], x);
#pragma unroll
                for (int lane = 0; lane < kLanes; ++lane) {
                    column[lane] = combine_datum(reduction, column[lane], x[lane]);
                }
            });
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                accumulators[lane] = reduction.combine(accumulators[lane], column[lane]);
            }
        }
    }
}

// The p-norm of a window whose powers overflow or vanish.
template <class Scaled, class T, class Space>
__device__ __attribute__((noinline)) T rescaled_norm(const Problem<Space>& problem, const Box<Space>& taps,
                                                     const T* plane) {
    comparable_t<T> largest[1];
    reduce_window(LargestMagnitude<T>(), problem, taps, plane, largest);
    // 0, NaN or infinite
    if (!(largest[0] > 0) || largest[0] > std::numeric_limits<comparable_t<T>>::max())
        return static_cast<T>(largest[0]);
    const Scaled reduction(problem.parameters, static_cast<double>(largest[0]));
    double sum[1];
    reduce_window(reduction, problem, taps, plane, sum);
    return reduction.finish(sum[0]);
}

// A window's result. `divisor` is the number of its taps that count, taps() gives the data among them.
template <class R, class Space, class Taps>
__device__ inline typename R::Element finish_window(const R& reduction, const Problem<Space>& problem, Taps taps,
                                                    const typename R::Element* plane,
                                                    const typename R::Accumulator& accumulator,
                                                    typename Space::Count divisor) {
    if (divisor == 0) return reduction.empty();
    if constexpr (R::kDivides) {
        return reduction.finish(accumulator / static_cast<typename R::Accumulator>(divisor));
    }
    if constexpr (may_be_out_of_range<R>) {
        if (reduction.out_of_range(accumulator)) {
            const Box<Space> box = taps();
            return rescaled_norm<ScaledNorm<R>>(problem, box, plane);
        }
    }
    return reduction.finish(accumulator);
}

// The data taps of the windows at place `output` of an axis, and its factor of the number of taps that count.
template <class Space>
__device__ inline typename Space::Index window_along(const Problem<Space>& problem, int axis,
                                                     typename Space::Index output, Box<Space>& taps) {
    taps.axes[axis] = data_taps(problem.axes[axis], output);
    return counted_taps(problem.axes[axis], output, problem.parameters.divisor);
}

// The data taps of the window at `output`, and the number of its taps that count.
template <class Space>
__device__ inline typename Space::Count window_at(const Problem<Space>& problem, const typename Space::Index* output,
                                                  Box<Space>& taps) {
    typename Space::Count divisor = 1;
#pragma unroll
    for (int a = 0; a < Space::rank(problem.rank); ++a) divisor *= window_along(problem, a, output[a], taps);
    return divisor;
}

// Calls visit(place) for the place of this thread, and for the other rows that it has. `size` is that of their axis.
template <class Space, class Visit>
__device__ inline void visit_place(const Problem<Space>& problem, int64_t first_block,
                                   typename Space::Index DeviceAxis<typename Space::Index>::* size,
                                   const Visit& visit) {
    const int64_t number = (first_block + blockIdx.x) * kThreads + threadIdx.x;
    if (number >= problem.places.count) return;
    Position<Space> place = problem.places[number];
    if (problem.places.rows == 1) return visit(place);
    const int axis = Space::rank(problem.rank) - 2;
    auto& row = place.spatial[axis];
    const auto end = row + problem.places.rows;
    const auto limit = problem.axes[axis].*size;
    for (; row < end && row < limit; ++row) visit(place);
}

// Computes and writes the outputs at one place, kLanes channels side by side in memory.
template <class R, class Space, int kLanes>
__device__ inline void write_windows(const R& reduction, const Problem<Space>& problem, const Position<Space>& output) {
    using T = typename R::Element;
    const T* plane = problem.x.template plane<const T>(output.image, output.channel);
    Box<Space> taps;
    const auto divisor = window_at(problem, output.spatial, taps);
    typename R::Accumulator accumulators[kLanes];
    reduce_window(reduction, problem, taps, plane, accumulators);

    T y[kLanes];
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
        y[lane] = finish_window(reduction, problem, [&] { return taps; }, plane + lane, accumulators[lane], divisor);
    }
    store(y,
          problem.y.template plane<T>(output.image, output.channel) + problem.y.offset(output.spatial, problem.rank));
    if constexpr (R::kIndexed) {
        const int64_t first = output.image * problem.flat.image_stride + output.channel * problem.flat.channel_stride;
        int64_t indices[kLanes];
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const int64_t index = accumulators[lane].index;
            indices[lane] = index < 0 ? -1 : first + lane * problem.flat.channel_stride + index;
        }
        store(indices, problem.indices.template plane<int64_t>(output.image, output.channel) +
                           problem.indices.offset(output.spatial, problem.rank));
    }
}

// One place of the output for each thread.
template <class R, class Space, int kLanes>
__global__ void __launch_bounds__(kThreads)
    forward_by_window(int64_t first_block, const __grid_constant__ Problem<Space> problem) {
    const R reduction(problem.parameters);
    visit_place(problem, first_block, &DeviceAxis<typename Space::Index>::output,
                [&](const auto& output) { write_windows<R, Space, kLanes>(reduction, problem, output); });
}

}  // namespace onnxpool::cuda
