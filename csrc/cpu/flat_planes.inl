// Part of kernels.inl: see there.
// Small windows at every position of planes that keep their size: each result lies where one of its taps does, and all
// planes are one run of vectors. A vector's rows are combined from where they are; what its windows have of the columns
// beside it is in the vectors before and after, in registers. No padded rows and no sums of rows are written.

// One or two axes with windows at every position, each of which has a tap in the result's own place.
struct FlatTaps {
    Axis row_axis, column_axis;  // from row to row, and along the row

    explicit FlatTaps(const Geometry& geometry)
        : row_axis(geometry.rank > 1 ? geometry.axes[0] : unpooled_axis(1)),
          column_axis(geometry.axes[geometry.rank - 1]) {}

    // How far a tap lies from the result, and how many lie before it.
    static int64_t distance(const Axis& axis, int64_t tap) { return tap * axis.dilation - axis.pad_begin; }
    static int64_t taps_before(const Axis& axis) { return axis.pad_begin / axis.dilation; }

    // Of all taps, where neighbours along the axis are `step` apart.
    static std::vector<int64_t> distances(const Axis& axis, int64_t step) {
        std::vector<int64_t> all(axis.kernel);
        for (int64_t tap = 0; tap < axis.kernel; ++tap) all[tap] = distance(axis, tap) * step;
        return all;
    }

    int64_t columns() const { return column_axis.input; }
    int64_t plane() const { return row_axis.input * columns(); }

    // The windows that cover elements: at the same distances, to the other side.
    FlatTaps of_coverings() const {
        FlatTaps coverings = *this;
        for (Axis* axis : {&coverings.row_axis, &coverings.column_axis}) *axis = spread_axis(*axis);
        return coverings;
    }

    static bool are_those_of(const Geometry& geometry) {
        return geometry.rank <= 2 && std::all_of(geometry.axes, geometry.axes + geometry.rank, [](const Axis& axis) {
                   return axis.stride == 1 && axis.output == axis.input && axis.pad_begin >= 0 &&
                          axis.pad_begin % axis.dilation == 0 && taps_before(axis) < axis.kernel;
               });
    }
};

#if defined(ONNXPOOL_FMA)  // and with it AVX2, which moves lanes to any place

// The lanes of both together, from number `from` on.
template <class V>
inline V lanes_from(V first, V second, int from) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (std::is_same_v<number_t<V>, float>) {
        const auto lanes = counting<Vector<int32_t, lanes_of<V>>>() + from;
        return (V)_mm512_permutex2var_ps((__m512)first, (__m512i)lanes, (__m512)second);
    } else {
        const auto lanes = counting<Vector<int64_t, lanes_of<V>>>() + int64_t{from};
        return (V)_mm512_permutex2var_pd((__m512d)first, (__m512i)lanes, (__m512d)second);
    }
#else
    const int words = from * static_cast<int>(sizeof(number_t<V>) / sizeof(float));
    const auto lanes = counting<Vector<int32_t, 8>>();
    const __m256 taken = _mm256_blendv_ps((__m256)first, (__m256)second, (__m256)(lanes < words));
    return (V)_mm256_permutevar8x32_ps(taken, (__m256i)(lanes + words));
#endif
}

// The lanes with NaN, and whether there are any lanes among some.
template <class V>
inline LanesOf<V> nan_lanes(V numbers) {
#if defined(ONNXPOOL_AVX512)
    if constexpr (std::is_same_v<number_t<V>, float>) {
        return _mm512_cmp_ps_mask((__m512)numbers, (__m512)numbers, _CMP_UNORD_Q);
    } else {
        return _mm512_cmp_pd_mask((__m512d)numbers, (__m512d)numbers, _CMP_UNORD_Q);
    }
#else
    return numbers != numbers;
#endif
}
template <class V>
inline bool are_any(LanesOf<V> lanes) {
#if defined(ONNXPOOL_AVX512)
    return lanes != 0;
#else
    return _mm256_movemask_epi8((__m256i)lanes) != 0;
#endif
}

// A place in planes, or in rows, of this size that follow each other.
class CyclicPlace {
public:
    // That advances by so many places at a time.
    CyclicPlace(int64_t place, int64_t step, int64_t size) : place_(place), step_(step % size), size_(size) {}

