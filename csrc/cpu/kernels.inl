// The kernels, compiled once for each instruction set: kernels_*.cpp include this file with ONNXPOOL_ISA naming the
// namespace, the compiler's target set, and ONNXPOOL_AVX512, ONNXPOOL_FMA and ONNXPOOL_F16C defined where there is such
// a thing: GCC's own macros do not follow the target of a pragma. No system header is included from here.

namespace onnxpool::cpu::ONNXPOOL_ISA {

// clang-format off: each needs some of those before it
// What is computed:
#include "../values.inl"         // numbers, and vectors of them
#include "../reductions.inl"     // averages, norms, maxima
// What kernels are made of:
#include "walk.inl"              // rows and planes in their order, and tables of what results are made of
#include "vectors.inl"           // loads, stores, prefetches and shuffles
#include "combine.inl"           // the loop that combines taps
#include "keys.inl"              // a maximum and its position as one integer
#include "sliding.inl"           // large windows: one axis after the other, in constant time
#include "segments.inl"          // rows and planes that exceed the caches, in segments
// Kernels, by what fills vectors:
#include "anywhere.inl"          // any layout and any geometry, window by window
#include "lanes.inl"             // channels next to each other
#include "lane_maxima.inl"       // the same, maxima of small windows with Indices
#include "packed.inl"            // small planes, transposed
#include "planes.inl"            // the data of a window that spans the plane
#include "rows.inl"              // the results along a row, of combined rows in a buffer
#include "plane_shares.inl"      // what is prefetched with each row
#include "flat_rows.inl"         // results along rows that follow each other without a gap
#include "flat_maxima.inl"       // maxima with Indices along rows that follow each other
#include "row_maxima.inl"        // results along long rows, maxima of small windows with Indices
#include "sums_in_order.inl"     // gradients that are complete one after the other
#include "gradients.inl"         // gradients of averages and norms, by most of these
#include "flat_planes.inl"       // results and gradients at every position of planes, which follow each other
#include "index_gradients.inl"   // gradients of maxima
// Calls that are done by way of others:
#include "repeated_rows.inl"     // gradients with rows that are alike
#include "few_channels.inl"      // few channels next to each other, deinterleaved into planes
#include "rows_first.inl"        // maxima of rows, and then of these
// clang-format on

// ---- Which kernel does a call ----

// Rows are worth a buffer, of whole strides, if the windows in them look at data for the most part.
inline bool has_contiguous_rows(const Call& call) {
    const int last = call.geometry.rank - 1;
    const Axis& axis = call.geometry.axes[last];
    return call.x.strides[2 + last] == 1 && call.y.strides[2 + last] == 1 &&
           std::max(row_reach(axis), axis.stride) <= 2 * (axis.input + axis.output) + 64;
}

// Whether rows hold so few windows that these fill vectors badly, or few and leave gaps between rows that follow each
// other.
inline bool has_few_columns_of_windows(const Geometry& geometry) {
    constexpr int64_t least = 4, many = 8;
    const Axis& axis = geometry.axes[geometry.rank - 1];
    return axis.output < least || (axis.output < many && 4 * axis.output < 3 * ceil_div(axis.input, axis.stride));
}

// Planes whose rows fill vectors badly, or cost much for another reason, and of which a group stays in the caches.
template <class R>
bool is_worth_packing(const Geometry& geometry, bool are_rows_expensive) {
    constexpr int64_t narrow = 3 * 64 / sizeof(typename R::Element);
    // What is in order is computed window by window otherwise: lanes without planes cost less.
    constexpr double large = R::kInOrder ? 1 << 23 : 1 << 19;
    constexpr int64_t most_lanes = R::kInOrder ? 8 : 1;  // for a plane
    if (geometry.axes[geometry.rank - 1].input >= narrow && !are_rows_expensive && !R::kInOrder) return false;
    const int64_t planes = planes_packed_for<R>(geometry);
    if (geometry.batch * geometry.channels * most_lanes < planes) return false;
    auto bytes = static_cast<double>(planes) * sizeof(typename R::Element);
    for (int a = 0; a < geometry.rank; ++a) {
        bytes *= static_cast<double>(std::max(geometry.axes[a].input, geometry.axes[a].output));
    }
    return bytes <= large;
}

// Whether a row's elements are deinterleaved without rows having been combined before, and this costs more than
// packing: where they are few, small, in many phases or, to be lifted, copied first.
template <class R>
bool are_single_rows_expensive(const Geometry& geometry) {
    constexpr bool is_cheap = ONNXPOOL_VECTOR_BYTES == 64 && lifts_nothing<R>;
    constexpr int64_t many_windows = is_cheap ? 64 : 80;
    constexpr int64_t most_phases = is_cheap ? kMostResultPhases : kMostResultPhases - 1;
    const Axis& axis = geometry.axes[0];
    return geometry.rank == 1 && !is_keyed<R> && axis.stride > kMostPhases &&
           (axis.stride > most_phases || axis.output < many_windows || sizeof(typename R::Accumulator) < 4);
}

template <class R>
bool can_be_packed(const Call& call) {
    const Geometry& geometry = call.geometry;
    const bool are_rows_expensive = are_single_rows_expensive<R>(geometry) || has_few_columns_of_windows(geometry);
    return has_planes_in_order(geometry, call.x, input_size) && has_planes_in_order(geometry, call.y, output_size) &&
           is_worth_packing<R>(geometry, are_rows_expensive);
}

inline double elements_per_row(const Call& call, int64_t row_length) {
    double elements = static_cast<double>(lanes_per_row(call)) * static_cast<double>(row_length);
    for (int a = 0; a < call.geometry.rank; ++a) {
        elements *= static_cast<double>(std::min(call.geometry.axes[a].kernel, call.geometry.axes[a].input));
    }
    return elements;
}

// What does the same where speed is no aim: one kernel serves all exponents, and all positions.
template <class R>
struct GeneralForm {
    using type = R;
};
template <class T, int kExponent>
struct GeneralForm<LpNorm<T, kExponent>> {
    using type = LpNorm<T>;
};
template <class T>
struct GeneralForm<KeyedMax<T>> {
    using type = MaxWithIndex<T>;
};

template <class R>
Task plan_packed(const Call& call) {
    const int64_t planes = planes_packed_for<R>(call.geometry);
    return {forward_packed<R>, ceil_div(call.geometry.batch * call.geometry.channels, planes),
            plane_elements(call) * static_cast<double>(planes)};
}

// The rows of windows, or of the elements that windows cover.
template <bool kCoverings>
AlongRow along_row(const Axis& axis) {
    return kCoverings ? AlongRow::of_coverings(axis) : AlongRow::of_windows(axis);
}

constexpr int64_t kLongRow = 1024;

// Whether rows can follow each other, for accumulators of this size.
inline bool can_be_flat(const Geometry& geometry, int64_t accumulator_size, int64_t most_phases) {
    constexpr int64_t least_lanes = 4;
    const Axis& axis = geometry.axes[geometry.rank - 1];
    return ONNXPOOL_VECTOR_BYTES >= least_lanes * accumulator_size && axis.stride <= most_phases &&
           row_reach(axis) <= 2 * (axis.input + axis.output) + 64 && has_few_rows(geometry);
}

// Whether tables for each tap of such rows are worth it.
inline bool has_few_taps(const AlongRow& along, int64_t most_taps) {
    const bool stays_in_cache = along.phases == 1 && along.pitch() <= 2 * kLongRow;  // then rows may have more taps
    return static_cast<int64_t>(along.taps.size()) * along.pitch() <= (stays_in_cache ? 4 * most_taps : most_taps);
}

// Whether rows can be flat and have few taps; packed planes may still be faster.
template <bool kCoverings>
bool fits_flat_rows(const Geometry& geometry, int64_t accumulator_size, int64_t most_phases, int64_t most_taps) {
    return can_be_flat(geometry, accumulator_size, most_phases) &&
           has_few_taps(along_row<kCoverings>(geometry.axes[geometry.rank - 1]), most_taps);
}

// Whether such rows fill vectors well enough not to be packed: each of them, or those of a slice of two axes, which are
// one run.
template <bool kCoverings>
bool fill_vectors(const Geometry& geometry, int64_t accumulator_size) {
    const auto size = [](const Axis& axis) { return kCoverings ? axis.output : axis.input; };
    const int last = geometry.rank - 1;
    const Axis& axis = geometry.axes[last];
    if ((2 * size(axis) + 2) * accumulator_size >= 64) return true;
    if (last == 0) return false;
    const auto along = along_row<kCoverings>(axis);
    const int64_t slice = size(geometry.axes[last - 1]) * along.columns;
    return along.elements_follow() && along.results_follow() && slice * accumulator_size > 2 * ONNXPOOL_VECTOR_BYTES;
}

template <class R>
bool has_flat_rows(const Call& call) {
    const Geometry& geometry = call.geometry;
    constexpr int64_t size = sizeof(typename R::Accumulator);
    constexpr int64_t most_taps = R::kInOrder ? 1 << 16 : 1 << 12;  // what is in order has no other fast kernel
    // What is in order is deinterleaved for each row of windows anew, small numbers by more instructions.
    constexpr int64_t most_phases = R::kInOrder || size < 4 ? kMostPhases : 16;
    if (!can_be_flat(geometry, size, most_phases) || call.x.strides[1 + geometry.rank] != 1) return false;
    const RowsOfWindows<R> windows(call);
    const AlongRow& along = windows.along;
    const bool is_direct = FlatRows<R, true>::is_direct(along);
    if (!windows.follow() || !(is_direct || has_few_taps(along, most_taps))) return false;
    if (along.phases > kMostPhases && !is_direct) {
        // Rows that do not follow each other in phases are deinterleaved one by one, those that are not combined with
        // others where they are: see PaddedRows.
        const bool are_short = !along.elements_follow() && along.pitch() < kLanes<typename R::Accumulator>;
        if (are_short || geometry.rank == 1) return false;
    }
    const bool fill = fill_vectors<false>(geometry, size) && !has_few_columns_of_windows(geometry);
    if (!fill && can_be_packed<R>(call)) return false;
    const std::vector<AxisTable> tables = axis_tables(call);
    return R::kInOrder || !(tables.back().windows_share || is_separable<R>(tables));
}

// Groups of rows that follow each other.
template <class R>
Task plan_flat_rows(const Call& call, decltype(Task::run) run) {
    const RowsOfWindows<R> windows(call);
    return {run, windows.groups(),
            elements_per_row(call, call.geometry.axes[call.geometry.rank - 1].output) *
                static_cast<double>(windows.together)};
}

template <class R>
Task plan_window(const Call& call) {
    const Geometry& geometry = call.geometry;
    Task task{forward_anywhere<typename GeneralForm<R>::type>, count_rows(call, output_size),
              elements_per_row(call, geometry.axes[geometry.rank - 1].output)};
    if constexpr (!R::kIndexed && !R::kOfPlanes) {
        if (call.channels_innermost && call.y.strides[1] == 1) {
            if constexpr (!R::kInOrder) {
                const std::vector<AxisTable> tables = axis_tables(call);
                if (is_separable<R>(tables)) {
                    const auto blocks = ChannelBlocks::axis_by_axis<typename R::Accumulator>(call, tables);
                    return {
                        forward_channel_blocks<R>, blocks.units(geometry),
                        plane_elements(call) * static_cast<double>(blocks.lanes) / static_cast<double>(blocks.parts)};
                }
            }
            task.run = forward_channels<R>;
            return task;
        }
        if constexpr (!is_keyed<R> && !is_expensive<R>) {
            if (has_flat_rows<R>(call)) return plan_flat_rows<R>(call, forward_flat_rows<R>);
        }
        if (can_be_packed<R>(call)) return plan_packed<R>(call);
    }
    if constexpr (!R::kIndexed) {
        const bool is_in_order = !R::kInOrder || geometry.rank == 1;  // rows are combined before their elements are
        if (is_in_order && has_contiguous_rows(call)) task.run = forward_rows<R>;
    }
    return task;
}

// How to compute one window that spans the plane, or the axes that are pooled. Its sum is a wide one: see
// wide_accumulator_t.
template <class R>
Task plan_plane(const Call& call) {
    if constexpr (!R::kIndexed && !R::kInOrder) {
        const bool is_plane = spans_plane(call.geometry);
        if (is_plane && call.channels_innermost && call.y.strides[1] == 1) {
            const int64_t lanes = lanes_per_row(call);
            return {forward_plane_lanes<R>, call.geometry.batch * ceil_div(call.geometry.channels, lanes),
                    plane_elements(call) * static_cast<double>(lanes)};
        }
        if (is_plane && has_dense_planes(call.geometry, call.x, input_size)) {
            const Geometry& geometry = call.geometry;
            return {forward_planes<R>, geometry.batch * geometry.channels, elements_per_row(call, 1)};
        }
    }
    return plan_window<R>(call);
}

template <class R>
struct WideSums {
    using type = R;
};
template <class T>
struct WideSums<Average<T>> {
    using type = Average<T, wide_accumulator_t<T>>;
};

// Whether maxima with Indices are found as keys because windows share what they have in common: then each costs the
// same, however large it is.
template <class T>
bool has_shared_keys(const Call& call) {
    if constexpr (std::is_same_v<T, double>) {
        return false;  // there are no keys
    } else {
        const std::vector<AxisTable> tables = axis_tables(call);
        return (tables.back().windows_share || is_separable<KeyedMax<T>>(tables)) && can_be_keyed<T>(call);
    }
}

// Whether maxima with Indices are found window by window, for channels that are next to each other: where windows are
// small, most of all if keys would be shared, or overlap little, and channels fill vectors, or there are no keys.
template <class T>
bool has_lane_maxima(const Call& call, bool shares_keys) {
    const double most_taps = shares_keys ? 20 : 49;
    constexpr double little_overlap = 12;
    constexpr int64_t few_channels = 8;
    if (!call.channels_innermost || call.y.strides[1] != 1 || call.indices.strides[1] != 1) return false;
    const Geometry& geometry = call.geometry;
    const bool visits_few_taps =
        taps_of_window(geometry) <= most_taps || windows_of_element(geometry) <= little_overlap;
    return std::is_same_v<T, double> || (geometry.channels >= few_channels && visits_few_taps &&
                                         !spans_plane(geometry) && has_positions_of_32_bits(call));
}

// Whether they are found along each row of elements first, and then compared over the rows of windows.
template <class T>
bool has_flat_maxima(const Call& call) {
    using Accumulator = typename ComparedMax<T>::Accumulator;
    constexpr int64_t most_taps = 1 << 13;  // of results: only where rows follow each other are all of them looked up
    constexpr bool may_be_keyed = !std::is_same_v<T, double>;
    constexpr int64_t many_windows = 16;
    const Geometry& geometry = call.geometry;
    const Axis& last = geometry.axes[geometry.rank - 1];
    // Keys cost less than to deinterleave bytes or short rows.
    const bool deinterleaves = !may_be_keyed || (!std::is_integral_v<T> && last.output >= many_windows);
    const int64_t most_phases = deinterleaves ? kMostResultPhases : kMostPhases;
    if (call.channels_innermost || spans_plane(geometry) ||
        (sizeof(Accumulator) < 8 && !has_positions_of_32_bits(call)) ||
        !fits_flat_rows<false>(geometry, sizeof(Accumulator), most_phases, most_taps) ||
        call.x.strides[1 + geometry.rank] != 1) {
        return false;
    }
    if constexpr (may_be_keyed) {
        constexpr int64_t size = sizeof(Accumulator);
        const bool are_narrow =
            has_few_columns_of_windows(geometry) || 4 * (last.input + last.output) * size < 5 * ONNXPOOL_VECTOR_BYTES;
        if (are_narrow && can_be_keyed<T>(call) && can_be_packed<KeyedMax<T>>(call)) return false;
    }
    return RowsOfWindows<ComparedMax<T>>(call).follow();
}

// Whether they are found window by window, for windows next to each other along rows: where these are long, and windows
// are small and overlap little.
template <class T>
bool has_row_maxima(const Call& call) {
    constexpr double most_taps = 9, most_overlap = 4;
    constexpr int64_t least_padded_vectors = 3;
    const Geometry& geometry = call.geometry;
    const Axis& last = geometry.axes[geometry.rank - 1];
    const bool are_neighbours = last.stride == 1 || (last.stride == 2 && last.dilation == 1 && last.kernel > 1);
    const int64_t least_vectors = windows_inside(last).count < last.output ? least_padded_vectors : 1;
    if (!are_neighbours || taps_of_window(geometry) > most_taps || windows_of_element(geometry) > most_overlap ||
        last.output < least_vectors * RowMaxima::kCount || call.channels_innermost ||
        call.x.strides[1 + geometry.rank] != 1 || !has_few_rows(geometry) || !has_positions_of_32_bits(call)) {
        return false;
    }
    const bool can_be_copied = geometry.rank <= 2 && row_reach(last) <= last.input + last.output + 64;
    const bool any_copied = WindowsBySource::of(last, std::is_same_v<T, float>).any_copied();
    return (can_be_copied || !any_copied) && RowsOfWindows<Max<T>>(call).follow();
}

template <class R>
Task plan_forward_of(const Call& call);

// How to compute a reduction whose windows need not be planes.
template <class R>
Task plan_any_windows(const Call& call) {
    using T = typename R::Element;
    if (const Task task = plan_flat_planes<R>(call); task.run) return task;
    if (const Task task = plan_segments<T, false, plan_forward_of<R>>(call); task.run) return task;
    if constexpr (R::kIndexed) {
        const bool shares_keys = has_shared_keys<T>(call);
        if (has_lane_maxima<T>(call, shares_keys)) {
            return {forward_lane_maxima<T>, count_rows(call, output_size),
                    elements_per_row(call, call.geometry.axes[call.geometry.rank - 1].output)};
        }
        if constexpr (std::is_same_v<typename Max<T>::Accumulator, float>) {
            if (!shares_keys && has_row_maxima<T>(call)) return plan_flat_rows<Max<T>>(call, forward_row_maxima<T>);
        }
        if (!shares_keys && has_flat_maxima<T>(call)) {
            return plan_flat_rows<ComparedMax<T>>(call, forward_flat_maxima<T>);
        }
        if constexpr (!std::is_same_v<T, double>) {
            if (can_be_keyed<T>(call)) return plan_forward_of<KeyedMax<T>>(call);
        }
    }
    if (spans_pooled_axes(call.geometry)) return plan_plane<typename WideSums<R>::type>(call);
    if constexpr (kMayOverlap<R> && !is_keyed<R>) {
        if (const Task task = plan_rows_first<R, plan_forward_of<R>>(call); task.run) return task;
    }
    return plan_window<R>(call);
}

template <class R>
Task plan_forward_of(const Call& call) {
    if (const Task task = plan_few_channels<R, false, plan_forward_of<R>>(call); task.run) return task;
    if constexpr (R::kOfPlanes) {
        return plan_plane<R>(call);
    } else {
        return plan_any_windows<R>(call);
    }
}

template <class G>
bool has_flat_gradients(const Call& call, bool can_be_packed) {
    const Geometry& geometry = call.geometry;
    constexpr int64_t size = sizeof(typename G::Accumulator);
    constexpr int64_t most_taps = 1 << 12;
    if (!fits_flat_rows<true>(geometry, size, kMostResultPhases, most_taps)) return false;
    if (can_be_packed && !fill_vectors<true>(geometry, size)) return false;
    const bool is_alone = RowsOfCoverings<typename G::Element, typename G::Accumulator>(call).planes == 1;
    const auto planes_follow = [&](const Operand& operand, auto size) {
        return is_alone ? has_dense_planes(geometry, operand, size) : is_contiguous(geometry, operand, size);
    };
    if (!planes_follow(data_of<G>(call), input_size) || !planes_follow(call.grad_x, input_size) ||
        !planes_follow(result_of<G>(call), output_size) || !planes_follow(call.grad_y, output_size)) {
        return false;
    }
    const std::vector<AxisTable> tables = covering_tables(geometry);
    return !(tables.back().windows_share || is_separable<GradientSum<typename G::Accumulator>>(tables));
}

// How to compute the gradient of a sum: null where planes lie in a way that none of the fast kernels takes.
template <class G>
Task plan_sum_gradient(const Call& call) {
    const Geometry& geometry = call.geometry;
    const Axis& last = geometry.axes[geometry.rank - 1];
    const Operand &x = data_of<G>(call), &y = result_of<G>(call);
    if (const Task task = plan_flat_gradients<G>(call); task.run) return task;
    const int64_t planes = geometry.batch * geometry.channels;
    const double elements = elements_per_row(call, last.input) * static_cast<double>(count_rows(call, input_size));
    const auto task = [&](decltype(Task::run) run, int64_t units) -> Task {
        return {run, units, elements / static_cast<double>(std::max<int64_t>(1, units))};
    };
    if (const Task task = plan_segments<typename G::Element, true, plan_sum_gradient<G>>(call); task.run) return task;
    if (call.channels_innermost) {
        if (x.strides[1] != 1 || call.grad_x.strides[1] != 1) return {};
        if (spans_plane(geometry)) {
            return task(backward_plane_lanes<G>, geometry.batch * rows_of_plane(geometry, input_size));
        }
        return task(backward_channel_blocks<G>, gradient_blocks<G>(call).units(geometry));
    }
    const bool are_rows_long = has_long_rows(geometry, x, call.grad_x);
    if (has_dense_planes(geometry, x, input_size) && has_dense_planes(geometry, call.grad_x, input_size)) {
        if (spans_plane(geometry)) return task(backward_planes<G>, planes);
        const bool in_order = has_planes_in_order(geometry, x, input_size) &&
                              has_planes_in_order(geometry, y, output_size) &&
                              has_planes_in_order(geometry, call.grad_y, output_size);
        // Strides that are too large for phases, but do not fill vectors: see CoveredRuns.
        using Accumulator = typename G::Accumulator;
        const bool are_rows_expensive = last.stride > kMostResultPhases && last.stride < kLanes<Accumulator>;
        const bool can_be_packed =
            in_order && (!are_rows_long || is_worth_packing<GradientSum<Accumulator>>(geometry, are_rows_expensive));
        if (has_flat_gradients<G>(call, can_be_packed)) {
            return task(backward_flat_rows<G>,
                        ceil_div(planes, RowsOfCoverings<typename G::Element, typename G::Accumulator>(call).planes));
        }
        if (can_be_packed) {
            return task(backward_packed<G>, ceil_div(planes, planes_packed_for_gradient<G>(geometry)));
        }
    }
    return are_rows_long ? task(backward_rows<G>, planes) : Task{};
}

template <class T>
Task plan_index_gradient(const Call& call) {
    constexpr double most_sums = 1 << 20;  // that windows may still send to: they need a place beside grad_x
    constexpr double least_overlap = 4, much_overlap = 49;
    const Geometry& geometry = call.geometry;
    const Axis& axis = geometry.axes[0];
    const double overlap = windows_of_element(geometry);
    double slice = call.channels_innermost ? geometry.channels : 1;
    for (int a = 1; a < geometry.rank; ++a) slice *= static_cast<double>(geometry.axes[a].input);
    const double sums = slice * static_cast<double>(Slices(geometry).reach());
    const auto is_dense = [&](const Operand& operand, auto size) {
        return call.channels_innermost ? is_channels_last(geometry, operand, size)
                                       : is_contiguous(geometry, operand, size);
    };
    const bool in_order = sums <= most_sums && is_contiguous(geometry, {nullptr, call.index_strides}, input_size) &&
                          is_dense(call.grad_x, input_size) && is_dense(call.grad_y, output_size) &&
                          is_dense(call.indices, output_size);
    if (in_order && call.channels_innermost) {
        return {backward_scattered_channels<T>, geometry.batch * axis.input, slice};
    }
    if (in_order) {
        const bool is_small = overlap < least_overlap && !exceeds_caches<T>(call);
        const auto run = is_small                  ? backward_scattered<T, 1>
                         : overlap <= much_overlap ? backward_scattered<T, 2>
                                                   : backward_scattered<T, 4>;
        return {run, geometry.batch * geometry.channels * axis.input, slice};
    }
    const int64_t block = index_lanes<T>(call);
    return {backward_by_index<T>, geometry.batch * ceil_div(geometry.channels, block),
            slice * static_cast<double>(axis.input)};
}

template <class R>
Task plan_backward_of(const Call& call) {
    using T = typename R::Element;
    if constexpr (!R::kDifferentiable) {
        return {};
    } else if constexpr (R::kIndexed) {
        return plan_index_gradient<T>(call);
    } else {
        Task task = plan_few_channels<R, true, plan_backward_of<R>>(call);
        if (task.run) return task;
        if constexpr (R::kDivides) {
            task = plan_repeated_rows<T, plan_sum_gradient<AverageGradient<T>>>(call);
            if (!task.run) task = plan_sum_gradient<AverageGradient<T>>(call);
        }
        if constexpr (is_norm<R> && !std::is_same_v<T, double>) {
            if (call.parameters.p <= NormGradient<R>::kLargestExponent) task = plan_sum_gradient<NormGradient<R>>(call);
        }
        if (task.run) return task;
        const Geometry& geometry = call.geometry;
        return {backward_anywhere<typename GeneralForm<typename WideSums<R>::type>::type>, count_rows(call, input_size),
                elements_per_row(call, geometry.axes[geometry.rank - 1].input)};
    }
}

}  // namespace onnxpool::cpu::ONNXPOOL_ISA
