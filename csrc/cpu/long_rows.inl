// Part of kernels.inl: see there.
// Rows that exceed the caches, those of audio for example, are done in segments, which may go to different threads: the
// first and the last one, whose windows look beyond the row, and those between them. These are all alike, and the
// channels of one call.

#if !defined(ONNXPOOL_SEGMENT)  // tests have shorter ones
#define ONNXPOOL_SEGMENT 2048
#endif

// Results of a row that are worked on together, and what they are made of: elements and windows along the last axis.
struct Segment {
    int64_t element, elements;
    int64_t window, windows;

    static Segment of_windows(const Axis& axis, int64_t begin, int64_t end) {
        const int64_t reach = (axis.kernel - 1) * axis.dilation;
        const int64_t first = std::max<int64_t>(0, begin * axis.stride - axis.pad_begin);
        const int64_t last = std::min(axis.input - 1, (end - 1) * axis.stride - axis.pad_begin + reach);
        return {first, last + 1 - first, begin, end - begin};
    }

    // With all windows that cover them: those of the first element begin at most as many strides before it as there
    // are in a window.
    static Segment of_elements(const Axis& axis, int64_t begin, int64_t end) {
        const int64_t strides = (axis.kernel - 1) * axis.dilation / axis.stride;
        const int64_t first = std::max<int64_t>(0, (begin + axis.pad_begin) / axis.stride - strides);
        const int64_t last = std::min(axis.output - 1, (end - 1 + axis.pad_begin) / axis.stride);
        return {begin, end - begin, first, last + 1 - first};
    }

    Axis axis(const Axis& whole) const {
        Axis axis = whole;
        axis.input = elements;
        axis.output = windows;
        axis.pad_begin = element - (window * whole.stride - whole.pad_begin);
        return axis;
    }
};

// The segments of an axis.
struct Segments {
    Segment first, between, last;
    int64_t count = 0;  // of those between; none where the axis is short, or windows are not short in comparison
    int64_t windows_apart;

    Segments(const Axis& axis, bool of_windows) {
        constexpr int64_t reaches = 8;  // so that little is read twice
        const int64_t reach = (axis.kernel - 1) * axis.dilation;
        if (axis.input < 2 * ONNXPOOL_SEGMENT || axis.input <= reach) return;
        windows_apart = ceil_div(std::max<int64_t>(ONNXPOOL_SEGMENT, reaches * reach), axis.stride);
        // Windows are full where segments begin, and the last one has as many of them as the others.
        const int64_t begin = ceil_div(axis.pad_begin, axis.stride) + windows_apart;
        const int64_t full = std::min(axis.output, (axis.input - 1 - reach + axis.pad_begin) / axis.stride + 1);
        if (full < begin + 3 * windows_apart) return;
        count = (full - begin) / windows_apart - 1;
        const int64_t end = begin + count * windows_apart;
        const auto segment = [&](int64_t from, int64_t to) {
            return of_windows ? Segment::of_windows(axis, from, to) : Segment::of_elements(axis, from, to);
        };
        const auto at = [&](int64_t window) {  // the result where this one begins
            return of_windows ? window : window * axis.stride - axis.pad_begin;
        };
        first = segment(0, at(begin));
        between = segment(at(begin), at(begin + windows_apart));
        last = segment(at(end), of_windows ? axis.output : axis.input);
    }
};

