// Part of kernels.inl: see there.
// The gradient of a maximum goes to the element that its index names. Where windows are small, each element gathers
// what the windows that cover it send, in their order, as far as they name it; otherwise windows scatter it.

// A position, or -1 if it is none of these.
template <class Position, class V>
inline auto position_below(int64_t size, V position) {
    const V none = position - position - 1;
    return convert<Position>(position < 0 || position >= size ? none : position);
}

// Elements of rows that follow each other in all tensors. What vectors read beyond the end of a row are windows that
// name other elements.
template <class T>
class GatheredRows {
public:
    using Accumulator = accumulator_t<T>;
    using Position = integer_t<sizeof(Accumulator), true>;

    GatheredRows(const Call& call, const RowsOfCoverings<T, Accumulator>& covered)
        : elements_(covered.along.outputs),
          windows_(covered.along.columns),
          results_follow_(covered.along.results_follow()),
          streams_(exceeds_caches<T>(call)) {
        const Geometry& geometry = call.geometry;
        int64_t strides[kMaxSpatialRank], longest = 0;
        plane_windows_ = packed_strides(geometry, 1, output_size, strides);
        for (const AlongRow::Tap& tap : covered.along.taps) longest = std::max(longest, std::abs(tap.shift));
        room_ = (ceil_div(longest, kCount) + 2) * kCount;
        named_.assign(covered.planes * plane_windows_ + 2 * room_, -1);
        sent_.resize(named_.size());
        rows_ = RowTaps(geometry, input_size, covering_tables(geometry), strides, covered.along.elements_follow());
        for (const RowTaps::Row& row : rows_.rows) {
            for (int64_t phase = 0; phase < covered.along.result_phases; ++phase) {
                ends_.push_back(static_cast<int64_t>(taps_.size()));
                for (int64_t i = row.begin; i < row.end; ++i) {
                    for (const AlongRow::Tap& tap : covered.along.taps) {
                        if (tap.result_phase == phase) taps_.push_back(rows_.offsets[i] + tap.shift);
                    }
                }
            }
        }
        ends_.push_back(static_cast<int64_t>(taps_.size()));
    }

    // The planes that come next, of so many elements.
    void set_planes(const T* grad_y, const int64_t* indices, int64_t first_index, int64_t size) {
        grad_y_ = grad_y;
        indices_ = indices;
        first_index_ = first_index;
        size_ = size;
        prepared_ = 0;
    }

    // The gradients of `count` rows of these planes from `first` on, to which all come in turn. Behind them there is
    // `room` for elements that mean nothing. Inlined, the loops run out of registers.
    template <int kPhases>
    __attribute__((noinline)) void compute(int64_t first, int64_t count, int64_t room, T* grad_x) {
        const auto plane_rows = static_cast<int64_t>(rows_.rows.size());
        int64_t own = first % plane_rows, window = first / plane_rows * plane_windows_;
        int64_t rest = count * elements_;
        auto element = static_cast<Position>(first * elements_);
        for (int64_t row = 0; row < count; own = 0, window += plane_windows_) {
            const int64_t rows = std::min(plane_rows - own, count - row);
            prepare(window + rows_.elements_end(own, rows, windows_));
            for (const int64_t last = own + rows; own < last;) {
                const int64_t together = results_follow_ ? std::min(rows_.rows[own].together, last - own) : 1;
                const int64_t size = together * elements_;
                rest -= size;
                gather<kPhases>(ends_.data() + own * kPhases, window, element, size, room + rest, grad_x);
                grad_x += size;
                element += static_cast<Position>(size);
                own += together;
            }
            row += rows;
        }
    }

    // After the last row.
    void finish() const { finish_streaming(streams_); }

private:
    static constexpr int kCount = kLanes<Accumulator>;
    using V = Vector<Accumulator, kCount>;
    using Positions = Vector<Position, kCount>;

