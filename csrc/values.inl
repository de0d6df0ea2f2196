// The values that reductions compute with: numbers and, for the CPU kernels, vectors of them. Both know + - * /,
// comparisons and ?: by themselves; what else is needed stands here, once for both. Included like reductions.inl.

template <class V>
constexpr bool is_vector = !std::is_scalar_v<V> && !is_half_precision<V>;

template <class V, bool = is_vector<V>>
struct Shape {  // of a number
    using Number = V;
    template <class To>
    using With = To;
};

#if !defined(__CUDACC__)

// kCount numbers. Half-precision numbers are float32 there, from load() to store().
template <class T, int kCount>
struct VectorOf {
    typedef comparable_t<T> type __attribute__((vector_size(kCount * sizeof(comparable_t<T>))));
};
template <class T, int kCount>
using Vector = typename VectorOf<T, kCount>::type;

template <class V>
struct Shape<V, true> {
    using Number = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<V>()[0])>>;
    static constexpr int kCount = sizeof(V) / sizeof(Number);
    template <class To>
    using With = Vector<To, kCount>;
};

#endif

template <int kBytes, bool kSigned>
using integer_t = std::conditional_t<
    kBytes == 8, std::conditional_t<kSigned, int64_t, uint64_t>,
    std::conditional_t<kBytes == 4, std::conditional_t<kSigned, int32_t, uint32_t>,
                       std::conditional_t<kBytes == 2, std::conditional_t<kSigned, int16_t, uint16_t>,
                                          std::conditional_t<kSigned, int8_t, uint8_t>>>>;

template <class T>
using unsigned_t = integer_t<sizeof(T), false>;

// The type of V's numbers, and V with numbers of another type.
template <class V>
using number_t = typename Shape<V>::Number;
template <class To, class V>
using with_numbers_t = typename Shape<V>::template With<To>;

#if !defined(__CUDACC__)

// The instruction that converts so many numbers, where compilers do not find it and convert one by one. What integers
// are converted to stands here with a sign: the bits are the same.
template <class From, class To, int kCount>
struct OneInstruction : std::false_type {};

#define ONNXPOOL_ONE_INSTRUCTION(FROM, TO, COUNT, REGISTER, INSTRUCTION)       \
    template <>                                                                \
    struct OneInstruction<FROM, TO, COUNT> : std::true_type {                  \
        using Register = REGISTER;                                             \
        static auto convert(Register numbers) { return INSTRUCTION(numbers); } \
    };

#if defined(ONNXPOOL_FMA)
inline Vector<int32_t, 4> lower_halves(__m256i numbers) {
    const auto halves = (Vector<int32_t, 8>)numbers;
    return __builtin_shufflevector(halves, halves, 0, 2, 4, 6);
}
ONNXPOOL_ONE_INSTRUCTION(float, double, 4, __m128, _mm256_cvtps_pd)
ONNXPOOL_ONE_INSTRUCTION(int8_t, int32_t, 8, __m128i, _mm256_cvtepi8_epi32)
ONNXPOOL_ONE_INSTRUCTION(uint8_t, int32_t, 8, __m128i, _mm256_cvtepu8_epi32)
ONNXPOOL_ONE_INSTRUCTION(uint16_t, int32_t, 8, __m128i, _mm256_cvtepu16_epi32)
ONNXPOOL_ONE_INSTRUCTION(int32_t, int64_t, 4, __m128i, _mm256_cvtepi32_epi64)
ONNXPOOL_ONE_INSTRUCTION(int64_t, int32_t, 4, __m256i, lower_halves)
#endif
#if defined(ONNXPOOL_AVX512)
ONNXPOOL_ONE_INSTRUCTION(float, double, 8, __m256, _mm512_cvtps_pd)
ONNXPOOL_ONE_INSTRUCTION(double, float, 8, __m512d, _mm512_cvtpd_ps)
ONNXPOOL_ONE_INSTRUCTION(int8_t, int32_t, 16, __m128i, _mm512_cvtepi8_epi32)
ONNXPOOL_ONE_INSTRUCTION(uint8_t, int32_t, 16, __m128i, _mm512_cvtepu8_epi32)
ONNXPOOL_ONE_INSTRUCTION(uint16_t, int32_t, 16, __m256i, _mm512_cvtepu16_epi32)
ONNXPOOL_ONE_INSTRUCTION(int32_t, int64_t, 8, __m256i, _mm512_cvtepi32_epi64)
ONNXPOOL_ONE_INSTRUCTION(int32_t, int8_t, 16, __m512i, _mm512_cvtepi32_epi8)
#endif
#undef ONNXPOOL_ONE_INSTRUCTION

