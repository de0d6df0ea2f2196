// Part of kernels.inl: see there.
// The gradient of a maximum goes to the element that its index names: windows send it there, one after the other.

// Slices along the first axis, of plane after plane: elements of one position, and windows that begin at one.
class Slices {
public:
    explicit Slices(const Geometry& geometry) : axis_(geometry.axes[0]), reach_(window_reach(axis_) + 1) {}

    // How many slices of elements a window looks at.
    int64_t reach() const { return std::min(reach_, axis_.input); }

    // The first slice of windows that may look at this slice of elements.
    int64_t first_windows(int64_t slice) const {
        const int64_t least = slice % axis_.input + axis_.pad_begin - (reach_ - 1);
        return slice / axis_.input * axis_.output +
               std::min(ceil_div(std::max<int64_t>(0, least), axis_.stride), axis_.output);
    }
    // And the last one.
    int64_t last_windows(int64_t slice) const {
        const int64_t most = slice % axis_.input + axis_.pad_begin;
        return slice / axis_.input * axis_.output + std::min(most / axis_.stride, axis_.output - 1);
    }

    // The slices of elements that a slice of windows may look at.
    int64_t begin(int64_t windows) const { return slice(windows, 0); }
    int64_t end(int64_t windows) const { return slice(windows, reach_); }

private:
    int64_t slice(int64_t windows, int64_t offset) const {
        const int64_t position = windows % axis_.output * axis_.stride - axis_.pad_begin + offset;
        return windows / axis_.output * axis_.input + std::clamp<int64_t>(position, 0, axis_.input);
    }

    const Axis& axis_;
    const int64_t reach_;
};

// send(i) for 0 ... count - 1, and prefetch_at(i) before each cache line of indices.
template <class Send, class Prefetch>
__attribute__((always_inline)) inline void send_in_order(int64_t count, const Send& send, const Prefetch& prefetch_at) {
    constexpr int64_t line = 64 / sizeof(int64_t);
    int64_t i = 0;
    for (; i + line <= count; i += line) {
        prefetch_at(i);
#pragma GCC unroll 8
        for (int64_t k = 0; k < line; ++k) send(i + k);
    }
    for (; i < count; ++i) send(i);
}

// What runs of planes that follow each other send to slices begin ... end - 1 of the first one, and to as many of each
// other. A window of each run after the other: windows that follow each other often name the same element, and their
// additions would wait for each other.
template <class T, int kRuns>
void scatter_runs(const Call& call, int64_t begin, int64_t end) {
    using Accumulator = accumulator_t<T>;
    constexpr int64_t most_sums = (1 << 13) / sizeof(Accumulator);  // that are added up,
    constexpr int64_t most_windows = 512;                           // before it is seen which ones are complete
    constexpr int64_t windows_together = 64;                        // between writes
    if (begin >= end) return;
    const Geometry& geometry = call.geometry;
    const Axis& axis = geometry.axes[0];
    const Slices slices(geometry);
    const int64_t slice_size = plane_size(geometry, input_size) / axis.input;
    const int64_t slice_windows = plane_size(geometry, output_size) / axis.output;
    const int64_t run_size = (end - begin) * slice_size;
    const int64_t run_windows = (end - begin) / axis.input * axis.output * slice_windows;
    const int64_t together = std::max<int64_t>(
        1, std::min(most_windows / slice_windows, most_sums * axis.output / (axis.input * slice_size)));
    std::vector<SumsInOrder<T>> runs;
    runs.reserve(kRuns);
    for (int r = 0; r < kRuns; ++r) {
        runs.emplace_back(call, begin * slice_size + r * run_size, 4 * (most_sums + slices.reach() * slice_size));
    }
    const int64_t last = slices.last_windows(end - 1);
    for (int64_t slice = slices.first_windows(begin), next; slice <= last; slice = next) {
        next = std::min(slice + together, last + 1);
        const int64_t first = std::max(slices.begin(slice), begin) * slice_size;
        const int64_t size = std::min(slices.end(next - 1), end) * slice_size - first;
        Accumulator* sums[kRuns];
        for (int r = 0; r < kRuns; ++r) sums[r] = runs[r].between(first + r * run_size, first + r * run_size + size);
        const T* const grad_y = static_cast<const T*>(call.grad_y.data) + slice * slice_windows;
        const int64_t* const indices = static_cast<const int64_t*>(call.indices.data) + slice * slice_windows;
        const int64_t windows = (next - slice) * slice_windows;
        const int64_t written = ceil_div(runs[0].waiting() * windows_together, windows);
        const auto send = [&](int64_t i) {
#pragma GCC unroll 4
            for (int r = 0; r < kRuns; ++r) {
                const int64_t element = indices[r * run_windows + i] - (first + r * run_size);
                if (static_cast<uint64_t>(element) >= static_cast<uint64_t>(size)) continue;
                sums[r][element] += static_cast<Accumulator>(load<1>(grad_y + r * run_windows + i));
            }
        };
        const auto prefetch_at = [&](int64_t i) {
            for (int r = 0; r < kRuns; ++r) {
                prefetch_line_ahead<4096>(indices + r * run_windows + i);
                prefetch_line_ahead<2048>(grad_y + r * run_windows + i);
            }
        };
        for (int64_t i = 0; i < windows; i += windows_together) {
            send_in_order(
                std::min(windows_together, windows - i), [&](int64_t k) { send(i + k); },
                [&](int64_t k) { prefetch_at(i + k); });
            for (int r = 0; r < kRuns; ++r) runs[r].write(written);
        }
    }
    for (int r = 0; r < kRuns; ++r) runs[r].finish(end * slice_size + r * run_size);
}

