// The only header that names torch types. One source serves two ABIs: LibTorch's stable one (the default: one binary
// for torch >= 2.10) and plain ATen (TORCH_ONNXPOOL_ATEN: for the torch it was built with).
#pragma once

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "attributes.h"
#include "element_types.h"

#if defined(TORCH_ONNXPOOL_ATEN)

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#define ONNXPOOL_LIBRARY(library) TORCH_LIBRARY(torch_onnxpool, library)
#define ONNXPOOL_LIBRARY_IMPL(key, library) TORCH_LIBRARY_IMPL(torch_onnxpool, key, library)
#define ONNXPOOL_KERNEL(function) function

namespace onnxpool {
using Tensor = at::Tensor;
using IntList = at::IntArrayRef;
using ScalarType = at::ScalarType;
}  // namespace onnxpool

#else

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#define ONNXPOOL_LIBRARY(library) STABLE_TORCH_LIBRARY(torch_onnxpool, library)
#define ONNXPOOL_LIBRARY_IMPL(key, library) STABLE_TORCH_LIBRARY_IMPL(torch_onnxpool, key, library)
#define ONNXPOOL_KERNEL(function) TORCH_BOX(function)

namespace onnxpool {
using Tensor = torch::stable::Tensor;
using IntList = torch::headeronly::IntHeaderOnlyArrayRef;
using ScalarType = torch::headeronly::ScalarType;
}  // namespace onnxpool

#endif

namespace onnxpool {

using OptionalIntList = std::optional<IntList>;

#if defined(TORCH_ONNXPOOL_ATEN)
using Text = std::string_view;
#else
// A string argument of an operator: torch's own conversion to std::string copies it.
class OwnedText {
public:
    explicit OwnedText(StringHandle handle) : handle_(handle, &torch_delete_string) {}

    operator std::string_view() const {
        const char* characters = nullptr;
        size_t length = 0;
        TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle_.get(), &characters));
        TORCH_ERROR_CODE_CHECK(torch_string_length(handle_.get(), &length));
        return {characters, length};
    }

private:
    std::unique_ptr<StringOpaque, decltype(&torch_delete_string)> handle_;
};
using Text = const OwnedText&;
#endif

// Sizes or strides, without a call for memory: torch has no more than 64 dimensions.
class Dimensions {
public:
    Dimensions() = default;
    explicit Dimensions(size_t size) : size_(size) {}
    Dimensions(std::initializer_list<int64_t> values) : Dimensions(values.begin(), values.end()) {}
    template <class Iterator>
    Dimensions(Iterator begin, Iterator end) : size_(std::copy(begin, end, values_) - values_) {}
    Dimensions(const Dimensions& other) : Dimensions(other.begin(), other.end()) {}  // not the whole room
    Dimensions& operator=(const Dimensions& other) {
        size_ = std::copy(other.begin(), other.end(), values_) - values_;
        return *this;
    }

    size_t size() const { return size_; }
    const int64_t* data() const { return values_; }
    int64_t* begin() { return values_; }
    int64_t* end() { return values_ + size_; }
    const int64_t* begin() const { return values_; }
    const int64_t* end() const { return values_ + size_; }
    int64_t& operator[](size_t i) { return values_[i]; }
    int64_t operator[](size_t i) const { return values_[i]; }
    int64_t back() const { return values_[size_ - 1]; }
    void push_back(int64_t value) { values_[size_++] = value; }

private:
    int64_t values_[kMaxSpatialRank + 2];
    size_t size_ = 0;
};

inline IntSpan span_of(const IntList& list) { return {list.data(), static_cast<int64_t>(list.size())}; }

inline IntSpan span_of(const Dimensions& list) { return {list.data(), static_cast<int64_t>(list.size())}; }

inline std::optional<IntSpan> span_of(const OptionalIntList& list) {
    return list ? std::optional<IntSpan>(span_of(*list)) : std::nullopt;
}

