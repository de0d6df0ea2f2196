// Calls without the axes along which nothing is pooled, and with rows of a better length. Free of torch headers.
#pragma once

#include <algorithm>

#include "../window.h"
#include "kernels.h"

namespace onnxpool::cpu {

// Whether each window is one element, and each element one window.
inline bool is_unpooled(const Axis& axis) {
    return axis.kernel == 1 && axis.stride == 1 && axis.pad_begin == 0 && axis.pad_end == 0;
}

inline Axis unpooled_axis(int64_t size) { return {size, size, 1, 1, 1, 0, 0}; }

// Whether windows lie side by side from the first element on; some may be left over behind the last one.
inline bool has_windows_side_by_side(const Axis& axis) {
    return axis.kernel == axis.stride && axis.dilation == 1 && axis.pad_begin == 0 &&
           axis.output * axis.stride <= axis.input;
}

// Whether windows lie side by side and none is left over.
inline bool is_tiled(const Axis& axis) {
    return has_windows_side_by_side(axis) && axis.input == axis.output * axis.stride;
}

// The same call with fewer spatial axes, where tensors lie in memory so that this is possible: axes of one element are
// left out, and those that are not pooled become channels or images, the first ones with those that lie outside of
// them, the last ones as channels that are innermost. At least one axis stays. If that is a long one whose windows lie
// side by side, it is cut into shorter ones: all planes are one run of memory.
class FoldedCall {
public:
    // Rows are cut into those of so many windows at most.
    explicit FoldedCall(const Call& whole, int64_t most_windows = 128)
        : whole_(whole), most_windows_(most_windows), folded_(geometry_, whole.parameters) {
        const Axis *const begin = whole.geometry.axes, *const end = begin + whole.geometry.rank;
        const bool may_fold =
            end - begin > 1
                ? std::any_of(begin, end, [&](const Axis& axis) { return is_unpooled(axis) || is_one_element(axis); })
                : may_be_cut(*begin);
        if (!may_fold) return;
        copy_whole();
        for (int a = geometry_.rank - 1; a >= 0 && geometry_.rank > 1; --a) {
            if (is_one_element(geometry_.axes[a])) remove(a);
        }
        while (geometry_.rank > 1 && is_unpooled(geometry_.axes[0]) && fold_first()) {
        }
        while (geometry_.rank > 1 && is_unpooled(geometry_.axes[geometry_.rank - 1]) && fold_last()) {
        }
        if (geometry_.rank == 1 && may_be_cut(geometry_.axes[0])) cut_rows();
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
        const auto strides_of = [&](const int64_t* strides, bool of_windows) -> const int64_t* {
            if (!strides) return nullptr;
            std::copy_n(strides, 2 + geometry.rank, strides_[layouts_]);
            of_windows_[layouts_] = of_windows;
            return strides_[layouts_++];
        };
        const auto operand = [&](const Operand& of_whole, bool of_windows) -> Operand {
            return {of_whole.data, strides_of(of_whole.strides, of_windows)};  // without data where the batch is 0
        };
        folded_.x = operand(whole_.x, false);
        folded_.grad_x = operand(whole_.grad_x, false);
        folded_.index_strides = strides_of(whole_.index_strides, false);
        folded_.y = operand(whole_.y, true);
        folded_.grad_y = operand(whole_.grad_y, true);
        folded_.indices = operand(whole_.indices, true);
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
        const auto follow = [&](const int64_t* strides) {
            // Positions that indices count fill a plane, in whatever order, even if there is one.
            const bool may_lie_anywhere = outer_size == 1 && strides != folded_.index_strides;
            return may_lie_anywhere || strides[outer] == inner_size * strides[inner];
        };
        if (!std::all_of(strides_, strides_ + layouts_, follow)) return false;
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

    bool fold_last() {
        constexpr int64_t least = 16;             // fewer channels do not fill vectors
        if (folded_.index_strides) return false;  // gradients of maxima are faster where indices lie as elements do
        const int last = geometry_.rank - 1;
        const int64_t size = geometry_.axes[last].input, channels = geometry_.channels;
        const auto in_all = [&](const auto& predicate) {
            return std::all_of(strides_, strides_ + layouts_, predicate);
        };
        if (folded_.channels_innermost) {
            if (!in_all([&](const int64_t* s) { return s[1] == 1 && s[2 + last] == channels; })) return false;
            geometry_.channels *= size;
        } else {
            if (unpooled_at_end() < least || !in_all([&](const int64_t* s) { return s[2 + last] == 1; }) ||
                !merge(0, 1, channels)) {
                return false;
            }
            for (int i = 0; i < layouts_; ++i) strides_[i][1] = 1;
            geometry_.channels = size;
            folded_.channels_innermost = true;
        }
        remove(last);
        return true;
    }

    // Elements along the last axes that are not pooled.
    int64_t unpooled_at_end() const {
        int64_t size = 1;
        for (int a = geometry_.rank; --a > 0 && is_unpooled(geometry_.axes[a]);) size *= geometry_.axes[a].input;
        return size;
    }

    // Enough windows to fill vectors, whose elements leave room in the first cache.
    int64_t windows_of_cut_rows(const Axis& axis) const {
        constexpr int64_t most_elements = 25;  // for each window that there may be
        return std::min(most_windows_, most_windows_ * most_elements / axis.stride);
    }

    bool may_be_cut(const Axis& axis) const { return is_tiled(axis) && axis.output > windows_of_cut_rows(axis); }

    void cut_rows() {
        Axis& axis = geometry_.axes[0];
        const auto length = [&](int layout) { return of_windows_[layout] ? axis.output : axis.input; };
        for (int i = 0; i < layouts_; ++i) {
            const int64_t *const strides = strides_[i], plane = length(i);
            const bool images_follow = geometry_.batch == 1 || strides[0] == geometry_.channels * plane;
            const bool planes_follow = geometry_.channels == 1 || strides[1] == plane;
            if (strides[2] != 1 || !images_follow || !planes_follow) return;
        }
        const int64_t windows = geometry_.batch * geometry_.channels * axis.output;
        const int64_t most = windows_of_cut_rows(axis), least = std::max<int64_t>(2, most * 5 / 8);
        int64_t output = most;
        while (output >= least && windows % output != 0) --output;
        if (windows == 0 || output < least) return;
        axis.output = output;
        axis.input = output * axis.stride;
        geometry_.batch = 1;
        geometry_.channels = windows / output;
        folded_.channels_innermost = false;
        for (int i = 0; i < layouts_; ++i) {
            strides_[i][0] = geometry_.channels * length(i);
            strides_[i][1] = length(i);
        }
    }

    const Call& whole_;
    const int64_t most_windows_;
    Geometry geometry_;
    Call folded_;
    int layouts_ = 0;  // none where nothing is folded
    int64_t strides_[6][2 + kMaxSpatialRank];
    bool of_windows_[6];  // rather than of elements
};

}  // namespace onnxpool::cpu