// Contiguous tensors. Units are slices.
template <class T, int kRuns>
void backward_scattered(const Call& call, int64_t begin, int64_t end) {
    const int64_t plane = call.geometry.axes[0].input;
    const int64_t first = ceil_div(begin, plane) * plane, run = (end - first) / plane / kRuns * plane;
    if (kRuns == 1 || run <= 0) return scatter_runs<T, 1>(call, begin, end);
    scatter_runs<T, 1>(call, begin, first);
    scatter_runs<T, kRuns>(call, first, first + run);
    scatter_runs<T, 1>(call, first + kRuns * run, end);
}

// A position, or -1 if it is none of these: those below 0 are large ones without a sign.
template <class V>
inline V position_below(int64_t size, V position) {
    const auto unsigned_position = reinterpret<with_numbers_t<uint64_t, V>>(position);
    return unsigned_position < static_cast<uint64_t>(size) ? position : position * 0 - 1;
}

// As wide as what is added up, to be compared lane by lane.
template <class T>
using PlanePosition = integer_t<sizeof(accumulator_t<T>), true>;

// `sum`, and what is sent in lanes that name this position. Sums begin with 0, so none is -0: adding 0 changes nothing.
template <class V, class Positions>
inline V add_sent(V sum, V sent, Positions named, number_t<Positions> position) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (sizeof(V) == 64 && sizeof(number_t<V>) == 4) {
        const auto lanes = _mm512_cmpeq_epi32_mask((__m512i)named, _mm512_set1_epi32(position));
        return (V)_mm512_mask_add_ps((__m512)sum, lanes, (__m512)sum, (__m512)sent);
    } else if constexpr (sizeof(V) == 64) {
        const auto lanes = _mm512_cmpeq_epi64_mask((__m512i)named, _mm512_set1_epi64(position));
        return (V)_mm512_mask_add_pd((__m512d)sum, lanes, (__m512d)sum, (__m512d)sent);
    }
#endif
    return sum + (V)((Positions)(named == position) & (Positions)sent);
}

// Those of the taps that are positions first ... first + size - 1.
inline Range taps_between(const Range& taps, int64_t first, int64_t size) {
    const int64_t skipped = std::clamp<int64_t>(ceil_div(first - taps.begin, taps.step), 0, taps.count);
    const int64_t begin = taps.begin + skipped * taps.step;
    return {begin, std::clamp<int64_t>(ceil_div(first + size - begin, taps.step), 0, taps.count - skipped), taps.step};
}

