// Small square windows, whose size is known when compiling, over the last two axes. A thread reads a patch of inputs
// into registers, all at once, and computes the outputs whose windows lie in it.
#pragma once

#include "window.cuh"

namespace onnxpool::cuda {

// The taps of windows along an axis, where their number is known when compiling and none is skipped.
template <int32_t kKernel>
struct PatchAxis {
    int32_t input;
    int32_t output;
    int32_t pad_begin;
    int32_t counted_begin, counted_end;  // where taps count

    __device__ PatchAxis(const DeviceAxis<int32_t>& axis, Divisor divisor)
        : input(axis.input),
          output(axis.output),
          pad_begin(axis.pad_begin),
          counted_begin(divisor == Divisor::kData ? 0 : -kFar),
          counted_end(divisor == Divisor::kData       ? axis.input
                      : divisor == Divisor::kDeclared ? axis.input + axis.pad_end
                                                      : kFar) {}

    // counted_taps() of a window with its first tap at `start`.
    __device__ int32_t count(int32_t start) const {
        const int32_t begin = start < counted_begin ? counted_begin : start;
        const int32_t end = start + kKernel < counted_end ? start + kKernel : counted_end;
        return start < input && start + kKernel > 0 ? end - begin : 0;
    }
    __device__ bool has(int32_t position) const {
        return static_cast<uint32_t>(position) < static_cast<uint32_t>(input);
    }
    __device__ bool has_window(int32_t window) const {
        return static_cast<uint32_t>(window) < static_cast<uint32_t>(output);
    }

private:
    static constexpr int32_t kFar = 1 << 30;
};

// What a thread computes: kRows by kColumns outputs, for kLanes channels side by side in memory. Where columns lie side
// by side, kVector of them are read by one access, the first of them kBefore columns after the patch begins.
template <int kKernel_, int kStride_, int kRows_, int kColumns_, int kLanes_, int kVector_ = 1, int kBefore_ = 0>
struct Patch {
    static constexpr int kKernel = kKernel_, kStride = kStride_;
    static constexpr int kRows = kRows_, kColumns = kColumns_, kLanes = kLanes_;
    static constexpr int kVector = kVector_, kBefore = kBefore_;
    static constexpr int kInputRows = (kRows - 1) * kStride + kKernel;
    static constexpr int kInputColumns = (kColumns - 1) * kStride + kKernel;
    using Axis = PatchAxis<kKernel>;

    // Whether a column of inputs is read together with others, and as the first of them.
    static constexpr __device__ bool in_vector(int column) {
        const int begin = column - (column + kVector - kBefore) % kVector;
        return kVector > 1 && begin >= 0 && begin + kVector <= kInputColumns;
    }
    static constexpr __device__ bool begins_vector(int column) {
        return in_vector(column) && (column + kVector - kBefore) % kVector == 0;
    }
};

// A datum that changes nothing.
template <class R>
__device__ inline typename R::Element outside_of([[maybe_unused]] const R& reduction) {
    using T = typename R::Element;
    using Limits = std::numeric_limits<comparable_t<T>>;
    if constexpr (R::kInOrder) {
        return static_cast<T>(reduction.parameters.x_zero_point);
    } else if constexpr (is_sum<R>) {
        return static_cast<T>(-comparable_t<T>(0));
    } else {
        return static_cast<T>(Limits::has_infinity ? -Limits::infinity() : Limits::lowest());
    }
}

__device__ inline int32_t clamp_to(int32_t number, int32_t size) {
    return number < 0 ? 0 : number < size ? number : size - 1;
}

// 1 / number, rounded correctly, for a number that is neither very large nor very small.
__device__ inline float reciprocal_of(float number) {
#if defined(__CUDA_ARCH__)
    float guess;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(number));
    return std::fma(std::fma(-number, guess, 1.0f), guess, guess);
#else
    return 1 / number;
#endif
}