    int64_t place() const { return place_; }

    void advance() {
        place_ += step_;
        place_ -= place_ >= size_ ? size_ : 0;
    }

private:
    int64_t place_, step_, size_;
};

// Which lanes of a vector have a tap, for each place of a plane, or of a row, that the vector may begin at: planes, or
// rows, follow each other.
template <class V>
class LanesByPlace {
public:
    // Of taps at these distances, in ascending order. Where there are `many` places, one entry stands for all vectors
    // that have all taps.
    LanesByPlace(const std::vector<int64_t>& distances, int64_t places, int64_t many)
        : places_(places),
          inside_begin_(-distances.front()),
          inside_size_(places < many ? 0 : std::max<int64_t>(0, places - distances.back() - kCount - inside_begin_)),
          entries_(places - inside_size_),
          pitch_(entries_ + kCount - 1),
          flags_(pitch_ * distances.size()) {
        for (size_t tap = 0; tap < distances.size(); ++tap) {
            Flag* const flags = flags_.data() + tap * pitch_;
            const int64_t begin = std::clamp<int64_t>(-distances[tap], 0, entries_);
            const int64_t end = std::clamp<int64_t>(entries_ - distances[tap], begin, entries_);
            std::fill(flags + begin, flags + end, Flag{-1});
            for (int64_t i = entries_; i < pitch_; ++i) flags[i] = flags[i - entries_];
        }
    }

    // Whether the vector there has all taps, and stands for others.
    bool is_inside(int64_t place) const { return place >= inside_begin_ && place < inside_begin_ + inside_size_; }

    // The vectors from there on, one after the other, for which is_inside() is the same.
    int64_t vectors_alike(int64_t place) const {
        if (inside_size_ == 0) return std::numeric_limits<int64_t>::max();
        const int64_t inside = place - inside_begin_;
        return ceil_div((inside < 0 ? 0 : inside < inside_size_ ? inside_size_ : places_) - inside, kCount);
    }

    int64_t entry_of(int64_t place) const {
        return place - std::clamp<int64_t>(place - inside_begin_, 0, inside_size_);
    }

    // The entries of such vectors.
    CyclicPlace entries_from(int64_t place) const { return {entry_of(place), is_inside(place) ? 0 : kCount, entries_}; }

    class Entries {
    public:
        explicit Entries(const LanesByPlace& lanes) : flags_(lanes.flags_.data()), pitch_(lanes.pitch_) {}

        LanesOf<V> at(int64_t entry, int64_t tap) const {
            const auto flags = load<kCount>(flags_ + tap * pitch_ + entry);
#if defined(ONNXPOOL_AVX512)
            __m128i bytes{};
            std::memcpy(&bytes, &flags, sizeof(flags));
            return _mm_movepi8_mask(bytes);
#else
            return flags;
#endif
        }

    private:
        const typename LanesByPlace::Flag* const flags_;
        const int64_t pitch_;
    };

private:
#if defined(ONNXPOOL_AVX512)
    using Flag = int8_t;
#else
    using Flag = number_t<LanesOf<V>>;
#endif
    static constexpr int kCount = lanes_of<V>;

    const int64_t places_, inside_begin_, inside_size_;
    const int64_t entries_, pitch_;
    std::vector<Flag> flags_;  // of the lane that is there, for each tap: those of a vector follow each other
};

// Maxima of data without NaN, which take one instruction.
template <class A>
struct LargestNumber : Largest<A> {
    template <class V>
    V combine(V a, V b) const {
        return larger_of(a, b);
    }
};

// What windows are made of is in memory.
template <class R>
class ElementsInMemory {
public:
    using Source = typename R::Element;
    static constexpr bool kInMemory = true;

    ElementsInMemory(const R& reduction, const Source* x, int64_t size) : lift_{reduction}, x_(x), size_(size) {}

    // Where element 0 is, or would be, for those between these numbers, of which neither ever becomes less.
    const Source* at(int64_t, int64_t) const { return x_; }

    // What is taken of it.
    Lift<R> take() const { return lift_; }

