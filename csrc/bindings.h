// The binding of every operator, whatever the device: turns tensors and attributes into one validated geometry and has
// the device run its kernel over it. Included once for each device, by the file that defines onnxpool::device.
#pragma once

#include <algorithm>
#include <cmath>

#include "attributes_text.h"
#include "kernels.h"
#include "operators.h"
#include "tensor.h"

namespace onnxpool {

// What the bindings need of a device. `on` is a tensor of it: several GPUs are one device here.
namespace device {

// Whether kernels are fast only where rows, or channels, lie next to each other in memory.
extern const bool kNeedsLines;

// Whether there is a kernel for the reduction and the type, which has then been run, or enqueued.
bool forward(Reduction reduction, const Call& call, const Tensor& on);
bool backward(Reduction reduction, const Call& call, const Tensor& on);

// An index that names no element of the whole tensor, if there is one; otherwise it is done.
std::optional<int64_t> unpool(const Unpooling& call, const Tensor& on);
std::optional<int64_t> unpool_backward(const Unpooling& call, const Tensor& on);

// Where the only element of a tensor, which lives here or on the CPU, is wanted.
struct Scalar {
    template <class T>
    Scalar(const Tensor& tensor, T* value) : tensor(tensor), value(value), bytes(sizeof(T)) {}

    const Tensor& tensor;
    void* value;
    size_t bytes;
};

void read(std::initializer_list<Scalar> scalars);

}  // namespace device

namespace {

// ---- Layouts ----

// The order in which a layout's memory holds the axes [N, C, D1, ..., Dr] of a tensor with `rank` of them, outermost
// first.
size_t contiguous_order(size_t i, size_t) { return i; }

size_t channels_last_order(size_t i, size_t rank) { return i == 0 ? 0 : i == rank - 1 ? 1 : i + 1; }

size_t column_major_order(size_t i, size_t rank) { return i < 2 ? i : rank + 1 - i; }

using Order = size_t (*)(size_t, size_t);

Dimensions dense_strides(const Dimensions& shape, Order axis_at) {
    Dimensions strides(shape.size());
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
        const size_t axis = axis_at(i, shape.size());
        strides[axis] = stride;
        stride *= std::max<int64_t>(1, shape[axis]);
    }
    return strides;
}

// Whether the elements of a plane follow each other. Strides along axes of one element say nothing.
bool has_dense_planes(const Dimensions& shape, const Dimensions& strides) {
    int64_t stride = 1;
    for (size_t axis = shape.size(); axis-- > 2;) {
        if (shape[axis] > 1 && strides[axis] != stride) return false;
        stride *= std::max<int64_t>(1, shape[axis]);
    }
    return true;
}

// Whether channels lie next to each other and positions do not: in tensors that are channels last and in views of them,
// which may leave gaps.
template <class List>
bool has_channels_last(const List& shape, const List& strides) {
    if (shape[1] <= 1 || strides[1] != 1) return false;
    size_t axis = shape.size() - 1;
    while (axis > 1 && shape[axis] == 1) --axis;
    return axis > 1 && strides[axis] != 1;
}

// Results take the layout of X: channels last or contiguous.
Tensor empty_like_layout(const Dimensions& shape, ScalarType type, const Tensor& X) {
    const bool channels_last = has_channels_last(X.sizes(), X.strides());
    const Dimensions strides = dense_strides(shape, channels_last ? channels_last_order : contiguous_order);
    return empty_strided(span_of(shape), span_of(strides), type, X);
}

// Strides of the values of Indices: flat over X, row-major, or with the first spatial axis fastest (storage_order = 1).
Dimensions index_strides(const Dimensions& shape, bool column_major) {
    return dense_strides(shape, column_major ? column_major_order : contiguous_order);
}

// ---- Inputs and their checks ----

IntSpan shape_of(const Tensor& tensor) { return {tensor.sizes().data(), tensor.dim()}; }

// X with its dimensions in the order [N, C, D1, ..., Dr], whatever the operator's own order.
struct Input {
    const Tensor& tensor;
    ElementType type;
    Dimensions shape;
    Dimensions strides;