template <class To, class V>
inline with_numbers_t<To, V> convert_vector(V value) {
    using From = number_t<V>;
    using Result = with_numbers_t<To, V>;
    constexpr bool between_integers = std::is_integral_v<From> && std::is_integral_v<To>;
    using Instruction =
        OneInstruction<From, std::conditional_t<between_integers, integer_t<sizeof(To), true>, To>, Shape<V>::kCount>;
    // Compilers also convert one by one what grows or shrinks more than twofold.
    constexpr bool is_signed = std::is_signed_v<From>;
    if constexpr (Instruction::value) {
        typename Instruction::Register numbers{};
        std::memcpy(&numbers, &value, sizeof(value));
        return (Result)Instruction::convert(numbers);
    } else if constexpr (between_integers && sizeof(To) > 2 * sizeof(From)) {
        return convert_vector<To>(convert_vector<integer_t<2 * sizeof(From), is_signed>>(value));
    } else if constexpr (between_integers && 2 * sizeof(To) < sizeof(From)) {
        return convert_vector<To>(convert_vector<integer_t<sizeof(From) / 2, is_signed>>(value));
    } else {
        return __builtin_convertvector(value, Result);
    }
}

#endif

template <class To, class V>
ONNXPOOL_HOST_DEVICE inline with_numbers_t<To, V> convert(V value) {
    if constexpr (!is_vector<V>) {
        return static_cast<To>(value);
    } else if constexpr (std::is_same_v<with_numbers_t<To, V>, V>) {
        return value;
    } else {
#if !defined(__CUDACC__)
        return convert_vector<To>(value);
#endif
    }
}

template <class V>
using bits_t = with_numbers_t<unsigned_t<number_t<V>>, V>;

template <class To, class V>
ONNXPOOL_HOST_DEVICE inline To reinterpret(V value) {
    if constexpr (is_vector<V>) {
        return (To)value;  // the bits, where a vector is cast
    } else {
        return detail::bit_cast<To>(value);
    }
}

template <class V>
ONNXPOOL_HOST_DEVICE inline bits_t<V> bits_of(V value) {
    return reinterpret<bits_t<V>>(value);
}

// The same number in all lanes. Not V{} + number, which would make 0 of -0.
template <class V>
ONNXPOOL_HOST_DEVICE inline V filled(number_t<V> number) {
    return number - V{};
}

// |x|, by its sign bit.
template <class V>
ONNXPOOL_HOST_DEVICE inline V magnitude(V x) {
    using Bits = unsigned_t<number_t<V>>;
    return reinterpret<V>(bits_of(x) & static_cast<Bits>(static_cast<Bits>(-1) >> 1));
}

// b > a ? b : a, in the one instruction that compilers do not find for vectors.
template <class V>
ONNXPOOL_HOST_DEVICE inline V larger_of(V a, V b) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, float>) {
        return (V)_mm512_max_ps((__m512)b, (__m512)a);
    } else if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, double>) {
        return (V)_mm512_max_pd((__m512d)b, (__m512d)a);
    }
#endif
#if defined(ONNXPOOL_FMA)
    if constexpr (sizeof(V) == 32 && std::is_same_v<number_t<V>, float>) {
        return (V)_mm256_max_ps((__m256)b, (__m256)a);
    } else if constexpr (sizeof(V) == 32 && std::is_same_v<number_t<V>, double>) {
        return (V)_mm256_max_pd((__m256d)b, (__m256d)a);
    }
#endif
    return b > a ? b : a;
}

// The larger one, or NaN if there is one: two selections rather than one condition, which would be a branch.
template <class V>
ONNXPOOL_HOST_DEVICE inline V larger_or_nan(V a, V b) {
    const V larger = larger_of(a, b);  // a, if that is NaN
#if defined(ONNXPOOL_AVX512)
    constexpr int second_if_nan = 0x11;  // of quiet and of signalling ones, and the first one of all other numbers
    if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, float>) {
        return (V)_mm512_fixupimm_ps((__m512)larger, (__m512)b, _mm512_set1_epi32(second_if_nan), 0);
    } else if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, double>) {
        return (V)_mm512_fixupimm_pd((__m512d)larger, (__m512d)b, _mm512_set1_epi64(second_if_nan), 0);
    }
