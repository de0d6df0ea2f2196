// The attributes of a pooling node: given by the caller, completed with ONNX's defaults and validated once.
// Every error text about an attribute lives here. Free of torch headers.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace onnxpool {

// torch's own limit is 64 dimensions, two of which are batch and channel.
constexpr int kMaxSpatialRank = 62;

// Any sum that the geometry forms from such attributes, products of two of them, and a tensor's size fits in int64.
constexpr int64_t kMaxAttribute = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxSize = int64_t{1} << 61;  // expanded tensors may be larger than memory

struct IntSpan {
    const int64_t* values = nullptr;
    int64_t size = 0;

    int64_t operator[](int64_t i) const { return values[i]; }
    const int64_t* begin() const { return values; }
    const int64_t* end() const { return values + size; }
};

inline std::ostream& operator<<(std::ostream& out, const IntSpan& span) {
    out << '[';
    for (int64_t i = 0; i < span.size; ++i) {
        out << (i ? ", " : "") << span[i];
    }
    return out << ']';
}

// The one shape of an error: "AveragePool: pads must be >= 0, got pads=[0, -1, 0, 0]". Arrives in Python as ValueError.
template <class... Parts>
[[noreturn]] void refuse(std::string_view operator_name, const Parts&... parts) {
    std::ostringstream text;
    text << operator_name << ": ";
    (text << ... << parts);
    throw std::invalid_argument(text.str());
}

// What the caller said. Attributes that an operator does not have keep their defaults.
struct GivenAttributes {
    IntSpan kernel_shape;
    std::string_view auto_pad = "NOTSET";
    int64_t ceil_mode = 0;
    int64_t channels_last = 0;
    int64_t count_include_pad = 0;
    std::optional<IntSpan> dilations;
    std::optional<IntSpan> output_shape;
    double p = 2.0;
    std::optional<IntSpan> pads;
    int64_t storage_order = 0;
    std::optional<IntSpan> strides;
};

enum class AutoPad { kNotSet, kSameUpper, kSameLower, kValid };

struct AxisAttributes {
    int64_t kernel;
    int64_t stride;
    int64_t dilation;
    int64_t pad_begin;
    int64_t pad_end;
};

struct PoolAttributes {
    std::string_view operator_name;
    AutoPad auto_pad = AutoPad::kNotSet;
    bool ceil_mode = false;
    bool channels_last = false;
    bool count_include_pad = false;
    bool column_major_indices = false;  // storage_order = 1
    double p = 2.0;
    int rank = 0;                          // number of spatial axes
    AxisAttributes axes[kMaxSpatialRank];  // the first `rank` of them
};

namespace detail {

inline void check_list(std::string_view operator_name, std::string_view name, const IntSpan& list, int64_t rank,
                       int64_t entries_per_axis, int64_t minimum) {
    if (list.size != rank * entries_per_axis) {
        refuse(operator_name, name, " must have ", entries_per_axis == 1 ? "one entry" : "two entries",
               " for each of the ", rank, " spatial axes, got ", name, "=", list);
    }
    for (int64_t value : list) {
        if (value < minimum) {
            refuse(operator_name, name, " must be >= ", minimum, ", got ", name, "=", list);
        }
        if (value > kMaxAttribute) {
            refuse(operator_name, name, " must be <= ", kMaxAttribute, ", got ", name, "=", list);
        }
    }
}

inline bool check_flag(std::string_view operator_name, std::string_view name, int64_t value) {
    if (value != 0 && value != 1) {
        refuse(operator_name, name, " must be 0 or 1, got ", name, "=", value);
    }
    return value == 1;
}

inline AutoPad parse_auto_pad(std::string_view operator_name, std::string_view auto_pad) {
    if (auto_pad == "NOTSET") return AutoPad::kNotSet;
    if (auto_pad == "SAME_UPPER") return AutoPad::kSameUpper;
    if (auto_pad == "SAME_LOWER") return AutoPad::kSameLower;
    if (auto_pad == "VALID") return AutoPad::kValid;
    refuse(operator_name, "auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, got auto_pad=", auto_pad);
}

inline double check_p(std::string_view operator_name, double p) {
    if (!(p >= 1.0) || std::isinf(p)) {
        refuse(operator_name, "p must be a finite number >= 1, got p=", p);
    }
    return p;
}

inline int check_rank(std::string_view operator_name, int64_t rank) {
    if (rank < 1 || rank > kMaxSpatialRank) {
        refuse(operator_name, "the number of spatial axes must be between 1 and ", kMaxSpatialRank, ", got ", rank);
    }
    return static_cast<int>(rank);
}

}  // namespace detail

// Attributes of a windowed operator (AveragePool, LpPool, MaxPool) for an input with `rank` spatial axes.
inline PoolAttributes validate_attributes(std::string_view operator_name, int64_t rank, const GivenAttributes& given) {
    using namespace detail;
    PoolAttributes attributes;
    attributes.operator_name = operator_name;
    if (given.kernel_shape.size == 0) refuse(operator_name, "kernel_shape must not be empty, got kernel_shape=[]");
    attributes.rank = check_rank(operator_name, rank);
    attributes.auto_pad = parse_auto_pad(operator_name, given.auto_pad);
    attributes.ceil_mode = check_flag(operator_name, "ceil_mode", given.ceil_mode);
    attributes.channels_last = check_flag(operator_name, "channels_last", given.channels_last);
    attributes.count_include_pad = check_flag(operator_name, "count_include_pad", given.count_include_pad);
    attributes.column_major_indices = check_flag(operator_name, "storage_order", given.storage_order);
    attributes.p = check_p(operator_name, given.p);
    check_list(operator_name, "kernel_shape", given.kernel_shape, rank, 1, 1);
    if (given.strides) check_list(operator_name, "strides", *given.strides, rank, 1, 1);
    if (given.dilations) check_list(operator_name, "dilations", *given.dilations, rank, 1, 1);
    if (given.pads) {
        if (attributes.auto_pad != AutoPad::kNotSet) {
            refuse(operator_name, "pads and auto_pad exclude each other, got auto_pad=", given.auto_pad,
                   " and pads=", *given.pads);
        }
        check_list(operator_name, "pads", *given.pads, rank, 2, 0);
    }
    for (int a = 0; a < attributes.rank; ++a) {
        AxisAttributes& axis = attributes.axes[a];
        axis = {given.kernel_shape[a], 1, 1, 0, 0};
        if (given.strides) axis.stride = (*given.strides)[a];
        if (given.dilations) axis.dilation = (*given.dilations)[a];
        if (given.pads) {  // ONNX lists all begins before all ends: [b1, ..., br, e1, ..., er]
            axis.pad_begin = (*given.pads)[a];
            axis.pad_end = (*given.pads)[rank + a];
        }
    }
    return attributes;
}

// Attributes of a global operator: one window that spans every spatial axis.
inline PoolAttributes global_attributes(std::string_view operator_name, IntSpan spatial_shape, double p = 2.0) {
    PoolAttributes attributes;
    attributes.operator_name = operator_name;
    attributes.rank = detail::check_rank(operator_name, spatial_shape.size);
    attributes.p = detail::check_p(operator_name, p);
    for (int a = 0; a < attributes.rank; ++a) {
        attributes.axes[a] = {spatial_shape[a], 1, 1, 0, 0};
    }
    return attributes;
}

}  // namespace onnxpool