    IntSpan spatial_shape() const { return {shape.data() + 2, static_cast<int64_t>(shape.size()) - 2}; }
};

Dimensions channels_first(const IntList& dimensions, bool channels_last) {
    Dimensions ordered(dimensions.begin(), dimensions.end());
    if (channels_last) std::rotate(ordered.begin() + 1, ordered.end() - 1, ordered.end());
    return ordered;
}

Dimensions operators_order(Dimensions dimensions, bool channels_last) {
    if (channels_last) std::rotate(dimensions.begin() + 1, dimensions.begin() + 2, dimensions.end());
    return dimensions;
}

Input checked_input(const Operator& op, const Tensor& X, bool channels_last = false) {
    const std::optional<ElementType> type = element_type(X);
    check_input(op, type, type_name(X), shape_of(X), channels_last);
    return {X, *type, channels_first(X.sizes(), channels_last), channels_first(X.strides(), channels_last)};
}

// An operand of a gradient has the shape and type that the forward pass gave it, and lives where X does.
void check_operand(const Operator& op, std::string_view name, const Tensor& tensor, const Dimensions& shape,
                   ScalarType type, const Tensor& X) {
    if (!std::equal(shape.begin(), shape.end(), tensor.sizes().begin(), tensor.sizes().end())) {
        refuse(op.name, name, " must have the shape ", span_of(shape), ", got ", name, " of shape ", shape_of(tensor));
    }
    if (tensor.scalar_type() != type) {
        refuse(op.name, name, " must be of type ", type_name(type), ", got ", name, " of type ", type_name(tensor));
    }
    if (tensor.device() != X.device()) {
        refuse(op.name, name, " must be on the device of X, ", device_name(X), ", got ", name, " on ",
               device_name(tensor));
    }
}

Dimensions output_shape(const Geometry& geometry) {
    Dimensions shape{geometry.batch, geometry.channels};
    for (int a = 0; a < geometry.rank; ++a) shape.push_back(geometry.axes[a].output);
    return shape;
}

// ---- Running kernels ----

Operand writable(const Tensor& tensor) { return {tensor.mutable_data_ptr(), tensor.strides().data()}; }

Operand read_only(const Tensor& tensor) {
    return {const_cast<void*>(tensor.const_data_ptr()), tensor.strides().data()};
}

using Run = decltype(&device::forward);

void run(Run kernel, const Operator& op, const Call& call, const Input& input) {
    if (!kernel(op.reduction, call, input.tensor)) {
        refuse(op.name, "there is no kernel for X of type ", type_name(input.tensor));
    }
}

// X for kernels to read. Looking at elements one by one, unless over channels, takes longer than copying them to where
// they are next to each other.
Tensor readable(const Input& input, bool is_one_by_one) {
    const bool is_copied = device::kNeedsLines && is_one_by_one && !has_channels_last(input.shape, input.strides);
    return is_copied ? contiguous_copy(input.tensor) : input.tensor;
}

// Vectors run over channels where those lie next to each other in X and in the result.
template <class List>
bool channels_innermost(const Dimensions& shape, const Dimensions& x_strides, const List& result_strides) {
    return shape[1] > 1 && x_strides[1] == 1 && result_strides[1] == 1;
}

Parameters parameters_of(const Input& input, const PoolAttributes& attributes) {
    Parameters parameters(input.type);
    if (attributes.count_include_pad) parameters.divisor = Divisor::kDeclared;
    parameters.p = attributes.p;
    return parameters;
}

// Y, and Indices where the operator has them.
Tensor forward(const Operator& op, const Input& input, const PoolAttributes& attributes, const Parameters& parameters,
               bool channels_last = false, Tensor* indices = nullptr) {
    const Geometry geometry = resolve_geometry(attributes, span_of(input.shape));
    const Dimensions shape = operators_order(output_shape(geometry), channels_last);
    const Tensor X = readable(input, input.strides.back() != 1);
    const Dimensions x_strides = channels_first(X.strides(), channels_last);
    Tensor Y = empty_like_layout(shape, X.scalar_type(), input.tensor);
    const Dimensions y_strides = channels_first(Y.strides(), channels_last);

    Call call(geometry, parameters);
    call.channels_innermost = channels_innermost(input.shape, x_strides, y_strides);
    call.x = {const_cast<void*>(X.const_data_ptr()), x_strides.data()};
    call.y = {Y.mutable_data_ptr(), y_strides.data()};
    Dimensions flat;
    if (indices) {
        *indices = empty_like_layout(shape, ScalarType::Long, input.tensor);
        flat = index_strides(input.shape, attributes.column_major_indices);
        call.index_strides = flat.data();
        call.indices = writable(*indices);
    }
    run(device::forward, op, call, input);
    return Y;
}

Tensor forward(const Operator& op, const Input& input, const PoolAttributes& attributes, Tensor* indices = nullptr) {
    return forward(op, input, attributes, parameters_of(input, attributes), false, indices);
}

std::tuple<Tensor, Tensor> forward_with_indices(const Operator& op, const Input& input,
                                                const PoolAttributes& attributes) {
    Tensor indices;
    Tensor Y = forward(op, input, attributes, &indices);
    return {Y, indices};
}

// grad_X. `result` is what the derivative looks at: Y, Indices or nothing. It looks at X's data only with Y.
Tensor backward(const Operator& op, const Tensor& grad_Y, const Input& input, const Tensor* result,
                const PoolAttributes& attributes) {
    const Geometry geometry = resolve_geometry(attributes, span_of(input.shape));
    const Dimensions shape = output_shape(geometry);
    const bool indexed = op.reduction == Reduction::kMaxWithIndex;
    const ScalarType type = input.tensor.scalar_type();
    if (is_byte(input.type)) refuse(op.name, "there is no gradient for X of type ", type_name(type));
    check_operand(op, "grad_Y", grad_Y, shape, type, input.tensor);
    if (result) {
        check_operand(op, indexed ? "Indices" : "Y", *result, shape, indexed ? ScalarType::Long : type, input.tensor);
    }
    const bool reads_x = result && !indexed;
    const Tensor X = readable(input, reads_x && !has_dense_planes(input.shape, input.strides));
    Tensor grad_X = empty_like_layout(input.shape, type, input.tensor);

    Call call(geometry, parameters_of(input, attributes));
    call.channels_innermost = channels_innermost(input.shape, input.strides, grad_X.strides());
    if (reads_x) call.x = read_only(X);
    call.grad_y = read_only(grad_Y);
    call.grad_x = writable(grad_X);
    Dimensions flat;
    if (indexed) {
        flat = index_strides(input.shape, attributes.column_major_indices);
        call.index_strides = flat.data();
        call.indices = read_only(*result);
    } else if (result) {
        call.y = read_only(*result);
    }
    run(device::backward, op, call, input);
    return grad_X;
}

// ---- AveragePool, LpPool, MaxPool ----

PoolAttributes validate(const Operator& op, const Input& input, const GivenAttributes& given) {
    return validate_attributes(op.name, input.spatial_shape().size, given);
}

Tensor average_pool(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kAveragePool, X);
    return forward(kAveragePool, input, validate(kAveragePool, input, given));
}

