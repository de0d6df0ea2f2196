// The attributes of a call as one text: torch's dispatcher takes 1 us to hand over a list, and 0.3 us for a text, or
// less for one of fewer than 16 characters, which std::string keeps without asking for memory. Written by module.cpp
// from what Python gives, read here. Each attribute is a letter and its value; lists, which are not empty, say how
// often a number repeats, and a word ends with a semicolon:
//     kernel_shape=[3, 3], auto_pad="VALID", dilations=[1, 2]    k3*2aVALID;d1,2
#pragma once

#include <charconv>
#include <cstring>
#include <utility>

#include "attributes.h"

namespace onnxpool {

constexpr std::pair<std::string_view, char> kLetters[] = {
    {"auto_pad", 'a'},
    {"ceil_mode", 'c'},
    {"channels_last", 'l'},
    {"count_include_pad", 'i'},
    {"dilations", 'd'},
    {"kernel_shape", 'k'},
    {"p", 'p'},
    {"pads", 'b'},
    {"output_shape", 'o'},
    {"storage_order", 'r'},
    {"strides", 's'},
};

// 0 for what is no attribute.
constexpr char letter_of(std::string_view name) {
    for (const auto& [attribute, letter] : kLetters) {
        if (attribute == name) return letter;
    }
    return 0;
}

// A text stands for no more than these, three times what nodes with all spatial axes that torch knows have.
constexpr int64_t kMostNumbers = 1024;

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
    explicit AttributesFromText(std::string_view text) : text_(text), rest_(text) {
        while (!rest_.empty()) take();
    }

    AttributesFromText(const AttributesFromText&) = delete;  // refers to itself

    const GivenAttributes& given() const { return given_; }

private:
    [[noreturn]] void refuse_text() const {
        refuse("torch_onnxpool", "attributes must be written as in csrc/attributes_text.h, got ", text_);
    }

    void take() {
        const char letter = rest_.front();
        rest_.remove_prefix(1);
        switch (letter) {
            case letter_of("auto_pad"):
                given_.auto_pad = read_word();
                break;
            case letter_of("ceil_mode"):
                given_.ceil_mode = read_number();
                break;
            case letter_of("channels_last"):
                given_.channels_last = read_number();
                break;
            case letter_of("count_include_pad"):
                given_.count_include_pad = read_number();
                break;
            case letter_of("dilations"):
                given_.dilations = read_list();
                break;
            case letter_of("kernel_shape"):
                given_.kernel_shape = read_list();
                break;
            case letter_of("output_shape"):
                given_.output_shape = read_list();
                break;
            case letter_of("p"):
                given_.p = number_of_bits(read_number());
                break;
            case letter_of("pads"):
                given_.pads = read_list();
                break;
            case letter_of("storage_order"):
                given_.storage_order = read_number();
                break;
            case letter_of("strides"):
                given_.strides = read_list();
                break;
            default:
                refuse_text();
        }
    }

    bool skip(char character) {
        const bool found = !rest_.empty() && rest_.front() == character;
        rest_.remove_prefix(found);
        return found;
    }

    std::string_view read_word() {
        const size_t end = rest_.find(';');
        if (end == rest_.npos) refuse_text();
        const std::string_view word = rest_.substr(0, end);
        rest_.remove_prefix(end + 1);
        return word;
    }

    int64_t read_number() {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
        if (error != std::errc()) refuse_text();
        rest_.remove_prefix(end - rest_.data());
        return number;
    }

    IntSpan read_list() {
        int64_t* const list = next_number_;
        do {
            const int64_t number = read_number(), times = skip('*') ? read_number() : 1;
            if (times < 1 || times > std::end(numbers_) - next_number_) refuse_text();
            next_number_ = std::fill_n(next_number_, times, number);
        } while (skip(','));
        return {list, next_number_ - list};
    }

    const std::string_view text_;
    std::string_view rest_;
    GivenAttributes given_;
    int64_t numbers_[kMostNumbers];
    int64_t* next_number_ = numbers_;
};

}  // namespace onnxpool
