// The operators on NVIDIA GPUs: kernels enqueued on torch's current stream. A library of its own, since only a torch
// that has CUDA can load it.
#include "../bindings.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <list>

#if defined(TORCH_ONNXPOOL_ATEN)
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#else
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#endif

#include "kernels.h"

namespace onnxpool::device {

namespace {

#if defined(TORCH_ONNXPOOL_ATEN)
using Guard = c10::DeviceGuard;

c10::Device guarded(const Tensor& on) { return on.device(); }

cudaStream_t current_stream(int index) { return c10::cuda::getCurrentCUDAStream(static_cast<int8_t>(index)); }
#else
using Guard = torch::stable::accelerator::DeviceGuard;

int guarded(const Tensor& on) { return on.device().index(); }

cudaStream_t current_stream(int index) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &stream));
    return static_cast<cudaStream_t>(stream);
}
#endif

// One call on the GPU of a tensor: makes it the current one, and owns the memory that the kernels ask for. torch's
// allocator gives such memory again only to what follows on the same stream, so it may be released at once.
class OnGpu {
public:
    explicit OnGpu(const Tensor& on)
        : guard_(guarded(on)),
          context_{current_stream(on.device().index()), [this, &on](int64_t bytes) {
                       scratch_.push_back(
                           empty_strided(span_of(Dimensions{bytes}), span_of(Dimensions{1}), ScalarType::Byte, on));
                       return scratch_.back().mutable_data_ptr();
                   }} {}
    OnGpu(const OnGpu&) = delete;

    const cuda::Context& context() const { return context_; }

private:
    Guard guard_;
    std::list<Tensor> scratch_;
    cuda::Context context_;
};

}  // namespace

const bool kNeedsLines = false;

bool forward(Reduction reduction, const Call& call, const Tensor& on) {
    return cuda::forward(reduction, call, OnGpu(on).context());
}

bool backward(Reduction reduction, const Call& call, const Tensor& on) {
    return cuda::backward(reduction, call, OnGpu(on).context());
}

std::optional<int64_t> unpool(const Unpooling& call, const Tensor& on) {
    return cuda::unpool(call, OnGpu(on).context());
}

std::optional<int64_t> unpool_backward(const Unpooling& call, const Tensor& on) {
    return cuda::unpool_backward(call, OnGpu(on).context());
}

void read(std::initializer_list<Scalar> scalars) {
    const Tensor* on_gpu = nullptr;
    for (const Scalar& scalar : scalars) {
        if (scalar.tensor.is_cpu()) {
            std::memcpy(scalar.value, scalar.tensor.const_data_ptr(), scalar.bytes);
        } else {
            on_gpu = &scalar.tensor;
        }
    }
    if (!on_gpu) return;
    const OnGpu gpu(*on_gpu);
    const cudaStream_t stream = gpu.context().stream;
    cudaStreamCaptureStatus capturing;
    cuda::check(cudaStreamIsCapturing(stream, &capturing));
    if (capturing != cudaStreamCaptureStatusNone) {
        throw std::runtime_error(
            "torch_onnxpool: scales and zero points must be on the CPU while a CUDA graph is captured");
    }
    for (const Scalar& scalar : scalars) {
        if (scalar.tensor.is_cpu()) continue;
        cuda::check(cudaMemcpyAsync(scalar.value, scalar.tensor.const_data_ptr(), scalar.bytes, cudaMemcpyDeviceToHost,
                                    stream));
    }
    cuda::check(cudaStreamSynchronize(stream));
}

}  // namespace onnxpool::device

ONNXPOOL_LIBRARY_IMPL(CUDA, library) { onnxpool::register_operators(library); }
