// The Python module torch_onnxpool._C, free of torch: it lets Python ask the C++ side, the owner of the rules and their
// error texts, about attributes and sizes without a tensor, and writes attributes as the text that operators read.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>
#include <vector>

#include "attributes_text.h"
#include "geometry.h"
#include "operators.h"

namespace {

using onnxpool::GivenAttributes;
using onnxpool::IntSpan;

struct PythonError {};  // the Python error indicator is set

// A list of ints; None is no list.
class IntSequence {
public:
    explicit IntSequence(PyObject* sequence) : given_(sequence && sequence != Py_None) {
        if (!given_) return;
        const Py_ssize_t size = PySequence_Size(sequence);
        if (size < 0) throw PythonError();
        if (size > onnxpool::kMostNumbers) {
            PyErr_Format(PyExc_ValueError, "a list must have at most %d numbers, got %zd",
                         static_cast<int>(onnxpool::kMostNumbers), size);
            throw PythonError();
        }
        for (Py_ssize_t i = 0; i < size; ++i) {
            PyObject* item = PySequence_GetItem(sequence, i);
            if (!item) throw PythonError();
            values_.push_back(PyLong_AsLongLong(item));
            Py_DecRef(item);
            if (PyErr_Occurred()) throw PythonError();
        }
    }

    IntSpan span() const { return {values_.data(), static_cast<int64_t>(values_.size())}; }
    std::optional<IntSpan> optional_span() const { return given_ ? std::optional<IntSpan>(span()) : std::nullopt; }

private:
    bool given_;
    std::vector<int64_t> values_;
};

// Runs `body`, turning C++ exceptions into Python ones.
template <class Body>
PyObject* guarded(Body body) {
    try {
        return body();
    } catch (const PythonError&) {
        return nullptr;
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
        return nullptr;
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
}

// Attributes as Python gives them, under the names that the operators use.
struct PythonAttributes {
    PyObject *kernel_shape = nullptr, *dilations = nullptr, *pads = nullptr, *strides = nullptr;
    const char* auto_pad = "NOTSET";
    long long ceil_mode = 0, channels_last = 0, count_include_pad = 0, storage_order = 0;
    double p = 2.0;
};

// Calls `use` with the attributes; the lists behind them live as long as the call.
template <class Use>
auto with_attributes(const PythonAttributes& python, Use use) {
    const IntSequence kernel_shape(python.kernel_shape), dilations(python.dilations), pads(python.pads),
        strides(python.strides);
    GivenAttributes given;
    given.kernel_shape = kernel_shape.span();
    given.auto_pad = python.auto_pad;
    given.ceil_mode = python.ceil_mode;
    given.channels_last = python.channels_last;
    given.count_include_pad = python.count_include_pad;
    given.dilations = dilations.optional_span();
    given.p = python.p;
    given.pads = pads.optional_span();
    given.storage_order = python.storage_order;
    given.strides = strides.optional_span();
    return use(given);
}

PyObject* check_attributes(PyObject*, PyObject* arguments, PyObject* keywords) {
    return guarded([&]() -> PyObject* {
        const char* names[] = {
            "operator_name", "rank", "kernel_shape", "auto_pad",      "ceil_mode", "channels_last", "count_include_pad",
            "dilations",     "p",    "pads",         "storage_order", "strides",   nullptr};
        const char* operator_name = nullptr;
        Py_ssize_t rank = 0;
        PythonAttributes python;
        if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "snO|sLLLOdOLO", const_cast<char**>(names),
                                         &operator_name, &rank, &python.kernel_shape, &python.auto_pad,
                                         &python.ceil_mode, &python.channels_last, &python.count_include_pad,
                                         &python.dilations, &python.p, &python.pads, &python.storage_order,
                                         &python.strides)) {
            throw PythonError();
        }
        with_attributes(python, [&](const GivenAttributes& given) {
            return onnxpool::validate_attributes(operator_name, rank, given).rank;
        });
        Py_IncRef(Py_None);
        return Py_None;
    });
}

// By its ONNX name; null for others.
const onnxpool::Operator* operator_of(std::string_view name) {
    for (const onnxpool::Operator* op :
         {&onnxpool::kAveragePool, &onnxpool::kLpPool, &onnxpool::kMaxPool, &onnxpool::kGlobalAveragePool,
          &onnxpool::kGlobalLpPool, &onnxpool::kGlobalMaxPool, &onnxpool::kMaxUnpool, &onnxpool::kQLinearAveragePool,
          &onnxpool::kQLinearGlobalAveragePool}) {
        if (op->name == name) return op;
    }
    return nullptr;
}

