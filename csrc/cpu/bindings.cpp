// The operators on the CPU: kernels run on torch's threads.
#include "../bindings.h"

#include <cstring>

#include "folded_call.h"
#include "kernels.h"
#include "unpool.h"

namespace onnxpool::device {

namespace {

constexpr double kElementsPerThread = 32768;  // with less work, a thread costs more than it brings

bool run(decltype(cpu::plan_forward) plan, Reduction reduction, const Call& whole) {
    const cpu::FoldedCall folded(whole);
    const Call& call = folded.call();
    const cpu::Task task = plan(reduction, call);
    if (!task.run) return false;
    if (task.units == 0) return true;  // then there is nothing that elements could be shared out among
    const auto units_per_thread = 1 + static_cast<int64_t>(kElementsPerThread / task.elements_per_unit);
    parallel_for(task.units, units_per_thread, [&](int64_t begin, int64_t end) { task.run(call, begin, end); });
    return true;
}

}  // namespace

const bool kNeedsLines = true;

bool forward(Reduction reduction, const Call& call, const Tensor&) { return run(cpu::plan_forward, reduction, call); }

bool backward(Reduction reduction, const Call& call, const Tensor&) { return run(cpu::plan_backward, reduction, call); }

std::optional<int64_t> unpool(const Unpooling& call, const Tensor&) {
    const std::optional<int64_t> outside = cpu::find_index_outside(call);
    if (!outside) cpu::unpool(call);
    return outside;
}

std::optional<int64_t> unpool_backward(const Unpooling& call, const Tensor&) {
    const std::optional<int64_t> outside = cpu::find_index_outside(call);
    if (!outside) cpu::unpool_backward(call);
    return outside;
}

void read(std::initializer_list<Scalar> scalars) {
    for (const Scalar& scalar : scalars) std::memcpy(scalar.value, scalar.tensor.const_data_ptr(), scalar.bytes);
}

}  // namespace onnxpool::device

ONNXPOOL_LIBRARY_IMPL(CPU, library) { onnxpool::register_operators(library); }