// Windows of all channels at one position, vector by vector: each element that they look at takes what is sent in those
// lanes that name it.
template <class T>
class SendingLanes {
public:
    using Accumulator = accumulator_t<T>;

    // Whether it costs less than one addition for each window: windows are small, and channels fill vectors.
    static bool are_worth_it(const Call& call) {
        const Geometry& geometry = call.geometry;
        constexpr double most_taps = 1.6 * kCount;
        constexpr int64_t least_channels = 32;
        return geometry.channels >= least_channels && geometry.channels % kLeast == 0 &&
               taps_of_window(geometry) <= most_taps && has_positions_of_32_bits(call);
    }

    explicit SendingLanes(const Call& call)
        : geometry_(call.geometry),
          channels_(geometry_.channels),
          plane_(plane_size(geometry_, input_size)),
          tables_(axis_tables(call)),
          first_indices_(channels_) {
        packed_strides(geometry_, 1, input_size, strides_);
        for (int64_t c = 0; c < channels_; ++c) first_indices_[c] = c * plane_;
    }

    // The windows at this position of an image's first axis: to the elements at `size` of its positions from `first`
    // on, whose sums lie here. after_each() is called after the windows at each position.
    template <class AfterEach>
    void send_slice(const T* grad_y, const int64_t* indices, int64_t image, int64_t position, int64_t first,
                    int64_t size, Accumulator* sums, const AfterEach& after_each) {
        const int last = geometry_.rank - 1;
        const int64_t positions = plane_size(geometry_, output_size) / geometry_.axes[0].output;
        Windows windows{nullptr, nullptr, image * channels_ * plane_, {}, sums - first * strides_[0] * channels_};
        const auto send_row = [&](const int64_t* outer, int64_t row, const int64_t (&)[1]) {
            Range taps[kMaxSpatialRank];
            for (int a = 0; a < last; ++a) taps[a] = tables_[a].taps[outer[a]];
            if (last > 0) taps[0] = taps_between(taps[0], first, size);
            taps[last] = {0, 1, 1};
            starts_.clear();
            for_each_row<1>(taps, geometry_.rank, {strides_},
                            [&](const int64_t (&offsets)[1], const int64_t*) { starts_.push_back(offsets[0]); });
            const Range columns = last > 0 ? Range{0, geometry_.axes[last].output, 1} : Range{position, 1, 1};
            const int64_t done = row * columns.count - position * positions;
            for (int64_t i = 0; i < columns.count; ++i, after_each()) {
                windows.grad_y = grad_y + (done + i) * channels_;
                windows.indices = indices + (done + i) * channels_;
                windows.along = tables_[last].taps[columns.begin + i];
                if (last == 0) windows.along = taps_between(windows.along, first, size);
                send_vectors<4, kCount>(0, windows);
            }
        };
        const int64_t nothing[kMaxSpatialRank] = {};
        for_each_row_of_slices<1>(geometry_, output_size, {position, 1, 1}, {nothing}, send_row);
    }

private:
    static constexpr int kCount = kLanes<Accumulator>, kLeast = std::min(kCount, 4);
    using Position = PlanePosition<T>;

    // Of all channels at one position. They look at elements at starts_[0] + along, starts_[1] + along, ..., whose sums
    // are counted from the first position of planes on.
    struct Windows {
        const T* grad_y;
        const int64_t* indices;
        int64_t first_index;  // of the first channel's plane
        Range along;
        Accumulator* sums;
    };

