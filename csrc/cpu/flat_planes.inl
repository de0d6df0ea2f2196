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

#if defined(ONNXPOOL_AVX512)  // which reads nothing of lanes that are left out, and shifts two vectors by any number

// The lanes of both together, from number `from` on.
template <class V>
inline V lanes_from(V first, V second, int from) {
    if constexpr (std::is_same_v<number_t<V>, float>) {
        const auto lanes = counting<Vector<int32_t, lanes_of<V>>>() + from;
        return (V)_mm512_permutex2var_ps((__m512)first, (__m512i)lanes, (__m512)second);
    } else {
        const auto lanes = counting<Vector<int64_t, lanes_of<V>>>() + int64_t{from};
        return (V)_mm512_permutex2var_pd((__m512d)first, (__m512i)lanes, (__m512d)second);
    }
}

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
        if (looked_at_ < 0) looked_at_ = std::max<int64_t>(0, begin);
        for (; looked_at_ < std::min(end, size_); looked_at_ += lanes) {
            if (has_nan(load_first<lanes>(x_ + looked_at_, size_ - looked_at_))) nan_end_ = looked_at_ + lanes;
        }
        return begin < nan_end_;
    }

private:
    template <class V>
    static bool has_nan(V elements) {
        if constexpr (std::is_same_v<Source, float>) {
            return _mm512_cmp_ps_mask((__m512)elements, (__m512)elements, _CMP_UNORD_Q) != 0;
        } else {
            return _mm512_cmp_pd_mask((__m512d)elements, (__m512d)elements, _CMP_UNORD_Q) != 0;
        }
    }

    const Lift<R> lift_;
    const Source* const x_;
    const int64_t size_;
    int64_t looked_at_ = -1;
    int64_t nan_end_ = std::numeric_limits<int64_t>::min();  // behind the last vector that has one
};

// Accumulators that prepare(i, lanes) makes: each once, into a buffer that stays in the first cache.
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
        if (first_ < 0) first_ = end_ = begin;
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
        for (; end_ < end; end_ += kCount) {
            A* const target = buffer_.data() + (end_ - first_);
            if (end_ + kCount <= size_) {
                store(target, prepare_(end_, std::integral_constant<int, kCount>()));
            } else {
                for (int64_t i = end_; i < size_; ++i) {
                    target[i - end_] = prepare_(i, std::integral_constant<int, 1>());
                }
            }
        }
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
        : taps_(taps), columns_(taps.columns()), plane_(taps.plane()), size_(size) {
        const Axis& rows = taps_.row_axis;
        for (int64_t row = 0; row < rows.kernel; ++row) {
            row_offsets_.push_back(FlatTaps::distance(rows, row) * columns_);
        }
        inside_begin_ = -row_offsets_.front();
        inside_end_ = plane_ - row_offsets_.back() - (kCount - 1);
        if (plane_ < 32 * kCount) look_up_rows();
        look_up_columns();
    }

    static int64_t units(int64_t size) { return std::max<int64_t>(1, size / kUnit); }

    // The most elements that are looked at together.
    int64_t elements_together() const { return (kTogether + 2) * kCount + row_offsets_.back() - row_offsets_.front(); }

    // results[i] = finish(sum or maximum, i, i's place in its plane) for those of some units: for windows of kRows rows
    // of kColumns taps, of which kBefore lie before the result.
    template <int kRows, int kColumns, int kBefore, class Combiner, class Elements, class T, class Finish>
    void compute(const Combiner& combiner, A identity, Elements& elements, int64_t first_unit, int64_t end_unit,
                 T* results, bool streams, const Finish& finish) const {
        if (first_unit == end_unit) return;  // there need not be a unit that begins here
        const int64_t end = end_unit < units(size_) ? end_unit * kUnit : size_;
        streams &= are_whole_lines(results, kUnit);
        compute_between<kRows, kColumns, kBefore>(combiner, identity, elements, first_unit * kUnit, end, results,
                                                  streams, finish);
        finish_streaming(streams);
    }

