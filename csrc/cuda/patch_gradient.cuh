// The gradients of patch.cuh's windows: a thread reads all windows that cover a patch of inputs into registers, and
// adds up what they send to each of these.
#pragma once

#include "gradient.cuh"
#include "patch.cuh"

namespace onnxpool::cuda {

// What a thread computes: kRows by kColumns inputs, for kLanes channels side by side in memory. Patches begin where a
// window does, kPhase columns after its first tap. If kAligned, patches begin at multiples of kColumns, rows are
// written in vectors of so many, and windows lie side by side.
template <class Window, int kRows_, int kColumns_, int kLanes_, int kPhase_ = 0, bool kAligned_ = false>
struct GradientPatch : Window {
    using Window::kKernel, Window::kStride, Window::kRowKernel, Window::kRowStride;
    static constexpr int kRows = kRows_, kColumns = kColumns_, kLanes = kLanes_;
    static constexpr int kPhase = kPhase_;
    static constexpr bool kAligned = kAligned_;
    // Windows that begin before the first one, and reach the patch.
    static constexpr int kRowsBefore = (kRowKernel - 1) / kRowStride, kColumnsBefore = (kKernel - 1) / kStride;
    static constexpr int kWindowRows = kRowsBefore + (kRows - 1) / kRowStride + 1;
    static constexpr int kWindowColumns = kColumnsBefore + (kColumns - 1 + kPhase) / kStride + 1;
    static_assert(kRows % kRowStride == 0);
    using RowAxis = PatchAxis<kRowKernel>;
    using ColumnAxis = PatchAxis<kKernel>;