// By its name in Python; nothing for types that no operator takes.
std::optional<onnxpool::ElementType> element_type_of(std::string_view name) {
    using onnxpool::ElementType;
    constexpr std::pair<std::string_view, ElementType> types[] = {
        {"float16", ElementType::kFloat16}, {"bfloat16", ElementType::kBFloat16}, {"float32", ElementType::kFloat32},
        {"float64", ElementType::kFloat64}, {"int8", ElementType::kInt8},         {"uint8", ElementType::kUInt8},
    };
    for (const auto& [known, type] : types) {
        if (known == name) return type;
    }
    return std::nullopt;
}

PyObject* check_input(PyObject*, PyObject* arguments, PyObject* keywords) {
    return guarded([&]() -> PyObject* {
        const char* names[] = {"operator_name", "type_name", "shape", "channels_last", nullptr};
        const char *operator_name = nullptr, *type_name = nullptr;
        PyObject* shape = nullptr;
        int channels_last = 0;
        if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "ssO|p", const_cast<char**>(names), &operator_name,
                                         &type_name, &shape, &channels_last)) {
            throw PythonError();
        }
        const onnxpool::Operator* op = operator_of(operator_name);
        if (!op) {
            PyErr_Format(PyExc_ValueError, "there is no operator %s", operator_name);
            throw PythonError();
        }
        onnxpool::check_input(*op, element_type_of(type_name), type_name, IntSequence(shape).span(), channels_last);
        Py_IncRef(Py_None);
        return Py_None;
    });
}

PyObject* resolve_axes(PyObject*, PyObject* arguments, PyObject* keywords) {
    return guarded([&]() -> PyObject* {
        const char* names[] = {"operator_name", "input_shape", "kernel_shape", "auto_pad", "ceil_mode",
                               "dilations",     "pads",        "strides",      nullptr};
        const char* operator_name = nullptr;
        PyObject* input_shape = nullptr;
        PythonAttributes python;
        if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "sOO|sLOOO", const_cast<char**>(names), &operator_name,
                                         &input_shape, &python.kernel_shape, &python.auto_pad, &python.ceil_mode,
                                         &python.dilations, &python.pads, &python.strides)) {
            throw PythonError();
        }
        const IntSequence shape(input_shape);
        const auto geometry = with_attributes(python, [&](const GivenAttributes& given) {
            const auto attributes = onnxpool::validate_attributes(operator_name, shape.span().size - 2, given);
            return onnxpool::resolve_geometry(attributes, shape.span());
        });
        PyObject* result = PyTuple_New(geometry.rank);
        for (int a = 0; result && a < geometry.rank; ++a) {
            const onnxpool::Axis& axis = geometry.axes[a];
            PyTuple_SetItem(
                result, a,
                Py_BuildValue("LLLLLLL", static_cast<long long>(axis.input), static_cast<long long>(axis.output),
                              static_cast<long long>(axis.kernel), static_cast<long long>(axis.stride),
                              static_cast<long long>(axis.dilation), static_cast<long long>(axis.pad_begin),
                              static_cast<long long>(axis.pad_end)));
        }
        return result;
    });
}

// Writes attributes as attributes_text.h reads them, without those that have their defaults. False where a value is not
// of its attribute's type, and a Python error may be set, or cannot be written: an empty list, or far too much.
class AttributesWriter {
public:
    bool write(std::string_view name, PyObject* value) {
        const char letter = onnxpool::letter_of(name);
        char* const begin = end_;
        bool is_default = false;
        if (!letter || !append({&letter, 1}) || !write_value(name, value, is_default)) return false;
        if (is_default) end_ = begin;
        return true;
    }

    std::string_view text() const { return {text_, static_cast<size_t>(end_ - text_)}; }

private:
    bool write_value(std::string_view name, PyObject* value, bool& is_default) {
        const GivenAttributes defaults;
        if (name == "kernel_shape") return write_list(value);
        if (name == "dilations" || name == "output_shape" || name == "pads" || name == "strides") {
            is_default = value == Py_None;
            return is_default || write_list(value);
        }
        if (name == "auto_pad") {
            Py_ssize_t size = 0;
            const char* characters = PyUnicode_AsUTF8AndSize(value, &size);
            if (!characters) return false;
            const std::string_view word(characters, size);
            is_default = word == defaults.auto_pad;
            return word.find(';') == word.npos && append(word) && append(";");  // not to be mistaken for attributes
        }
        if (name == "p") {
            const double p = PyFloat_AsDouble(value);
            if (p == -1 && PyErr_Occurred()) return false;
            is_default = p == defaults.p;
            return append(onnxpool::bits_of_number(p));
        }
        const long long number = PyLong_AsLongLong(value);
        if (number == -1 && PyErr_Occurred()) return false;
        is_default = number == 0;  // all flags are off
        return append(number);
    }

    bool write_list(PyObject* list) {
        if (PyList_Check(list)) return write_items<PyList_Size, PyList_GetItem>(list);
        return PyTuple_Check(list) && write_items<PyTuple_Size, PyTuple_GetItem>(list);
    }

