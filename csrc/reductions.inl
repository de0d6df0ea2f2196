// The reductions of reductions.h, which includes this file for single elements. The CPU kernels include it again, once
// for each instruction set, in a namespace and with a target of its own, for vectors of elements.

// What most reductions are; they say where they differ.
struct PlainReduction {
    static constexpr bool kIndexed = false;
    static constexpr bool kDivides = false;
    static constexpr bool kDifferentiable = false;
    static constexpr bool kGradientNeedsData = false;
    static constexpr bool kInOrder = false;
    static constexpr bool kOfPlanes = false;
};

// Accumulators that add up.
template <class A>
struct Sum : PlainReduction {
    using Accumulator = A;

    // 0 would turn a sum of -0 into 0.
    ONNXPOOL_HOST_DEVICE Accumulator identity() const { return -Accumulator(0); }
    template <class V>
    ONNXPOOL_HOST_DEVICE V combine(V a, V b) const {
        return a + b;
    }
};

// Accumulators of which the larger one stays; NaN if there is one. The first one where they are equal, but for zeros of
// both signs: some instructions take 0 for larger than -0.
template <class A>
struct Largest : PlainReduction {
    using Accumulator = A;

    ONNXPOOL_HOST_DEVICE Accumulator identity() const {
        using Limits = std::numeric_limits<Accumulator>;
        return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    }
    template <class V>
    ONNXPOOL_HOST_DEVICE V combine(V a, V b) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        if constexpr (std::is_same_v<V, float>) {  // one instruction
            float larger;
            asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
            return larger;
        }
#endif
        return larger_or_nan(a, b);
    }
};

// sum of data / number of data (with count_include_pad: of data and declared padding).
template <class T, class A = accumulator_t<T>>
struct Average : Sum<A> {
    using Element = T;
    using typename Sum<A>::Accumulator;
    static constexpr bool kDivides = true;
    static constexpr bool kDifferentiable = true;

    ONNXPOOL_HOST_DEVICE explicit Average(const Parameters&) {}

    template <class V>
    ONNXPOOL_HOST_DEVICE auto lift(V x) const {
        return convert<Accumulator>(x);
    }
    template <class V>
    ONNXPOOL_HOST_DEVICE auto finish(V mean) const {
        return convert<T>(mean);
    }
    ONNXPOOL_HOST_DEVICE T empty() const { return static_cast<T>(Accumulator(0)); }
    ONNXPOOL_HOST_DEVICE Accumulator gradient(Accumulator grad_y, Accumulator, Accumulator) const { return grad_y; }
};

// p where it is a whole number up to `most`, or 0.
ONNXPOOL_HOST_DEVICE inline int whole_number(double p, int most) {
    return p <= most && p == static_cast<int>(p) ? static_cast<int>(p) : 0;
}

// base^kExponent, and the same for an exponent that is known only when running; whole numbers >= 0.
template <int kExponent, class V>
ONNXPOOL_HOST_DEVICE inline V whole_power(V base) {
    if constexpr (kExponent == 0) {
        return filled<V>(1);
    } else if constexpr (kExponent == 1) {
        return base;
    } else {
        const V rest = whole_power<kExponent / 2>(base * base);
        return kExponent % 2 == 1 ? rest * base : rest;
    }
}
template <class V>
ONNXPOOL_HOST_DEVICE inline V whole_power(V base, int exponent) {
    V result = filled<V>(1);
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1) result = result * base;
        base = base * base;
    }
    return result;
}

// The same for exponents from 0 to 4, by a choice of products instead of branches.
template <class V>
ONNXPOOL_HOST_DEVICE inline V small_power(V base, int exponent) {
    const V one = filled<V>(1), square = base * base;
    const V even = exponent >= 4 ? square * square : exponent >= 2 ? square : one;
    return exponent % 2 == 1 ? even * base : even;
}

#if !defined(__CUDACC__)