    // Whether window number `window` of the patch covers element number `element`, counted from the first tap of the
    // window before which kRowsBefore, or kColumnsBefore, begin.
    static constexpr __device__ bool covers_row(int window, int element) {
        const int tap = element - (window - kRowsBefore) * kRowStride;
        return tap >= 0 && tap < kRowKernel;
    }
    static constexpr __device__ bool covers_column(int window, int element) {
        const int tap = element - (window - kColumnsBefore) * kStride;
        return tap >= 0 && tap < kKernel;
    }
};

// 1 / count, for a count from 1 to kMost.
template <int kMost, class Number>
__device__ inline Number reciprocal(int32_t count) {
    if constexpr (kMost == 1) {
        return 1;
    } else {
        constexpr Number of_most = Number(1) / kMost;
        return count == kMost ? of_most : reciprocal<kMost - 1, Number>(count);
    }
}

// Sums are plain: float64 for what norms of bfloat16 send takes twice the time, and what float32 loses is found. What
// overflows shows in the sums, and what vanishes does not matter to data of at most this size, as they are where norms
// are.
constexpr float kLargestPlainNorm = 1 << 16;

// Two tensors take too many registers for reading all windows of a patch at once, if these overlap in every row. But
// not where the compiler makes slow code then: of some pairs of halves, and of several channels of a norm.
template <class R, class P>
constexpr bool reads_by_rows() {
    if (P::kRowKernel == 1 || P::kRowStride > 1) return false;
    if (is_norm<R>) return P::kLanes == 1 || GradientArithmetic<R>::kMayLeaveRange;
    return R::kIndexed && !(sizeof(typename R::Element) == 2 && P::kLanes > 1 && P::kKernel > 3);
}

// How many blocks run at once at least: what was fastest on an H200. What is rare must not take registers.
template <class R, class P, bool kSeveralSlices>
constexpr int gradient_blocks() {
    if (kSeveralSlices) return 2;
    const bool is_norm_of_halves = is_norm<R> && sizeof(typename R::Element) == 2;
    if (reads_by_rows<R, P>()) return P::kLanes == 1 || is_norm_of_halves ? 3 : 2;
    if (is_norm_of_halves && P::kRowStride > 1) return P::kKernel == 2 ? 5 : 3;
    return R::kDivides && P::kLanes == 2 ? 3 : 0;
}

// The gradients of a patch, one by one, in a way that is exact whatever their magnitudes are.
template <class R>
__device__ __attribute__((noinline)) void write_rare_gradients(const Problem<Small>& problem, int64_t number,
                                                               PatchSize size, bool begins_in_padding) {
    const R reduction(problem.parameters);
    Position<Small> first = problem.places[number];
    first.spatial[1] -= problem.axes[1].pad_begin;
    if (begins_in_padding) first.spatial[2] -= problem.axes[2].pad_begin;
    for_each_place_of_patch(first, size, [&](const Position<Small>& input) {
        if (has_place(problem.axes[1].input, input.spatial[1]) && has_place(problem.axes[2].input, input.spatial[2])) {
            write_gradients<R, Small, 1>(reduction, problem, input);
        }
    });
}

// Where several slices of windows may cover an element, they are visited one after the other; by a kernel of its own,
// since a loop takes registers.
template <class R, class P, bool kSeveralSlices>
__global__ void __launch_bounds__(kThreads, gradient_blocks<R, P, kSeveralSlices>())
    backward_patches(int64_t first_block, const __grid_constant__ Problem<Small> problem) {
    using T = typename R::Element;
    using Gradient = GradientArithmetic<R>;
    using Sum = typename Gradient::PlainSum;
    const int64_t number = (first_block + blockIdx.x) * kThreads + threadIdx.x;
    if (number >= problem.places.count) return;
    const Divisor divisor = problem.parameters.divisor;
    const typename P::RowAxis rows(problem.axes[1], divisor);
    const typename P::ColumnAxis columns(problem.axes[2], divisor);
    const Position<Small> place = problem.places[number];
    const int32_t first_row = place.spatial[1] - rows.pad_begin;
    const int32_t first_column = place.spatial[2] - (P::kAligned ? 0 : columns.pad_begin);
    const int32_t first_window_row = place.spatial[1] / P::kRowStride - P::kRowsBefore;
    const int32_t first_window_column = (first_column + columns.pad_begin - P::kPhase) / P::kStride - P::kColumnsBefore;
    const auto slices = covering_windows(problem.axes[0], place.spatial[0]);

    using Neighbour = std::conditional_t<R::kIndexed, int64_t, T>;
    const View<Small>& beside = R::kIndexed ? problem.indices : problem.y;
    const T* grad_y_plane = problem.grad_y.template plane<const T>(place.image, place.channel);
    const Neighbour* beside_plane = beside.template plane<const Neighbour>(place.image, place.channel);
    [[maybe_unused]] const int64_t first_index =
        place.image * problem.flat.image_stride + place.channel * problem.flat.channel_stride +
        place.spatial[0] * problem.flat.strides[0] + first_row * problem.flat.strides[1] +
        first_column * problem.flat.strides[2];
    [[maybe_unused]] Sum weights[P::kWindowColumns];
    if constexpr (R::kDivides) {
#pragma unroll
        for (int j = 0; j < P::kWindowColumns; ++j) {
            weights[j] =
                reciprocal<P::kKernel, Sum>(columns.count((first_window_column + j) * P::kStride - columns.pad_begin));
        }
    }
    const bool all_inside = first_window_row >= 0 && first_window_row + P::kWindowRows <= rows.output &&
                            first_window_column >= 0 && first_window_column + P::kWindowColumns <= columns.output;

    Sum sums[P::kRows][P::kColumns][P::kLanes] = {};
    [[maybe_unused]] Sum largest_y = 0;
    const auto add_slice = [&](int32_t slice, bool is_inside_of_depth) {
        // ---- The windows ----
        T grad_y[P::kWindowRows][P::kWindowColumns][P::kLanes];
        [[maybe_unused]] Neighbour neighbour[P::kWindowRows][P::kWindowColumns][P::kLanes];
        constexpr bool has_neighbour = R::kIndexed || R::kGradientNeedsData;
        const T* const plane =
            grad_y_plane + (slice * problem.grad_y.strides[0] + (P::kAligned ? first_window_column : 0));
        [[maybe_unused]] const Neighbour* const plane_beside =
            beside_plane + (slice * beside.strides[0] + (P::kAligned && has_neighbour ? first_window_column : 0));
        [[maybe_unused]] const T* from[P::kWindowColumns];
        [[maybe_unused]] const Neighbour* from_beside[P::kWindowColumns];
        if constexpr (!P::kAligned) {
#pragma unroll
            for (int j = 0; j < P::kWindowColumns; ++j) {
                const int32_t column = clamp_to(first_window_column + j, columns.output);
                from[j] = plane + column * problem.grad_y.strides[2];
                from_beside[j] = plane_beside + column * beside.strides[2];
            }
        }
        const auto load_row = [&](int i) {
            const int32_t row = clamp_to(first_window_row + i, rows.output);
            if constexpr (P::kAligned) {
                const T* const of_row = advance(plane, row * problem.grad_y.strides[1]);
                [[maybe_unused]] const Neighbour* const beside_row = advance(plane_beside, row * beside.strides[1]);
#pragma unroll
                for (int j = 0; j < P::kWindowColumns; ++j) {
                    const bool is_inside = columns.has_window(first_window_column + j);
                    grad_y[i][j][0] = is_inside ? of_row[j] : static_cast<T>(comparable_t<T>(0));
                    if constexpr (has_neighbour) {
                        neighbour[i][j][0] = is_inside ? beside_row[j] : static_cast<Neighbour>(1);
                    }
                }
            } else {
#pragma unroll
                for (int j = 0; j < P::kWindowColumns; ++j) {
                    load(from[j] + row * problem.grad_y.strides[1], grad_y[i][j]);
                    if constexpr (has_neighbour) load(from_beside[j] + row * beside.strides[1], neighbour[i][j]);
                }
            }
        };
        constexpr bool by_rows = reads_by_rows<R, P>();
        const bool some_outside = !all_inside || !is_inside_of_depth;
        const auto clear_outside = [&](int i) {
            const bool row_is_inside = is_inside_of_depth && rows.has_window(first_window_row + i);
#pragma unroll
            for (int j = 0; j < P::kWindowColumns; ++j) {
                const bool is_inside = row_is_inside && columns.has_window(first_window_column + j);
#pragma unroll
                for (int lane = 0; lane < P::kLanes; ++lane) {
                    if (!is_inside) grad_y[i][j][lane] = static_cast<T>(comparable_t<T>(0));
                    if (!is_inside && R::kGradientNeedsData) neighbour[i][j][lane] = static_cast<Neighbour>(1);
                }
            }
        };
        if constexpr (!by_rows) {
#pragma unroll
            for (int i = 0; i < P::kWindowRows; ++i) load_row(i);
            if (some_outside) {
#pragma unroll
                for (int i = 0; i < P::kWindowRows; ++i) clear_outside(i);
            }
        }
        Sum slice_weight = 1;
        if (R::kDivides && is_inside_of_depth && problem.axes[0].kernel > 1) {  // others may have no data to count
            slice_weight /= static_cast<Sum>(counted_taps(problem.axes[0], slice, divisor));
        }

        // ---- Row by row of windows ----
#pragma unroll
        for (int i = 0; i < P::kWindowRows; ++i) {
            if constexpr (by_rows) {
                load_row(i);
                if (some_outside) clear_outside(i);
            }
            [[maybe_unused]] const Sum row_weight =
                R::kDivides ? slice_weight * reciprocal<P::kRowKernel, Sum>(
                                                 rows.count((first_window_row + i) * P::kRowStride - rows.pad_begin))
                            : Sum(1);
#pragma unroll
            for (int lane = 0; lane < P::kLanes; ++lane) {
                if constexpr (R::kIndexed) {
#pragma unroll
                    for (int j = 0; j < P::kWindowColumns; ++j) {
                        // Relative to the patch, if it lies near it.
                        const int64_t distance =
                            neighbour[i][j][lane] - first_index - lane * problem.flat.channel_stride;
                        const auto named = static_cast<int32_t>(distance);
                        const Sum sent =
                            named == distance ? Gradient::template widened<Sum>(grad_y[i][j][lane]) : Sum(0);
#pragma unroll
                        for (int r = 0; r < P::kRows; ++r) {
#pragma unroll
                            for (int c = 0; c < P::kColumns; ++c) {
                                if (!P::covers_row(i, r) || !P::covers_column(j, c + P::kPhase)) continue;
                                const int32_t own = r * problem.flat.strides[1] + c * problem.flat.strides[2];
                                if (named == own) sums[r][c][lane] += sent;
                            }
                        }
                    }
                } else {
                    Sum sent[P::kWindowColumns];
#pragma unroll
                    for (int j = 0; j < P::kWindowColumns; ++j) {
                        sent[j] = Gradient::template widened<Sum>(grad_y[i][j][lane]);
                        if constexpr (R::kGradientNeedsData) {
                            sent[j] = Gradient::linear_factor(sent[j], neighbour[i][j][lane]);
                            if constexpr (Gradient::kMayLeaveRange) {
                                largest_y =
                                    std::fmax(largest_y, Gradient::template widened<Sum>(neighbour[i][j][lane]));
                            }
                        }
                    }
#pragma unroll
                    for (int c = 0; c < P::kColumns; ++c) {
                        Sum sum = 0;
#pragma unroll
                        for (int j = 0; j < P::kWindowColumns; ++j) {
                            if (!P::covers_column(j, c + P::kPhase)) continue;
                            sum = R::kDivides ? std::fma(sent[j], weights[j], sum) : sum + sent[j];
                        }
#pragma unroll
                        for (int r = 0; r < P::kRows; ++r) {
                            if (!P::covers_row(i, r)) continue;
                            sums[r][c][lane] =
                                R::kDivides ? std::fma(sum, row_weight, sums[r][c][lane]) : sums[r][c][lane] + sum;
                        }
                    }
                }
            }
        }
    };
    if constexpr (kSeveralSlices) {
        for (int32_t d = 0; d < slices.count; ++d) add_slice(slices.begin + d * slices.step, true);
    } else {
        add_slice(slices.count > 0 ? slices.begin : 0, slices.count > 0);
    }

    // ---- The inputs ----
    // What no window covers has the gradient 0, even if it is infinite or NaN; it lies behind all windows.
    static_assert(P::kRowKernel >= P::kRowStride && P::kKernel >= P::kStride);
    [[maybe_unused]] const int32_t covered_rows = rows.covered(P::kRowStride),
                                   covered_columns = columns.covered(P::kStride);
    const auto offset_of = [&](const View<Small>& view) {
        return place.spatial[0] * view.strides[0] + first_row * view.strides[1] + first_column * view.strides[2];
    };
    const T* x = problem.x.template plane<const T>(place.image, place.channel) + offset_of(problem.x);
    T* grad_x = problem.grad_x.template plane<T>(place.image, place.channel) + offset_of(problem.grad_x);
    [[maybe_unused]] Sum zero = 0;  // or NaN, if a sum is infinite or NaN
#pragma unroll
    for (int r = 0; r < P::kRows; ++r) {
        if (first_row + r < 0 || first_row + r >= rows.input) continue;
        // All columns side by side, or one after the other.
        constexpr int together = P::kAligned ? P::kColumns : 1;
#pragma unroll
        for (int first = 0; first < P::kColumns; first += together) {
            if (first_column + first < 0 || first_column + first >= columns.input) continue;
            T results[together * P::kLanes];
            if constexpr (R::kGradientNeedsData) {
                load(x + r * problem.x.strides[1] + first * problem.x.strides[2], results);
            }
#pragma unroll
            for (int i = 0; i < together * P::kLanes; ++i) {
                const Sum sum = sums[r][first + i / P::kLanes][i % P::kLanes];
                if constexpr (Gradient::kMayLeaveRange) zero = std::fma(sum, Sum(0), zero);
                if constexpr (R::kGradientNeedsData) {
                    const bool is_covered = slices.count > 0 && first_row + r < covered_rows &&
                                            first_column + first + i / P::kLanes < covered_columns;
                    results[i] =
                        Gradient::rounded(is_covered ? Gradient::template widened<Sum>(results[i]) * sum : Sum(0));
                } else {
                    results[i] = Gradient::rounded(sum);
                }
            }
            store(results, grad_x + r * problem.grad_x.strides[1] + first * problem.grad_x.strides[2]);
        }
    }
    if constexpr (Gradient::kMayLeaveRange) {
        if (!(zero == 0 && largest_y <= kLargestPlainNorm)) {
            write_rare_gradients<R>(problem, number, size_of_patch<P>, !P::kAligned);
        }
    }
}

// ---- The choice ----

inline void launch_gradient_patches(void (*kernel)(int64_t, Problem<Small>), PatchSize size, bool begin_in_padding,
                                    const Call& call, const Context& context) {
    Problem<Small> problem(call);
    problem.make_rows_of_channels(call);
    auto& [depth, rows, columns] = problem.axes;
    const int32_t sizes[] = {depth.input, rows.input + rows.pad_begin,
                             columns.input + (begin_in_padding ? columns.pad_begin : 0)};
    problem.number(call, sizes, size.lanes, size.rows, size.columns);
    launch(kernel, blocks_for(problem.places.count), 0, context.stream, problem);
}

// Shapes of patches: the fastest of those that were tried on an H200.
template <class R, class Window>
struct GradientPatchShapes {
    static constexpr bool is_narrow = sizeof(typename R::Element) < 4, is_large = Window::kKernel > 3;
    static constexpr bool is_row = Window::kRowKernel == 1, slides = Window::kStride == 1 && !is_row;
    using Channels = GradientPatch<Window, 4, 2, is_narrow && !is_large && !(slides && is_norm<R>) ? 4 : 2>;
    template <int kPhase>
    using Vectors = GradientPatch<Window,
                                  slides && (R::kIndexed || (is_norm<R> && is_narrow)) ? 4
                                  : is_narrow && !is_row                               ? 8
                                  : slides                                             ? 6
                                                                                       : 4,
                                  4, 1, kPhase, true>;
    using Elements = GradientPatch<Window, 4, 2, 1>;
};

// Whether large windows of maxima are left to scatter.cuh where channels do not lie side by side: in float32 it is
// faster, in the halves it is not.
template <class R, class Window>
constexpr bool leaves_rows = R::kIndexed && Window::kKernel > 3 && sizeof(typename R::Element) > 2;

// False if these kernels leave the windows to others.
template <class R, class Window, bool kSeveralSlices>
bool backward_patches_of(const Call& call, const Context& context) {
    using T = typename R::Element;
    using Shapes = GradientPatchShapes<R, Window>;
    constexpr int columns = 4;
    const auto compute = [&](auto patch) {
        using P = decltype(patch);
        launch_gradient_patches(backward_patches<R, P, kSeveralSlices>, size_of_patch<P>, !P::kAligned, call, context);
        return true;
    };
    if constexpr (!Shapes::is_row) {
        if (has_channel_vectors(call, sizeof(T))) return compute(typename Shapes::Channels());
    }
    if constexpr (!leaves_rows<R, Window>) {
        const int last = call.geometry.rank + 1;
        const auto lie_side_by_side = [&](const Operand& operand) {
            return !operand.data || operand.strides[last] == 1;
        };
        if (has_column_vectors(call, call.grad_x, &Axis::input, columns, sizeof(T)) &&
            (!R::kGradientNeedsData || has_column_vectors(call, call.x, &Axis::input, columns, sizeof(T))) &&
            lie_side_by_side(call.grad_y) && lie_side_by_side(R::kIndexed ? call.indices : call.y)) {
            constexpr int stride = Window::kStride;
            const int64_t phase = call.geometry.axes[call.geometry.rank - 1].pad_begin % stride;
            return phase == 0 ? compute(typename Shapes::template Vectors<0>())
                              : compute(typename Shapes::template Vectors<stride - 1>());
        }
        return compute(typename Shapes::Elements());
    }
    return false;
}

// False if these kernels do not take the windows.
template <class R>
bool backward_patches(const Call& call, const Context& context) {
    const Geometry& geometry = call.geometry;
    const Axis& depth = geometry.axes[0];
    const bool has_several_slices =
        geometry.rank == 3 && depth.kernel > 1 && (depth.kernel > depth.stride || depth.dilation > 1);
    const auto compute = [&](auto window) {
        using Window = decltype(window);
        // Patches begin in the padding.
        const Axis* last = geometry.axes + geometry.rank - 1;
        const int64_t pad = geometry.rank > 1 ? std::max(last[-1].pad_begin, last->pad_begin) : last->pad_begin;
        if (pad >= Window::kKernel) return false;
        if (!has_several_slices) return backward_patches_of<R, Window, false>(call, context);
        if constexpr (Window::kRowKernel == 3 && Window::kKernel == 3) {
            return backward_patches_of<R, Window, true>(call, context);
        }
        return false;
    };
    return geometry.rank == 1 ? !call.channels_innermost && with_row_window<R>(geometry, compute)
                              : with_square_window<R>(geometry, compute);
}

}  // namespace onnxpool::cuda
