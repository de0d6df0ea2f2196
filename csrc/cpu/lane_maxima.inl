// Part of kernels.inl: see there.
// Maxima of small windows and where they are first reached, for channels that are next to each other: a datum takes a
// maximum's place if it is larger, or the first NaN.

// Maxima of integers of 8 bits as float32, which is as wide as positions are.
template <class T>
struct MaxOfIntegers : Largest<float> {
    using Element = T;

    explicit MaxOfIntegers(const Parameters&) {}

    template <class V>
    auto lift(V x) const {
        return convert<float>(convert<int32_t>(x));
    }
    template <class V>
    auto finish(V maximum) const {
        return convert<T>(convert<int32_t>(maximum));
    }
    T empty() const { return lowest_finite<T>(); }
};

// Maxima whose accumulators are compared beside positions.
template <class T>
using ComparedMax = std::conditional_t<std::is_integral_v<T>, MaxOfIntegers<T>, Max<T>>;

// Puts values in the place of maxima, and their positions, where they are larger, or the first NaN, in these lanes of a
// register.
template <class V, class Positions>
inline void take_larger(LanesOf<V> lanes, V value, Positions position, V& largest, Positions& found) {
#if defined(ONNXPOOL_AVX512)
    static_assert(sizeof(V) == 64);
    if constexpr (sizeof(number_t<V>) == 4) {
        const auto a = (__m512)largest;
        lanes =
            _mm512_mask_cmp_ps_mask(_mm512_mask_cmp_ps_mask(lanes, a, a, _CMP_ORD_Q), a, (__m512)value, _CMP_NGE_UQ);
    } else {
        const auto a = (__m512d)largest;
        lanes =
            _mm512_mask_cmp_pd_mask(_mm512_mask_cmp_pd_mask(lanes, a, a, _CMP_ORD_Q), a, (__m512d)value, _CMP_NGE_UQ);
    }
#else
    lanes = lanes & (largest == largest) & ~(largest >= value);
#endif
    largest = where(lanes, value, largest);
    found = where(lanes, position, found);
}

template <class T>
class LaneMaxima {
public:
    explicit LaneMaxima(const Call& call)
        : call_(call),
          last_(call.geometry.rank - 1),
          block_(lanes_per_row(call)),
          streams_(is_streamed<T>(call, call.y, block_) &&
                   has_whole_lines<int64_t>(call.geometry, call.indices, block_)),
          tables_(axis_tables(call)),
          runs_(tables_[last_]),
          windows_together_(windows_together(call)),
          first_indices_(windows_together_ * block_),
          gaps_(ceil_div(windows_together_ * block_, kVector)),
          positions_(windows_together_ * block_) {
        const int64_t stride = call.geometry.axes[last_].stride;
        for (int64_t i = 0; i < windows_together_ * block_; ++i) {
            const int64_t window = i / block_, lane = i % block_;
            first_indices_[i] = window * stride * call.index_strides[2 + last_] + lane * call.index_strides[1];
            gaps_[i / kVector] = window * (stride * call.x.strides[2 + last_] - block_);
        }
    }

    // After the last row.
    void finish() const { finish_streaming(streams_); }

    // A row of results.
    void compute(const RowPosition& row) {
        const AxisTable& axis = tables_[last_];
        const int64_t x_step = call_.x.strides[2 + last_], index_step = call_.index_strides[2 + last_];
        const int64_t stride = call_.geometry.axes[last_].stride;
        const T* const x = plane_of<const T>(call_.x, row);
        T* y = row_of<T>(call_.y, row, call_.geometry.rank);
        int64_t* indices = row_of<int64_t>(call_.indices, row, call_.geometry.rank);
        const int64_t index = first_index(call_, row.image, row.channel);
        const double factor = outer_factor(tables_, row.outer);
        Range taps[kMaxSpatialRank];
        for (int a = 0; a < last_; ++a) taps[a] = tables_[a].taps[row.outer[a]];
        taps[last_].count = 0;
        for (int64_t output = 0, windows; output < axis.output; output += windows) {
            const Range& along = axis.taps[output];
            windows = std::min(windows_together_, runs_.at(output).length);
            if (windows > 1 && axis.taps[output + 1].begin - along.begin != stride) windows = 1;
            if (factor * axis.factors[output] == 0) {
                std::fill_n(y, windows * row.lanes, reduction_.empty());
                std::fill_n(indices, windows * row.lanes, -1);
            } else {
                if (along.count != taps[last_].count) {
                    taps[last_] = {0, along.count, along.step};
                    find_taps(taps);
                }
                const T* const element = x + along.begin * x_step;
                const int64_t first_index = index + along.begin * index_step;
                if (windows > 1) {
                    find_maxima<true>(element, windows * row.lanes, y, first_index, indices);
                } else {
                    find_maxima<false>(element, row.lanes, y, first_index, indices);
                }
            }
            y += windows * call_.y.strides[2 + last_];
            indices += windows * call_.indices.strides[2 + last_];
        }
    }

private:
    using Value = typename ComparedMax<T>::Accumulator;
    using Position = integer_t<sizeof(Value), true>;

    // Comparisons depend on each other: those of several vectors are interleaved.
    static constexpr int kVector = kLanes<Value>, kMostVectors = ONNXPOOL_VECTOR_BYTES / 8;