    // What windows send, and which of the planes' elements they name, up to this window.
    void prepare(int64_t until) {
        const int64_t size = until - prepared_;
        if (size <= 0) return;
        const T* const grad_y = grad_y_ + prepared_;
        const int64_t* const indices = indices_ + prepared_;
        Accumulator* const sent = sent_.data() + room_ + prepared_;
        Position* const named = named_.data() + room_ + prepared_;
        prefetch_ahead(grad_y, size);
        prefetch_ahead(indices, size);
        in_vectors<kCount>(size,
                           [&](int64_t i, auto n) { store(sent + i, convert<Accumulator>(load<n>(grad_y + i))); });
        in_vectors<kLanes<int64_t>>(size, [&](int64_t i, auto n) {
            store(named + i, position_below<Position>(size_, load<n>(indices + i) - first_index_));
        });
        prepared_ = until;
    }

    // The gradients of `size` elements that follow each other.
    template <int kPhases>
    void gather(const int64_t* ends, int64_t first_window, Position first_element, int64_t size, int64_t room,
                T* grad_x) const {
        const Position* const named = named_.data() + room_ + first_window;
        const Accumulator* const sent = sent_.data() + room_ + first_window;
        const int64_t* const taps = taps_.data();
        // Where windows have no strides, more is read than written, and nothing is gained.
        const bool whole = streams_ && kPhases > 1 && are_whole_lines(grad_x, size);
        const auto gather_vectors = [&](auto count, int64_t i) {
            V sums[kPhases][count];
            const auto gather_phase = [&](V(&sum)[count], int phase) {
                Positions own[count];
                for (int v = 0; v < count; ++v) {
                    own[v] = kEvery<kPhases> + static_cast<Position>(first_element + i + phase + v * kPhases * kCount);
                    sum[v] = V{};
                }
                for (int64_t k = ends[phase]; k < ends[phase + 1]; ++k) {
                    const int64_t window = taps[k] + i / kPhases;
                    for (int v = 0; v < count; ++v) {
                        const V more = sum[v] + load<kCount>(sent + window + v * kCount);
                        sum[v] = load<kCount>(named + window + v * kCount) == own[v] ? more : sum[v];
                    }
                }
            };
            gather_phase(sums[0], 0);
            if constexpr (kPhases == 2) gather_phase(sums[1], 1);
            T beyond_end[kPhases * count * kCount];
            const bool fits = i + kPhases * count * kCount <= size + room;
            T* target = fits ? grad_x + i : beyond_end;
            const bool streams = whole && fits;
            const auto put = [&](V sum) {
                store_ahead(target, convert<T>(sum), streams);
                target += kCount;
            };
            for (int v = 0; v < count; ++v) {
                if constexpr (kPhases == 1) {
                    put(sums[0][v]);
                } else {
                    put(interleave<0>(sums[0][v], sums[1][v]));
                    put(interleave<kCount / 2>(sums[0][v], sums[1][v]));
                }
            }
            if (!fits) std::copy_n(beyond_end, size - i, grad_x + i);
        };
        int64_t i = 0;
        for (; size - i > kPhases * kCount; i += 2 * kPhases * kCount) {
            gather_vectors(std::integral_constant<int, 2>(), i);
        }
        if (i < size) gather_vectors(std::integral_constant<int, 1>(), i);
    }

    template <int kStep, Position... lane>
    static constexpr Positions every(std::integer_sequence<Position, lane...>) {
        return Positions{kStep * lane...};
    }
    template <int kStep>
    static constexpr Positions kEvery = every<kStep>(std::make_integer_sequence<Position, kCount>());

    const int64_t elements_, windows_;  // of a row
    const bool results_follow_;
    const bool streams_;  // what is whole lines of memory, past the caches
    int64_t plane_windows_;
    int64_t room_;  // for windows beyond the planes' ends
    RowTaps rows_;
    std::vector<int64_t> taps_;  // windows that may name the elements of a row, by phases
    std::vector<int64_t> ends_;  // for each row and phase, those of the ones before
    Buffer<Accumulator> sent_;
    Buffer<Position> named_;

    const T* grad_y_ = nullptr;
    const int64_t* indices_ = nullptr;
    int64_t first_index_ = 0;
    int64_t size_ = 0;
    int64_t prepared_ = 0;  // windows
};

