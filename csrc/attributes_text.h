// The attributes of a call as one text, "kernel_shape=3,3;strides=2,2;ceil_mode=1;": a list costs 1 us on its way
// through torch's dispatcher, and a text of any length 0.3 us. Written by module.cpp from what Python gives, read here.
#pragma once

#include <charconv>
#include <cstring>

#include "attributes.h"

namespace onnxpool {

// Room for four times what nodes of four spatial axes have. Longer texts are not written.
constexpr size_t kLongestText = 1024;

// p is written as the integer that has its bits: exact, whatever the locale.
inline int64_t bits_of_number(double number) {
    int64_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    return bits;
}

inline double number_of_bits(int64_t bits) {
    double number;
    std::memcpy(&number, &bits, sizeof(number));
    return number;
}

// What the text gives, which has to stay as long as this.
class AttributesFromText {
public:
    explicit AttributesFromText(std::string_view text) {
        if (text.size() > kLongestText) refuse_text(text);
        while (!text.empty()) {
            const size_t middle = text.find('='), end = text.find(';');
            if (middle == text.npos || end == text.npos || end < middle) refuse_text(text);
            take(text.substr(0, middle), text.substr(middle + 1, end - middle - 1));
            text.remove_prefix(end + 1);
        }
    }

    AttributesFromText(const AttributesFromText&) = delete;  // refers to itself

    const GivenAttributes& given() const { return given_; }

private:
    [[noreturn]] static void refuse_text(std::string_view text) {
        refuse("torch_onnxpool", "attributes must be written name=value;, got ", text);
    }

    void take(std::string_view name, std::string_view value) {
        if (name == "auto_pad") {
            given_.auto_pad = value;
            return;
        }
        const IntSpan list = read_list(value);
        if (name == "kernel_shape") {
            given_.kernel_shape = list;
        } else if (name == "dilations") {
            given_.dilations = list;
        } else if (name == "output_shape") {
            given_.output_shape = list;
        } else if (name == "pads") {
            given_.pads = list;
        } else if (name == "strides") {
            given_.strides = list;
        } else if (list.size != 1) {
            refuse_text(value);
        } else if (name == "ceil_mode") {
            given_.ceil_mode = list[0];
        } else if (name == "channels_last") {
            given_.channels_last = list[0];
        } else if (name == "count_include_pad") {
            given_.count_include_pad = list[0];
        } else if (name == "p") {
            given_.p = number_of_bits(list[0]);
        } else if (name == "storage_order") {
            given_.storage_order = list[0];
        } else {
            refuse_text(name);
        }
    }

    IntSpan read_list(std::string_view text) {
        int64_t* const list = next_number_;
        const char *position = text.data(), *const end = text.data() + text.size();
        while (position != end) {
            const auto [behind, error] = std::from_chars(position, end, *next_number_);
            if (error != std::errc() || (behind != end && *behind != ',') || behind + 1 == end) refuse_text(text);
            ++next_number_;
            position = behind == end ? end : behind + 1;
        }
        return {list, next_number_ - list};
    }

    GivenAttributes given_;
    int64_t numbers_[kLongestText / 2];  // each takes a digit and what follows it
    int64_t* next_number_ = numbers_;
};

}  // namespace onnxpool