    template <Py_ssize_t (*size_of)(PyObject*), PyObject* (*item_at)(PyObject*, Py_ssize_t)>
    bool write_items(PyObject* items) {
        const Py_ssize_t size = size_of(items);
        numbers_ += size;
        if (numbers_ > onnxpool::kMostNumbers) return false;
        int64_t repeated = 0, times = 0;
        for (Py_ssize_t i = 0; i < size; ++i) {
            PyObject* item = item_at(items, i);
            const long long number = item ? PyLong_AsLongLong(item) : -1;
            if (number == -1 && PyErr_Occurred()) return false;
            if (times > 0 && number != repeated) {
                if (!append_repeated(repeated, times) || !append(",")) return false;
                times = 0;
            }
            repeated = number;
            ++times;
        }
        return times > 0 && append_repeated(repeated, times);
    }

    bool append_repeated(int64_t number, int64_t times) {
        return append(number) && (times == 1 || (append("*") && append(times)));
    }

    bool append(std::string_view part) {
        if (part.size() > static_cast<size_t>(std::end(text_) - end_)) return false;
        end_ = std::copy(part.begin(), part.end(), end_);
        return true;
    }

    bool append(int64_t number) {
        const auto [end, error] = std::to_chars(end_, std::end(text_), number);
        end_ = end;
        return error == std::errc();
    }

    char text_[1024];
    char* end_ = text_;
    int64_t numbers_ = 0;
};

PyObject* eager_arguments(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 3 || !PyTuple_Check(arguments[1]) || !PyDict_Check(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "eager_arguments takes an overload, a tuple and a dict");
        return nullptr;
    }
    PyObject *overload = arguments[0], *tensors = arguments[1], *attributes = arguments[2];
    AttributesWriter writer;
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(attributes, &position, &name, &value);) {
        Py_ssize_t size = 0;
        const char* characters = PyUnicode_AsUTF8AndSize(name, &size);
        if (!characters) return nullptr;
        if (!writer.write({characters, static_cast<size_t>(size)}, value)) {
            PyErr_Clear();
            Py_IncRef(Py_None);
            return Py_None;
        }
    }
    const Py_ssize_t tensor_count = PyTuple_Size(tensors);
    PyObject* text = PyUnicode_FromStringAndSize(writer.text().data(), static_cast<Py_ssize_t>(writer.text().size()));
    PyObject* result = text ? PyTuple_New(tensor_count + 2) : nullptr;
    if (!result) {
        Py_XDECREF(text);
        return nullptr;
    }
    Py_IncRef(overload);
    PyTuple_SetItem(result, 0, overload);
    for (Py_ssize_t i = 0; i < tensor_count; ++i) {
        PyObject* tensor = PyTuple_GetItem(tensors, i);
        Py_IncRef(tensor);
        PyTuple_SetItem(result, 1 + i, tensor);
    }
    PyTuple_SetItem(result, 1 + tensor_count, text);
    return result;
}

using AnyFunction = void (*)();

PyCFunction with_keywords(PyCFunctionWithKeywords function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<AnyFunction>(function));
}

PyCFunction with_positions(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<AnyFunction>(function));
}

PyMethodDef methods[] = {
    {"check_attributes", with_keywords(check_attributes), METH_VARARGS | METH_KEYWORDS,
     "check_attributes(operator_name, rank, kernel_shape, auto_pad='NOTSET', ceil_mode=0, channels_last=0, "
     "count_include_pad=0, dilations=None, p=2.0, pads=None, storage_order=0, strides=None)\n\n"
     "Raises ValueError for attributes that the operator refuses."},
    {"check_input", with_keywords(check_input), METH_VARARGS | METH_KEYWORDS,
     "check_input(operator_name, type_name, shape, channels_last=False)\n\n"
     "Raises ValueError for an X of a type, as torch names it, or of a shape that the operator refuses."},
    {"resolve_axes", with_keywords(resolve_axes), METH_VARARGS | METH_KEYWORDS,
     "resolve_axes(operator_name, input_shape, kernel_shape, auto_pad='NOTSET', ceil_mode=0, dilations=None, "
     "pads=None, "
     "strides=None)\n\n"
     "The geometry that the kernels use: (input, output, kernel, stride, dilation, pad_begin, pad_end) of each spatial "
     "axis. Raises ValueError where the operator does."},
    {"eager_arguments", with_positions(eager_arguments), METH_FASTCALL,
     "eager_arguments(overload, tensors, attributes)\n\n"
     "(overload, *tensors, text): what a call of an eager overload takes, with the dict of attributes as one text; or "
     "None if a value is not of the type that its attribute has, or there is far too much of it."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "torch_onnxpool._C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