// Units are some planes that follow each other.
template <class T>
void backward_gathered_rows(const Call& call, int64_t begin, int64_t end) {
    const RowsOfCoverings<T, accumulator_t<T>> covered(call);
    GatheredRows<T> gathered(call, covered);
    const int64_t size = plane_size(call.geometry, input_size), windows = plane_size(call.geometry, output_size);
    T* grad_x = nullptr;
    const auto start = [&](int64_t plane, int64_t planes) {
        gathered.set_planes(static_cast<const T*>(call.grad_y.data) + plane * windows,
                            static_cast<const int64_t*>(call.indices.data) + plane * windows, plane * size,
                            planes * size);
        grad_x = static_cast<T*>(call.grad_x.data) + plane * size;
    };
    covered.for_each_group(call, begin, end, start, [&](int64_t first, int64_t count, int64_t room) {
        T* const target = grad_x + first * covered.along.outputs;
        covered.along.result_phases == 1 ? gathered.template compute<1>(first, count, room, target)
                                         : gathered.template compute<2>(first, count, room, target);
    });
    gathered.finish();
}

// Elements of channels that are next to each other.
template <class T>
class GatheredLanes {
public:
    explicit GatheredLanes(const Call& call)
        : call_(call),
          last_(call.geometry.rank - 1),
          outputs_(call.geometry.axes[last_].output),
          plane_size_(plane_size(call.geometry, input_size)),
          block_(lanes_per_row(call)),
          streams_(is_streamed<T>(call, call.grad_x, block_)),
          coverings_(covering_tables(call.geometry)),
          lane_indices_(block_) {
        int64_t strides[kMaxSpatialRank];
        packed_strides(call.geometry, 1, output_size, strides);
        rows_ = RowTaps(call.geometry, input_size, coverings_, strides, false);
        // Rows of windows are kept as long as elements need them.
        int64_t end = 0;
        for (const RowTaps::Row& row : rows_.rows) {
            if (row.begin == row.end) continue;
            end = std::max(end, rows_.offsets[row.end - 1] + outputs_);
            kept_ = std::max(kept_, end - rows_.offsets[row.begin]);
        }
        sent_.resize(kept_ * block_);
        named_.resize(kept_ * block_);
    }

    // The lanes that come next: all rows of their elements in turn.
    void set_lanes(int64_t image, int64_t channel) {
        lanes_ = std::min(block_, call_.geometry.channels - channel);
        grad_y_ = plane_at<const T>(call_.grad_y, image, channel);
        indices_ = plane_at<const int64_t>(call_.indices, image, channel);
        find_first_indices(call_, image, channel, lanes_, lane_indices_.data());
        prepared_rows_ = 0;
    }

    // The gradients of the row_index-th row, at these outer coordinates, whose first element has the index `first`.
    void compute(const int64_t* outer, int64_t row_index, int64_t first, T* grad_x) {
        prepare(end_of_covering_rows(coverings_, outer));
        const RowTaps::Row& taps = rows_.rows[row_index];
        for (int64_t i = 0; i < call_.geometry.axes[last_].input; ++i) {
            const Range& along = coverings_[last_].taps[i];
            windows_.clear();
            for (int64_t tap = taps.begin; tap < taps.end; ++tap) {
                const int64_t row = rows_.offsets[tap] % kept_;
                for (int64_t k = 0; k < along.count; ++k) {
                    windows_.push_back((row + along.begin + k * along.step) * block_);
                }
            }
            gather(static_cast<Position>(first + i * call_.index_strides[2 + last_]),
                   grad_x + i * call_.grad_x.strides[2 + last_]);
        }
    }

    // After the last row.
    void finish() const { finish_streaming(streams_); }

private:
    using Accumulator = accumulator_t<T>;
    using Position = integer_t<sizeof(Accumulator), true>;
    static constexpr int kCount = kLanes<Accumulator>;