// The quotient by a positive whole number, for a given reciprocal of that: rounded correctly, but for ties between
// subnormal numbers; NaN where it is infinite.
__device__ inline float finite_quotient(float numerator, float divisor, float reciprocal) {
    const float quotient = numerator * reciprocal;
    return std::fma(-std::fma(quotient, divisor, -numerator), reciprocal, quotient);
}

// The elements of a patch. What lies outside of the plane is read from its edge, and replaced.
template <class P, class T>
__device__ inline void read_patch(const T* plane, const View<Small>& view, const typename P::Axis& rows,
                                  const typename P::Axis& columns, int32_t first_row, int32_t first_column, T outside,
                                  T (&data)[P::kInputRows][P::kInputColumns][P::kLanes]) {
    const T* starts[P::kInputColumns];
#pragma unroll
    for (int j = 0; j < P::kInputColumns; ++j) {
        const int32_t size = columns.input - (P::in_vector(j) ? P::kVector - 1 : 0);
        starts[j] = plane + clamp_to(first_column + j, size) * view.strides[2];
    }
#pragma unroll
    for (int i = 0; i < P::kInputRows; ++i) {
        const int32_t offset = clamp_to(first_row + i, rows.input) * view.strides[1];
#pragma unroll
        for (int j = 0; j < P::kInputColumns; ++j) {
            if (!P::in_vector(j)) {
                load(starts[j] + offset, data[i][j]);
            } else if (P::begins_vector(j)) {
                T vector[P::kVector];
                load(starts[j] + offset, vector);
#pragma unroll
                for (int v = 0; v < P::kVector; ++v) data[i][j + v][0] = vector[v];
            }
        }
    }
    if (first_column < 0 || first_column + P::kInputColumns > columns.input) {
#pragma unroll
        for (int j = 0; j < P::kInputColumns; ++j) {
            if (P::in_vector(j) && !P::begins_vector(j)) continue;
            const bool is_inside = columns.has(first_column + j);
            if (P::in_vector(j) && is_inside) continue;
#pragma unroll
            for (int i = 0; i < P::kInputRows; ++i) {
#pragma unroll
                for (int v = 0; v < (P::in_vector(j) ? P::kVector : 1); ++v) {
#pragma unroll
                    for (int lane = 0; lane < P::kLanes; ++lane) {
                        data[i][j + v][lane] = is_inside ? data[i][j + v][lane] : outside;
                    }
                }
            }
        }
    }
    if (first_row < 0 || first_row + P::kInputRows > rows.input) {
#pragma unroll
        for (int i = 0; i < P::kInputRows; ++i) {
            if (rows.has(first_row + i)) continue;
#pragma unroll
            for (int j = 0; j < P::kInputColumns; ++j) {
#pragma unroll
                for (int lane = 0; lane < P::kLanes; ++lane) data[i][j][lane] = outside;
            }
        }
    }
}

// A row of outputs.
template <class P, class Value>
__device__ inline void write_row(const Value (&values)[P::kColumns * P::kLanes], Value* to, int32_t step,
                                 int32_t columns) {
#pragma unroll
    for (int j = 0; j < P::kColumns; j += P::kVector) {
        Value together[P::kVector * P::kLanes];
#pragma unroll
        for (int v = 0; v < P::kVector * P::kLanes; ++v) together[v] = values[j * P::kLanes + v];
        if (j < columns) store(together, to + j * step);
    }
}

