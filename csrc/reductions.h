// What a window computes from its data, element by element, and the derivative of that.
// Used by forward and backward, on CPU and GPU; free of torch headers. The formulas are those of the ONNX operator
// text.
//
// A reduction R offers
//   R::Element, R::Accumulator
//   identity()       the accumulator of no data, for combine()
//   lift(x)          the accumulator of one datum; lift(x, i) where R::kIndexed: of the datum at position i
//   combine(a, b)    the accumulator of all that a and b stand for, a before b; where R::kInOrder, of neighbours in
//                    row-major order only
//   finish(a)        the result of a window that has data; where R::kDivides, a has been divided by the number of taps
//                    that count
//   empty()          the result of a window that has none
// and, where R::kDifferentiable,
//   gradient(grad_y, x, y)    what one window adds to the gradient of its datum x; where R::kDivides, grad_y has been
//                             divided likewise; only where R::kGradientNeedsData are x and y given
// Where R::kOfPlanes, all windows are whole planes.
// An indexed reduction needs no gradient(): the window's gradient goes to the element that its index names.
// Unless the reduction is indexed, lift(), combine() and finish() take vectors as well as single elements and
// accumulators (V stands for either).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>
#include <utility>

#include "element_types.h"

namespace onnxpool {

// Which taps of a window an average divides by: the data, data and declared padding, or all of them.
enum class Divisor { kData, kDeclared, kKernel };

// The parameters of all reductions: element type, attributes and quantisation, ready to use.
struct Parameters {
    ElementType element_type;
    Divisor divisor = Divisor::kData;
    double p = 2.0;
    float x_scale = 1.0f;
    float y_scale = 1.0f;
    int32_t x_zero_point = 0;
    int32_t y_zero_point = 0;
    int64_t plane_size = 0;  // of QLinearGlobalAveragePool

    explicit Parameters(ElementType element_type) : element_type(element_type) {}
};

// What turns a sum of a plane's quantised elements into their quantised average.
ONNXPOOL_HOST_DEVICE inline float requantization_scale(const Parameters& parameters) {
    return parameters.x_scale / (parameters.y_scale * static_cast<float>(parameters.plane_size));
}

#include "values.inl"
// values.inl comes first
#include "reductions.inl"

}  // namespace onnxpool
