// Calls without the axes along which nothing is pooled. Free of torch headers.
#pragma once

#include <algorithm>

#include "../window.h"
#include "kernels.h"

namespace onnxpool::cpu {

// Whether each window is one element, and each element one window.
inline bool is_unpooled(const Axis& axis) {
    return axis.kernel == 1 && axis.stride == 1 && axis.pad_begin == 0 && axis.pad_end == 0;
}

// The same call with fewer spatial axes, where tensors lie in memory so that this is possible: axes of one element are
// left out, and those that are not pooled become channels or images, the first ones with those that lie outside of
// them, the last one as channels that are innermost. At least one axis stays.
class FoldedCall {
public:
    explicit FoldedCall(const Call& whole) : whole_(whole), folded_(geometry_, whole.parameters) {
        const Axis *const begin = whole.geometry.axes, *const end = begin + whole.geometry.rank;
        const bool may_fold = end - begin > 1 && std::any_of(begin, end, [&](const Axis& axis) {
                                  return is_unpooled(axis) || is_one_element(axis);
                              });
        if (!may_fold) return;
        copy_whole();
        for (int a = geometry_.rank - 1; a >= 0 && geometry_.rank > 1; --a) {
            if (is_one_element(geometry_.axes[a])) remove(a);
        }
        while (geometry_.rank > 1 && is_unpooled(geometry_.axes[0]) && fold_first()) {
        }
        if (geometry_.rank > 1 && is_unpooled(geometry_.axes[geometry_.rank - 1])) fold_last();
    }

    FoldedCall(const FoldedCall&) = delete;  // refers to itself

    const Call& call() const { return layouts_ > 0 ? folded_ : whole_; }

private:
    // Which is all that the only window has, and all that an average counts.
    bool is_one_element(const Axis& axis) const {
        return axis.input == 1 && axis.output == 1 && data_taps(axis, int64_t{0}).count == 1 &&
               counted_taps(axis, int64_t{0}, whole_.parameters.divisor) == 1;
    }

    void copy_whole() {
        const Geometry& geometry = whole_.geometry;
        geometry_.batch = geometry.batch;
        geometry_.channels = geometry.channels;
        geometry_.rank = geometry.rank;
        std::copy_n(geometry.axes, geometry.rank, geometry_.axes);
        folded_.channels_innermost = whole_.channels_innermost;
        const auto strides_of = [&](const int64_t* strides) -> const int64_t* {
            if (!strides) return nullptr;
            std::copy_n(strides, 2 + geometry.rank, strides_[layouts_]);
            return strides_[layouts_++];
        };
        const auto operand = [&](const Operand& of_whole) -> Operand {  // without data where the batch is 0
            return {of_whole.data, strides_of(of_whole.strides)};
        };
        folded_.x = operand(whole_.x);
        folded_.y = operand(whole_.y);
        folded_.indices = operand(whole_.indices);
        folded_.grad_y = operand(whole_.grad_y);
        folded_.grad_x = operand(whole_.grad_x);
        folded_.index_strides = strides_of(whole_.index_strides);
    }

    void remove(int axis) {
        std::copy(geometry_.axes + axis + 1, geometry_.axes + geometry_.rank, geometry_.axes + axis);
        for (int i = 0; i < layouts_; ++i) {
            std::copy(strides_[i] + 2 + axis + 1, strides_[i] + 2 + geometry_.rank, strides_[i] + 2 + axis);
        }
        --geometry_.rank;
    }

    // The number of the dimension `outer`, 0 or 1, and that of `inner` become one in all tensors, if they can.
    bool merge(int outer, int inner, int64_t inner_size) {
        int64_t& outer_size = outer == 0 ? geometry_.batch : geometry_.channels;
        const auto follow = [&](const int64_t* strides) { return strides[outer] == inner_size * strides[inner]; };
        if (outer_size > 1 && !std::all_of(strides_, strides_ + layouts_, follow)) return false;
        for (int i = 0; i < layouts_; ++i) strides_[i][outer] = strides_[i][inner];
        outer_size *= inner_size;
        return true;
    }

    bool fold_first() {
        const int outside = folded_.channels_innermost ? 0 : 1;
        // Indices count channels outside of all axes, and kernels take images to lie as far apart as their channels.
        if (outside == 0 && folded_.index_strides && geometry_.channels > 1) return false;
        if (!merge(outside, 2, geometry_.axes[0].input)) return false;
        remove(0);
        return true;
    }

    void fold_last() {
        constexpr int64_t least = 16;  // fewer channels do not fill vectors
        const int last = geometry_.rank - 1;
        const int64_t size = geometry_.axes[last].input;
        const auto in_all = [&](const auto& predicate) {
            return std::all_of(strides_, strides_ + layouts_, predicate);
        };
        if (folded_.index_strides) return;  // gradients of maxima are faster where indices lie as elements do
        if (folded_.channels_innermost) {
            const int64_t channels = geometry_.channels;
            if (!in_all([&](const int64_t* s) { return s[1] == 1 && s[2 + last] == channels; })) return;
            geometry_.channels *= size;
            return remove(last);
        }
        if (size < least || !in_all([&](const int64_t* s) { return s[2 + last] == 1; }) ||
            !merge(0, 1, geometry_.channels)) {
            return;
        }
        for (int i = 0; i < layouts_; ++i) strides_[i][1] = 1;
        geometry_.channels = size;
        folded_.channels_innermost = true;
        remove(last);
    }

    const Call& whole_;
    Geometry geometry_;
    Call folded_;
    int layouts_ = 0;  // none where nothing is folded
    int64_t strides_[6][2 + kMaxSpatialRank];
};

}  // namespace onnxpool::cpu
