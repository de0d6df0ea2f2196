// From run-time to compile-time types, of the reduction that ONNXPOOL_REDUCTION names: kernels take minutes to compile,
// so that setup.py has each reduction compiled by itself. After kernels.inl, in the same files.

namespace onnxpool::cpu::ONNXPOOL_ISA {

template <class R>
constexpr Plans plans_of() {
    return {plan_forward_of<R>, plan_backward_of<R>};
}

template <template <class> class R>
Plans for_floating_point(ElementType type) {
    switch (type) {
        case ElementType::kFloat16:
            return plans_of<R<Half>>();
        case ElementType::kBFloat16:
            return plans_of<R<BFloat16>>();
        case ElementType::kFloat32:
            return plans_of<R<float>>();
        case ElementType::kFloat64:
            return plans_of<R<double>>();
        default:
            return {};
    }
}

template <template <class> class R>
Plans for_bytes(ElementType type) {
    switch (type) {
        case ElementType::kInt8:
            return plans_of<R<int8_t>>();
        case ElementType::kUInt8:
            return plans_of<R<uint8_t>>();
        default:
            return {};
    }
}

template <class T>
using L2Norm = LpNorm<T, 2>;
template <class T>
using OtherWholeNorm = LpNorm<T, kOneThreeOrFour>;
template <class T>
using AnyNorm = LpNorm<T>;

template <Reduction kReduction>
Plans find_plans(ElementType type, [[maybe_unused]] const Call& call) {
    if constexpr (kReduction == Reduction::kAverage) {
        return for_floating_point<Average>(type);
    } else if constexpr (kReduction == Reduction::kLpNorm) {
        const double p = call.parameters.p;
        if (p == 2) return for_floating_point<L2Norm>(type);
        if (p == 1 || p == 3 || p == 4) return for_floating_point<OtherWholeNorm>(type);
        return for_floating_point<AnyNorm>(type);
    } else if constexpr (kReduction == Reduction::kMax) {
        return is_byte(type) ? for_bytes<Max>(type) : for_floating_point<Max>(type);
    } else if constexpr (kReduction == Reduction::kMaxWithIndex) {
        return is_byte(type) ? for_bytes<MaxWithIndex>(type) : for_floating_point<MaxWithIndex>(type);
    } else if constexpr (kReduction == Reduction::kQuantizedAverage) {
        return for_bytes<QuantizedAverage>(type);
    } else {
        static_assert(kReduction == Reduction::kQuantizedGlobalAverage);
        return for_bytes<QuantizedGlobalAverage>(type);
    }
}

template Plans find_plans<Reduction::ONNXPOOL_REDUCTION>(ElementType type, const Call& call);

}  // namespace onnxpool::cpu::ONNXPOOL_ISA
