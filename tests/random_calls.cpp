// Random calls of the CPU kernels of one instruction set, for sanitizers: memory ends where tensors do. Results and
// gradients are those of tensors with gaps, of which kernels look at one element after the other.
//
//   random_calls SEED CALLS
//
// Exits with 1 at the first difference, and says which call it is that differs, or that a sanitizer stops.
#include <sanitizer/common_interface_defs.h>
#include <cstdlib>
#include <iostream>
#include <random>
#include <sstream>
#include <string>

#include "../csrc/cpu/folded_call.h"
#include "../csrc/cpu/instruction_sets.h"

// The whole program is compiled for one instruction set, as the compiler's options say.
#if defined(__AVX512F__)
#define ONNXPOOL_VECTOR_BYTES 64
#define ONNXPOOL_AVX512
#define ONNXPOOL_ISA avx512
#elif defined(__AVX2__)
#define ONNXPOOL_VECTOR_BYTES 32
#define ONNXPOOL_ISA avx2
#else
#define ONNXPOOL_VECTOR_BYTES 16
#define ONNXPOOL_ISA baseline
#endif
#if defined(__AVX2__)
#define ONNXPOOL_FMA
#define ONNXPOOL_F16C
#endif
#define ONNXPOOL_LEAST_STREAMED_BYTES 20000  // small results as well, where channels fill lines of memory
static int64_t segment_size;                 // of rows that are done in segments: short ones as well
#define ONNXPOOL_SEGMENT ::segment_size
#include "../csrc/cpu/kernels.inl"

namespace onnxpool::cpu::ONNXPOOL_ISA {
namespace {

using Shape = std::vector<int64_t>;

class Random {
public:
    explicit Random(uint64_t seed) : engine_(seed) {}

    int64_t between(int64_t smallest, int64_t largest) {
        return std::uniform_int_distribution<int64_t>(smallest, largest)(engine_);
    }
    bool once_in(int64_t times) { return between(1, times) == 1; }

private:
    std::mt19937_64 engine_;
};

int64_t count_elements(const Shape& shape) {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

enum class Layout { kWithGaps, kContiguous, kChannelsLast };

// [N, C, D1, ..., Dr]; elements are numbered row-major.
template <class T>
class Tensor {
public:
    Tensor(const Shape& shape, Layout layout) : shape_(shape), strides_(shape.size()), size_(count_elements(shape)) {
        std::vector<size_t> axes(shape.size());  // the innermost one last
        std::iota(axes.begin(), axes.end(), 0);
        if (layout == Layout::kChannelsLast) std::rotate(axes.begin() + 1, axes.begin() + 2, axes.end());
        int64_t stride = layout == Layout::kWithGaps ? 2 : 1;
        for (size_t i = axes.size(); i-- > 0; stride *= shape[axes[i]]) strides_[axes[i]] = stride;
        elements_.resize(place(size_ - 1) + 1);
    }

    int64_t size() const { return size_; }
    T& operator[](int64_t number) { return elements_[place(number)]; }
    Operand operand() { return {elements_.data(), strides_.data()}; }

private:
    // Compiled as the kernels are, this would take nearly half of the time, and it is not what is to be checked.
    __attribute__((optimize("O2"), no_sanitize("address", "undefined"))) int64_t place(int64_t number) const {
        const int64_t *sizes = shape_.data(), *strides = strides_.data();
        int64_t place = 0;
        for (size_t a = shape_.size(); a-- > 0; number /= sizes[a]) place += number % sizes[a] * strides[a];
        return place;
    }

    Shape shape_, strides_;
    int64_t size_;
    cpu::Buffer<T> elements_;
};

Shape shape_of(const Geometry& geometry, int64_t (*size_of_axis)(const Axis&)) {
    Shape shape{geometry.batch, geometry.channels};
    for (int a = 0; a < geometry.rank; ++a) shape.push_back(size_of_axis(geometry.axes[a]));
    return shape;
}

std::vector<float> random_values(Random& random, int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random.between(1, 99));  // some are equal
    return values;
}

void add_nan(Random& random, std::vector<float>& values) {
    for (int64_t left = random.between(1, 3); left > 0; --left) {
        values[random.between(0, static_cast<int64_t>(values.size()) - 1)] = std::numeric_limits<float>::quiet_NaN();
    }
}

template <class T>
const T kUnwritten = std::is_integral_v<T> ? std::numeric_limits<T>::max() : static_cast<T>(-1.0f);

bool is_close(int64_t actual, int64_t expected) { return actual == expected; }

// Sums may have another order.
template <class T>
bool is_close(T actual, T expected) {
    const double tolerance = std::is_same_v<T, float> ? 1e-5 : 8e-3;
    const auto a = static_cast<float>(actual), b = static_cast<float>(expected);
    return a == b || (a != a && b != b) || std::abs(a - b) <= tolerance * std::abs(b);
}

class Calls {
public:
    explicit Calls(uint64_t seed) : random_(seed) {}

