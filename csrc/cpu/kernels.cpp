// Picks the kernels of one instruction set at run time.
#include <cstdlib>
#include <string_view>

#include "instruction_sets.h"

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