#endif
    return b != b ? b : larger;
}

// function(x) for every number of x.
template <class V, class Function>
ONNXPOOL_HOST_DEVICE inline V for_each_number(V x, const Function& function) {
    if constexpr (is_vector<V>) {
        for (int i = 0; i < Shape<V>::kCount; ++i) x[i] = function(x[i]);
        return x;
    } else {
        return function(x);
    }
}

// The square root, rounded correctly.
template <class V>
ONNXPOOL_HOST_DEVICE inline V square_root(V x) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, float>) return (V)_mm512_sqrt_ps((__m512)x);
    if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, double>) return (V)_mm512_sqrt_pd((__m512d)x);
#endif
#if defined(ONNXPOOL_FMA)
    if constexpr (sizeof(V) == 32 && std::is_same_v<number_t<V>, float>) return (V)_mm256_sqrt_ps((__m256)x);
    if constexpr (sizeof(V) == 32 && std::is_same_v<number_t<V>, double>) return (V)_mm256_sqrt_pd((__m256d)x);
#endif
#if defined(ONNXPOOL_X86)
    if constexpr (sizeof(V) == 16 && std::is_same_v<number_t<V>, float>) return (V)_mm_sqrt_ps((__m128)x);
    if constexpr (sizeof(V) == 16 && std::is_same_v<number_t<V>, double>) return (V)_mm_sqrt_pd((__m128d)x);
#endif
    return for_each_number(x, [](number_t<V> number) { return std::sqrt(number); });
}

// The square root of a number that is 0 or not subnormal, to be rounded to half of its bits: then the same as
// square_root(), since roots that are not on a boundary of that rounding keep a distance from it that is larger than
// the error before the last rounding here.
template <class V>
ONNXPOOL_HOST_DEVICE inline V square_root_for_narrower(V x) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64 && std::is_same_v<number_t<V>, double>) {  // a third of the instruction's time
        // Goldschmidt's iteration: root and slope approach sqrt(x) and 1 / (2 sqrt(x)), from 14 bits to 28 and to 53.
        const __m512d radicand = (__m512d)x, half = _mm512_set1_pd(0.5), reciprocal = _mm512_rsqrt14_pd(radicand);
        __m512d root = radicand * reciprocal, slope = half * reciprocal;
        for (int step = 0; step < 2; ++step) {
            const __m512d missing = _mm512_fnmadd_pd(root, slope, half);
            root = _mm512_fmadd_pd(root, missing, root);
            slope = _mm512_fmadd_pd(slope, missing, slope);
        }
        root = _mm512_fmadd_pd(_mm512_fnmadd_pd(root, root, radicand), slope, root);
        constexpr int zero_infinity_or_nan = 0x9f;  // which are their own roots
        return (V)_mm512_mask_blend_pd(_mm512_fpclass_pd_mask(radicand, zero_infinity_or_nan), root, radicand);
    }
#endif
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(V) == 8) {
        double reciprocal;  // good to 20 bits, the root to 40 and 53 of them
        asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(reciprocal) : "d"(x));
        double root = x * reciprocal;
        for (int step = 0; step < 2; ++step) root = std::fma(std::fma(-root, root, x), 0.5 * reciprocal, root);
        return x > 0 && x <= std::numeric_limits<double>::max() ? root : x;  // which are their own roots
    }
    if constexpr (sizeof(V) == 4) {
        float reciprocal;  // good to 22 bits
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
        const float guess = x * reciprocal;
        const float root = std::fma(std::fma(-guess, guess, x), 0.5f * reciprocal, guess);
        return x > 0 && x <= std::numeric_limits<float>::max() ? root : x;
    }
#endif
    return square_root(x);
}

#if !defined(__CUDACC__)