    // Whether there may be NaN between these numbers, which are those of at().
    bool may_have_nan(int64_t begin, int64_t end) {
        constexpr int lanes = kLanes<Source>;
        using V = Vector<Source, lanes>;
        int64_t i = looked_at_ < 0 ? std::max<int64_t>(0, begin) : looked_at_;
        LanesOf<V> nan{};
        for (; i + lanes <= std::min(end, size_); i += lanes) nan = nan | nan_lanes(load<lanes>(x_ + i));
        for (; i < std::min(end, size_); i += lanes) nan = nan | nan_lanes(load_first<lanes>(x_ + i, size_ - i));
        if (are_any<V>(nan)) nan_end_ = i;
        looked_at_ = i;
        return begin < nan_end_;
    }

private:
    const Lift<R> lift_;
    const Source* const x_;
    const int64_t size_;
    int64_t looked_at_ = -1;
    int64_t nan_end_ = std::numeric_limits<int64_t>::min();  // behind the last ones of which some are
};

// Accumulators that Prepare makes, each once, into a buffer that stays in the first cache.
template <class A, class Prepare>
class PreparedElements {
public:
    using Source = A;
    static constexpr bool kInMemory = false;

    // For calls of at() that ask for `most` at a time.
    PreparedElements(const Prepare& prepare, int64_t most, int64_t size)
        : prepare_(prepare), size_(size), buffer_(2 * most + 2 * kAhead + kCount) {}

    const A* at(int64_t begin, int64_t end) {
        begin = std::max<int64_t>(0, begin);
        end = std::min(end, size_);
        if (first_ < 0) {
            first_ = end_ = begin;
            prepare_.start_at(begin);
        }
        if (end_ < end) prepare(begin, std::min(end + kAhead, size_));
        return buffer_.data() - first_;
    }

    AsItIs<A> take() const { return {}; }

private:
    static constexpr int kCount = kLanes<A>;
    // Before they are read: vectors that begin elsewhere cannot be read at once from what has just been written.
    static constexpr int64_t kAhead = 64 * kCount;

    void prepare(int64_t begin, int64_t end) {
        if (end - first_ > static_cast<int64_t>(buffer_.size()) - kCount) {
            std::memmove(buffer_.data(), buffer_.data() + (begin - first_), (end_ - begin) * sizeof(A));
            first_ = begin;
        }
        Prepare prepare = prepare_;
        A* target = buffer_.data() - first_;
        int64_t i = end_;
        for (; i < end && i + kCount <= size_; i += kCount) store(target + i, prepare.next());
        for (; i < end; i += kCount) store(target + i, prepare.last(size_ - i));
        end_ = i;
        prepare_ = prepare;
    }

    Prepare prepare_;
    const int64_t size_;
    Buffer<A> buffer_;
    int64_t first_ = -1, end_ = -1;  // of what the buffer holds
};

// What all results of such planes are made of.
template <class A>
class FlatPlanes {
public:
    static constexpr int kCount = kLanes<A>;
    static constexpr int64_t kUnit = 64 * kCount;  // results of a unit, all but the last
    static constexpr int kMostTaps = 14;           // of both axes
    using V = Vector<A, kCount>;

    FlatPlanes(const FlatTaps& taps, int64_t size)
        : taps_(taps),
          columns_(taps.columns()),
          plane_(taps.plane()),
          size_(size),
          row_offsets_(FlatTaps::distances(taps.row_axis, columns_)),
          row_lanes_(row_offsets_, plane_, kManyPlaces),
          column_lanes_(FlatTaps::distances(taps.column_axis, 1), columns_, kManyColumns) {}

    static int64_t units(int64_t size) { return std::max<int64_t>(1, size / kUnit); }

    // The most elements that are looked at together.
    int64_t elements_together() const { return kGroup + 2 * kCount + row_offsets_.back() - row_offsets_.front(); }

