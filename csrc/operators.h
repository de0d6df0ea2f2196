// The operators and what all of them ask of X. Free of torch headers.
#pragma once

#include <optional>
#include <string_view>

#include "attributes.h"
#include "element_types.h"
#include "kernels.h"

namespace onnxpool {

enum class Types { kFloatingPoint, kFloatingPointOrBytes, kBytes };

struct Operator {
    std::string_view name;
    Reduction reduction;
    Types types;
};

inline constexpr Operator kAveragePool{"AveragePool", Reduction::kAverage, Types::kFloatingPoint};
inline constexpr Operator kLpPool{"LpPool", Reduction::kLpNorm, Types::kFloatingPoint};
inline constexpr Operator kMaxPool{"MaxPool", Reduction::kMax, Types::kFloatingPointOrBytes};
inline constexpr Operator kMaxPoolWithIndices{"MaxPool", Reduction::kMaxWithIndex, Types::kFloatingPointOrBytes};
inline constexpr Operator kGlobalAveragePool{"GlobalAveragePool", Reduction::kAverage, Types::kFloatingPoint};
inline constexpr Operator kGlobalLpPool{"GlobalLpPool", Reduction::kLpNorm, Types::kFloatingPoint};
inline constexpr Operator kGlobalMaxPool{"GlobalMaxPool", Reduction::kMax, Types::kFloatingPoint};
inline constexpr Operator kGlobalMaxPoolWithIndices{"GlobalMaxPool", Reduction::kMaxWithIndex, Types::kFloatingPoint};
inline constexpr Operator kMaxUnpool{"MaxUnpool", Reduction::kMax, Types::kFloatingPoint};
inline constexpr Operator kQLinearAveragePool{"QLinearAveragePool", Reduction::kQuantizedAverage, Types::kBytes};
inline constexpr Operator kQLinearGlobalAveragePool{"QLinearGlobalAveragePool", Reduction::kQuantizedGlobalAverage,
                                                    Types::kBytes};

// Refuses types and shapes that no attributes make right; `type` is nothing for those that no operator takes. The shape
// is X's own, with the channels last or not.
inline void check_input(const Operator& op, std::optional<ElementType> type, std::string_view type_name, IntSpan shape,
                        bool channels_last) {
    if (!type || (is_byte(*type) ? op.types == Types::kFloatingPoint : op.types == Types::kBytes)) {
        refuse(op.name, "X must be of type ",
               op.types == Types::kBytes           ? "int8 or uint8"
               : op.types == Types::kFloatingPoint ? "float16, bfloat16, float32 or float64"
                                                   : "float16, bfloat16, float32, float64, int8 or uint8",
               ", got X of type ", type_name);
    }
    if (shape.size < 3) {
        refuse(op.name, "X must have at least 3 dimensions ", channels_last ? "[N, D1, ..., C]" : "[N, C, D1, ...]",
               ", got X of shape ", shape);
    }
    detail::check_rank(op.name, shape.size - 2);
    for (int64_t i = 0; i < shape.size; ++i) {
        if (i > 0 && shape[i] == 0) refuse(op.name, "only the batch dimension of X may be 0, got X of shape ", shape);
        if (shape[i] >= kMaxSize) refuse(op.name, "dimensions of X must be < ", kMaxSize, ", got X of shape ", shape);
    }
}

}  // namespace onnxpool