private:
    using Lanes = uint16_t;  // one bit for each

    static constexpr int64_t kTogether = 16;  // vectors of results

    // Planes, or rows, of this size follow each other: which lanes of a vector that begins at a place of one are in the
    // same as what is at this offset from them.
    static Lanes lanes_within(int64_t place, int64_t offset, int64_t size) {
        const int64_t begin = std::max<int64_t>(0, -offset), end = size - std::max<int64_t>(0, offset);
        LanesOf<V> lanes = 0;
        for (int64_t start = -place; start < kCount; start += size) {
            lanes |= lanes_between<V>(begin + start, end + start);
        }
        return static_cast<Lanes>(lanes);
    }

    // Which of the first `count` lanes have each of the taps' rows.
    __attribute__((noinline)) void find_rows(int64_t place, int64_t count, Lanes* lanes) const {
        const auto first = static_cast<Lanes>(first_lanes(std::clamp<int64_t>(count, 0, kCount)));
        for (size_t row = 0; row < row_offsets_.size(); ++row) {
            lanes[row] = lanes_within(place, row_offsets_[row], plane_) & first;
        }
    }

    // Of small planes, most vectors have elements of the first or the last rows.
    void look_up_rows() {
        while (((plane_ | kCount) >> place_shift_) % 2 == 0) ++place_shift_;
        const size_t taps = row_offsets_.size();
        row_lanes_.resize((plane_ >> place_shift_) * taps);
        for (int64_t i = 0; i < plane_ >> place_shift_; ++i) {
            find_rows(i << place_shift_, kCount, row_lanes_.data() + i * taps);
        }
        inside_begin_ = inside_end_ = 0;
    }

    // All lanes have the tap in the result's place.
    void look_up_columns() {
        const Axis& axis = taps_.column_axis;
        const int64_t beside = axis.kernel - 1;
        column_lanes_.assign(columns_ * beside, static_cast<Lanes>(first_lanes(kCount)));
        for (int64_t tap = 0; tap < beside; ++tap) {
            const int64_t shift = FlatTaps::distance(axis, tap + (tap >= FlatTaps::taps_before(axis)));
            const auto look_up = [&](int64_t column) {
                column_lanes_[column * beside + tap] = lanes_within(column, shift, columns_);
            };
            const int64_t begin = std::clamp<int64_t>(-shift, 0, columns_);
            const int64_t end = std::clamp(columns_ - std::max<int64_t>(0, shift) - kCount + 1, begin, columns_);
            for (int64_t column = 0; column < begin; ++column) look_up(column);
            for (int64_t column = end; column < columns_; ++column) look_up(column);
        }
    }

    template <int kRows, int kColumns, int kBefore, class Combiner, class Elements, class T, class Finish>
    __attribute__((noinline)) void compute_between(const Combiner given_combiner, const A identity, Elements& elements,
                                                   const int64_t begin, const int64_t end, T* const results,
                                                   const bool streams, const Finish finish) const {
        const int64_t plane = plane_, columns = columns_, size = size_;
        const int64_t inside_begin = inside_begin_, inside_end = inside_end_;
        const int64_t place_step = kCount % plane, column_step = kCount % columns;
        const Lanes* const row_lanes = row_lanes_.empty() ? nullptr : row_lanes_.data();
        const Lanes* const column_lanes = column_lanes_.data();
        const int place_shift = place_shift_;
        const V nothing = filled<V>(identity);
        const Axis& column_axis = taps_.column_axis;
        const int rows = kRows > 0 ? kRows : static_cast<int>(row_offsets_.size());
        const int taps = kColumns > 0 ? kColumns : static_cast<int>(column_axis.kernel);
        const int taps_before = kColumns > 0 ? kBefore : static_cast<int>(FlatTaps::taps_before(column_axis));
        int64_t row_offsets[kRows > 0 ? kRows : kMostTaps];
        std::copy_n(row_offsets_.begin(), rows, row_offsets);
        const int64_t first_offset = row_offsets[0], last_offset = row_offsets[rows - 1];
        int shifts[kColumns > 0 ? kColumns : kMostTaps];  // of lanes
        for (int tap = 0; tap < taps; ++tap) {
            shifts[tap] = static_cast<int>(FlatTaps::distance(column_axis, tap)) + (tap < taps_before ? kCount : 0);
        }

        // What the windows of a vector have of its columns, from `place` of a plane on; the last vectors of all may
        // reach beyond the end.
        using Source = typename Elements::Source;
        const auto take = elements.take();
        const auto combine_rows = [&](const auto& combiner, const Source* source, int64_t place, int64_t left,
                                      auto is_last) {
            if (!is_last && place >= inside_begin && place < inside_end) {
                V sum = take(load<kCount>(source + row_offsets[0]), 0);
                for (int row = 1; row < rows; ++row) {
                    sum = combiner.combine(sum, V(take(load<kCount>(source + row_offsets[row]), row)));
                }
                return sum;
            }
            Lanes own[kRows > 0 ? kRows : kMostTaps];
            const Lanes* lanes = own;
            if (row_lanes && !is_last) {
                lanes = row_lanes + (place >> place_shift) * rows;
            } else {
                find_rows(place, left, own);
            }
            V sum = nothing;
            for (int row = 0; row < rows; ++row) {
                const V taken = take(load_lanes<kCount>(source + row_offsets[row], lanes[row]), row);
                sum = where<V>(lanes[row], combiner.combine(sum, taken), sum);
            }
            return sum;
        };
        const auto combine_columns = [&](const auto& combiner, V before, V here, V next, int64_t column) {
            const Lanes* const lanes = column_lanes + column * (taps - 1);
            V sum = nothing;
            for (int tap = 0; tap < taps_before; ++tap) {
                const V taken = lanes_from(before, here, shifts[tap]);
                sum = where<V>(lanes[tap], combiner.combine(sum, taken), sum);
            }
            sum = taps_before == 0 ? here : combiner.combine(sum, here);
            for (int tap = taps_before + 1; tap < taps; ++tap) {
                const V taken = lanes_from(here, next, shifts[tap]);
                sum = where<V>(lanes[tap - 1], combiner.combine(sum, taken), sum);
            }
            return sum;
        };
        const auto source_of = [&](int64_t i, int64_t count) {
            return elements.at(i - kCount + first_offset, i + count + kCount + last_offset);
        };

        V before = nothing, here = nothing;
        int64_t place = 0, next_place = 0, column = 0;
        const auto start_at = [&](int64_t i) {
            const Source* const source = source_of(i, kCount) + i;
            place = i % plane;
            column = i % columns;
            next_place = (place + kCount) % plane;
            const auto rows_at = [&](int64_t from) {
                return combine_rows(given_combiner, source + from, (i + from) % plane, size - i - from,
                                    std::true_type());
            };
            before = i >= kCount ? rows_at(-kCount) : nothing;
            here = rows_at(0);
        };
        const auto compute_vector = [&](const auto& combiner, const Source* source, int64_t i, auto is_last) {
            const Source* const next_elements = source + i + kCount;
            if (Elements::kInMemory) prefetch_line(next_elements + last_offset + kPrefetchDistance<Source>, 2);
            const V next = combine_rows(combiner, next_elements, next_place, size - i - kCount, is_last);
            const auto result = finish(combine_columns(combiner, before, here, next, column), i, place);
            before = here;
            here = next;
            place = next_place;
            next_place += place_step;
            next_place -= next_place >= plane ? plane : 0;
            column += column_step;
            column -= column >= columns ? columns : 0;
            return result;
        };

        start_at(begin);
        int64_t i = begin;
        const int64_t inside = std::min(end, size - kCount) - kCount;  // the last vector whose next one is all there
        while (i <= inside) {
            const int64_t count = std::min<int64_t>(kTogether, (inside - i) / kCount + 1) * kCount;
            const Source* const source = source_of(i, count);
            // Stores that are mixed with loads of what lies multiples of 4096 bytes away would hold these up.
            alignas(64) T together[kTogether * kCount];
            const bool is_streamed = streams && count == kTogether * kCount;
            const auto compute_group = [&](const auto& combiner) {
                if (is_streamed) {
                    for (int64_t v = 0; v < count; v += kCount) {
                        store(together + v, compute_vector(combiner, source, i + v, std::false_type()));
                    }
                } else {
                    for (int64_t v = 0; v < count; v += kCount) {
                        store(results + i + v, compute_vector(combiner, source, i + v, std::false_type()),
                              Stores::kPrefetching);
                    }
                }
            };
            if constexpr ((kColumns == 0 || kColumns >= 5) && std::is_same_v<Combiner, Largest<A>>) {
                const bool may_have_nan =
                    elements.may_have_nan(i - kCount + first_offset, i + count + kCount + last_offset);
                may_have_nan ? compute_group(given_combiner) : compute_group(LargestNumber<A>());
            } else {
                compute_group(given_combiner);
            }
            if (is_streamed) {
                auto* const target = reinterpret_cast<uint8_t*>(results + i);
                for (size_t line = 0; line < sizeof(together); line += 64) {
                    store_streaming(target + line, load<64>(reinterpret_cast<const uint8_t*>(together) + line));
                }
            }
            i += count;
        }
        for (; i + kCount <= end; i += kCount) {
            store(results + i, compute_vector(given_combiner, source_of(i, kCount), i, std::true_type()));
        }
        if (i == end) return;
        i = end - kCount;  // once more, with all that is left
        start_at(i);
        store(results + i, finish(combine_columns(given_combiner, before, here, nothing, column), i, place));
    }

    const FlatTaps taps_;
    const int64_t columns_, plane_, size_;
    std::vector<int64_t> row_offsets_;             // of the taps
    int64_t inside_begin_, inside_end_;            // where vectors begin that have all of them
    int place_shift_ = 0;                          // vectors begin at multiples of this power of two
    std::vector<Lanes> row_lanes_, column_lanes_;  // that have a tap, by place and tap and by column and tap
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