// The accumulators of the windows of a row of outputs, which begin in row `first_row` of the patch.
template <class R, class P>
__device__ inline void reduce_row(const R& reduction,
                                  const typename R::Element (&data)[P::kInputRows][P::kInputColumns][P::kLanes],
                                  int first_row, typename R::Accumulator (&accumulators)[P::kColumns * P::kLanes]) {
    using Accumulator = typename R::Accumulator;
    const auto lifted = [&](int row, int column, int lane) {
        return reduction.lift(data[first_row + row][column][lane]);
    };
    if constexpr (R::kInOrder) {
#pragma unroll
        for (int k = 0; k < P::kColumns * P::kLanes; ++k) {
            const int column = k / P::kLanes * P::kStride, lane = k % P::kLanes;
            Accumulator accumulator = lifted(0, column, lane);
#pragma unroll
            for (int t = 1; t < P::kKernel * P::kKernel; ++t) {
                accumulator = reduction.combine(accumulator, lifted(t / P::kKernel, column + t % P::kKernel, lane));
            }
            accumulators[k] = accumulator;
        }
    } else {  // rows first, then along the row
        Accumulator of_columns[P::kInputColumns * P::kLanes];
#pragma unroll
        for (int k = 0; k < P::kInputColumns * P::kLanes; ++k) {
            Accumulator accumulator = lifted(0, k / P::kLanes, k % P::kLanes);
#pragma unroll
            for (int t = 1; t < P::kKernel; ++t) {
                accumulator = reduction.combine(accumulator, lifted(t, k / P::kLanes, k % P::kLanes));
            }
            of_columns[k] = accumulator;
        }
#pragma unroll
        for (int k = 0; k < P::kColumns * P::kLanes; ++k) {
            const int first = k / P::kLanes * P::kStride * P::kLanes + k % P::kLanes;
            Accumulator accumulator = of_columns[first];
#pragma unroll
            for (int t = 1; t < P::kKernel; ++t) {
                accumulator = reduction.combine(accumulator, of_columns[first + t * P::kLanes]);
            }
            accumulators[k] = accumulator;
        }
    }
}

// Of a window in column `first_column` of the patch, the largest datum, and its number among the taps, counted row by
// row. `first_tap` is the first datum, which padding cannot exceed.
template <class P, class T>
__device__ inline void find_largest(const T (&data)[P::kInputRows][P::kInputColumns][P::kLanes], int first_row,
                                    int first_column, int lane, int32_t first_tap, comparable_t<T>& largest,
                                    int32_t& tap) {
    tap = first_tap;
#pragma unroll
    for (int t = 0; t < P::kKernel * P::kKernel; ++t) {
        const auto value =
            static_cast<comparable_t<T>>(data[first_row + t / P::kKernel][first_column + t % P::kKernel][lane]);
        const bool is_larger = !(value <= largest) && largest == largest;  // or the first NaN
        largest = is_larger ? value : largest;
        tap = is_larger ? t : tap;
    }
}