    void next() {
        randomize_geometry();
        parameters_.divisor = random_.once_in(2) ? Divisor::kDeclared : Divisor::kData;
        all_layouts_of_any_reduction();
    }

    // Of the call that runs.
    const std::string& description() const { return description_; }

private:
    void randomize_geometry() {
        has_segments_ = random_.once_in(2);
        has_column_major_indices_ = random_.once_in(4);
        const bool is_wide = random_.once_in(4), is_global = random_.once_in(6);
        while (true) {
            PoolAttributes attributes;
            attributes.operator_name = "random";
            attributes.rank = static_cast<int>(random_.between(1, 3));
            attributes.ceil_mode = random_.once_in(3);
            int64_t channels = is_wide ? random_.between(100, 600) : random_.between(1, 40);
            if (random_.once_in(3)) channels = ceil_div(channels, 32) * 32;  // whole lines of memory
            if (has_segments_) channels = ceil_div(channels, random_.once_in(2) ? 16 : 4);
            Shape shape{random_.between(1, 2), channels};
            const int64_t longest[] = {400, has_segments_ ? 120 : 48, has_segments_ ? 24 : 14};
            const int64_t largest = is_wide ? 16 : longest[attributes.rank - 1];
            const bool keeps_size = random_.once_in(6);
            for (int a = 0; a < attributes.rank; ++a) {
                const bool is_cut = has_segments_ && a == 0 && random_.once_in(4);  // however large its windows are
                shape.push_back(random_.between(1, is_cut ? std::max<int64_t>(largest, 80) : largest));
                attributes.axes[a] = {random_.between(1, random_.once_in(4) ? 16 : 5),
                                      random_.between(1, random_.once_in(4) ? 16 : 3), random_.between(1, 3),
                                      random_.between(0, 2), random_.between(0, 2)};
                if (random_.once_in(6)) {  // windows side by side
                    attributes.axes[a].stride = attributes.axes[a].kernel;
                    attributes.axes[a].dilation = 1;
                    attributes.axes[a].pad_begin = attributes.axes[a].pad_end = 0;
                    shape.back() = ceil_div(shape.back(), attributes.axes[a].kernel) * attributes.axes[a].kernel;
                }
                if (keeps_size) {  // windows at every position
                    AxisAttributes& axis = attributes.axes[a];
                    const int64_t reach = (axis.kernel - 1) * axis.dilation,
                                  before = random_.between(0, axis.kernel - 1);
                    axis.stride = 1;
                    axis.pad_begin = random_.once_in(4) ? random_.between(0, reach) : before * axis.dilation;
                    axis.pad_end = reach - axis.pad_begin;
                }
                if (is_global || random_.once_in(10)) attributes.axes[a] = {shape.back(), 1, 1, 0, 0};
                if (random_.once_in(6)) attributes.axes[a] = {1, 1, 1, 0, 0};
                if (random_.once_in(12)) shape.back() = 1;
            }
            try {
                geometry_ = resolve_geometry(attributes, {shape.data(), static_cast<int64_t>(shape.size())});
                return;
            } catch (const std::invalid_argument&) {  // no window fits
            }
        }
    }