// The polynomial with these coefficients, the highest first.
template <class V>
inline V polynomial(V x, std::initializer_list<double> coefficients) {
    V value = filled<V>(static_cast<number_t<V>>(*coefficients.begin()));
    for (auto next = coefficients.begin() + 1; next != coefficients.end(); ++next) {
        value = multiply_add(value, x, filled<V>(static_cast<number_t<V>>(*next)));
    }
    return value;
}

// x^p for float64 x >= 0 and p > 0, without a table or a call, so that loops can be vectorised: good to 5e-11 and, for
// large p, 2e-12 p; more than float32 and the halves can hold. What would be subnormal is 0. Not for subnormal x.
template <class V>
inline V power_of(V x, double p) {
    // x = 2^n m with m from 1 to 2, and log2(m) = 1/2 + 2/log(2) artanh(z). This polynomial and the next one are
    // those with the smallest largest error for such m, 2e-12, and for 2^rest, 4.4e-11, from 1 to just below 2.
    constexpr double root_of_2 = 0x1.6a09e667f3bcdp+0;
    const V m = mantissa_of(x);
    const V z = (m - root_of_2) / (m + root_of_2);
    const V slope = polynomial(z * z, {0x1.5ce39e0f72792p-2, 0x1.a58dceca72ce8p-2, 0x1.27777f461993ep-1,
                                       0x1.ec709d13c0821p-1, 0x1.71547652bed13p+1});
    const V log = multiply_add(slope, z, exponent_of(x));  // less 1/2
    const V exponent = multiply_add(filled<V>(p), log, filled<V>(p / 2));
    // Terms of even and of odd order apart: they do not wait for each other.
    const V rest = fraction_of(exponent), square = rest * rest;
    const V odd =
        polynomial(square, {0x1.678bd784a92e3p-16, 0x1.5fc57de0951d0p-10, 0x1.c6b278541d259p-5, 0x1.62e43010250b5p-1});
    const V even = polynomial(square, {0x1.2d83075d47e54p-13, 0x1.3b0a73e2d64a3p-7, 0x1.ebfbd24ceac06p-3, 1});
    return times_power_of_2(multiply_add(odd, rest, even), exponent);
}

// The cube root of a number >= 0, likewise: good to 2e-12 in float64, to float32's last bits in float32. Not for
// subnormal numbers.
template <class V>
inline V cube_root(V x) {
    using A = number_t<V>;
    // y = x^(-1/3), first by dividing the exponent by -3. That leaves an s = x y^3 - 1 from -0.0993 to 0.1062, where
    // this polynomial is the one with the smallest largest error from (1 + s)^(-1/3), 4.7e-5. Then x y^2 (1 + s)^(-2/3)
    // by the beginning of its binomial series.
    V y;
    if constexpr (std::is_same_v<A, double>) {  // the bits' upper half, as a number without fraction
        constexpr double units = 0x1p52, guess = 0x553ef0d9;
        const V high = reinterpret<V>((bits_of(x) >> 32) + detail::bit_cast<uint64_t>(units));
        const V quotient = multiply_add(high, filled<V>(-1.0 / 3), filled<V>(units + units / 3 + guess));
        y = reinterpret<V>(bits_of(quotient) << 32);
    } else {
        y = reinterpret<V>(0x54a2316du - bits_of(x) / 3u);
    }
    V s = multiply_add(x * y, y * y, filled<V>(-1));
    y = y * polynomial(s, {0x1.c6b771e9bfb96p-3, -0x1.56bb841bd9852p-2, 0x1.000026c0d9649p+0});
    const V first = x * (y * y);
    s = multiply_add(first, y, filled<V>(-1));
    const V root = multiply_add(first * s, polynomial(s, {5.0 / 9, -2.0 / 3}), first);
    return x <= std::numeric_limits<A>::max() ? root : x;  // infinity and NaN are their own roots
}

#endif

// Number by number, by the library.
template <class A>
ONNXPOOL_HOST_DEVICE_CALL A library_power(A x, A p) {
    return std::pow(x, p);
}
template <class A>
ONNXPOOL_HOST_DEVICE_CALL A library_cube_root(A x) {
    return std::cbrt(x);
}

// The exponents p of norms for which kernels are made: one p, some that share kernels, or all of them.
constexpr int kOneThreeOrFour = -1, kAnyExponent = 0;

