// The element types of tensors, without torch headers: half-precision types are converted to and from float32 here.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "host_device.h"

namespace onnxpool {

enum class ElementType { kFloat16, kBFloat16, kFloat32, kFloat64, kInt8, kUInt8 };

inline bool is_byte(ElementType type) { return type == ElementType::kInt8 || type == ElementType::kUInt8; }

inline int element_size(ElementType type) {
    switch (type) {
        case ElementType::kFloat64:
            return 8;
        case ElementType::kFloat32:
            return 4;
        case ElementType::kFloat16:
        case ElementType::kBFloat16:
            return 2;
        default:
            return 1;
    }
}

namespace detail {

template <class To, class From>
ONNXPOOL_HOST_DEVICE inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

// float32 from float16. Multiplying by 2^112 rebiases the exponent and is exact for subnormals as well.
ONNXPOOL_HOST_DEVICE inline float float_from_half_bits(uint16_t half) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
    const uint32_t infinity_or_nan = 0x0f800000u;  // float16's largest exponent, in place
    const float finite = bit_cast<float>(magnitude) * 0x1p112f;
    const uint32_t bits = magnitude >= infinity_or_nan ? magnitude | 0x7f800000u : bit_cast<uint32_t>(finite);
    return bit_cast<float>(sign | bits);
#endif
}

// float16 from float32, rounded to nearest even.
ONNXPOOL_HOST_DEVICE inline uint16_t half_bits_from_float(float value) {
#if defined(__CUDA_ARCH__)
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    const uint32_t bits = bit_cast<uint32_t>(value);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or more: infinity
    if (magnitude < 0x38800000u) {                        // below 2^-14: subnormal in float16
        // Adding 0.5 leaves the multiples of 2^-24 in the last bits of the sum, rounded to nearest even by the adder.
        const float shifted = bit_cast<float>(magnitude) + 0.5f;
        return sign | static_cast<uint16_t>(bit_cast<uint32_t>(shifted) - bit_cast<uint32_t>(0.5f));
    }
    const uint32_t round_to_even = 0xfffu + ((magnitude >> 13) & 1u);
    return sign | static_cast<uint16_t>((magnitude - 0x38000000u + round_to_even) >> 13);
#endif
}

// bfloat16 from float32, rounded to nearest even.
ONNXPOOL_HOST_DEVICE inline uint16_t bfloat16_bits_from_float(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    const uint32_t bits = bit_cast<uint32_t>(value);
    return value != value ? uint16_t{0x7fc0} : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

}  // namespace detail

struct Half {
    uint16_t bits;

    Half() = default;
    ONNXPOOL_HOST_DEVICE explicit Half(float value) : bits(detail::half_bits_from_float(value)) {}
    ONNXPOOL_HOST_DEVICE explicit operator float() const { return detail::float_from_half_bits(bits); }
};

struct BFloat16 {
    uint16_t bits;

    BFloat16() = default;
    ONNXPOOL_HOST_DEVICE explicit BFloat16(float value) : bits(detail::bfloat16_bits_from_float(value)) {}
    ONNXPOOL_HOST_DEVICE explicit operator float() const {
        return detail::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
};

template <class T>
inline constexpr bool is_half_precision = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

// Sums over windows: half precision is computed in float32, float32 and float64 as they are, integers in int32.
template <class T>
using accumulator_t =
    std::conditional_t<is_half_precision<T>, float, std::conditional_t<std::is_integral_v<T>, int32_t, T>>;

// Sums of powers, and sums over whole planes: float32 is computed in float64, so that the result is the exact value
// rounded once, but for the rarest ties.
template <class T>
using wide_accumulator_t = std::conditional_t<std::is_same_v<T, float>, double, accumulator_t<T>>;

// Comparisons: the type itself, or float32, which holds every half-precision value.
template <class T>
using comparable_t = std::conditional_t<is_half_precision<T>, float, T>;

// The type's lowest finite value.
template <class T>
ONNXPOOL_HOST_DEVICE constexpr comparable_t<T> lowest_finite() {
    if constexpr (std::is_same_v<T, Half>) return -0x1.ffcp15f;
    if constexpr (std::is_same_v<T, BFloat16>) return -0x1.fep127f;
    if constexpr (!is_half_precision<T>) return std::numeric_limits<T>::lowest();
}

// The type's smallest magnitude above zero.
template <class T>
ONNXPOOL_HOST_DEVICE constexpr comparable_t<T> smallest_magnitude() {
    if constexpr (std::is_same_v<T, Half>) return 0x1p-24f;
    if constexpr (std::is_same_v<T, BFloat16>) return 0x1p-133f;
    if constexpr (!is_half_precision<T>) return std::numeric_limits<T>::denorm_min();
}

}  // namespace onnxpool