// A call for a segment of each row, or for several that are alike: these are its channels. Planes are its batch.
template <class T>
class SegmentCall {
public:
    SegmentCall(const Call& whole, const Segment& segment, int64_t count, int64_t windows_apart)
        : geometry_(whole.geometry), last_(1 + geometry_.rank), call_(geometry_, whole.parameters) {
        Axis& axis = geometry_.axes[geometry_.rank - 1];
        const int64_t elements_apart = windows_apart * axis.stride;
        call_.data_before = whole.data_before + segment.element;
        call_.data_after = whole.data_after + axis.input - segment.element - segment.elements;
        axis = segment.axis(axis);
        geometry_.batch *= std::exchange(geometry_.channels, count);
        const bool one_channel = whole.geometry.channels == 1;
        const auto fold = [&](const int64_t* strides, int64_t apart, Strides& target) {
            std::copy_n(strides, last_ + 1, target);
            target[0] = strides[one_channel ? 0 : 1];
            target[1] = apart * strides[last_];
            return target;
        };
        const auto operand = [&](auto* data, const int64_t* strides, int64_t place, int64_t apart, Strides& target) {
            return data ? Operand{data + place * strides[last_], fold(strides, apart, target)} : Operand{};
        };
        const auto elements = [&](const Operand& of_whole, Strides& target) {
            return operand(static_cast<T*>(of_whole.data), of_whole.strides, segment.element, elements_apart, target);
        };
        const auto windows = [&](auto type, const Operand& of_whole, Strides& target) {
            return operand(static_cast<decltype(type)*>(of_whole.data), of_whole.strides, segment.window, windows_apart,
                           target);
        };
        call_.x = elements(whole.x, x_);
        call_.grad_x = elements(whole.grad_x, grad_x_);
        call_.y = windows(T(), whole.y, y_);
        call_.grad_y = windows(T(), whole.grad_y, grad_y_);
        call_.indices = windows(int64_t(), whole.indices, indices_);
        if (whole.index_strides) {
            call_.first_index = whole.first_index + segment.element * whole.index_strides[last_];
            call_.index_strides = fold(whole.index_strides, elements_apart, index_strides_);
        }
    }

    SegmentCall(const SegmentCall&) = delete;  // refers to itself

    const Call& call() const { return call_; }

private:
    using Strides = int64_t[2 + kMaxSpatialRank];

    Geometry geometry_;
    const int last_;  // the last axis, of strides
    Call call_;
    Strides x_, grad_x_, y_, grad_y_, indices_, index_strides_;
};

// Whether rows can be done in segments: planes are at even distances, as those of a batch.
template <class... Operands>
bool have_even_planes(const Geometry& geometry, const Operands&... operands) {
    const auto is_even = [&](const Operand& operand) {
        return !operand.data || operand.strides[0] == geometry.channels * operand.strides[1];
    };
    return geometry.batch == 1 || geometry.channels == 1 || (is_even(operands) && ...);
}

// Whether additions have the same order in segments as in whole rows and, so, in other layouts.
template <bool kGradient>
bool share_alike(const Axis& axis, const Axis& of_segment) {
    const auto alike = [](const Axis& a, const Axis& b) { return windows_share(a) == windows_share(b); };
    if (!kGradient) return alike(axis, of_segment);
    return coverings_share(axis) == coverings_share(of_segment) && alike(spread_axis(axis), spread_axis(of_segment));
}

// visit(call): for each kind of segments, if `segments` are any.
template <class T, class Visit>
void for_each_segment_call(const Call& call, const Segments& segments, const Visit& visit) {
    const auto visit_some = [&](const Segment& segment, int64_t count) {
        visit(SegmentCall<T>(call, segment, count, segments.windows_apart).call());
    };
    visit_some(segments.first, 1);
    visit_some(segments.between, segments.count);
    visit_some(segments.last, 1);
}

// Units are those of the first segments, then of those between, and then of the last ones.
template <class T, bool kGradient, Task (*plan)(const Call& call)>
void run_segments(const Call& call, int64_t begin, int64_t end) {
    int64_t first = 0;
    const Segments segments(call.geometry.axes[call.geometry.rank - 1], !kGradient);
    for_each_segment_call<T>(call, segments, [&](const Call& part) {
        const Task task = plan(part);
        const int64_t from = std::max(begin, first), to = std::min(end, first + task.units);
        if (from < to) task.run(part, from - first, to - first);
        first += task.units;
    });
}

// Null where rows are short, or cannot be done in segments.
template <class T, bool kGradient, Task (*plan)(const Call& call)>
Task plan_segments(const Call& call) {
    const Geometry& geometry = call.geometry;
    const Axis& axis = geometry.axes[geometry.rank - 1];
    if (call.channels_innermost) return {};
    const Segments segments(axis, !kGradient);
    if (segments.count == 0 || !have_even_planes(geometry, call.x, call.y, call.indices, call.grad_y, call.grad_x)) {
        return {};
    }
    Task all{run_segments<T, kGradient, plan>};
    double elements = 0;
    for_each_segment_call<T>(call, segments, [&](const Call& part) {
        const Task task = plan(part);
        if (!task.run || !share_alike<kGradient>(axis, part.geometry.axes[geometry.rank - 1])) all.run = nullptr;
        all.units += task.units;
        elements += static_cast<double>(task.units) * task.elements_per_unit;
    });
    all.elements_per_unit = elements / static_cast<double>(std::max<int64_t>(1, all.units));
    return all;
}