// (sum over data of |x|^p)^(1/p).
template <class T, int kExponent = kAnyExponent>
struct LpNorm : Sum<wide_accumulator_t<T>> {
    using Element = T;
    using typename Sum<wide_accumulator_t<T>>::Accumulator;
    static constexpr bool kDifferentiable = true;
    static constexpr bool kGradientNeedsData = true;

    // Sums from here on have lost nothing that matters to powers below the smallest normal number.
    static constexpr Accumulator kSmallestSafeSum =
        std::numeric_limits<Accumulator>::min() / (std::numeric_limits<Accumulator>::epsilon() / (1 << 24));

    // Powers up to this one are products, whose roundings do not show in T.
    static constexpr int kLargestWholeExponent = std::is_same_v<T, double> ? 4 : 64;

    Accumulator p;
    int whole_exponent;      // p where its powers are products, or 0
    bool no_power_vanishes;  // then a sum of 0 means that all data are 0

    ONNXPOOL_HOST_DEVICE explicit LpNorm(const Parameters& parameters)
        : p(static_cast<Accumulator>(parameters.p)),
          whole_exponent(whole_number(p, kLargestWholeExponent)),
          no_power_vanishes(power(static_cast<Accumulator>(smallest_magnitude<T>())) >= kSmallestSafeSum) {}

    // Powers are never -0, whose roots would go through subnormal numbers, which are slow.
    ONNXPOOL_HOST_DEVICE Accumulator identity() const { return 0; }

    template <class V>
    ONNXPOOL_HOST_DEVICE auto lift(V x) const {
        return power(magnitude(convert<Accumulator>(x)));
    }
    template <class V>
    ONNXPOOL_HOST_DEVICE auto finish(V sum) const {
        return convert<T>(root(sum));
    }
    ONNXPOOL_HOST_DEVICE T empty() const { return static_cast<T>(Accumulator(0)); }

    // Squares in an accumulator with twice the exponents neither overflow nor vanish.
    static constexpr bool kAlwaysInRange =
        kExponent == 2 && !std::is_same_v<Accumulator, T> && !std::is_same_v<T, BFloat16>;

    // Whether powers may have overflowed or vanished on the way to a representable result. Then the window is computed
    // again, with every |x| divided by the largest one (see ScaledLpNorm).
    template <class V>
    ONNXPOOL_HOST_DEVICE auto out_of_range(V sum) const {
        const auto safe = (sum >= kSmallestSafeSum) & (sum <= std::numeric_limits<Accumulator>::max());
        return no_power_vanishes ? !(safe | (sum == 0)) : !safe;
    }

    // sign(x) * (|x| / y)^(p-1), the derivative of y by x; 0 where y = 0, and sign(0) = 0.
    ONNXPOOL_HOST_DEVICE Accumulator gradient(Accumulator grad_y, Accumulator x, Accumulator y) const {
        if (y == 0) return 0;
        const Accumulator sign = x > 0 ? Accumulator(1) : x < 0 ? Accumulator(-1) : x;
        const Accumulator ratio = std::abs(x) / y;
        if (is(1)) return grad_y * sign;
        if (is(2)) return grad_y * (sign * ratio);
        if (is(3)) return grad_y * (sign * (ratio * ratio));
        if (is(4)) return grad_y * (sign * (ratio * ratio * ratio));
        const Accumulator exponent = p - 1;
        if (exponent < 1 && ratio < std::numeric_limits<Accumulator>::min()) {  // it has lost digits that would show
            return grad_y * (sign * (library_power(std::abs(x), exponent) / library_power(y, exponent)));
        }
        return grad_y * (sign * library_power(ratio, exponent));
    }

    template <class V>
    ONNXPOOL_HOST_DEVICE V power(V base) const {
        if constexpr (kExponent > 0) return whole_power<kExponent>(base);
        if constexpr (kExponent == kOneThreeOrFour) return small_power(base, whole_exponent);
        if (whole_exponent > 0) return whole_power(base, whole_exponent);
#if !defined(__CUDACC__)
        if constexpr (!std::is_same_v<T, double>) {
            return in_float64(base, [this](auto x) { return power_of(x, p); });
        }
#endif
        return for_each_number(base, [this](Accumulator x) { return library_power(x, p); });
    }