// a * b + c, rounded once on all processors: by a call, and slowly, where they have no instruction for it.
template <class V>
inline V multiply_add(V a, V b, V c) {
    [[maybe_unused]] constexpr bool is_float = std::is_same_v<number_t<V>, float>;
    static_assert(is_float || std::is_same_v<number_t<V>, double>);
    if constexpr (!is_vector<V>) {
        return std::fma(a, b, c);
    } else {
#if defined(ONNXPOOL_AVX512)
        if constexpr (sizeof(V) == 64 && is_float) return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
        if constexpr (sizeof(V) == 64 && !is_float) return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#endif
#if defined(ONNXPOOL_FMA)
        if constexpr (sizeof(V) == 32 && is_float) return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
        if constexpr (sizeof(V) == 32 && !is_float) return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
        if constexpr (sizeof(V) == 16 && is_float) return (V)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
        if constexpr (sizeof(V) == 16 && !is_float) return (V)_mm_fmadd_pd((__m128d)a, (__m128d)b, (__m128d)c);
#endif
        for (int i = 0; i < Shape<V>::kCount; ++i) a[i] = std::fma(a[i], b[i], c[i]);
        return a;
    }
}

// Float64 numbers of this size have no fractions: their last bits count units.
constexpr double kUnits = 0x1.8p52;
constexpr uint64_t kUnitsBits = 0x4338000000000000;

// x = 2^n m for a float64 number >= 0 that is not subnormal: m, from 1 to 2; of 0, infinity and NaN, any.
template <class V>
inline V mantissa_of(V x) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64) {
        return (V)_mm512_getmant_pd((__m512d)x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    }
#endif
    constexpr uint64_t one = uint64_t{1023} << 52, mantissa = (uint64_t{1} << 52) - 1;
    return reinterpret<V>((bits_of(x) & mantissa) | one);
}

// The n of that x = 2^n m: -infinity for 0; infinity and NaN for themselves.
template <class V>
inline V exponent_of(V x) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64) return (V)_mm512_getexp_pd((__m512d)x);
#endif
    const V infinity = filled<V>(std::numeric_limits<double>::infinity());
    const V exponent = reinterpret<V>((bits_of(x) >> 52) + kUnitsBits) - (kUnits + 1023);
    return x == 0 ? -infinity : x < infinity ? exponent : x;
}

// What x is above the next integer, for |x| < 2^51.
template <class V>
inline V fraction_of(V x) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64) return x - (V)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_NEG_INF);
#endif
#if defined(ONNXPOOL_FMA)
    if constexpr (sizeof(V) == 32) return x - (V)_mm256_floor_pd((__m256d)x);
    if constexpr (is_vector<V> && sizeof(V) == 16) return x - (V)_mm_floor_pd((__m128d)x);
#endif
    const V above = x - ((x + kUnits) - kUnits);  // the nearest one
    return above < 0 ? above + 1 : above;
}

// value * 2^(the integer below exponent), for a value from 1 on that is less than 2: 0 and infinity for exponents
// below -1022 and from 1024 on, NaN for NaN.
template <class V>
inline V times_power_of_2(V value, V exponent) {
    constexpr double least = -1022;
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64) {
        const __mmask8 kept = _mm512_cmp_pd_mask((__m512d)exponent, _mm512_set1_pd(least), _CMP_NLT_UQ);
        return (V)_mm512_maskz_scalef_pd(kept, (__m512d)value, (__m512d)exponent);
    }
#endif
    const V infinity = filled<V>(std::numeric_limits<double>::infinity()), zero{};
    const V count = exponent - fraction_of(exponent);
    const V power = reinterpret<V>(bits_of(value) + (bits_of(count + kUnits) << 52));
    return exponent < least ? zero : exponent < 1024 ? power : exponent + infinity;
}

// function(x), computed in float64, which takes two registers where x fills one with smaller numbers.
template <class V, class Function>
inline V in_float64(V x, const Function& function) {
    if constexpr (std::is_same_v<number_t<V>, double>) {
        return function(x);
    } else if constexpr (is_vector<V>) {
        using Number = number_t<V>;
        using Half = Vector<Number, Shape<V>::kCount / 2>;
        Half halves[2];
        std::memcpy(halves, &x, sizeof(x));
        for (Half& half : halves) half = convert<Number>(function(convert<double>(half)));
        std::memcpy(&x, halves, sizeof(x));
        return x;
    } else {
        return static_cast<V>(function(static_cast<double>(x)));
    }
}

#endif
