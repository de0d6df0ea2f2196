// Part of kernels.inl: see there.
// A few channels that are innermost fill vectors badly. Parts of the tensors that stay in the caches are deinterleaved
// into planes, these are done as those of contiguous tensors are, and the results are interleaved again.

// Channels are few up to so many.
constexpr int kFewChannels = 7;

// Numbers of two bytes as such, not as values.
template <class T>
using Moved = std::conditional_t<is_half_precision<T>, uint16_t, T>;

// The planes of some images of a tensor with channels innermost, or of slices of them along the first axis.
template <class T>
class SplitPlanes {
public:
    explicit SplitPlanes(const Operand& whole) : whole_(whole) {}

    // From this image and this slice on.
    template <class Size>
    Operand at(const Geometry& part, Size size_of_axis, int64_t image, int64_t slice) {
        if (!whole_.data) return {};
        images_ = part.batch;
        channels_ = part.channels;
        strides_[1] = packed_strides(part, 1, size_of_axis, strides_ + 2);
        strides_[0] = channels_ * strides_[1];
        planes_.resize(std::max<size_t>(planes_.size(), images_ * strides_[0]));
        first_ = reinterpret_cast<Moved<T>*>(static_cast<T*>(whole_.data)) + image * whole_.strides[0] +
                 slice * whole_.strides[2];
        return {planes_.data(), strides_};
    }

    void split() {
        for_each_image([&](Moved<T>* image, Moved<T>* planes, int64_t positions) {
            with_number<2, kFewChannels>(
                channels_, [&](auto channels) { deinterleave_runs<channels>(image, positions, planes, positions); });
        });
    }

    void join() {
        for_each_image([&](Moved<T>* image, Moved<T>* planes, int64_t positions) {
            with_number<2, kFewChannels>(
                channels_, [&](auto channels) { interleave_runs<channels>(planes, positions, positions, image); });
        });
    }

private:
    template <class Body>
    void for_each_image(const Body& body) {
        for (int64_t i = 0; whole_.data && i < images_; ++i) {
            body(first_ + i * whole_.strides[0], planes_.data() + i * strides_[0], strides_[1]);
        }
    }

    const Operand whole_;
    Moved<T>* first_ = nullptr;
    int64_t images_ = 0, channels_ = 0;
    int64_t strides_[2 + kMaxSpatialRank];
    Buffer<Moved<T>> planes_;
};

// Some images or, of one that is large, a segment of the first axis.
struct ImagePart {
    int64_t image, images;
    Segment segment;
};

// How a call with channels innermost is divided into such parts.
class ImageParts {
public:
    ImageParts(const Call& call, bool gradient)
        : geometry_(call.geometry),
          images_(std::clamp<int64_t>(elements_of_part() / image_size(), 1, geometry_.batch)),
          segments_(geometry_.axes[0], ceil_div(elements_of_part(), image_size() / geometry_.axes[0].input),
                    !gradient) {
        if (segments_.count > 0 && !add_alike(segments_, gradient, geometry_.axes[0], geometry_.rank == 1)) {
            segments_.count = 0;
        }
    }

    int64_t count() const { return ceil_div(geometry_.batch, images_) * segments_of_image(); }

    ImagePart at(int64_t number) const {
        const Axis& axis = geometry_.axes[0];
        const int64_t segment = take_digit(number, segments_of_image()), image = number * images_;
        return {image, std::min(images_, geometry_.batch - image),
                segments_.count > 0 ? segments_.at(segment, axis) : Segment{0, axis.input, 0, axis.output}};
    }

private:
    static int64_t elements_of_part() { return 64 * ONNXPOOL_SEGMENT; }

    int64_t image_size() const {
        return geometry_.channels * std::max(plane_size(geometry_, input_size), plane_size(geometry_, output_size));
    }

    int64_t segments_of_image() const { return segments_.count > 0 ? segments_.count + 2 : 1; }

    const Geometry& geometry_;
    const int64_t images_;  // in a part
    Segments segments_;
};