// What windows send back; the divisors are those of a plane.
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
          plane_(plane) {}

    template <class Lanes>
    auto operator()(int64_t i, Lanes lanes) {
        place_ += i - std::exchange(i_, i);
        if (place_ >= plane_) place_ -= plane_;
        if (place_ >= plane_) place_ %= plane_;
        prefetch_line(grad_y_ + i + kPrefetchDistance<T>, 2);
        if (G::kNeedsData) prefetch_line(y_ + i + kPrefetchDistance<T>, 2);
        return gradient_.prepare(load<lanes>(grad_y_ + i), load<lanes>(y_ + i), load<lanes>(divisors_ + place_));
    }

private:
    const G gradient_;
    const T *const grad_y_, *const y_;
    const A* const divisors_;
    const int64_t plane_;
    int64_t i_ = 0, place_ = 0;  // of the last one, which is never beyond the next
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
    const SentByWindows<G> prepare(gradient, call, divisors.data(), plane);
    PreparedElements<A, SentByWindows<G>> elements(prepare, planes.elements_together(), size);
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

// run(rows, columns, before) names the kernel for these numbers of taps, or for any. Null where other kernels do it:
// sums of many taps share what they have in common, and what that saves maxima is worth more from some number on.
template <class A, class Run>
Task plan_flat(const Geometry& geometry, const FlatTaps& taps, bool are_maxima, const Run& run) {
    constexpr int64_t most_positions = 1 << 16, most_taps = FlatPlanes<A>::kMostTaps;
    const Axis &rows = taps.row_axis, &columns = taps.column_axis;
    const int64_t before = FlatTaps::taps_before(columns), size = count_inputs(geometry);
    const int64_t most_of_axis = are_maxima ? most_taps : 5;
    if (taps.plane() > most_positions || size < 2 * kLanes<A> || window_reach(columns) > kLanes<A> ||
        std::max(rows.kernel, columns.kernel) > most_of_axis || rows.kernel + columns.kernel > most_taps) {
        return {};
    }
    constexpr std::integral_constant<int, 0> any;
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 2> two;
    constexpr std::integral_constant<int, 3> three;
    constexpr std::integral_constant<int, 5> five;
    const auto kernel_for = [&](auto kernel, auto taps_before) -> decltype(Task::run) {
        if (columns.kernel != kernel || before != taps_before) return nullptr;
        return rows.kernel == 1        ? run(one, kernel, taps_before)
               : rows.kernel == kernel ? run(kernel, kernel, taps_before)
                                       : nullptr;
    };
    Task task{kernel_for(two, any), FlatPlanes<A>::units(size),
              static_cast<double>(FlatPlanes<A>::kUnit) * taps_of_window(geometry)};
    if (!task.run) task.run = kernel_for(two, one);
    if (!task.run) task.run = kernel_for(three, one);
    if (!task.run) task.run = kernel_for(five, two);
    if (!task.run) task.run = run(any, any, any);
    return task;
}

template <class R>
Task plan_flat_planes(const Call& call) {
    // Powers had better be computed once for all rows, and small numbers are shifted by many instructions.
    constexpr bool has_kernels = !R::kIndexed && !R::kInOrder && !R::kOfPlanes && !is_keyed<R> && !is_norm<R> &&
                                 std::is_floating_point_v<typename R::Accumulator>;
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
    const Geometry& geometry = call.geometry;
    const auto are_contiguous = [&](const Operand& first, const Operand& second) {
        return is_contiguous(geometry, first, input_size) && is_contiguous(geometry, second, input_size);
    };
    if (call.channels_innermost || !FlatTaps::are_those_of(geometry) || !are_contiguous(call.grad_y, call.grad_x) ||
        !are_contiguous(data_of<G>(call), result_of<G>(call))) {
        return {};
    }
    return plan_flat<typename G::Accumulator>(
        geometry, FlatTaps(geometry).of_coverings(), false,
        [](auto rows, auto columns, auto before) { return backward_flat_planes<G, rows, columns, before>; });
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