    // Sends what windows of the lanes from this one on send, in so many vectors of so many lanes at a time, and then in
    // fewer and shorter ones: what overlaps with what has just been written would have to wait for it.
    template <int kVectors, int kLanesTogether>
    __attribute__((always_inline)) void send_vectors(int64_t lane, const Windows& windows) const {
        for (; lane + kVectors * kLanesTogether <= channels_; lane += kVectors * kLanesTogether) {
            Vector<Accumulator, kLanesTogether> sent[kVectors];
            Vector<Position, kLanesTogether> named[kVectors];
            for (int v = 0; v < kVectors; ++v) {
                const int64_t first = lane + v * kLanesTogether;
                prefetch_line_ahead<2048>(windows.grad_y + first);
                sent[v] = load<kLanesTogether>(windows.grad_y + first);
                named[v] = positions<kLanesTogether>(windows.indices + first, first, windows.first_index);
            }
            for (const int64_t start : starts_) {
                int64_t position = start + windows.along.begin;
                for (int64_t i = 0; i < windows.along.count; ++i, position += windows.along.step) {
                    Accumulator* const target = windows.sums + position * channels_ + lane;
                    for (int v = 0; v < kVectors; ++v) {
                        const auto sum = load<kLanesTogether>(target + v * kLanesTogether);
                        store(target + v * kLanesTogether,
                              add_sent(sum, sent[v], named[v], static_cast<Position>(position)));
                    }
                }
            }
        }
        if constexpr (kVectors > 1) {
            send_vectors<kVectors / 2, kLanesTogether>(lane, windows);
        } else if constexpr (kLanesTogether > kLeast) {
            send_vectors<1, kLanesTogether / 2>(lane, windows);
        }
    }

    // The positions in their planes that these indices name.
    template <int kLanesTogether>
    auto positions(const int64_t* indices, int64_t lane, int64_t first_index) const {
        constexpr int part = std::min(kLanes<int64_t>, kLanesTogether);
        Position result[kLanesTogether];
        for (int i = 0; i < kLanesTogether; i += part) {
            prefetch_line_ahead<4096>(indices + i);
            const auto position = load<part>(indices + i) - load<part>(first_indices_.data() + lane + i) - first_index;
            store(result + i, convert<Position>(position_below(plane_, position)));
        }
        return load<kLanesTogether>(result);
    }

    const Geometry& geometry_;
    const int64_t channels_, plane_;
    const std::vector<AxisTable> tables_;
    int64_t strides_[kMaxSpatialRank];
    Buffer<int64_t> first_indices_;  // of planes, from the first one on
    std::vector<int64_t> starts_;
};

// Tensors whose channels are innermost, and otherwise dense. Units are slices.
template <class T>
void backward_scattered_channels(const Call& call, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const Geometry& geometry = call.geometry;
    const Axis& axis = geometry.axes[0];
    const Slices slices(geometry);
    const int64_t plane = plane_size(geometry, input_size), channels = geometry.channels;
    const int64_t slice_size = plane / axis.input * channels;
    const int64_t slice_positions = plane_size(geometry, output_size) / axis.output;
    // What is complete waits while windows send to what follows, unless there is one window for all.
    const int64_t kept = plane_size(geometry, output_size) > 1 ? 2 * (slices.reach() + axis.stride) : axis.input;
    SumsInOrder<T> sums_in_order(call, begin * slice_size, kept * slice_size);
    std::optional<SendingLanes<T>> lanes;
    if (SendingLanes<T>::are_worth_it(call)) lanes.emplace(call);
    const int64_t last_windows = slices.last_windows(end - 1);
    for (int64_t slice = slices.first_windows(begin); slice <= last_windows; ++slice) {
        const int64_t first = std::max(slices.begin(slice), begin), size = std::min(slices.end(slice), end) - first;
        accumulator_t<T>* const sums = sums_in_order.between(first * slice_size, (first + size) * slice_size);
        const int64_t image = slice / axis.output, first_slice = first - image * axis.input;
        const T* grad_y = static_cast<const T*>(call.grad_y.data) + slice * slice_positions * channels;
        const int64_t* indices = static_cast<const int64_t*>(call.indices.data) + slice * slice_positions * channels;
        const int64_t written = ceil_div(sums_in_order.waiting(), slice_positions);
        if (lanes) {
            lanes->send_slice(grad_y, indices, image, slice - image * axis.output, first_slice, size, sums,
                              [&] { sums_in_order.write(written); });
            continue;
        }
        const auto positions = static_cast<uint64_t>(size * slice_size / channels);
        const int64_t first_index = image * channels * plane + first_slice * (plane / axis.input);
        const auto send = [&](int64_t c) {
            const int64_t position = indices[c] - (first_index + c * plane);
            if (static_cast<uint64_t>(position) >= positions) return;
            sums[position * channels + c] += static_cast<accumulator_t<T>>(load<1>(grad_y + c));
        };
        for (int64_t i = 0; i < slice_positions; ++i, grad_y += channels, indices += channels) {
            send_in_order(channels, send, [&](int64_t c) {
                prefetch_line_ahead<4096>(indices + c);
                prefetch_line_ahead<2048>(grad_y + c);
            });
            sums_in_order.write(written);
        }
    }
    sums_in_order.finish(end * slice_size);
}