    // results[i] = finish(sum or maximum, i, i's place in its plane) for those of some units: for windows of kRows rows
    // of kColumns taps, of which kBefore lie before the result, as do so many rows if there is more than one; or for
    // windows of any numbers, where these are 0.
    template <int kRows, int kColumns, int kBefore, class Combiner, class Elements, class T, class Finish>
    void compute(const Combiner& combiner, A identity, Elements& elements, int64_t first_unit, int64_t end_unit,
                 T* results, bool streams, const Finish& finish) const {
        if (first_unit == end_unit) return;  // there need not be a unit that begins here
        const int64_t end = end_unit < units(size_) ? end_unit * kUnit : size_;
        int64_t i = first_unit * kUnit;
        const VectorTaps<0, 0, 0> any_taps(*this, identity);
        // Each vector of results is made with the rows of the next one: all of them are there from this one on, up to
        // the last one inside.
        const int64_t first_inside = -row_offsets_.front() - kCount;
        const int64_t last_inside = std::min(end, size_ - row_offsets_.back() - kCount) - kCount;
        for (; i < first_inside && i + kCount <= end; i += kCount) {
            compute_at_end(any_taps, combiner, elements, i, results, finish);
        }
        if (i <= last_inside) {
            streams &= are_whole_lines(results, kUnit);
            i = compute_inside<kRows, kColumns, kBefore>(combiner, identity, elements, i, last_inside, results, streams,
                                                         finish);
            finish_streaming(streams);
        }
        for (; i < end; i += kCount) {  // the last one once more, with all that is left
            compute_at_end(any_taps, combiner, elements, std::min(i, end - kCount), results, finish);
        }
    }

private:
    static constexpr int64_t kGroup = 1024 / sizeof(A);  // results
    // Of fewer places, few vectors have all rows; of fewer columns, the table of all stays in the first cache.
    static constexpr int64_t kManyPlaces = 16 * kCount, kManyColumns = 256;

    // The taps of a vector's windows. Loops keep them in registers where their numbers are known.
    template <int kRows, int kColumns, int kBefore>
    class VectorTaps {
    public:
        VectorTaps(const FlatPlanes& planes, A identity)
            : rows_(static_cast<int>(planes.row_offsets_.size())),
              columns_(static_cast<int>(planes.taps_.column_axis.kernel)),
              before_(static_cast<int>(FlatTaps::taps_before(planes.taps_.column_axis))),
              rows_before_(static_cast<int>(FlatTaps::taps_before(planes.taps_.row_axis))),
              nothing_(filled<V>(identity)),
              row_lanes_(planes.row_lanes_),
              column_lanes_(planes.column_lanes_) {
            for (int row = 0; row < rows(); ++row) row_offsets_[row] = planes.row_offsets_[row];
            for (int tap = 0; tap < columns(); ++tap) {
                const int64_t distance = FlatTaps::distance(planes.taps_.column_axis, tap);
                shifts_[tap] = static_cast<int>(distance) + (tap < before() ? kCount : 0);
            }
        }

        V nothing() const { return nothing_; }

        // What the windows of a vector have of its columns, if it has all rows.
        template <class Combiner, class Take>
        __attribute__((always_inline)) V combine_rows(const Combiner& combiner, const Take& take,
                                                      const typename Take::Source* source) const {
            V sum = take(load<kCount>(source + row_offsets_[0]), 0);
            for (int row = 1; row < rows(); ++row) {
                sum = combiner.combine(sum, V(take(load<kCount>(source + row_offsets_[row]), row)));
            }
            return sum;
        }

        // The same for those that this entry has.
        template <class Combiner, class Take>
        __attribute__((always_inline)) V combine_own_rows(const Combiner& combiner, const Take& take,
                                                          const typename Take::Source* source, int64_t entry) const {
            V sum = nothing_;
            for (int row = 0; row < rows(); ++row) {
                const V taken = take(load<kCount>(source + row_offsets_[row]), row);
                const V combined = row == 0 ? taken : combiner.combine(sum, taken);
                sum = row == rows_before() ? combined : where<V>(row_lanes_.at(entry, row), combined, sum);
            }
            return sum;
        }

        // The same where nothing but that is there: so many lanes.
        template <class Combiner, class Take>
        V combine_own_rows(const Combiner& combiner, const Take& take, const typename Take::Source* source,
                           int64_t entry, int64_t lanes) const {
            V sum = nothing_;
            const auto first = lanes_between<V>(0, lanes);
            for (int row = 0; row < rows(); ++row) {
                const auto own = row_lanes_.at(entry, row) & first;
                const V taken = take(load_lanes<kCount>(source + row_offsets_[row], own), row);
                sum = where<V>(own, combiner.combine(sum, taken), sum);
            }
            return sum;
        }