    template <class V>
    ONNXPOOL_HOST_DEVICE V root(V sum) const {
        if (is(1)) return sum;
        if (is(2)) return std::is_same_v<T, double> ? square_root(sum) : square_root_for_narrower(sum);
        if (is(4)) return square_root(square_root(sum));
#if !defined(__CUDACC__)
        if constexpr (!std::is_same_v<T, double>) {
            if (kExponent == kOneThreeOrFour || is(3)) return cube_root(sum);
            return in_float64(sum, [this](auto x) { return power_of(x, 1 / static_cast<double>(p)); });
        }
#endif
        return for_each_number(sum, [this](Accumulator x) { return library_root(x); });
    }

    ONNXPOOL_HOST_DEVICE Accumulator library_root(Accumulator sum) const {
        if (is(3)) return library_cube_root(sum);
        const Accumulator root = library_power(sum, 1 / p);
        if constexpr (!std::is_same_v<T, double>) return root;
        // The rounded exponent 1/p costs |log(sum)| / p units in the last place: one Newton step gives them back.
        const Accumulator correction = (library_power(root, p) / sum - 1) / p;
        return std::isfinite(correction) ? root - root * correction : root;
    }

    ONNXPOOL_HOST_DEVICE bool is(int exponent) const {
        return (kExponent > 0 ? kExponent : whole_exponent) == exponent;
    }
};

template <class R>
constexpr bool is_norm = false;
template <class T, int kExponent>
constexpr bool is_norm<LpNorm<T, kExponent>> = true;

// The p-norm of data divided by `scale`, the largest magnitude among them, times `scale`: no power overflows, and those
// that vanish do not matter. Always in float64.
template <class T, int kExponent = kAnyExponent>
struct ScaledLpNorm : Sum<double> {
    using Element = T;

    LpNorm<double, kExponent> norm;
    double scale;

    ONNXPOOL_HOST_DEVICE ScaledLpNorm(const Parameters& parameters, double scale) : norm(parameters), scale(scale) {}

    template <class V>
    ONNXPOOL_HOST_DEVICE double lift(V x) const {
        return norm.lift(static_cast<double>(static_cast<comparable_t<T>>(x)) / scale);
    }
    ONNXPOOL_HOST_DEVICE T finish(double sum) const {
        return static_cast<T>(static_cast<comparable_t<T>>(scale * norm.root(sum)));
    }
};

// The largest magnitude of the data; NaN if there is one.
template <class T>
struct LargestMagnitude : Largest<comparable_t<T>> {
    using Element = T;
    using typename Largest<comparable_t<T>>::Accumulator;

    template <class V>
    ONNXPOOL_HOST_DEVICE Accumulator lift(V x) const {
        return magnitude(static_cast<Accumulator>(x));
    }
};

// The maximum of the data; NaN if there is one.
template <class T>
struct Max : Largest<comparable_t<T>> {
    using Element = T;
    using typename Largest<comparable_t<T>>::Accumulator;

    ONNXPOOL_HOST_DEVICE explicit Max(const Parameters&) {}

    template <class V>
    ONNXPOOL_HOST_DEVICE auto lift(V x) const {
        return convert<Accumulator>(x);
    }
    template <class V>
    ONNXPOOL_HOST_DEVICE auto finish(V maximum) const {
        return convert<T>(maximum);
    }
    ONNXPOOL_HOST_DEVICE T empty() const { return static_cast<T>(lowest_finite<T>()); }
};

// The maximum and where it is first reached (the first NaN, if there is one); index -1 where there are no data.
template <class T, class Index = int64_t>
struct MaxWithIndex : PlainReduction {
    struct Accumulator {
        comparable_t<T> value;
        Index index;
    };
    using Element = T;
    static constexpr bool kIndexed = true;
    static constexpr bool kDifferentiable = !std::is_integral_v<T>;