// Channels at a time: all that are next to each other where sums are added up in place.
template <class T>
int64_t index_lanes(const Call& call) {
    return std::is_same_v<T, accumulator_t<T>> ? lanes_per_row(call) : lanes_per_block(call, 1 << 16);
}

// The gradient of a maximum goes where its index says: planes are added up in the order of their windows.
template <class T>
void backward_by_index(const Call& call, int64_t begin, int64_t end) {
    using Accumulator = accumulator_t<T>;
    constexpr bool in_place = std::is_same_v<T, Accumulator>;
    constexpr int64_t kLeastLanes = 8, kLanesTogether = 128;  // of what is worth it, and is done at a time
    const Geometry& geometry = call.geometry;
    const int rank = geometry.rank;
    const int64_t block = index_lanes<T>(call), blocks = ceil_div(geometry.channels, block);
    // Sums are added up in grad_x, which is dense, or in a buffer of wider numbers.
    const int64_t step = in_place ? call.grad_x.strides[1 + rank] : block;
    const int64_t lane_step = in_place ? call.grad_x.strides[1] : 1;
    int64_t dense[kMaxSpatialRank];
    const int64_t size = packed_strides(geometry, step, input_size, dense);
    Range outputs[kMaxSpatialRank], inputs[kMaxSpatialRank];
    for (int a = 0; a < rank; ++a) {
        outputs[a] = {0, geometry.axes[a].output, 1};
        inputs[a] = {0, geometry.axes[a].input, 1};
    }

    // Where the element that an index names lies among the sums.
    const int64_t* index_strides = call.index_strides + 2;
    bool row_major = true;
    for (int a = 0; a < rank; ++a) row_major &= index_strides[a] * step == dense[a] || geometry.axes[a].input == 1;
    std::vector<int64_t> places(row_major ? 0 : size);
    if (!row_major) {
        for_each_row<2>(inputs, rank, {index_strides, dense}, [&](const int64_t (&offsets)[2], const int64_t*) {
            for (int64_t i = 0; i < inputs[rank - 1].count; ++i) {
                places[offsets[0] + i * index_strides[rank - 1]] = offsets[1] + i * dense[rank - 1];
            }
        });
    }

    // Windows that follow each other in both tensors are one row.
    const int last = rank - 1;
    const auto follow_each_other = [&](const Operand& operand) {
        return has_dense_planes(geometry, operand, output_size, operand.strides[2 + last]);
    };
    if (follow_each_other(call.grad_y) && follow_each_other(call.indices)) {
        for (int a = 0; a < last; ++a) {
            outputs[last].count *= outputs[a].count;
            outputs[a].count = 1;
        }
    }
    const int64_t grad_step = call.grad_y.strides[2 + last], grad_lane_step = call.grad_y.strides[1];
    const int64_t index_step = call.indices.strides[2 + last], index_lane_step = call.indices.strides[1];

    Buffer<Accumulator> buffer(in_place ? 0 : size * block);
    Buffer<int64_t> lane_indices(block);  // of their planes' first elements
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / blocks, channel = unit % blocks * block;
        const int64_t lanes = std::min(block, geometry.channels - channel);
        const T* grad_y = plane_at<const T>(call.grad_y, image, channel);
        const int64_t* indices = plane_at<const int64_t>(call.indices, image, channel);
        T* grad_x = plane_at<T>(call.grad_x, image, channel);
        const int64_t first = first_index(call, image, channel);
        find_first_indices(call, image, channel, lanes, lane_indices.data());
        Accumulator* sums = buffer.data();
        if constexpr (in_place) sums = grad_x;
        if (lane_step == 1) {
            const bool one_run = step == lanes;
            for (int64_t i = 0; i < (one_run ? 1 : size); ++i) {
                std::fill_n(sums + i * step, one_run ? size * lanes : lanes, Accumulator(0));
            }
        } else {
            for (int64_t lane = 0; lane < lanes; ++lane) std::fill_n(sums + lane * lane_step, size, Accumulator(0));
        }
        // n windows: those of one lane that follow each other, or those of all lanes at one position.
        const auto scatter = [&](int64_t n, const T* grad, int64_t grad_step, const int64_t* index, int64_t index_step,
                                 int64_t plane_step, int64_t target_step) {
            for (int64_t i = 0; i < n; ++i) {
                const int64_t inner = index[i * index_step] - first - i * plane_step;
                if (static_cast<uint64_t>(inner) >= static_cast<uint64_t>(size)) continue;
                const int64_t place = row_major ? inner * step : places[inner];
                sums[place + i * target_step] += static_cast<Accumulator>(load<1>(grad + i * grad_step));
            }
        };
        // Windows of lanes next to each other at one position: memory is read before anything waits for sums.
        const auto scatter_lanes = [&](int64_t begin, int64_t end, const T* grad, const int64_t* index) {
            int64_t elements[kLanesTogether];
            const int64_t count = end - begin, elements_end = size, element_step = step, sum_step = lane_step;
            const int64_t grad_lane = grad_lane_step;
            const int64_t* const own_indices = lane_indices.data() + begin;
            index += begin;
            grad += begin * grad_lane;
            in_vectors<kLanes<int64_t>>(count, [&](int64_t i, auto n) {
                prefetch_line_ahead<4096>(index + i);
                prefetch_line_ahead<2048>(grad + i);
                const auto position = load<n>(index + i) - load<n>(own_indices + i);
                store(elements + i, position_below(elements_end, position));
            });
            Accumulator* const own_sums = sums + begin * sum_step;
            for (int64_t i = 0; i < count; ++i) {
                if (elements[i] < 0) continue;
                own_sums[elements[i] * element_step + i * sum_step] +=
                    static_cast<Accumulator>(load<1>(grad + i * grad_lane));
            }
        };
        const auto scatter_position = [&](const T* grad, const int64_t* index) {
            if (lanes < kLeastLanes || index_lane_step != 1 || !row_major) {
                return scatter(lanes, grad, grad_lane_step, index, index_lane_step, call.index_strides[1], lane_step);
            }
            for (int64_t lane = 0; lane < lanes; lane += kLanesTogether) {
                scatter_lanes(lane, std::min(lane + kLanesTogether, lanes), grad, index);
            }
        };
        for_each_row<2>(outputs, rank, {call.grad_y.strides + 2, call.indices.strides + 2},
                        [&](const int64_t (&offsets)[2], const int64_t*) {
                            const T* grad = grad_y + offsets[0];
                            const int64_t* index = indices + offsets[1];
                            const int64_t count = outputs[last].count;
                            if (lanes == 1) return scatter(count, grad, grad_step, index, index_step, 0, 0);
                            for (int64_t o = 0; o < count; ++o) {
                                scatter_position(grad + o * grad_step, index + o * index_step);
                            }
                        });
        if constexpr (!in_place) {
            const int64_t target_step = call.grad_x.strides[2 + last], target_lane_step = call.grad_x.strides[1];
            const bool one_run = target_step == step && (lanes == 1 || target_lane_step == 1) && step == lanes;
            for (int64_t i = 0; i < (one_run ? 1 : size); ++i) {
                const Accumulator* sum = sums + i * step;
                T* target = grad_x + i * target_step;
                if (one_run || target_lane_step == 1) {
                    in_vectors<kLanes<Accumulator>>(one_run ? size * lanes : lanes, [&](int64_t j, auto n) {
                        store(target + j, convert<T>(load<n>(sum + j)));
                    });
                } else {
                    for (int64_t lane = 0; lane < lanes; ++lane)
                        target[lane * target_lane_step] = static_cast<T>(sum[lane]);
                }
            }
        }
    }
}
