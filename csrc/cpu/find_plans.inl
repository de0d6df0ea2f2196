// From run-time to compile-time types, of the reduction that ONNXPOOL_REDUCTION names: kernels take minutes to compile,
// so that setup.py has each reduction compiled by itself. After kernels.inl, in the same files.

namespace onnxpool::cpu::ONNXPOOL_ISA {

template <class R>
constexpr Plans plans_of() {
    return {plan_forward_of<R>, plan_backward_of<R>};
}

template <template <class> class R>
Plans for_floating_point(const Call& call) {
    switch (call.parameters.element_type) {
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
Plans for_bytes(const Call& call) {
    switch (call.parameters.element_type) {
        case ElementType::kInt8:
            return plans_of<R<int8_t>>();
        case ElementType::kUInt8:
            return plans_of<R<uint8_t>>();
        default:
            return {};
    }
}

inline Plans for_maxima(const Call& call) {
    switch (call.parameters.element_type) {
        case ElementType::kFloat16:
        case ElementType::kBFloat16:
            return plans_of<HalfMax>();
        case ElementType::kFloat32:
            return plans_of<Max<float>>();
        case ElementType::kFloat64:
            return plans_of<Max<double>>();
        default:
            return plans_of<ByteMax>();
    }
}

template <class T>
using L2Norm = LpNorm<T, 2>;
template <class T>
using OtherWholeNorm = LpNorm<T, kOneThreeOrFour>;
template <class T>
using AnyNorm = LpNorm<T>;

template <Reduction kReduction>
Plans find_plans(const Call& call) {
    if constexpr (kReduction == Reduction::kAverage) {
        return for_floating_point<Average>(call);
    } else if constexpr (kReduction == Reduction::kLpNorm) {
        const double p = call.parameters.p;
        if (p == 2) return for_floating_point<L2Norm>(call);
        if (p == 1 || p == 3 || p == 4) return for_floating_point<OtherWholeNorm>(call);
        return for_floating_point<AnyNorm>(call);
    } else if constexpr (kReduction == Reduction::kMax) {
        return for_maxima(call);
    } else if constexpr (kReduction == Reduction::kMaxWithIndex) {
        return is_byte(call.parameters.element_type) ? for_bytes<MaxWithIndex>(call)
                                                     : for_floating_point<MaxWithIndex>(call);
    } else if constexpr (kReduction == Reduction::kQuantizedAverage) {
        return for_bytes<QuantizedAverage>(call);
    } else {
        static_assert(kReduction == Reduction::kQuantizedGlobalAverage);
        return for_bytes<QuantizedGlobalAverage>(call);
    }
}

template Plans find_plans<Reduction::ONNXPOOL_REDUCTION>(const Call& call);

}  // namespace onnxpool::cpu::ONNXPOOL_ISA