        // What the windows of a vector have of their own columns, and those of the vectors before and after it.
        template <class Combiner>
        __attribute__((always_inline)) V combine_columns(const Combiner& combiner, V earlier, V own, V later,
                                                         int64_t entry) const {
            V sum = nothing_;
            for (int tap = 0; tap < before(); ++tap) {
                const V taken = lanes_from(earlier, own, shifts_[tap]);
                sum = where<V>(column_lanes_.at(entry, tap), tap == 0 ? taken : combiner.combine(sum, taken), sum);
            }
            sum = before() == 0 ? own : combiner.combine(sum, own);
            for (int tap = before() + 1; tap < columns(); ++tap) {
                const V taken = lanes_from(own, later, shifts_[tap]);
                sum = where<V>(column_lanes_.at(entry, tap), combiner.combine(sum, taken), sum);
            }
            return sum;
        }

    private:
        int rows() const { return kRows > 0 ? kRows : rows_; }
        int columns() const { return kColumns > 0 ? kColumns : columns_; }
        int before() const { return kColumns > 0 ? kBefore : before_; }
        int rows_before() const { return kRows == 0 ? rows_before_ : kRows > 1 ? kBefore : 0; }

        const int rows_, columns_, before_, rows_before_;
        const V nothing_;
        const typename LanesByPlace<V>::Entries row_lanes_, column_lanes_;
        int64_t row_offsets_[kRows > 0 ? kRows : kMostTaps];
        int shifts_[kColumns > 0 ? kColumns : kMostTaps];  // of lanes
    };

    // Where the elements are that `count` results from this one on are made of.
    template <class Elements>
    auto elements_of(Elements& elements, int64_t i, int64_t count) const {
        return elements.at(i - kCount + row_offsets_.front(), i + count + kCount + row_offsets_.back());
    }

    // What the vector at i has of its columns, wherever that is. Not inlined, as the next one: they are not worth it.
    template <class Combiner, class Elements>
    __attribute__((noinline)) V rows_at_end(const VectorTaps<0, 0, 0>& taps, const Combiner& combiner,
                                            const Elements& elements, const typename Elements::Source* source,
                                            int64_t i) const {
        if (i < 0 || i >= size_) return taps.nothing();
        return taps.combine_own_rows(combiner, elements.take(), source + i, row_lanes_.entry_of(i % plane_), size_ - i);
    }

    template <class Combiner, class Elements, class T, class Finish>
    __attribute__((noinline)) void compute_at_end(const VectorTaps<0, 0, 0>& taps, const Combiner& combiner,
                                                  Elements& elements, int64_t i, T* results,
                                                  const Finish& finish) const {
        const auto* const source = elements_of(elements, i, kCount);
        const auto rows_at = [&](int64_t place) { return rows_at_end(taps, combiner, elements, source, place); };
        const V sum = taps.combine_columns(combiner, rows_at(i - kCount), rows_at(i), rows_at(i + kCount),
                                           column_lanes_.entry_of(i % columns_));
        store(results + i, finish(sum, i, i % plane_));
    }