    // One for each way that kernels are made for their element types, sums and exponents.
    void all_layouts_of_any_reduction() {
        switch (random_.between(1, 14)) {
            case 1:
                return all_layouts_of<Average<float>>("AveragePool");
            case 2:
                return all_layouts_of<Average<Half>>("AveragePool");
            case 3:
                return all_layouts_of<Max<float>>("MaxPool");
            case 4:
                return all_layouts_of<MaxWithIndex<float>>("MaxPool with Indices");
            case 5:
                return all_layouts_of<MaxWithIndex<Half>>("MaxPool with Indices");
            case 6:
                return all_layouts_of<LpNorm<float, 2>>("LpPool", 2);
            case 7:
                return all_layouts_of<LpNorm<Half, 3>>("LpPool", 3);
            case 8:
                return all_layouts_of<LpNorm<double, 2>>("LpPool", 2);
            case 9:
                return all_layouts_of<LpNorm<float>>("LpPool", 2.5);
            case 10:
                return all_layouts_of<ByteMax>("MaxPool", either(ElementType::kInt8, ElementType::kUInt8));
            case 11:
                return all_layouts_of<MaxWithIndex<uint8_t>>("MaxPool with Indices");
            case 12:
                return all_layouts_of<MaxWithIndex<double>>("MaxPool with Indices");
            case 13:
                return all_layouts_of<HalfMax>("MaxPool", either(ElementType::kFloat16, ElementType::kBFloat16));
            default:
                return all_layouts_of<QuantizedAverage<uint8_t>>("QLinearAveragePool");
        }
    }

    template <class R>
    struct Outcome {
        using T = typename R::Element;

        Outcome(const Geometry& geometry, Layout layout)
            : y(shape_of(geometry, output_size), layout),
              indices(shape_of(geometry, output_size), layout),
              grad_x(shape_of(geometry, input_size), layout == Layout::kChannelsLast ? layout : Layout::kContiguous) {
            // What no kernel writes differs from what it should be. Gradients are dense.
            for (int64_t i = 0; i < y.size(); ++i) y[i] = kUnwritten<T>, indices[i] = -2;
            for (int64_t i = 0; i < grad_x.size(); ++i) grad_x[i] = kUnwritten<T>;
        }

        Tensor<T> y;
        Tensor<int64_t> indices;
        Tensor<T> grad_x;
        bool has_gradient = false;
    };

    ElementType either(ElementType a, ElementType b) { return random_.once_in(2) ? a : b; }

    // The element type matters to kernels that take two of them.
    template <class R>
    void all_layouts_of(const std::string& name, ElementType type) {
        parameters_.element_type = type;
        all_layouts_of<R>(name);
    }

    template <class R>
    void all_layouts_of(const std::string& name, double p = 2) {
        parameters_.p = p;
        std::vector<float> x = random_values(random_, count_elements(shape_of(geometry_, input_size)));
        if (std::is_floating_point_v<typename R::Element> && random_.once_in(6)) add_nan(random_, x);
        const std::vector<float> grad_y = random_values(random_, count_elements(shape_of(geometry_, output_size)));
        auto expected = compute<R>(name, Layout::kWithGaps, x, grad_y);
        for (const Layout layout : {Layout::kContiguous, Layout::kChannelsLast}) {
            auto actual = compute<R>(name, layout, x, grad_y);
            compare("Y", actual.y, expected.y);
            compare("Indices", actual.indices, expected.indices);
            if (expected.has_gradient) compare("grad_X", actual.grad_x, expected.grad_x);
        }
    }