template <class R, class P>
__global__ void __launch_bounds__(kThreads)
    forward_patches(int64_t first_block, const __grid_constant__ Problem<Small> problem) {
    using T = typename R::Element;
    const int64_t number = (first_block + blockIdx.x) * kThreads + threadIdx.x;
    if (number >= problem.places.count) return;
    const R reduction(problem.parameters);
    const Divisor divisor = problem.parameters.divisor;
    const typename P::Axis rows(problem.axes[1], divisor), columns(problem.axes[2], divisor);
    const Position<Small> output = problem.places[number];
    const int32_t first_row = output.spatial[1] * P::kStride - rows.pad_begin;
    const int32_t first_column = output.spatial[2] * P::kStride - columns.pad_begin;
    const int32_t slice = output.spatial[0] * problem.axes[0].stride;
    const T* plane = problem.x.template plane<const T>(output.image, output.channel);
    T data[P::kInputRows][P::kInputColumns][P::kLanes];
    read_patch<P>(plane + slice * problem.x.strides[0], problem.x, rows, columns, first_row, first_column,
                  outside_of(reduction), data);

    constexpr int results_of_row = P::kColumns * P::kLanes;
    const int32_t columns_left = columns.output - output.spatial[2];
    T* y = problem.y.template plane<T>(output.image, output.channel) + problem.y.offset(output.spatial, Small::kRank);
    int32_t column_divisors[P::kColumns];
#pragma unroll
    for (int j = 0; j < P::kColumns; ++j) column_divisors[j] = columns.count(first_column + j * P::kStride);
    int32_t row_divisor = -1;
    [[maybe_unused]] float divisors[P::kColumns] = {}, reciprocals[P::kColumns] = {};
#pragma unroll
    for (int i = 0; i < P::kRows; ++i) {
        if (output.spatial[1] + i >= rows.output) break;
        const int32_t row_of_window = first_row + i * P::kStride;
        const int32_t own_row_divisor = rows.count(row_of_window);
        T results[results_of_row];
        if constexpr (R::kIndexed) {
            int64_t indices[results_of_row];
#pragma unroll
            for (int k = 0; k < results_of_row; ++k) {
                const int j = k / P::kLanes, lane = k % P::kLanes;
                const int32_t column_of_window = first_column + j * P::kStride;
                const int32_t first_tap = (row_of_window < 0 ? -row_of_window : 0) * P::kKernel +
                                          (column_of_window < 0 ? -column_of_window : 0);
                auto largest = static_cast<comparable_t<T>>(outside_of(reduction));
                int32_t tap;
                find_largest<P>(data, i * P::kStride, j * P::kStride, lane, first_tap, largest, tap);
                const int32_t position[] = {slice, row_of_window + tap / P::kKernel,
                                            column_of_window + tap % P::kKernel};
                const bool has_data = own_row_divisor > 0 && column_divisors[j] > 0;
                indices[k] = has_data ? problem.flat.image_stride * output.image +
                                            problem.flat.channel_stride * (output.channel + lane) +
                                            problem.flat.offset(position, Small::kRank)
                                      : -1;
                results[k] = has_data ? static_cast<T>(largest) : reduction.empty();
            }
            int64_t* to = problem.indices.template plane<int64_t>(output.image, output.channel) +
                          problem.indices.offset(output.spatial, Small::kRank);
            write_row<P>(indices, to + i * problem.indices.strides[1], problem.indices.strides[2], columns_left);
        } else {
            typename R::Accumulator accumulators[results_of_row];
            reduce_row<R, P>(reduction, data, i * P::kStride, accumulators);
            if constexpr (R::kDivides) {
                if (own_row_divisor != row_divisor) {
                    row_divisor = own_row_divisor;
#pragma unroll
                    for (int j = 0; j < P::kColumns; ++j) {
                        divisors[j] = static_cast<float>(row_divisor * column_divisors[j]);
                        reciprocals[j] = reciprocal_of(divisors[j]);
                    }
                }
                float zero = 0;  // or NaN, if a mean is infinite or NaN
#pragma unroll
                for (int k = 0; k < results_of_row; ++k) {
                    const float count = divisors[k / P::kLanes], sum = accumulators[k];
                    const float mean =
                        R::kInOrder ? sum / count : finite_quotient(sum, count, reciprocals[k / P::kLanes]);
                    zero = std::fma(mean, 0.0f, zero);
                    results[k] = reduction.finish(mean);
                }
                if (zero != 0) {
                    for (int k = 0; k < results_of_row; ++k) {
                        const float count = divisors[k / P::kLanes];
                        results[k] = count == 0 ? reduction.empty() : reduction.finish(accumulators[k] / count);
                    }
                }
            } else {
#pragma unroll
                for (int k = 0; k < results_of_row; ++k) {
                    const auto taps = [&] {
                        const int32_t window[] = {output.spatial[0], output.spatial[1] + i,
                                                  output.spatial[2] + k / P::kLanes};
                        Box<Small> box;
                        window_at(problem, window, box);
                        return box;
                    };
                    results[k] = finish_window(reduction, problem, taps, plane + k % P::kLanes, accumulators[k],
                                               own_row_divisor * column_divisors[k / P::kLanes]);
                }
            }
        }
        write_row<P>(results, y + i * problem.y.strides[1], problem.y.strides[2], columns_left);
    }
}

