// Which kernel does a call, and from run-time to compile-time types.
#pragma once

#include "gradient.cuh"
#include "gradient_tile.cuh"
#include "patch_gradient.cuh"
#include "planes.cuh"
#include "scatter.cuh"
#include "separable.cuh"
#include "tile.cuh"
#include "window.cuh"

namespace onnxpool::cuda {

// Where speed is no aim, one kernel serves all exponents.
template <class R>
struct AnyExponent {
    using type = R;
};
template <class T, int kExponent>
struct AnyExponent<LpNorm<T, kExponent>> {
    using type = LpNorm<T>;
};

// Sums over whole planes, and those of gradients, are wide. Within a plane, indices are not.
template <class R>
struct OfPlanes {
    using type = R;
};
template <class T>
struct OfPlanes<Average<T>> {
    using type = Average<T, wide_accumulator_t<T>>;
};
template <class T>
struct OfPlanes<MaxWithIndex<T>> {
    using type = MaxWithIndex<T, int32_t>;
};

// Rows of a place, so that neighbouring rows are read by the same thread, unless that leaves the device idle.
constexpr int kRows = 4;

// Enqueues a kernel with a thread for each place of the outputs or of the inputs, `lanes` channels at a time.
template <class Space>
void launch_places(void (*kernel)(int64_t, Problem<Space>), const Call& call,
                   typename Space::Index DeviceAxis<typename Space::Index>::* size, int lanes, const Context& context) {
    Problem<Space> problem(call);
    problem.number(call, size, lanes);
    const bool is_busy = problem.places.count / kRows >= wanted_blocks() * kThreads;
    if (call.geometry.rank > 1 && is_busy) problem.number(call, size, lanes, kRows);
    launch(kernel, blocks_for(problem.places.count), 0, context.stream, problem);
}

// Whether there are kernels for patches: not for what is used too rarely for the time that they take to compile.
template <class R>
constexpr bool has_patches = !std::is_same_v<typename R::Element, double> &&
                             !(R::kIndexed && std::is_integral_v<typename R::Element>) && !R::kOfPlanes;
template <class T>
constexpr bool has_patches<LpNorm<T, kAnyExponent>> = false;
template <class T>
constexpr bool has_patches<Average<T, double>> = false;

// The longest run of outputs that have taps of large windows in common. Accumulators of 8 bytes take too many
// registers.
template <class R, class Accumulator>
constexpr int kLongRun = has_patches<R> && sizeof(Accumulator) <= 4 ? 16 : 8;

// Whether there are gradients by tiles: what windows send can be added up before it is known what it is sent to.
template <class R>
constexpr bool has_gradient_tiles = R::kIndexed || R::kDivides || GradientArithmetic<R>::kIsLinear;

// Where it pays to combine what windows have in common once, one axis after the other: the other kernels visit every
// tap along each axis or, with channels innermost, every tap.
inline bool has_large_window(const Call& call) {
    const Geometry& geometry = call.geometry;
    double sum = 0, product = 1;
    for (int a = std::max(0, geometry.rank - 2); a < geometry.rank; ++a) {
        const auto taps = static_cast<double>(std::min(geometry.axes[a].kernel, geometry.axes[a].input));
        sum += taps;
        product *= taps;
    }
    return call.channels_innermost ? product >= 49 : sum >= 16;
}

// Whether maxima had better send their gradients to the elements than these ask for them: where channels do not lie
// side by side, they do so unless planes are too small for a warp.
inline bool sending_pays(const Call& call) {
    const Geometry& geometry = call.geometry;
    const double windows = windows_of_element(geometry);
    if (call.channels_innermost) return windows >= 16;
    int64_t size = 1;
    for (int a = std::max(0, geometry.rank - 2); a < geometry.rank; ++a) size *= geometry.axes[a].input;
    return windows >= 8 || size >= 512;
}

template <class R>
void forward_windows(const Call& call, const Context& context) {
    using T = typename R::Element;
    using General = typename AnyExponent<R>::type;
    constexpr int lanes = kVectorLanes<T>;
    if (!is_small(call)) {
        return launch_places<Any>(forward_by_window<General, Any, 1>, call, &DeviceAxis<Any::Index>::output, 1,
                                  context);
    }
    if constexpr (has_patches<R>) {
        if (forward_patches<R>(call, context)) return;
    }
    if constexpr (!R::kIndexed && !R::kInOrder) {
        if (has_large_window(call) && forward_separable<R, kLongRun<R, typename R::Accumulator>>(call, context)) return;
    }
    if (has_channel_vectors(call, sizeof(T))) {
        return launch_places<Small>(forward_by_window<R, Small, lanes>, call, &DeviceAxis<Small::Index>::output, lanes,
                                    context);
    }
    if constexpr (!R::kIndexed && !R::kInOrder) {
        if (call.x.strides[call.geometry.rank + 1] == 1 && forward_tiles<R>(call, context)) return;
    }
    launch_places<Small>(forward_by_window<General, Small, 1>, call, &DeviceAxis<Small::Index>::output, 1, context);
}

template <class R>
void forward_of(const Call& call, const Context& context) {
    if constexpr (!R::kInOrder) {
        if (spans_plane(call.geometry)) {
            using Planes = typename OfPlanes<R>::type;
            if (is_small(call) && forward_planes<Planes>(call, context)) return;
            return forward_windows<std::conditional_t<R::kIndexed, R, Planes>>(call, context);
        }
    }
    forward_windows<R>(call, context);
}

template <class R>
void backward_of(const Call& call, const Context& context) {
    using T = typename R::Element;
    using General = typename AnyExponent<std::conditional_t<R::kIndexed, R, typename OfPlanes<R>::type>>::type;
    constexpr int lanes = kVectorLanes<T>;
    if (!is_small(call)) {
        return launch_places<Any>(backward_by_window<General, Any, 1>, call, &DeviceAxis<Any::Index>::input, 1,
                                  context);
    }
    if (spans_plane(call.geometry)) {
        using Planes = std::conditional_t<is_square_norm<R>, R, General>;
        if (backward_planes<Planes>(call, context)) return;
    }
    if constexpr (has_patches<R>) {
        if (backward_patches<R>(call, context)) return;
    }
    if constexpr (R::kIndexed) {
        if (sending_pays(call)) return backward_scattered<R>(call, context);
    }
    if constexpr (has_gradient_tiles<R>) {
        if constexpr (!R::kIndexed) {
            constexpr int run = kLongRun<R, typename GradientArithmetic<R>::Sum>;
            if (has_large_window(call) && backward_separable<R, run>(call, context)) return;
        }
        // Where channels lie side by side, the kernel that visits all windows of an element can read vectors of them.
        const bool visits_few = R::kIndexed || (R::kDivides && windows_of_element(call.geometry) < 16);
        if (!(call.channels_innermost && visits_few) && backward_tiles<R>(call, context)) return;
    }
    if (has_channel_vectors(call, sizeof(T))) {
        return launch_places<Small>(backward_by_window<General, Small, lanes>, call, &DeviceAxis<Small::Index>::input,
                                    lanes, context);
    }
    launch_places<Small>(backward_by_window<General, Small, 1>, call, &DeviceAxis<Small::Index>::input, 1, context);
}

enum class Direction { kForward, kBackward };

template <class R>
bool enqueue(Direction direction, const Call& call, const Context& context) {
    if (direction == Direction::kForward) {
        forward_of<R>(call, context);
        return true;
    }
    if constexpr (R::kDifferentiable) {
        backward_of<R>(call, context);
        return true;
    }
    return false;
}

template <template <class> class R>
bool enqueue_floating_point(Direction direction, const Call& call, const Context& context) {
    switch (call.parameters.element_type) {
        case ElementType::kFloat16:
            return enqueue<R<Half>>(direction, call, context);
        case ElementType::kBFloat16:
            return enqueue<R<BFloat16>>(direction, call, context);
        case ElementType::kFloat32:
            return enqueue<R<float>>(direction, call, context);
        case ElementType::kFloat64:
            return enqueue<R<double>>(direction, call, context);
        default:
            return false;
    }
}

template <template <class> class R>
bool enqueue_bytes(Direction direction, const Call& call, const Context& context) {
    switch (call.parameters.element_type) {
        case ElementType::kInt8:
            return enqueue<R<int8_t>>(direction, call, context);
        case ElementType::kUInt8:
            return enqueue<R<uint8_t>>(direction, call, context);
        default:
            return false;
    }
}

// One of these for each reduction, each in a file of its own.
bool enqueue_average(Direction direction, const Call& call, const Context& context);
bool enqueue_norm(Direction direction, const Call& call, const Context& context);
bool enqueue_max(Direction direction, const Call& call, const Context& context);
bool enqueue_max_with_index(Direction direction, const Call& call, const Context& context);
bool enqueue_quantized(Reduction reduction, const Call& call, const Context& context);

}  // namespace onnxpool::cuda