    // What rows of windows send, and which elements of the plane they name, up to this one.
    void prepare(int64_t until) {
        for (; prepared_rows_ < until; ++prepared_rows_) {
            int64_t outer[kMaxSpatialRank];
            find_row(call_.geometry, output_size, prepared_rows_, outer);
            const T* grad_y = grad_y_ + offset_of_row(outer, call_.grad_y.strides, call_.geometry.rank);
            const int64_t* indices = indices_ + offset_of_row(outer, call_.indices.strides, call_.geometry.rank);
            int64_t window = prepared_rows_ * outputs_ % kept_ * block_;
            for (int64_t o = 0; o < outputs_; ++o, window += block_) {
                prefetch_ahead(grad_y, lanes_);
                prefetch_ahead(indices, lanes_);
                in_vectors<kCount>(lanes_, [&](int64_t i, auto n) {
                    store(sent_.data() + window + i, convert<Accumulator>(load<n>(grad_y + i)));
                });
                in_vectors<kLanes<int64_t>>(lanes_, [&](int64_t i, auto n) {
                    const auto position = load<n>(indices + i) - load<n>(lane_indices_.data() + i);
                    store(named_.data() + window + i, position_below<Position>(plane_size_, position));
                });
                grad_y += call_.grad_y.strides[2 + last_];
                indices += call_.indices.strides[2 + last_];
            }
        }
    }

    // Of windows_, for all lanes.
    void gather(Position own, T* grad_x) const {
        const auto gather_vectors = [&](auto count, auto lanes, int64_t i) {
            decltype(load<lanes>(sent_.data())) sums[count] = {};
            for (const int64_t window : windows_) {
                const Accumulator* const sent = sent_.data() + window + i;
                const Position* const named = named_.data() + window + i;
                for (int v = 0; v < count; ++v) {
                    const auto more = sums[v] + load<lanes>(sent + v * lanes);
                    sums[v] = load<lanes>(named + v * lanes) == own ? more : sums[v];
                }
            }
            for (int v = 0; v < count; ++v) {
                store_ahead(grad_x + i + v * lanes, convert<T>(sums[v]), streams_);
            }
        };
        constexpr std::integral_constant<int, 1> one;
        constexpr std::integral_constant<int, 4> four;
        constexpr std::integral_constant<int, kCount> vector;
        int64_t done = 0;
        for (; done + four * kCount <= lanes_; done += four * kCount) gather_vectors(four, vector, done);
        in_vectors<kCount>(lanes_ - done, [&](int64_t i, auto lanes) { gather_vectors(one, lanes, done + i); });
    }

    const Call& call_;
    const int last_;
    const int64_t outputs_;     // of a row
    const int64_t plane_size_;  // elements
    const int64_t block_;       // lanes
    const bool streams_;
    const std::vector<AxisTable> coverings_;
    RowTaps rows_;
    int64_t kept_ = 1;  // windows
    Buffer<Accumulator> sent_;
    Buffer<Position> named_;
    Buffer<int64_t> lane_indices_;  // of the first element
    std::vector<int64_t> windows_;  // that cover an element: where they are kept

    const T* grad_y_ = nullptr;
    const int64_t* indices_ = nullptr;
    int64_t lanes_ = 0;
    int64_t prepared_rows_ = 0;
};

// Units are blocks of channels of an image.
template <class T>
void backward_gathered_lanes(const Call& call, int64_t begin, int64_t end) {
    const Geometry& geometry = call.geometry;
    const int64_t block = lanes_per_row(call), blocks = ceil_div(geometry.channels, block);
    GatheredLanes<T> gathered(call);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t image = unit / blocks, channel = unit % blocks * block;
        T* const grad_x = plane_at<T>(call.grad_x, image, channel);
        gathered.set_lanes(image, channel);
        for_each_row_of_plane<2>(geometry, input_size, {call.grad_x.strides + 2, call.index_strides + 2},
                                 [&](const int64_t* outer, int64_t row, const int64_t (&offsets)[2]) {
                                     gathered.compute(outer, row, offsets[1], grad_x + offsets[0]);
                                 });
    }
    gathered.finish();
}

// Channels at a time: all that are next to each other where sums are added up in place.
template <class T>
int64_t index_lanes(const Call& call) {
    return std::is_same_v<T, accumulator_t<T>> ? lanes_per_row(call) : lanes_per_block(call, 1 << 16);
}

