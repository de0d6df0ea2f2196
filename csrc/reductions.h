// What a window computes from its data: identity, accumulate, finish and the derivative, element by element.
// Used by forward and backward, on CPU and GPU; free of torch headers. The formulas are those of the ONNX operator
// text.
//
// A reduction R offers
//   R::Element, R::Accumulator
//   R::kIndexed           whether accumulate() wants the position of the element
//   R::kDifferentiable    whether there is a gradient, see below
//   identity()            the accumulator of an empty window
//   accumulate(a, x, i)   takes element x at position i into a
//   finish(a, counts)     the window's result
// and, where it is differentiable,
//   gradient(grad_y, x, y, counts)                    what one window adds to the gradient of its datum x
//   R::kGradientNeedsCounts, R::kGradientNeedsData    whether that looks at counts, or at x and y
// An indexed reduction needs no gradient(): the window's gradient goes to the element that its index names.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "element_types.h"
#include "window.h"

namespace onnxpool {

// The parameters of all reductions: attributes and quantisation, ready to use.
struct Parameters {
    bool count_include_pad = false;
    double p = 2.0;
    float requantization_scale = 1.0f;  // of QLinearGlobalAveragePool: x_scale / (y_scale * n)
    int32_t x_zero_point = 0;
    int32_t y_zero_point = 0;
};

// How many taps of a window are data, and how many are data or declared padding.
struct TapCounts {
    int64_t data;
    int64_t declared;
};

// sum of data / number of data (count_include_pad: / number of data and declared padding); 0 for an empty window.
template <class T>
struct Average {
    using Element = T;
    using Accumulator = accumulator_t<T>;
    static constexpr bool kIndexed = false;
    static constexpr bool kDifferentiable = true;
    static constexpr bool kGradientNeedsCounts = true;
    static constexpr bool kGradientNeedsData = false;

    bool count_include_pad;

    explicit Average(const Parameters& parameters) : count_include_pad(parameters.count_include_pad) {}

    Accumulator identity() const { return 0; }

    void accumulate(Accumulator& sum, T x, int64_t) const { sum += static_cast<Accumulator>(x); }

    Accumulator divisor(const TapCounts& counts) const {
        return static_cast<Accumulator>(count_include_pad ? counts.declared : counts.data);
    }

    T finish(const Accumulator& sum, const TapCounts& counts) const {
        return static_cast<T>(counts.data == 0 ? Accumulator(0) : sum / divisor(counts));
    }

    Accumulator gradient(Accumulator grad_y, Accumulator, Accumulator, const TapCounts& counts) const {
        return grad_y / divisor(counts);
    }
};

// (sum over data of |x|^p)^(1/p); 0 for an empty window.
template <class T>
struct LpNorm {
    using Element = T;
    using Accumulator = accumulator_t<T>;
    static constexpr bool kIndexed = false;
    static constexpr bool kDifferentiable = true;
    static constexpr bool kGradientNeedsCounts = false;
    static constexpr bool kGradientNeedsData = true;

    // Sums from here on have lost nothing that matters to powers below the smallest normal number.
    static constexpr Accumulator kSmallestSafeSum =
        std::numeric_limits<Accumulator>::min() / (std::numeric_limits<Accumulator>::epsilon() / (1 << 24));

    Accumulator p;
    bool no_power_vanishes;  // then a sum of 0 means that all data are 0

    explicit LpNorm(const Parameters& parameters)
        : p(static_cast<Accumulator>(parameters.p)),
          no_power_vanishes(power(static_cast<Accumulator>(smallest_magnitude<T>()), p) >= kSmallestSafeSum) {}

    Accumulator identity() const { return 0; }

    void accumulate(Accumulator& sum, T x, int64_t) const { sum += power(std::abs(static_cast<Accumulator>(x)), p); }

    T finish(const Accumulator& sum, const TapCounts&) const { return static_cast<T>(root(sum)); }

    // Whether powers may have overflowed or vanished on the way to a representable result. Then the window is computed
    // again, with every |x| divided by the largest one (see ScaledLpNorm).
    bool out_of_range(const Accumulator& sum) const {
        if (sum == 0) return !no_power_vanishes;
        return !(sum >= kSmallestSafeSum && sum <= std::numeric_limits<Accumulator>::max());
    }

    // sign(x) * (|x| / y)^(p-1), the derivative of y by x; 0 where y = 0, and sign(0) = 0.
    Accumulator gradient(Accumulator grad_y, Accumulator x, Accumulator y, const TapCounts&) const {
        if (y == 0) return 0;
        const Accumulator sign = x > 0 ? Accumulator(1) : x < 0 ? Accumulator(-1) : x;
        return grad_y * (sign * power(std::abs(x) / y, p - 1));
    }

    static Accumulator power(Accumulator base, Accumulator exponent) {
        if (exponent == 0) return 1;
        if (exponent == 1) return base;
        if (exponent == 2) return base * base;
        if (exponent == 3) return base * base * base;
        return std::pow(base, exponent);
    }