// ---- The choice ----

template <class R, class P>
void launch_patches(const Call& call, const Context& context) {
    Problem<Small> problem(call);
    problem.number(call, &DeviceAxis<int32_t>::output, P::kLanes, P::kRows, P::kColumns);
    launch(forward_patches<R, P>, blocks_for(problem.places.count), 0, context.stream, problem);
}

// Shapes of patches: the fastest of those that were tried on an H200.
template <class T, int kKernel, int kStride>
struct PatchShapes {
    static constexpr bool is_narrow = sizeof(T) < 4;
    using Channels = std::conditional_t<
        is_narrow && kStride == 1, Patch<kKernel, kStride, 4, 2, 4>,
        std::conditional_t<is_narrow, Patch<kKernel, kStride, 2, 2, 4>, Patch<kKernel, kStride, 4, 2, 2>>>;
    template <int kBefore>
    using Vectors = Patch<kKernel, kStride, is_narrow && kStride == 1 ? 8 : 4, 4, 1, 4, kBefore>;
    using Elements = Patch<kKernel, kStride, kStride == 1 ? 8 : 4, 2, 1>;
};

template <class R, int kKernel, int kStride>
void forward_patches_of(const Call& call, const Context& context) {
    using T = typename R::Element;
    using Shapes = PatchShapes<T, kKernel, kStride>;
    constexpr int columns = 4;
    if (has_channel_vectors(call, sizeof(T))) {
        return launch_patches<R, typename Shapes::Channels>(call, context);
    }
    if (has_column_vectors(call, call.x, &Axis::input, columns, sizeof(T)) &&
        has_column_vectors(call, call.y, &Axis::output, columns, sizeof(T)) &&
        has_column_vectors(call, call.indices, &Axis::output, columns, sizeof(int64_t))) {
        // Those that keep the size, and those of a stem or between stages.
        const int64_t pad = call.geometry.axes[call.geometry.rank - 1].pad_begin;
        constexpr int half = kKernel > kStride ? kKernel / 2 : 0;
        if (pad == half) return launch_patches<R, typename Shapes::template Vectors<half>>(call, context);
        if constexpr (half > 0 && kStride > 1) {
            if (pad == 0) return launch_patches<R, typename Shapes::template Vectors<0>>(call, context);
        }
    }
    launch_patches<R, typename Shapes::Elements>(call, context);
}

// Calls function(kernel, stride), two compile-time constants, for windows of which there are patches along the last two
// axes; false for others.
template <class R, class Function>
bool with_patch_size(const Geometry& geometry, const Function& function) {
    if (geometry.rank < 2) return false;
    const Axis* axes = geometry.axes + geometry.rank - 2;
    const auto is_square = [&](int64_t kernel, int64_t stride) {
        return std::all_of(axes, axes + 2, [&](const Axis& axis) {
            return axis.kernel == kernel && axis.stride == stride && axis.dilation == 1;
        });
    };
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    using Three = std::integral_constant<int, 3>;
    if (is_square(2, 2)) return function(Two(), Two());
    if (is_square(3, 1)) return function(Three(), One());
    if (is_square(3, 2)) return function(Three(), Two());
    if constexpr (is_max<R>) {
        if (is_square(5, 1)) return function(std::integral_constant<int, 5>(), One());
    }
    return false;
}

// False if these kernels do not take the windows.
template <class R>
bool forward_patches(const Call& call, const Context& context) {
    if (call.geometry.rank == 3) {  // every window has data in one slice, and no padding
        const Axis& depth = call.geometry.axes[0];
        if (depth.kernel != 1 || depth.pad_begin != 0 || (depth.output - 1) * depth.stride >= depth.input) return false;
    }
    return with_patch_size<R>(call.geometry, [&](auto kernel, auto stride) {
        forward_patches_of<R, kernel, stride>(call, context);
        return true;
    });
}

}  // namespace onnxpool::cuda