// Planes of tensors that are contiguous. Large windows that follow each other often name the same element, and an
// addition has to wait for the last one: several planes in turns. Smaller ones are faster in the order of memory. Units
// are so many planes.
template <class T, int kPlanes>
void backward_scattered_planes(const Call& call, int64_t begin, int64_t end) {
    using Accumulator = accumulator_t<T>;
    constexpr bool in_place = std::is_same_v<T, Accumulator>;
    constexpr int64_t line = 64 / sizeof(T);
    constexpr int64_t prefetched_bytes = 1 << 15;  // of a unit's gradients: not if caches hold little else
    const Geometry& geometry = call.geometry;
    const int64_t size = plane_size(geometry, input_size), windows = plane_size(geometry, output_size);
    const bool fits = kPlanes > 1 && static_cast<int64_t>(sizeof(T)) * kPlanes * size <= prefetched_bytes;
    const int64_t elements_per_window = ceil_div(size, std::max<int64_t>(1, windows));
    Buffer<Accumulator> buffer(in_place ? 0 : kPlanes * size);
    for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t plane = unit * kPlanes;
        const int64_t planes = std::min<int64_t>(kPlanes, geometry.batch * geometry.channels - plane);
        const T* const grad_y = static_cast<const T*>(call.grad_y.data) + plane * windows;
        const int64_t* const indices = static_cast<const int64_t*>(call.indices.data) + plane * windows;
        T* const grad_x = static_cast<T*>(call.grad_x.data) + plane * size;
        Accumulator* sums = buffer.data();
        if constexpr (in_place) sums = grad_x;
        std::fill_n(sums, planes * size, Accumulator(0));
        const auto scatter = [&](int64_t first, auto count, auto reads_ahead) {
            for (int64_t i = 0; i < windows; ++i) {
                // Of the next unit, little by little: several streams that are short are not foreseen by processors.
                for (int64_t p = planes; reads_ahead && i % line == 0 && p < 2 * planes; ++p) {
                    prefetch(indices + p * windows + i, line);
                    prefetch(grad_y + p * windows + i, line);
                    prefetch(grad_x + p * size + i * elements_per_window, line * elements_per_window);
                }
#pragma GCC unroll 4
                for (int64_t p = first; p < first + count; ++p) {
                    const int64_t element = indices[p * windows + i] - (plane + p) * size;
                    if (static_cast<uint64_t>(element) >= static_cast<uint64_t>(size)) continue;
                    sums[p * size + element] += static_cast<Accumulator>(load<1>(grad_y + p * windows + i));
                }
            }
        };
        constexpr std::integral_constant<int, kPlanes> all;
        constexpr std::integral_constant<int, 1> one;
        if (planes < kPlanes) {
            for (int64_t p = 0; p < planes; ++p) scatter(p, one, std::false_type());
        } else if (fits) {
            scatter(0, all, std::true_type());
        } else {
            scatter(0, all, std::false_type());
        }
        if constexpr (!in_place) {
            in_vectors<kLanes<Accumulator>>(
                planes * size, [&](int64_t i, auto n) { store(grad_x + i, convert<T>(load<n>(sums + i))); });
        }
    }
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
    int64_t size = 1;
    int64_t dense[kMaxSpatialRank + 1];
    for (int a = rank - 1; a >= 0; --a) {
        dense[a] = size * step;
        size *= geometry.axes[a].input;
    }
    Range outputs[kMaxSpatialRank + 1], inputs[kMaxSpatialRank + 1];
    every_position(geometry, output_size, outputs);
    every_position(geometry, input_size, inputs);

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
        int64_t stride = operand.strides[2 + last];
        for (int a = last; a >= 0; stride *= outputs[a--].count) {
            if (outputs[a].count > 1 && operand.strides[2 + a] != stride) return false;
        }
        return true;
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
        // Those of lanes next to each other at one position: memory is read before anything waits for sums.
        const auto scatter_lanes = [&](int64_t begin, int64_t end, const T* grad, const int64_t* index) {
            int64_t elements[kLanesTogether];
            const int64_t count = end - begin, elements_end = size, element_step = step, sum_step = lane_step;
            const int64_t grad_lane = grad_lane_step;
            const int64_t* const own_indices = lane_indices.data() + begin;
            index += begin;
            grad += begin * grad_lane;
            in_vectors<kLanes<int64_t>>(count, [&](int64_t i, auto n) {
                look_ahead<4096>(index + i);
                look_ahead<2048>(grad + i);
                const auto position = load<n>(index + i) - load<n>(own_indices + i);
                store(elements + i, position_below<int64_t>(elements_end, position));
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