    template <class R>
    Outcome<R> compute(const std::string& name, Layout layout, const std::vector<float>& x_values,
                       const std::vector<float>& grad_y_values) {
        using T = typename R::Element;
        const auto tensor_of = [&](const std::vector<float>& values, int64_t (*size_of_axis)(const Axis&)) {
            Tensor<T> tensor(shape_of(geometry_, size_of_axis), layout);
            for (size_t i = 0; i < values.size(); ++i) tensor[static_cast<int64_t>(i)] = static_cast<T>(values[i]);
            return tensor;
        };
        Tensor<T> x = tensor_of(x_values, input_size), grad_y = tensor_of(grad_y_values, output_size);
        Outcome<R> outcome(geometry_, layout);
        Tensor<char> flat(shape_of(geometry_, input_size), Layout::kContiguous);
        Shape index_strides(flat.operand().strides, flat.operand().strides + 2 + geometry_.rank);
        for (int64_t a = 0, step = 1; has_column_major_indices_ && a < geometry_.rank; ++a) {
            index_strides[2 + a] = step;
            step *= geometry_.axes[a].input;
        }

        segment_size = has_segments_ && layout != Layout::kWithGaps ? 8 : 2048;
        Call call(geometry_, parameters_);
        call.channels_innermost = layout == Layout::kChannelsLast && geometry_.channels > 1 &&
                                  x.operand().strides[1] == 1 && x.operand().strides[1 + geometry_.rank] != 1;
        call.x = x.operand();
        call.y = outcome.y.operand();
        if (R::kIndexed) {
            call.index_strides = index_strides.data();
            call.indices = outcome.indices.operand();
        }
        const bool folds = layout != Layout::kWithGaps;
        describe(name + " forward", layout, sizeof(T));
        run(plan_forward_of<R>, call, folds);
        call.grad_y = grad_y.operand();
        call.grad_x = outcome.grad_x.operand();
        describe(name + " backward", layout, sizeof(T));
        outcome.has_gradient = run(plan_backward_of<R>, call, folds);
        return outcome;
    }

    // As two threads would, in any order. Whether there is a kernel.
    bool run(Plan plan, const Call& whole, bool folds) {
        const FoldedCall folded(whole, has_segments_ ? 8 : 128);
        const Call& call = folds ? folded.call() : whole;
        const Task task = plan(call);
        if (!task.run) return false;
        const int64_t middle = random_.between(0, task.units);
        if (random_.once_in(2)) {
            task.run(call, 0, middle);
            task.run(call, middle, task.units);
        } else {
            task.run(call, middle, task.units);
            task.run(call, 0, middle);
        }
        return true;
    }

    template <class T>
    void compare(const char* name, Tensor<T>& actual, Tensor<T>& expected) {
        for (int64_t i = 0; i < actual.size(); ++i) {
            if (is_close(actual[i], expected[i])) continue;
            std::cerr << description_ << "\n" << name << " differs at element " << i << "\n";
            std::exit(1);
        }
    }

    void describe(const std::string& what, Layout layout, size_t element_size) {
        constexpr const char* layouts[] = {"with gaps", "contiguous", "channels last"};
        std::ostringstream text;
        text << what << ", " << layouts[static_cast<int>(layout)] << ", " << element_size << " bytes, ["
             << geometry_.batch << ", " << geometry_.channels;
        for (int a = 0; a < geometry_.rank; ++a) text << ", " << geometry_.axes[a].input;
        text << "]";
        for (int a = 0; a < geometry_.rank; ++a) {
            const Axis& axis = geometry_.axes[a];
            text << (a ? "; " : ": ") << "kernel " << axis.kernel << " stride " << axis.stride << " dilation "
                 << axis.dilation << " pads " << axis.pad_begin << " " << axis.pad_end << " outputs " << axis.output;
        }
        description_ = text.str();
    }

    Random random_;
    bool has_segments_ = false, has_column_major_indices_ = false;
    Geometry geometry_{};
    Parameters parameters_{ElementType::kFloat32};
    std::string description_;
};

const Calls* running = nullptr;

void say_which() { std::cerr << "While: " << running->description() << std::endl; }

}  // namespace
}  // namespace onnxpool::cpu::ONNXPOOL_ISA

int main(int count, char** arguments) {
    using namespace onnxpool::cpu::ONNXPOOL_ISA;
    if (count != 3) return 2;
    Calls calls(std::strtoull(arguments[1], nullptr, 10));
    running = &calls;
    __sanitizer_set_death_callback(say_which);
    for (int64_t left = std::strtoll(arguments[2], nullptr, 10); left > 0; --left) calls.next();
}