    ONNXPOOL_HOST_DEVICE explicit MaxWithIndex(const Parameters&) {}

    ONNXPOOL_HOST_DEVICE Accumulator identity() const { return {lowest_finite<T>(), -1}; }
    ONNXPOOL_HOST_DEVICE Accumulator lift(T x, Index index) const { return {static_cast<comparable_t<T>>(x), index}; }
    ONNXPOOL_HOST_DEVICE Accumulator combine(const Accumulator& a, const Accumulator& b) const {
        const bool first_nan = b.value != b.value && a.value == a.value;
        return b.value > a.value || first_nan || a.index < 0 ? b : a;
    }
    ONNXPOOL_HOST_DEVICE T finish(const Accumulator& best) const { return static_cast<T>(best.value); }
    ONNXPOOL_HOST_DEVICE T empty() const { return static_cast<T>(lowest_finite<T>()); }
};

// The integer nearest to `value` (halves to even) plus `offset`, saturated to T.
template <class T, class V>
ONNXPOOL_HOST_DEVICE inline auto saturate(V value, int32_t offset) {
    const auto lowest = static_cast<float>(std::numeric_limits<T>::min() - offset);
    const auto highest = static_cast<float>(std::numeric_limits<T>::max() - offset);
    const V clamped = value < lowest ? lowest : value > highest ? highest : value;
    constexpr float units_only = 0x1.8p23f;  // numbers of this size have no fractions left
    const V nearest = (clamped + units_only) - units_only;
    return convert<T>(convert<int32_t>(nearest) + offset);
}

// com.microsoft QLinearGlobalAveragePool. The order of the float32 operations and roundings is onnxruntime's, bit for
// bit.
template <class T>
struct QuantizedGlobalAverage : Sum<uint32_t> {  // wraps modulo 2^32
    using Element = T;
    static constexpr bool kOfPlanes = true;

    uint32_t sum_of_zero_points;
    float scale;
    int32_t y_zero_point;

    ONNXPOOL_HOST_DEVICE explicit QuantizedGlobalAverage(const Parameters& parameters)
        : sum_of_zero_points(static_cast<uint32_t>(parameters.x_zero_point) *
                             static_cast<uint32_t>(parameters.plane_size)),
          scale(requantization_scale(parameters)),
          y_zero_point(parameters.y_zero_point) {}

    template <class V>
    ONNXPOOL_HOST_DEVICE auto lift(V x) const {
        return convert<uint32_t>(convert<int32_t>(x));
    }
    template <class V>
    ONNXPOOL_HOST_DEVICE auto finish(V sum) const {
        const auto centered = convert<int32_t>(sum - sum_of_zero_points);
        return saturate<T>(convert<float>(centered) * scale, y_zero_point);
    }
    ONNXPOOL_HOST_DEVICE T empty() const { return static_cast<T>(y_zero_point); }
};

// com.microsoft QLinearAveragePool: dequantised, averaged and quantised in float32, as onnxruntime does. Its data have
// to be added one after the other in row-major order.
template <class T>
struct QuantizedAverage : Sum<float> {
    using Element = T;
    static constexpr bool kDivides = true;
    static constexpr bool kInOrder = true;

    float x_scale, y_scale;
    int32_t x_zero_point;
    float y_zero_point;

    ONNXPOOL_HOST_DEVICE explicit QuantizedAverage(const Parameters& parameters)
        : x_scale(parameters.x_scale),
          y_scale(parameters.y_scale),
          x_zero_point(parameters.x_zero_point),
          y_zero_point(static_cast<float>(parameters.y_zero_point)) {}

    template <class V>
    ONNXPOOL_HOST_DEVICE auto lift(V x) const {
        return x_scale * convert<float>(convert<int32_t>(x) - x_zero_point);
    }
    template <class V>
    ONNXPOOL_HOST_DEVICE auto finish(V mean) const {
        return saturate<T>(mean / y_scale + y_zero_point, 0);
    }
    ONNXPOOL_HOST_DEVICE T empty() const { return static_cast<T>(y_zero_point); }
};