    // The vectors from `begin` to the one that begins at `last`, or just before it. Returns where the next one begins.
    template <int kRows, int kColumns, int kBefore, class Combiner, class Elements, class T, class Finish>
    __attribute__((noinline)) int64_t compute_inside(const Combiner given_combiner, const A identity,
                                                     Elements& elements, const int64_t begin, const int64_t last,
                                                     T* const results, const bool streams, const Finish finish) const {
        using Source = typename Elements::Source;
        const VectorTaps<kRows, kColumns, kBefore> taps(*this, identity);
        const auto take = elements.take();
        const int64_t ahead = row_offsets_.back() + kPrefetchDistance<Source>;
        int64_t i = begin;
        V earlier, own;
        {
            const VectorTaps<0, 0, 0> any_taps(*this, identity);
            const Source* const source = elements_of(elements, i, kCount);
            earlier = rows_at_end(any_taps, given_combiner, elements, source, i - kCount);
            own = rows_at_end(any_taps, given_combiner, elements, source, i);
        }
        CyclicPlace place(i % plane_, kCount, plane_);
        // Closures that are not inlined would keep all this in memory.
        const auto compute_run = [&](const auto& combiner, const Source* source, int64_t i, int64_t count,
                                     CyclicPlace row_entry, CyclicPlace column_entry, auto have_all_rows,
                                     T* target) __attribute__((always_inline)) {
            for (int64_t v = 0; v < count; v += kCount) {
                const Source* const next = source + v + kCount;
                if (Elements::kInMemory && !kHardwarePrefetchesRuns) prefetch_line(next + ahead, 2);
                const V later = have_all_rows ? taps.combine_rows(combiner, take, next)
                                              : taps.combine_own_rows(combiner, take, next, row_entry.place());
                const V sum = taps.combine_columns(combiner, earlier, own, later, column_entry.place());
                store(target + v, finish(sum, i + v, place.place()));
                earlier = own;
                own = later;
                if (!have_all_rows) row_entry.advance();
                column_entry.advance();
                place.advance();
            }
        };
        while (i <= last) {
            const int64_t count = std::min(kGroup - i % kGroup, ((last - i) / kCount + 1) * kCount);
            const Source* const source = elements_of(elements, i, count) + i;
            // Stores that are mixed with loads of what lies multiples of 4096 bytes away would hold these up.
            alignas(64) T together[kGroup];
            const bool is_streamed = streams && count == kGroup;
            T* const target = is_streamed ? together : results + i;
            const auto compute_group = [&](const auto& combiner) __attribute__((always_inline)) {
                for (int64_t v = 0, run; v < count; v += run) {
                    const int64_t next_place = (place.place() + kCount) % plane_, column = place.place() % columns_;
                    run = std::min({(count - v) / kCount, row_lanes_.vectors_alike(next_place),
                                    column_lanes_.vectors_alike(column)}) *
                          kCount;
                    const auto compute = [&](auto have_all_rows) __attribute__((always_inline)) {
                        compute_run(combiner, source + v, i + v, run, row_lanes_.entries_from(next_place),
                                    column_lanes_.entries_from(column), have_all_rows, target + v);
                    };
                    row_lanes_.is_inside(next_place) ? compute(std::true_type()) : compute(std::false_type());
                }
            };
            // Where maxima that mind NaN take three instructions, or two: to look for it takes as long as some taps.
            constexpr int least_columns = ONNXPOOL_VECTOR_BYTES < 64 ? 2 : 5;
            if constexpr ((kColumns == 0 || kColumns >= least_columns) && std::is_same_v<Combiner, Largest<A>>) {
                const bool may_have_nan =
                    elements.may_have_nan(i - kCount + row_offsets_.front(), i + count + kCount + row_offsets_.back());
                may_have_nan ? compute_group(given_combiner) : compute_group(LargestNumber<A>());
            } else {
                compute_group(given_combiner);
            }
            if (is_streamed) {
                constexpr int bytes = ONNXPOOL_VECTOR_BYTES;
                const auto* const line = reinterpret_cast<const uint8_t*>(together);
                auto* const streamed = reinterpret_cast<uint8_t*>(results + i);
                for (size_t b = 0; b < sizeof(together); b += bytes) {
                    store_streaming(streamed + b, load<bytes>(line + b));
                }
            }
            i += count;
        }
        return i;
    }

    const FlatTaps taps_;
    const int64_t columns_, plane_, size_;
    const std::vector<int64_t> row_offsets_;          // of the taps
    const LanesByPlace<V> row_lanes_, column_lanes_;  // that have a tap
};

inline int64_t count_inputs(const Geometry& geometry) {
    return geometry.batch * geometry.channels * plane_size(geometry, input_size);
}