Tensor average_pool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X) {
    const Input input = checked_input(kAveragePool, X);
    return backward(kAveragePool, grad_Y, input, nullptr, validate(kAveragePool, input, given));
}

Tensor lp_pool(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kLpPool, X);
    return forward(kLpPool, input, validate(kLpPool, input, given));
}

Tensor lp_pool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X, const Tensor& Y) {
    const Input input = checked_input(kLpPool, X);
    return backward(kLpPool, grad_Y, input, &Y, validate(kLpPool, input, given));
}

Tensor max_pool(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kMaxPool, X);
    return forward(kMaxPool, input, validate(kMaxPool, input, given));
}

std::tuple<Tensor, Tensor> max_pool_with_indices(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kMaxPoolWithIndices, X);
    return forward_with_indices(kMaxPoolWithIndices, input, validate(kMaxPoolWithIndices, input, given));
}

Tensor max_pool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X, const Tensor& Indices) {
    const Input input = checked_input(kMaxPoolWithIndices, X);
    return backward(kMaxPoolWithIndices, grad_Y, input, &Indices, validate(kMaxPoolWithIndices, input, given));
}

// ---- GlobalAveragePool, GlobalLpPool, GlobalMaxPool ----

PoolAttributes whole_plane(const Operator& op, const Input& input, const GivenAttributes& given) {
    return global_attributes(op.name, input.spatial_shape(), given.p);
}