// Nothing for the types that no pooling operator takes.
inline std::optional<ElementType> element_type(const Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case ScalarType::Half:
            return ElementType::kFloat16;
        case ScalarType::BFloat16:
            return ElementType::kBFloat16;
        case ScalarType::Float:
            return ElementType::kFloat32;
        case ScalarType::Double:
            return ElementType::kFloat64;
        case ScalarType::Char:
            return ElementType::kInt8;
        case ScalarType::Byte:
            return ElementType::kUInt8;
        default:
            return std::nullopt;
    }
}

// As Python and ONNX call it. What torch calls the others in C++ differs from that by capitals only.
inline std::string type_name(ScalarType type) {
    constexpr std::pair<ScalarType, const char*> names[] = {
        {ScalarType::Byte, "uint8"},
        {ScalarType::Char, "int8"},
        {ScalarType::Short, "int16"},
        {ScalarType::Int, "int32"},
        {ScalarType::Long, "int64"},
        {ScalarType::Half, "float16"},
        {ScalarType::Float, "float32"},
        {ScalarType::Double, "float64"},
        {ScalarType::ComplexHalf, "complex32"},
        {ScalarType::ComplexFloat, "complex64"},
        {ScalarType::ComplexDouble, "complex128"},
    };
    for (const auto& [known, name] : names) {
        if (known == type) return name;
    }
    std::string name = toString(type);
    for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return name;
}

inline std::string type_name(const Tensor& tensor) { return type_name(tensor.scalar_type()); }

// As torch prints it: "cpu" or "cuda:1".
inline std::string device_name(const Tensor& tensor) {
#if defined(TORCH_ONNXPOOL_ATEN)
    return tensor.device().str();
#else
    if (tensor.is_cpu()) return "cpu";
    return (tensor.is_cuda() ? "cuda:" : "device ") + std::to_string(tensor.get_device_index());
#endif
}

inline Tensor contiguous_copy(const Tensor& tensor) {
#if defined(TORCH_ONNXPOOL_ATEN)
    return tensor.contiguous();
#else
    try {
        return torch::stable::contiguous(tensor);
    } catch (const std::exception&) {
        if (tensor.is_cpu()) throw std::bad_alloc();  // nothing else can be missing
        throw;
    }
#endif
}

// An uninitialised tensor on the device of `like`.
inline Tensor empty_strided(const IntSpan& sizes, const IntSpan& strides, ScalarType type, const Tensor& like) {
#if defined(TORCH_ONNXPOOL_ATEN)
    return at::empty_strided(IntList(sizes.values, sizes.size), IntList(strides.values, strides.size),
                             like.options().dtype(type));
#else
    // Through the C shim, since it takes any strides and costs 1 us less than torch::stable::new_empty.
    const auto dtype = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
    int32_t device_type = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
    AtenTensorHandle handle = nullptr;
    const AOTITorchError error = aoti_torch_empty_strided(sizes.size, sizes.values, strides.values, dtype, device_type,
                                                          like.get_device_index(), &handle);
    // Sizes and strides are valid: on the CPU, only memory can be missing.
    if (error != AOTI_TORCH_SUCCESS && like.is_cpu()) throw std::bad_alloc();
    TORCH_ERROR_CODE_CHECK(error);
    return Tensor(handle);
#endif
}

template <class Function>
void parallel_for(int64_t end, int64_t grain_size, const Function& function) {
#if defined(TORCH_ONNXPOOL_ATEN)
    at::parallel_for(0, end, grain_size, function);
#else
    if (end <= grain_size) {  // not worth a call across the shim
        if (end > 0) function(0, end);
        return;
    }
    torch::stable::parallel_for(0, end, grain_size, function);
#endif
}

}  // namespace onnxpool

#if !defined(TORCH_ONNXPOOL_ATEN)
template <>
struct torch::stable::detail::ToImpl<onnxpool::OwnedText> {
    static onnxpool::OwnedText call(StableIValue argument, uint64_t, bool) {
        return onnxpool::OwnedText(torch::stable::detail::to<StringHandle>(argument));
    }
};
#endif
