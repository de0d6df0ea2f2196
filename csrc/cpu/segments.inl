// Part of kernels.inl: see there.
// Rows that exceed the caches, those of audio for example, are done in segments, which may go to different threads: the
// first and the last one, whose windows look beyond the row, and those between them. These are all alike, and the
// channels of one call or, where channels are innermost, its batch. So are large planes, in segments of the first axis.

// Results along an axis that are worked on together, and what they are made of: elements and windows.
struct Segment {
    int64_t element, elements;
    int64_t window, windows;

    static Segment of_windows(const Axis& axis, int64_t begin, int64_t end) {
        const int64_t first = std::max<int64_t>(0, begin * axis.stride - axis.pad_begin);
        const int64_t last = std::min(axis.input - 1, (end - 1) * axis.stride - axis.pad_begin + window_reach(axis));
        return {first, last + 1 - first, begin, end - begin};
    }

    // These elements, with all windows that cover them: those of the first element begin at most as many strides before
    // it as there are in a window.
    static Segment of_elements(const Axis& axis, int64_t begin, int64_t end) {
        const int64_t strides = window_reach(axis) / axis.stride;
        const int64_t first = std::max<int64_t>(0, (begin + axis.pad_begin) / axis.stride - strides);
        const int64_t last = std::min(axis.output - 1, (end - 1 + axis.pad_begin) / axis.stride);
        return {begin, end - begin, first, last + 1 - first};
    }

    // This part of the whole axis, as an axis.
    Axis axis(const Axis& whole) const {
        Axis axis = whole;
        axis.input = elements;
        axis.output = windows;
        axis.pad_begin = element - (window * whole.stride - whole.pad_begin);
        return axis;
    }

    // Makes a call, and its geometry, one for this segment of a whole one's axis. Segments may be cut in turn.
    void apply(const Call& whole, int number, Geometry& geometry, Call& call) const {
        const Axis& whole_axis = whole.geometry.axes[number];
        call.segmented_axis = number;
        call.data_before = whole.data_before + element;
        call.data_after = whole.data_after + whole_axis.input - element - elements;
        call.first_index = whole.first_index;
        call.repeats = whole.repeats;
        if (whole.index_strides) call.first_index += element * whole.index_strides[2 + number];
        geometry.axes[number] = axis(whole_axis);
    }
};

// The segments of an axis.
struct Segments {
    Segment first, between, last;
    int64_t count = 0;  // of those between; none where the axis is short, or windows are not short in comparison
    int64_t windows_apart = 0;

    Segments() = default;

    // Cuts an axis into segments of at least so many elements.
    Segments(const Axis& axis, int64_t least, bool of_windows) {
        constexpr int64_t reaches = 8;  // so that little is read twice
        // Segments that are not short begin at multiples of so many results: where cache lines do, whatever their
        // type, if rows do.
        const int64_t line = std::clamp<int64_t>(ONNXPOOL_SEGMENT / 4, 1, 64);
        const int64_t reach = window_reach(axis);
        if (axis.input < 2 * least || axis.input <= reach) return;
        windows_apart = ceil_div(std::max(least, reaches * reach), axis.stride * line) * line;
        // Windows are full where segments begin, and the last one has as many of them as the others.
        const int64_t begin = ceil_div(axis.pad_begin, axis.stride * line) * line + windows_apart;
        const Range inside = windows_inside(axis);
        const int64_t full = inside.begin + inside.count;
        if (full < begin + 3 * windows_apart) return;
        count = (full - begin) / windows_apart - 1;
        const int64_t end = begin + count * windows_apart;
        const auto segment = [&](int64_t from, int64_t to) {
            return of_windows ? Segment::of_windows(axis, from, to) : Segment::of_elements(axis, from, to);
        };
        const auto at = [&](int64_t window) {  // the result where this one begins
            return of_windows ? window : window * axis.stride - axis.pad_begin / line * line;
        };
        first = segment(0, at(begin));
        between = segment(at(begin), at(begin + windows_apart));
        last = segment(at(end), of_windows ? axis.output : axis.input);
    }