Tensor global_average_pool(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kGlobalAveragePool, X);
    return forward(kGlobalAveragePool, input, whole_plane(kGlobalAveragePool, input, given));
}

Tensor global_average_pool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X) {
    const Input input = checked_input(kGlobalAveragePool, X);
    return backward(kGlobalAveragePool, grad_Y, input, nullptr, whole_plane(kGlobalAveragePool, input, given));
}

Tensor global_lp_pool(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kGlobalLpPool, X);
    return forward(kGlobalLpPool, input, whole_plane(kGlobalLpPool, input, given));
}

Tensor global_lp_pool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X, const Tensor& Y) {
    const Input input = checked_input(kGlobalLpPool, X);
    return backward(kGlobalLpPool, grad_Y, input, &Y, whole_plane(kGlobalLpPool, input, given));
}

Tensor global_max_pool(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kGlobalMaxPool, X);
    return forward(kGlobalMaxPool, input, whole_plane(kGlobalMaxPool, input, given));
}

std::tuple<Tensor, Tensor> global_max_pool_with_indices(const GivenAttributes& given, const Tensor& X) {
    const Input input = checked_input(kGlobalMaxPoolWithIndices, X);
    return forward_with_indices(kGlobalMaxPoolWithIndices, input, whole_plane(kGlobalMaxPoolWithIndices, input, given));
}

Tensor global_max_pool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X,
                                const Tensor& Indices) {
    const Input input = checked_input(kGlobalMaxPoolWithIndices, X);
    return backward(kGlobalMaxPoolWithIndices, grad_Y, input, &Indices,
                    whole_plane(kGlobalMaxPoolWithIndices, input, given));
}

// ---- QLinearAveragePool, QLinearGlobalAveragePool ----

void check_scalar(const Operator& op, std::string_view name, const Tensor& tensor, ScalarType type, const Tensor& X) {
    if (tensor.dim() > 1 || tensor.numel() != 1) {
        refuse(op.name, name, " must be a scalar or of shape [1], got ", name, " of shape ", shape_of(tensor));
    }
    if (tensor.scalar_type() != type) {
        refuse(op.name, name, " must be of type ", type_name(type), ", got ", name, " of type ", type_name(tensor));
    }
    if (!tensor.is_cpu() && tensor.device() != X.device()) {
        refuse(op.name, name, " must be on the CPU or on the device of X, ", device_name(X), ", got ", name, " on ",
               device_name(tensor));
    }
}

Parameters quantization(const Operator& op, const Input& input, const Tensor& x_scale, const Tensor& x_zero_point,
                        const Tensor& y_scale, const Tensor& y_zero_point) {
    const Tensor& X = input.tensor;
    check_scalar(op, "x_scale", x_scale, ScalarType::Float, X);
    check_scalar(op, "x_zero_point", x_zero_point, X.scalar_type(), X);
    check_scalar(op, "y_scale", y_scale, ScalarType::Float, X);
    check_scalar(op, "y_zero_point", y_zero_point, X.scalar_type(), X);
    Parameters parameters(input.type);
    uint8_t x_zero = 0, y_zero = 0;
    device::read({{x_scale, &parameters.x_scale},
                  {x_zero_point, &x_zero},
                  {y_scale, &parameters.y_scale},
                  {y_zero_point, &y_zero}});
    const bool is_signed = input.type == ElementType::kInt8;
    parameters.x_zero_point = is_signed ? static_cast<int8_t>(x_zero) : x_zero;
    parameters.y_zero_point = is_signed ? static_cast<int8_t>(y_zero) : y_zero;
    for (float scale : {parameters.x_scale, parameters.y_scale}) {
        if (!std::isfinite(scale) || scale == 0) {
            refuse(op.name, "scales must be finite and not 0, got x_scale=", parameters.x_scale,
                   " and y_scale=", parameters.y_scale);
        }
    }
    return parameters;
}