template <class R, int kRows, int kColumns, int kBefore>
void forward_flat_planes(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using A = typename R::Accumulator;
    const R reduction(call.parameters);
    const FlatTaps taps(call.geometry);
    const int64_t size = count_inputs(call.geometry);
    const FlatPlanes<A> planes(taps, size);
    ElementsInMemory<R> elements(reduction, static_cast<const T*>(call.x.data), size);
    Buffer<A> divisors;
    if constexpr (R::kDivides) divisors = repeated_divisors<A>(call.geometry, axis_tables(call), taps.plane());
    planes.template compute<kRows, kColumns, kBefore>(
        combiner_of(reduction), reduction.identity(), elements, begin, end, static_cast<T*>(call.y.data),
        exceeds_caches<T>(call), [reduction, divisors = divisors.data()](auto sum, int64_t, int64_t place) {
            if constexpr (R::kDivides) sum = sum / load<lanes_of<decltype(sum)>>(divisors + place);
            return reduction.finish(sum);
        });
}

// What windows send back, vector by vector; the divisors are those of a plane.
template <class G>
class SentByWindows {
public:
    using T = typename G::Element;
    using A = typename G::Accumulator;

    SentByWindows(const G& gradient, const Call& call, const A* divisors, int64_t plane)
        : gradient_(gradient),
          grad_y_(static_cast<const T*>(call.grad_y.data)),
          y_(static_cast<const T*>(result_of<G>(call).data)),
          divisors_(divisors),
          plane_(plane),
          place_(0, kCount, plane) {}

    void start_at(int64_t i) {
        grad_y_ += i;
        y_ += i;
        place_ = {i % plane_, kCount, plane_};
    }

    auto next() {
        if (!kHardwarePrefetchesRuns) {
            prefetch_line(grad_y_ + kPrefetchDistance<T>, 2);
            if (G::kNeedsData) prefetch_line(y_ + kPrefetchDistance<T>, 2);
        }
        const auto sent = sent_by([](const T* elements) { return load<kCount>(elements); });
        grad_y_ += kCount;
        y_ += kCount;
        place_.advance();
        return sent;
    }

    // Of so many lanes.
    auto last(int64_t lanes) const {
        return sent_by([&](const T* elements) { return load_first<kCount>(elements, lanes); });
    }

private:
    static constexpr int kCount = kLanes<A>;

    template <class Load>
    auto sent_by(const Load& load_elements) const {
        return gradient_.prepare(load_elements(grad_y_), load_elements(y_), load<kCount>(divisors_ + place_.place()));
    }

    G gradient_;
    const T *grad_y_, *y_;
    const A* divisors_;
    int64_t plane_;
    CyclicPlace place_;
};

// Gradients of what such windows cover.
template <class G, int kRows, int kColumns, int kBefore>
void backward_flat_planes(const Call& call, int64_t begin, int64_t end) {
    using T = typename G::Element;
    using A = typename G::Accumulator;
    const G gradient(call.parameters);
    const FlatTaps taps = FlatTaps(call.geometry).of_coverings();
    const int64_t size = count_inputs(call.geometry), plane = taps.plane();
    const FlatPlanes<A> planes(taps, size);
    const Buffer<A> divisors = repeated_divisors<A>(call.geometry, axis_tables(call), plane);
    const SentByWindows<G> sent(gradient, call, divisors.data(), plane);
    PreparedElements<A, SentByWindows<G>> elements(sent, planes.elements_together(), size);
    const GradientSum<A> sum;
    planes.template compute<kRows, kColumns, kBefore>(
        combiner_of(sum), sum.identity(), elements, begin, end, static_cast<T*>(call.grad_x.data),
        exceeds_caches<T>(call),
        [&gradient, x = static_cast<const T*>(data_of<G>(call).data)](auto sum, int64_t i, int64_t) {
            if constexpr (G::kNeedsData) {
                prefetch_line(x + i + kPrefetchDistance<T>, 2);
                return convert<T>(gradient.finish(sum, load<lanes_of<decltype(sum)>>(x + i)));
            } else {
                return convert<T>(gradient.finish(sum, sum));
            }
        });
}

// Whether vectors have so many lanes that windows of any shape are worth it, and planes of small numbers.
constexpr bool kHasManyLanes = ONNXPOOL_VECTOR_BYTES >= 64;
template <class T>
constexpr bool kHasFlatPlanes = kHasManyLanes || sizeof(T) >= 4;