    Accumulator root(Accumulator sum) const {
        if (p == 1) return sum;
        if (p == 2) return std::sqrt(sum);
        if (p == 3) return std::cbrt(sum);
        const Accumulator root = std::pow(sum, 1 / p);
        if constexpr (!std::is_same_v<T, double>) return root;
        // The rounded exponent 1/p costs |log(sum)| / p units in the last place: one Newton step gives them back.
        const Accumulator correction = (std::pow(root, p) / sum - 1) / p;
        return std::isfinite(correction) ? root - root * correction : root;
    }
};

// The p-norm of data divided by `scale`, the largest magnitude among them, times `scale`: no power overflows, and those
// that vanish do not matter. Always in float64.
template <class T>
struct ScaledLpNorm {
    using Element = T;
    using Accumulator = double;
    static constexpr bool kIndexed = false;

    LpNorm<double> norm;
    double scale;

    ScaledLpNorm(const Parameters& parameters, double scale) : norm(parameters), scale(scale) {}

    Accumulator identity() const { return 0; }

    void accumulate(Accumulator& sum, T x, int64_t index) const {
        norm.accumulate(sum, static_cast<double>(static_cast<comparable_t<T>>(x)) / scale, index);
    }

    T finish(const Accumulator& sum, const TapCounts&) const {
        return static_cast<T>(static_cast<comparable_t<T>>(scale * norm.root(sum)));
    }
};

// The largest magnitude; NaN if there is one.
template <class T>
struct LargestMagnitude {
    using Element = T;
    using Accumulator = comparable_t<T>;
    static constexpr bool kIndexed = false;

    Accumulator identity() const { return 0; }

    void accumulate(Accumulator& largest, T x, int64_t) const {
        const Accumulator magnitude = std::abs(static_cast<Accumulator>(x));
        if (magnitude > largest || magnitude != magnitude) largest = magnitude;
    }
};

// The maximum of the data; NaN if there is one.
template <class T>
struct Max {
    using Element = T;
    using Accumulator = comparable_t<T>;
    static constexpr bool kIndexed = false;
    static constexpr bool kDifferentiable = false;

    explicit Max(const Parameters&) {}

    Accumulator identity() const {
        using Limits = std::numeric_limits<Accumulator>;
        return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    }

    void accumulate(Accumulator& maximum, T x, int64_t) const {
        const Accumulator value = static_cast<Accumulator>(x);
        if (value > maximum || value != value) maximum = value;
    }

    T finish(const Accumulator& maximum, const TapCounts& counts) const {
        return static_cast<T>(counts.data == 0 ? lowest_finite<T>() : maximum);
    }
};

// The maximum and where it is first reached (the first NaN, if there is one); index -1 for an empty window.
template <class T>
struct MaxWithIndex {
    struct Accumulator {
        comparable_t<T> value;
        int64_t index;
    };
    using Element = T;
    static constexpr bool kIndexed = true;
    static constexpr bool kDifferentiable = !std::is_integral_v<T>;
    static constexpr bool kGradientNeedsCounts = false;
    static constexpr bool kGradientNeedsData = false;

    explicit MaxWithIndex(const Parameters&) {}

    Accumulator identity() const { return {lowest_finite<T>(), -1}; }

    void accumulate(Accumulator& best, T x, int64_t index) const {
        const comparable_t<T> value = static_cast<comparable_t<T>>(x);
        const bool first_nan = value != value && best.value == best.value;
        if (value > best.value || first_nan || best.index < 0) best = {value, index};
    }

    T finish(const Accumulator& best, const TapCounts&) const { return static_cast<T>(best.value); }
};

// com.microsoft QLinearGlobalAveragePool. The order of the float32 operations and roundings is onnxruntime's, bit for
// bit.
template <class T>
struct QuantizedGlobalAverage {
    using Element = T;
    using Accumulator = uint32_t;  // wraps modulo 2^32
    static constexpr bool kIndexed = false;
    static constexpr bool kDifferentiable = false;

    Parameters parameters;

    explicit QuantizedGlobalAverage(const Parameters& parameters) : parameters(parameters) {}

    Accumulator identity() const { return 0; }

    void accumulate(Accumulator& sum, T x, int64_t) const { sum += static_cast<uint32_t>(static_cast<int32_t>(x)); }

    T finish(const Accumulator& sum, const TapCounts& counts) const {
        const auto offset = static_cast<uint32_t>(parameters.x_zero_point) * static_cast<uint32_t>(counts.data);
        const auto centered = static_cast<int32_t>(sum - offset);
        const auto lowest = static_cast<float>(std::numeric_limits<T>::min() - parameters.y_zero_point);
        const auto highest = static_cast<float>(std::numeric_limits<T>::max() - parameters.y_zero_point);
        const float scaled = static_cast<float>(centered) * parameters.requantization_scale;
        const float clamped = scaled < lowest ? lowest : scaled > highest ? highest : scaled;
        return static_cast<T>(static_cast<int32_t>(std::nearbyint(clamped)) + parameters.y_zero_point);
    }
};

}  // namespace onnxpool
