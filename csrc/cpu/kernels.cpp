// Compiles kernels.inl for every instruction set and picks one at run time.
// Everything that kernels.inl uses is included here, before any target is set: its inline functions then belong to the
// baseline and may be inlined into any of the three.
#include "kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../window.h"

namespace onnxpool::cpu {

// What a set of kernels makes of a call; null where it cannot be done.
using Plan = Task (*)(const Call& call);

struct Plans {
    Plan forward = nullptr;
    Plan backward = nullptr;
};

}  // namespace onnxpool::cpu

#define ONNXPOOL_ISA baseline
#include "kernels.inl"
#undef ONNXPOOL_ISA

#if defined(__x86_64__) && defined(__GNUC__)
#define ONNXPOOL_X86 1

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif
#define ONNXPOOL_FUSED_MULTIPLY_ADD
#define ONNXPOOL_ISA avx2
#include "kernels.inl"
#undef ONNXPOOL_ISA
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#endif
#define ONNXPOOL_ISA avx512
#include "kernels.inl"
#undef ONNXPOOL_ISA
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // x86

namespace onnxpool::cpu {

namespace {

using FindPlans = decltype(&baseline::find_plans);

FindPlans choose_instruction_set() {
#if defined(ONNXPOOL_X86)
    const char* variable = std::getenv("ATEN_CPU_CAPABILITY");
    const std::string_view cap = variable ? variable : "avx512";
    const bool allows_avx2 = cap != "default";
    const bool allows_avx512 = allows_avx2 && cap != "avx2";
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (allows_avx512 && has_avx512) return avx512::find_plans;
    if (allows_avx2 && has_avx2) return avx2::find_plans;
#endif
    return baseline::find_plans;
}

Plans plans_for(Reduction reduction, ElementType type, const Call& call) {
    static const FindPlans find = choose_instruction_set();
    return find(reduction, type, call);
}

}  // namespace

Task plan_forward(Reduction reduction, ElementType type, const Call& call) {
    const Plan plan = plans_for(reduction, type, call).forward;
    return plan ? plan(call) : Task{};
}

Task plan_backward(Reduction reduction, ElementType type, const Call& call) {
    const Plan plan = plans_for(reduction, type, call).backward;
    return plan ? plan(call) : Task{};
}

}  // namespace onnxpool::cpu