    // The first one, one of those between, or the last one.
    Segment at(int64_t number, const Axis& axis) const {
        if (number == 0) return first;
        if (number > count) return last;
        Segment segment = between;
        segment.window += (number - 1) * windows_apart;
        segment.element += (number - 1) * windows_apart * axis.stride;
        return segment;
    }
};

// A call for a segment, or for several that are alike: these are its channels, and planes its batch; where channels are
// innermost, they are its batch, of one image.
template <class T>
class SegmentCall {
public:
    SegmentCall(const Call& whole, int number, const Segment& segment, int64_t count, int64_t windows_apart,
                int64_t image)
        : geometry_(whole.geometry), call_(geometry_, whole.parameters) {
        const int64_t elements_apart = windows_apart * geometry_.axes[number].stride;
        segment.apply(whole, number, geometry_, call_);
        call_.channels_innermost = whole.channels_innermost;
        if (call_.channels_innermost) {
            geometry_.batch = count;
        } else {
            geometry_.batch *= std::exchange(geometry_.channels, count);
        }
        const int folded = call_.channels_innermost ? 0 : 1;  // the dimension that segments become
        const bool one_channel = whole.geometry.channels == 1;
        const auto fold = [&](const int64_t* strides, int64_t apart, Strides& target) {
            std::copy_n(strides, 2 + geometry_.rank, target);
            if (!call_.channels_innermost) target[0] = strides[one_channel ? 0 : 1];
            target[folded] = apart * strides[2 + number];
            return target;
        };
        const auto operand = [&](auto* data, const int64_t* strides, int64_t place, int64_t apart, Strides& target) {
            if (!data) return Operand{};
            return Operand{data + image * strides[0] + place * strides[2 + number], fold(strides, apart, target)};
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
            call_.first_index += image * whole.index_strides[0];
            call_.index_strides = fold(whole.index_strides, elements_apart, index_strides_);
        }
    }

    SegmentCall(const SegmentCall&) = delete;  // refers to itself

    const Call& call() const { return call_; }

private:
    using Strides = int64_t[2 + kMaxSpatialRank];

    Geometry geometry_;
    Call call_;
    Strides x_, grad_x_, y_, grad_y_, indices_, index_strides_;
};

// Whether planes can be done in segments: they are at even distances, as images of a batch are.
template <class... Operands>
bool have_even_planes(const Geometry& geometry, const Operands&... operands) {
    const auto is_even = [&](const Operand& operand) {
        return !operand.data || operand.strides[0] == geometry.channels * operand.strides[1];
    };
    return geometry.batch == 1 || geometry.channels == 1 || (is_even(operands) && ...);
}

// Whether additions have the same order in segments as without them and, so, in other layouts. Where windows share what
// they have in common, that depends on where an axis begins, but for the last one.
inline bool add_alike(const Segments& segments, bool gradient, const Axis& axis, bool is_last) {
    const auto shares = [&](const Axis& any) {
        return gradient ? sharing_pays_for_coverings(any) : sharing_pays_for_windows(any);
    };
    const bool whole_shares = shares(axis);
    const auto is_alike = [&](const Segment& segment) { return shares(segment.axis(axis)) == whole_shares; };
    return (is_last || !whole_shares) && is_alike(segments.first) && is_alike(segments.between) &&
           is_alike(segments.last);
}

// The axis that is done in segments, and these, if there are any: the last one of long rows, or the first one of planes
// that have more rows than can be looked up or, for gradients, are larger than the caches. With channels innermost,
// rows of windows are units anyway, unless there is one row only: the first axis of large images.
struct Segmentation {
    int axis;
    Segments segments;