// The average of whole planes. QLinearAveragePool takes this way too where its window is the plane.
Tensor quantized_plane_average(const Operator& op, const Input& input, Parameters parameters, bool channels_last) {
    constexpr int64_t plane_limit = int64_t{1} << 24;  // beyond it float32 cannot count the elements
    parameters.plane_size = 1;
    for (int64_t size : input.spatial_shape()) {
        if (__builtin_mul_overflow(parameters.plane_size, size, &parameters.plane_size) ||
            parameters.plane_size >= plane_limit) {
            refuse(op.name, "a plane must have fewer than 2^24 elements, got X of shape ", shape_of(input.tensor));
        }
    }
    const float scale = requantization_scale(parameters);
    if (!(scale >= 0x1p-32f && scale < 256.0f)) {
        refuse(op.name, "x_scale / (y_scale * elements of a plane) must be in [2^-32, 256), got ", scale,
               " from x_scale=", parameters.x_scale, ", y_scale=", parameters.y_scale, " and ", parameters.plane_size,
               " elements");
    }
    const PoolAttributes attributes = global_attributes(op.name, input.spatial_shape());
    return forward(kQLinearGlobalAveragePool, input, attributes, parameters, channels_last);
}

bool spans_plane(const PoolAttributes& attributes, const Input& input) {
    const Geometry geometry = resolve_geometry(attributes, span_of(input.shape));
    return std::all_of(geometry.axes, geometry.axes + geometry.rank, [](const Axis& axis) {
        return axis.output == 1 && axis.kernel == axis.input && axis.pad_begin == 0 && axis.pad_end == 0;
    });
}

Tensor qlinear_average_pool(const GivenAttributes& given, const Tensor& X, const Tensor& x_scale,
                            const Tensor& x_zero_point, const Tensor& y_scale, const Tensor& y_zero_point) {
    const Operator& op = kQLinearAveragePool;
    const bool channels_last = detail::check_flag(op.name, "channels_last", given.channels_last);
    const Input input = checked_input(op, X, channels_last);
    const PoolAttributes attributes = validate(op, input, given);
    Parameters parameters = quantization(op, input, x_scale, x_zero_point, y_scale, y_zero_point);
    if (spans_plane(attributes, input)) return quantized_plane_average(op, input, parameters, channels_last);
    if (attributes.count_include_pad) parameters.divisor = Divisor::kKernel;
    return forward(op, input, attributes, parameters, channels_last);
}

Tensor qlinear_global_average_pool(const GivenAttributes& given, const Tensor& X, const Tensor& x_scale,
                                   const Tensor& x_zero_point, const Tensor& y_scale, const Tensor& y_zero_point) {
    const Operator& op = kQLinearGlobalAveragePool;
    const bool channels_last = detail::check_flag(op.name, "channels_last", given.channels_last);
    const Input input = checked_input(op, X, channels_last);
    const Parameters parameters = quantization(op, input, x_scale, x_zero_point, y_scale, y_zero_point);
    return quantized_plane_average(op, input, parameters, channels_last);
}

// ---- MaxUnpool ----

// The shape of Y: as given, or inferred from X by turning MaxPool's size around.
Dimensions unpooled_shape(const Input& input, const GivenAttributes& given) {
    const Operator& op = kMaxUnpool;
    const PoolAttributes attributes = validate(op, input, given);
    Dimensions shape{input.shape[0], input.shape[1]};
    for (int a = 0; a < attributes.rank; ++a) {
        const AxisAttributes& axis = attributes.axes[a];
        int64_t size = 0;
        if (__builtin_mul_overflow(input.shape[2 + a] - 1, axis.stride, &size) || size >= kMaxSize) {
            refuse(op.name, "the output must be addressable in 64 bits, got strides ", *given.strides,
                   " for X of shape ", span_of(input.shape));
        }
        shape.push_back(size - axis.pad_begin - axis.pad_end + axis.kernel);
    }
    if (given.output_shape) {
        const IntSpan& wanted = *given.output_shape;
        if (wanted.size != static_cast<int64_t>(shape.size()) || wanted[0] != shape[0] || wanted[1] != shape[1]) {
            refuse(op.name, "output_shape must be [N, C, D1, ...] with the N and C of X, got output_shape=", wanted,
                   " for X of shape ", span_of(input.shape));
        }
        shape = Dimensions(wanted.begin(), wanted.end());
    }
    int64_t bytes = 8;
    for (size_t i = 0; i < shape.size(); ++i) {
        if (i > 0 && shape[i] < 1) {
            refuse(op.name, "the output must not be empty, got the shape ", span_of(shape), " for X of shape ",
                   span_of(input.shape));
        }
        if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, shape[i]), &bytes)) {
            refuse(op.name, "the output must be addressable in 64 bits, got the shape ", span_of(shape));
        }
    }
    return shape;
}

