// Picks the kernels of one instruction set at run time.
#include <cstdlib>
#include <string_view>

#include "instruction_sets.h"

namespace onnxpool::cpu {

namespace {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

InstructionSet choose_instruction_set() {
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
    if (allows_avx512 && has_avx512) return InstructionSet::kAvx512;
    if (allows_avx2 && has_avx2) return InstructionSet::kAvx2;
#endif
    return InstructionSet::kBaseline;
}

InstructionSet best_instruction_set() {
    static const InstructionSet best = choose_instruction_set();
    return best;
}

template <Reduction kReduction>
Plans find_plans(const Call& call) {
#if defined(ONNXPOOL_X86)
    const InstructionSet best = best_instruction_set();
    if (best == InstructionSet::kAvx512) return avx512::find_plans<kReduction>(call);
    if (best == InstructionSet::kAvx2) return avx2::find_plans<kReduction>(call);
#endif
    return baseline::find_plans<kReduction>(call);
}

Plans plans_for(Reduction reduction, const Call& call) {
    switch (reduction) {
        case Reduction::kAverage:
            return find_plans<Reduction::kAverage>(call);
        case Reduction::kLpNorm:
            return find_plans<Reduction::kLpNorm>(call);
        case Reduction::kMax:
            return find_plans<Reduction::kMax>(call);
        case Reduction::kMaxWithIndex:
            return find_plans<Reduction::kMaxWithIndex>(call);
        case Reduction::kQuantizedAverage:
            return find_plans<Reduction::kQuantizedAverage>(call);
        case Reduction::kQuantizedGlobalAverage:
            return find_plans<Reduction::kQuantizedGlobalAverage>(call);
    }
    return {};
}

}  // namespace

Task plan_forward(Reduction reduction, const Call& call) {
    const Plan plan = plans_for(reduction, call).forward;
    return plan ? plan(call) : Task{};
}

Task plan_backward(Reduction reduction, const Call& call) {
    const Plan plan = plans_for(reduction, call).backward;
    return plan ? plan(call) : Task{};
}

}  // namespace onnxpool::cpu