    static Segmentation of(const Call& call, bool gradient) {
        constexpr int64_t rows_together = 32;  // a segment of a plane has as many elements as these
        constexpr int64_t large = 16;          // of images with channels innermost: at least so many segments
        const Geometry& geometry = call.geometry;
        const int last = geometry.rank - 1;
        if (!call.channels_innermost) {
            const Segmentation rows{last, Segments(geometry.axes[last], ONNXPOOL_SEGMENT, !gradient)};
            if (rows.segments.count > 0 || last == 0) return rows;
        }
        const int64_t plane = lanes_per_row(call) * plane_size(geometry, input_size);
        const int64_t elements = rows_together * ONNXPOOL_SEGMENT, positions = geometry.axes[0].input;
        const bool are_rows_units = !gradient && last > 0 && has_few_rows(geometry);
        bool is_large = !call.channels_innermost || plane >= large * elements;
        int64_t least = ceil_div(elements * positions, plane);
        if (!call.channels_innermost) {  // as few rows as can be looked up, in four segments at least
            const double share = most_rows_to_look_up() / 5 / rows_to_look_up(geometry);
            least = std::clamp<int64_t>(static_cast<int64_t>(share * static_cast<double>(positions)), 1, least);
        } else if (last == 0) {  // tables of all positions cost more than those of three segments for each image
            least = std::min<int64_t>(least, ONNXPOOL_SEGMENT);
            is_large |= positions >= large / 2 * geometry.batch * least;
        }
        if (are_rows_units || !is_large) return {0, {}};
        return {0, Segments(geometry.axes[0], least, !gradient)};
    }
};

// The calls of a kind of segments, which differ in where their data are.
template <class T>
struct SegmentCalls {
    const Call& whole;
    const Segmentation& segmentation;
    const Segment& segment;
    int64_t segments;

    int64_t count() const { return whole.channels_innermost ? whole.geometry.batch : 1; }

    SegmentCall<T> at(int64_t number) const {
        return {whole, segmentation.axis, segment, segments, segmentation.segments.windows_apart, number};
    }
};

// visit(calls): for each kind of segments, if there are any.
template <class T, class Visit>
void for_each_kind_of_segments(const Call& call, const Segmentation& segmentation, const Visit& visit) {
    const Segments& segments = segmentation.segments;
    visit(SegmentCalls<T>{call, segmentation, segments.first, 1});
    visit(SegmentCalls<T>{call, segmentation, segments.between, segments.count});
    visit(SegmentCalls<T>{call, segmentation, segments.last, 1});
}

// Units are those of the first segments, then of those between, and then of the last ones.
template <class T, bool kGradient, Task (*plan)(const Call& call)>
void run_segments(const Call& call, int64_t begin, int64_t end) {
    int64_t first = 0;
    const auto segmentation = Segmentation::of(call, kGradient);
    for_each_kind_of_segments<T>(call, segmentation, [&](const SegmentCalls<T>& calls) {
        const Task task = plan(calls.at(0).call());
        for (int64_t i = 0; i < calls.count(); ++i, first += task.units) {
            const int64_t from = std::max(begin, first), to = std::min(end, first + task.units);
            if (from < to) task.run(calls.at(i).call(), from - first, to - first);
        }
    });
}

// Null where planes are small, or cannot be done in segments.
template <class T, bool kGradient, Task (*plan)(const Call& call)>
Task plan_segments(const Call& call) {
    const Geometry& geometry = call.geometry;
    if (geometry.batch == 0) return {};
    const Segmentation segmentation = Segmentation::of(call, kGradient);
    if (segmentation.segments.count == 0 || (call.segmented_axis >= 0 && call.segmented_axis != segmentation.axis)) {
        return {};
    }
    const Axis& axis = geometry.axes[segmentation.axis];
    const bool are_even =
        call.channels_innermost || have_even_planes(geometry, call.x, call.y, call.indices, call.grad_y, call.grad_x);
    if (!are_even || !add_alike(segmentation.segments, kGradient, axis, segmentation.axis == geometry.rank - 1)) {
        return {};
    }
    Task all{run_segments<T, kGradient, plan>};
    double elements = 0;
    for_each_kind_of_segments<T>(call, segmentation, [&](const SegmentCalls<T>& calls) {
        const Task task = plan(calls.at(0).call());
        if (!task.run) all.run = nullptr;
        all.units += calls.count() * task.units;
        elements += static_cast<double>(calls.count() * task.units) * task.elements_per_unit;
    });
    all.elements_per_unit = elements / static_cast<double>(std::max<int64_t>(1, all.units));
    return all;
}