// A call of an unpooling kernel; `whole` is the large tensor, Y or its gradient, `pooled` the small one.
Unpooling unpooling(const Input& input, const Tensor& indices, const Tensor& pooled, const Tensor& whole) {
    const auto rank = static_cast<int>(input.shape.size());
    return {rank,
            static_cast<int>(element_size(input.type)),
            input.shape.data(),
            whole.sizes().data(),
            {const_cast<void*>(pooled.const_data_ptr()), pooled.strides().data()},
            read_only(indices),
            {const_cast<void*>(whole.const_data_ptr()), whole.strides().data()}};
}

using Unpool = decltype(&device::unpool);

void run(Unpool kernel, const Unpooling& call, const Tensor& X) {
    if (const std::optional<int64_t> outside = kernel(call, X)) {
        refuse(kMaxUnpool.name, "I must name elements of the output, got the index ", *outside,
               " for an output of shape ", IntSpan{call.whole_shape, call.rank});
    }
}

Tensor max_unpool(const GivenAttributes& given, const Tensor& X, const Tensor& I) {
    const Input input = checked_input(kMaxUnpool, X);
    const Dimensions shape = unpooled_shape(input, given);
    check_operand(kMaxUnpool, "I", I, input.shape, ScalarType::Long, X);
    Tensor Y = empty_like_layout(shape, X.scalar_type(), X);
    run(device::unpool, unpooling(input, I, X, Y), X);
    return Y;
}

Tensor max_unpool_backward(const GivenAttributes& given, const Tensor& grad_Y, const Tensor& X, const Tensor& I) {
    const Input input = checked_input(kMaxUnpool, X);
    check_operand(kMaxUnpool, "grad_Y", grad_Y, unpooled_shape(input, given), X.scalar_type(), X);
    check_operand(kMaxUnpool, "I", I, input.shape, ScalarType::Long, X);
    Tensor grad_X = empty_like_layout(input.shape, X.scalar_type(), X);
    run(device::unpool_backward, unpooling(input, I, grad_X, grad_Y), X);
    return grad_X;
}

// ---- The two overloads of an operator ----

// Attributes as the arguments of a schema (ops.cpp).

GivenAttributes window_attributes(IntList kernel_shape, Text auto_pad, int64_t ceil_mode, OptionalIntList dilations,
                                  OptionalIntList pads, OptionalIntList strides) {
    GivenAttributes given;
    given.kernel_shape = span_of(kernel_shape);
    given.auto_pad = auto_pad;
    given.ceil_mode = ceil_mode;
    given.dilations = span_of(dilations);
    given.pads = span_of(pads);
    given.strides = span_of(strides);
    return given;
}

GivenAttributes average_attributes(IntList kernel_shape, Text auto_pad, int64_t ceil_mode, int64_t count_include_pad,
                                   OptionalIntList dilations, OptionalIntList pads, OptionalIntList strides) {
    GivenAttributes given = window_attributes(kernel_shape, auto_pad, ceil_mode, dilations, pads, strides);
    given.count_include_pad = count_include_pad;
    return given;
}

GivenAttributes lp_attributes(IntList kernel_shape, Text auto_pad, int64_t ceil_mode, OptionalIntList dilations,
                              double p, OptionalIntList pads, OptionalIntList strides) {
    GivenAttributes given = window_attributes(kernel_shape, auto_pad, ceil_mode, dilations, pads, strides);
    given.p = p;
    return given;
}

GivenAttributes max_attributes(IntList kernel_shape, Text auto_pad, int64_t ceil_mode, OptionalIntList dilations,
                               OptionalIntList pads, int64_t storage_order, OptionalIntList strides) {
    GivenAttributes given = window_attributes(kernel_shape, auto_pad, ceil_mode, dilations, pads, strides);
    given.storage_order = storage_order;
    return given;
}