    // How many windows are worth it, where few channels leave them to be done together and results are neighbours.
    static int64_t windows_together(const Call& call) {
        constexpr int64_t few_vectors = kMostVectors / 4;
        constexpr double least_taps = 8;
        const int64_t channels = call.geometry.channels;
        const int step = 1 + call.geometry.rank;
        const bool are_neighbours = call.y.strides[step] == channels && call.indices.strides[step] == channels;
        const bool are_few = channels % kVector == 0 && channels <= few_vectors * kVector;
        if (!are_neighbours || !are_few || taps_of_window(call.geometry) < least_taps) return 1;
        return kMostVectors * kVector / channels;
    }

    struct Tap {
        int64_t offset;
        Position position;
        bool is_new;  // to windows that follow: what they look at there comes from memory
    };

    void find_taps(const Range* taps) {
        const Range& along = taps[last_];
        taps_.clear();
        for_each_row<2>(
            taps, last_ + 1, {call_.x.strides + 2, call_.index_strides + 2},
            [&](const int64_t (&offsets)[2], const int64_t* outer) {
                const auto is_new_along = [&](int axis, int64_t position) {
                    const int64_t last = taps[axis].begin + (taps[axis].count - 1) * taps[axis].step;
                    return last - position < call_.geometry.axes[axis].stride;
                };
                bool is_new_row = true;
                for (int a = 0; a < last_; ++a) is_new_row &= is_new_along(a, outer[a]);
                for (int64_t i = 0; i < along.count; ++i) {
                    const int64_t column = i * along.step;
                    taps_.push_back({offsets[0] + column * call_.x.strides[2 + last_],
                                     static_cast<Position>(offsets[1] + column * call_.index_strides[2 + last_]),
                                     is_new_row && is_new_along(last_, column)});
                }
            });
    }

    // The results of one window, or of several: the data of the first lane's first one are taps_ away from x and, in
    // its plane, from the one with this index.
    template <bool kSeveral>
    void find_maxima(const T* x, int64_t results, T* y, int64_t index, int64_t* indices) {
        const Tap *const first = taps_.data(), *const end = first + taps_.size();
        Position* const positions = positions_.data();
        int64_t done = 0;
        const auto find = [&](auto count, auto vector) {
            const auto load_value = [&](const T* element, bool is_new) {
                if (is_new) prefetch_line_ahead<4096>(element);
                return reduction_.lift(load<vector>(element));
            };
            using V = decltype(load_value(x, false));
            using Positions = with_numbers_t<Position, V>;
            const T* sources[count];
            for (int v = 0; v < count; ++v) {
                sources[v] = x + done + v * vector + (kSeveral ? gaps_[done / kVector + v] : 0);
            }
            V largest[count];
            Positions found[count];
            for (int v = 0; v < count; ++v) {
                largest[v] = load_value(sources[v] + first->offset, first->is_new);
                found[v] = filled<Positions>(first->position);
            }
            for (const Tap* tap = first + 1; tap != end; ++tap) {
                const auto position = filled<Positions>(tap->position);
                for (int v = 0; v < count; ++v) {
                    const V value = load_value(sources[v] + tap->offset, tap->is_new);
                    const auto takes_place = (largest[v] == largest[v]) & !(largest[v] >= value);
                    largest[v] = takes_place ? value : largest[v];
                    found[v] = takes_place ? position : found[v];
                }
            }
            for (int v = 0; v < count; ++v, done += vector) {
                store(y + done, reduction_.finish(largest[v]), streams_);
                store(positions + done, found[v]);
            }
        };
        const auto find_all = [&](auto count) {
            while (done + count * kVector <= results) find(count, std::integral_constant<int, kVector>());
        };
        find_all(std::integral_constant<int, kMostVectors>());
        find_all(std::integral_constant<int, kMostVectors / 2>());
        const int64_t begin = done;
        in_vectors<kVector>(results - begin, [&](int64_t i, auto n) {
            done = begin + i;
            find(std::integral_constant<int, 1>(), n);
        });
        in_vectors<kLanes<int64_t>>(results, [&](int64_t i, auto n) {
            const auto found = convert<int64_t>(load<n>(positions + i));
            store(indices + i, found + (load<n>(first_indices_.data() + i) + index), streams_);
        });
    }

    const Call& call_;
    const int last_;
    const int64_t block_;  // of lanes
    const bool streams_;
    const ComparedMax<T> reduction_{call_.parameters};
    const std::vector<AxisTable> tables_;
    const RunsOfWindows runs_;
    const int64_t windows_together_;
    Buffer<int64_t> first_indices_;  // of results, from the first lane's first one on
    Buffer<int64_t> gaps_;           // before their elements, from one window to the next: for each vector
    std::vector<Tap> taps_;
    Buffer<Position> positions_;
};

// Units are rows of blocks of channels.
template <class T>
void forward_lane_maxima(const Call& call, int64_t begin, int64_t end) {
    LaneMaxima<T> maxima(call);
    RowPosition position(call, begin, output_size);
    for (int64_t unit = begin; unit < end; ++unit, position.advance()) maxima.compute(position);
    maxima.finish();
}