// Does those parts of a channels-last call one after the other.
template <class T, bool kGradient>
void run_parts_of_images(const Call& call, bool reads_data, Plan plan, int64_t begin, int64_t end) {
    const ImageParts parts(call, kGradient);
    const Operand nothing;
    SplitPlanes<T> x(reads_data ? call.x : nothing), y(reads_data ? call.y : nothing);
    SplitPlanes<T> grad_x(call.grad_x), grad_y(call.grad_y);
    SplitPlanes<int64_t> indices(call.indices);
    for (int64_t number = begin; number < end; ++number) {
        const auto [image, images, segment] = parts.at(number);
        Geometry geometry = call.geometry;
        geometry.batch = images;
        Call part(geometry, call.parameters);
        part.index_strides = call.index_strides;
        if (segment.elements < geometry.axes[0].input) segment.apply(call, 0, geometry, part);
        if (part.index_strides) part.first_index += image * call.index_strides[0];
        part.x = x.at(geometry, input_size, image, segment.element);
        part.y = y.at(geometry, output_size, image, segment.window);
        part.indices = indices.at(geometry, output_size, image, segment.window);
        part.grad_x = grad_x.at(geometry, input_size, image, segment.element);
        part.grad_y = grad_y.at(geometry, output_size, image, segment.window);
        x.split();
        if (kGradient) {
            y.split();
            grad_y.split();
        }
        const Task task = plan(part);
        task.run(part, 0, task.units);
        if (kGradient) {
            grad_x.join();
        } else {
            y.join();
            indices.join();
        }
    }
}

// Units are parts.
template <class R, bool kGradient, Plan plan>
void run_few_channels(const Call& call, int64_t begin, int64_t end) {
    constexpr bool reads_data = !kGradient || R::kGradientNeedsData;
    run_parts_of_images<typename R::Element, kGradient>(call, reads_data, plan, begin, end);
}

// Whether that takes less time. Maxima send their gradients to single elements anyway.
template <class R, bool kGradient>
bool are_channels_worth_splitting(const Call& call) {
    constexpr int64_t very_few = 3, few = 5, short_row = 96;
    const Geometry& geometry = call.geometry;
    const Axis& last = geometry.axes[geometry.rank - 1];
    if (kGradient && R::kIndexed) return false;
    if (spans_plane(geometry)) return geometry.channels <= very_few;
    if (R::kIndexed || R::kInOrder || sharing_pays_for_windows(last)) return true;
    if (geometry.channels * last.output * last.stride < short_row) return true;
    if (kGradient && geometry.channels <= (R::kGradientNeedsData ? very_few : few)) return true;
    // With stride 1, what neighbouring windows are made of is one run of memory.
    return geometry.channels <= very_few && geometry.rank <= 2 && last.stride > 1;
}

// Null where there are many channels, those of an image lie in another way, or it is a segment already.
template <class R, bool kGradient, Task (*plan)(const Call& call)>
Task plan_few_channels(const Call& call) {
    const Geometry& geometry = call.geometry;
    const bool are_few = geometry.channels >= 2 && geometry.channels <= kFewChannels;
    if (!call.channels_innermost || !are_few || geometry.batch == 0 || call.segmented_axis >= 0 ||
        !are_channels_worth_splitting<R, kGradient>(call)) {
        return {};
    }
    const auto are_dense = [&](auto size, const auto&... operands) {
        const auto is_dense = [&](const Operand& operand) {
            return operand.strides[1] == 1 && has_dense_planes(geometry, operand, size, geometry.channels);
        };
        return ((!operands.data || is_dense(operands)) && ...);
    };
    if (!are_dense(input_size, call.x, call.grad_x) || !are_dense(output_size, call.y, call.grad_y, call.indices)) {
        return {};
    }
    const int64_t parts = ImageParts(call, kGradient).count();
    const double elements = plane_elements(call) * static_cast<double>(geometry.batch * geometry.channels);
    return {run_few_channels<R, kGradient, plan>, parts, elements / static_cast<double>(parts)};
}