// run(rows, columns, before) names the kernel for these numbers of taps, or for any. Null where other kernels do it:
// sums of many taps share what they have in common, and what that saves maxima is worth more from some number on.
template <class A, class Run>
Task plan_flat(const Geometry& geometry, const FlatTaps& taps, bool are_maxima, const Run& run) {
    constexpr int64_t most_positions = 1 << 16, most_taps = FlatPlanes<A>::kMostTaps;
    constexpr int64_t most_of_sums = kHasManyLanes ? 5 : 3, longest_row_of_sums = kHasManyLanes ? most_positions : 512;
    const Axis &rows = taps.row_axis, &columns = taps.column_axis;
    const int64_t before = FlatTaps::taps_before(columns), size = count_inputs(geometry);
    if (taps.plane() > most_positions || size < 2 * kLanes<A> || window_reach(columns) > kLanes<A> ||
        rows.kernel + columns.kernel > most_taps) {
        return {};
    }
    if (!are_maxima && (std::max(rows.kernel, columns.kernel) > most_of_sums ||
                        (rows.input == 1 && columns.input > longest_row_of_sums))) {
        return {};
    }
    constexpr std::integral_constant<int, 0> any;
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 2> two;
    constexpr std::integral_constant<int, 3> three;
    constexpr std::integral_constant<int, 5> five;
    const auto kernel_for = [&](auto kernel, auto taps_before) -> decltype(Task::run) {
        if (columns.kernel != kernel || before != taps_before) return nullptr;
        if (rows.kernel == 1) return run(one, kernel, taps_before);
        const bool are_alike = rows.kernel == kernel && FlatTaps::taps_before(rows) == taps_before;
        return are_alike ? run(kernel, kernel, taps_before) : nullptr;
    };
    Task task{kernel_for(two, any), FlatPlanes<A>::units(size),
              static_cast<double>(FlatPlanes<A>::kUnit) * taps_of_window(geometry)};
    if (!task.run) task.run = kernel_for(two, one);
    if (!task.run) task.run = kernel_for(three, one);
    if (!task.run) task.run = kernel_for(five, two);
    if constexpr (kHasManyLanes) {
        if (!task.run) task.run = run(any, any, any);
    }
    return task;
}

template <class R>
Task plan_flat_planes(const Call& call) {
    // Powers had better be computed once for all rows, and small numbers are shifted by many instructions.
    constexpr bool has_kernels = kHasFlatPlanes<typename R::Element> && !R::kIndexed && !R::kInOrder && !R::kOfPlanes &&
                                 !is_keyed<R> && !is_norm<R> && std::is_floating_point_v<typename R::Accumulator>;
    if constexpr (has_kernels) {
        const Geometry& geometry = call.geometry;
        if (!call.channels_innermost && FlatTaps::are_those_of(geometry) &&
            is_contiguous(geometry, call.x, input_size) && is_contiguous(geometry, call.y, output_size)) {
            return plan_flat<typename R::Accumulator>(
                geometry, FlatTaps(geometry), kMayOverlap<R>,
                [](auto rows, auto columns, auto before) { return forward_flat_planes<R, rows, columns, before>; });
        }
    }
    return {};
}

template <class G>
Task plan_flat_gradients(const Call& call) {
    if constexpr (kHasFlatPlanes<typename G::Element>) {
        const Geometry& geometry = call.geometry;
        const auto are_contiguous = [&](const Operand& first, const Operand& second) {
            return is_contiguous(geometry, first, input_size) && is_contiguous(geometry, second, input_size);
        };
        if (!call.channels_innermost && FlatTaps::are_those_of(geometry) && are_contiguous(call.grad_y, call.grad_x) &&
            are_contiguous(data_of<G>(call), result_of<G>(call))) {
            return plan_flat<typename G::Accumulator>(
                geometry, FlatTaps(geometry).of_coverings(), false,
                [](auto rows, auto columns, auto before) { return backward_flat_planes<G, rows, columns, before>; });
        }
    }
    return {};
}

#else

template <class R>
Task plan_flat_planes(const Call&) {
    return {};
}

template <class G>
Task plan_flat_gradients(const Call&) {
    return {};
}

#endif
