// The package's operators on CPU tensors, computed by the emulated CUDA kernels. Loading this library replaces the CPU
// kernels.
#include "../../csrc/bindings.h"

#include "../../csrc/cuda/kernels.h"

namespace onnxpool::device {
namespace {

// Runs `call` with memory that is kept until the end.
template <class Run>
auto with_context(Run run) {
    std::vector<std::unique_ptr<char[]>> memory;
    return run(cuda::Context{nullptr, [&](int64_t bytes) {
                                 memory.emplace_back(new char[bytes]);
                                 return std::memset(memory.back().get(), 0xff, bytes);  // NaN
                             }});
}

}  // namespace

const bool kNeedsLines = false;

bool forward(Reduction reduction, const Call& call, const Tensor&) {
    return with_context([&](const auto& context) { return cuda::forward(reduction, call, context); });
}

bool backward(Reduction reduction, const Call& call, const Tensor&) {
    return with_context([&](const auto& context) { return cuda::backward(reduction, call, context); });
}

std::optional<int64_t> unpool(const Unpooling& call, const Tensor&) {
    return with_context([&](const auto& context) { return cuda::unpool(call, context); });
}

std::optional<int64_t> unpool_backward(const Unpooling& call, const Tensor&) {
    return with_context([&](const auto& context) { return cuda::unpool_backward(call, context); });
}

void read(std::initializer_list<Scalar> scalars) {
    for (const Scalar& scalar : scalars) std::memcpy(scalar.value, scalar.tensor.const_data_ptr(), scalar.bytes);
}

}  // namespace onnxpool::device

ONNXPOOL_LIBRARY_IMPL(CPU, library) { onnxpool::register_operators(library); }