GivenAttributes no_attributes() { return {}; }

GivenAttributes global_lp_attributes(double p) {
    GivenAttributes given;
    given.p = p;
    return given;
}

GivenAttributes unpool_attributes(IntList kernel_shape, OptionalIntList output_shape, OptionalIntList pads,
                                  OptionalIntList strides) {
    GivenAttributes given;
    given.kernel_shape = span_of(kernel_shape);
    given.output_shape = span_of(output_shape);
    given.pads = span_of(pads);
    given.strides = span_of(strides);
    return given;
}

GivenAttributes quantized_global_attributes(int64_t channels_last) {
    GivenAttributes given;
    given.channels_last = channels_last;
    return given;
}

GivenAttributes quantized_attributes(IntList kernel_shape, Text auto_pad, int64_t ceil_mode, int64_t channels_last,
                                     int64_t count_include_pad, OptionalIntList pads, OptionalIntList strides) {
    GivenAttributes given =
        average_attributes(kernel_shape, auto_pad, ceil_mode, count_include_pad, std::nullopt, pads, strides);
    given.channels_last = channels_last;
    return given;
}

// The default overload, which compilers and exporters see: after the tensors, the arguments of `attributes`.
template <auto operation, auto attributes>
struct DefaultOverload;
template <class Result, class... Tensors, Result (*operation)(const GivenAttributes&, Tensors...), class... Arguments,
          GivenAttributes (*attributes)(Arguments...)>
struct DefaultOverload<operation, attributes> {
    static Result call(Tensors... tensors, Arguments... arguments) {
        return operation(attributes(arguments...), tensors...);
    }
};

// The one that eager mode calls: after the tensors, the attributes as one text.
template <auto operation>
struct EagerOverload;
template <class Result, class... Tensors, Result (*operation)(const GivenAttributes&, Tensors...)>
struct EagerOverload<operation> {
    static Result call(Tensors... tensors, Text attributes) {
        return operation(AttributesFromText(attributes).given(), tensors...);
    }
};

template <auto operation, auto attributes, class Library>
void register_operator(Library& library, const std::string& name) {
    library.impl(name.c_str(), ONNXPOOL_KERNEL((&DefaultOverload<operation, attributes>::call)));
    library.impl((name + ".eager").c_str(), ONNXPOOL_KERNEL((&EagerOverload<operation>::call)));
}

// To be called by ONNXPOOL_LIBRARY_IMPL of the device's dispatch key.
template <class Library>
void register_operators(Library& library) {
    register_operator<average_pool, average_attributes>(library, "average_pool");
    register_operator<average_pool_backward, average_attributes>(library, "average_pool_backward");
    register_operator<lp_pool, lp_attributes>(library, "lp_pool");
    register_operator<lp_pool_backward, lp_attributes>(library, "lp_pool_backward");
    register_operator<max_pool, max_attributes>(library, "max_pool");
    register_operator<max_pool_with_indices, max_attributes>(library, "max_pool_with_indices");
    register_operator<max_pool_backward, max_attributes>(library, "max_pool_backward");
    register_operator<global_average_pool, no_attributes>(library, "global_average_pool");
    register_operator<global_average_pool_backward, no_attributes>(library, "global_average_pool_backward");
    register_operator<global_lp_pool, global_lp_attributes>(library, "global_lp_pool");
    register_operator<global_lp_pool_backward, global_lp_attributes>(library, "global_lp_pool_backward");
    register_operator<global_max_pool, no_attributes>(library, "global_max_pool");
    register_operator<global_max_pool_with_indices, no_attributes>(library, "global_max_pool_with_indices");
    register_operator<global_max_pool_backward, no_attributes>(library, "global_max_pool_backward");
    register_operator<max_unpool, unpool_attributes>(library, "max_unpool");
    register_operator<max_unpool_backward, unpool_attributes>(library, "max_unpool_backward");
    register_operator<qlinear_average_pool, quantized_attributes>(library, "qlinear_average_pool");
    register_operator<qlinear_global_average_pool, quantized_global_attributes>(library, "qlinear_global_average_pool");
}

}  // namespace
}  // namespace onnxpool
