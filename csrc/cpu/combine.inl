// Part of kernels.inl: see there.
// The one loop that everything is made of: runs of elements or accumulators, the taps of neighbouring windows, are
// combined into one run.

// body(i, lanes) for vectors of kCount lanes that cover 0 ... size - 1, of which there are enough for one. The last two
// may overlap: doing an element twice must not matter.
template <int kCount, class Body>
inline void in_whole_vectors(int64_t size, const Body& body) {
    constexpr std::integral_constant<int, kCount> vector;
    int64_t i = 0;
    for (; i + kCount <= size; i += kCount) body(i, vector);
    if (i < size) body(size - kCount, vector);
}

// The same for any size: runs shorter than a vector take smaller ones, or are done one by one.
template <int kCount, class Body>
inline void in_vectors(int64_t size, const Body& body) {
    if constexpr (kCount >= 8) {
        constexpr int smaller = kCount >= 16 ? kCount / 4 : kCount / 2;
        if (size < kCount) return in_vectors<smaller>(size, body);
    } else {
        if (size < kCount) return in_whole_vectors<1>(size, body);
    }
    in_whole_vectors<kCount>(size, body);
}

// body(lanes), as a type: those of the largest vector up to kCount that a run of this size fills.
template <int kCount, class Body>
inline void with_lanes_for(int64_t size, const Body& body) {
    if constexpr (kCount > 1) {
        if (size < kCount) return with_lanes_for<(kCount > 4 ? kCount / 2 : 1)>(size, body);
    }
    body(std::integral_constant<int, kCount>());
}

// body(std::integral_constant<int, number>()) for a number from kLeast to kMost.
template <int kLeast, int kMost, class Body>
inline void with_number(int64_t number, const Body& body) {
    if constexpr (kLeast <= kMost) {
        if (number == kLeast) return body(std::integral_constant<int, kLeast>());
        with_number<kLeast + 1, kMost>(number, body);
    }
}

// body(std::integral_constant<int, i>()) for i = 0, ..., kCount - 1.
template <int kCount, class Body>
inline void for_each_of(const Body& body) {
    if constexpr (kCount > 0) {
        for_each_of<kCount - 1>(body);
        body(std::integral_constant<int, kCount - 1>());
    }
}

// As many numbers as are moved around in two vectors by one instruction, or by two. AVX2 has none for small numbers
// that crosses halves of its vectors, AVX-512 F, BW, DQ and VL none for bytes.
template <class T>
constexpr int kShuffled =
    std::min<int>(sizeof(T) < (ONNXPOOL_VECTOR_BYTES < 64 ? 4 : 2) ? 16 : 64, ONNXPOOL_VECTOR_BYTES) / sizeof(T);

// Rows become columns, in registers: after log2(kRows) perfect shuffles, by what interleaves two of them.
template <int kRows, class V, class First, class Last>
inline void transpose_rows(V* rows, const First& interleave_first, const Last& interleave_last) {
    V shuffled[kRows];
#pragma GCC unroll 4
    for (int size = kRows; size > 1; size /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < kRows / 2; ++i) {
            shuffled[2 * i] = interleave_first(rows[i], rows[i + kRows / 2]);
            shuffled[2 * i + 1] = interleave_last(rows[i], rows[i + kRows / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) rows[i] = shuffled[i];
    }
}

// Of vectors with the numbers of one run each: those in which the runs are interleaved, the inverse of deinterleave().
// As many runs as vectors have numbers are the rows of a block, which is transposed.
template <int kRuns, class V>
inline void interleave_runs(V (&vectors)[kRuns]) {
    if constexpr ((kRuns & (kRuns - 1)) == 0) {
        constexpr int half = lanes_of<V> / 2;
        transpose_rows<kRuns>(
            vectors, [](V a, V b) { return interleave<0>(a, b); }, [](V a, V b) { return interleave<half>(a, b); });
    } else {
        V runs[kRuns];
        std::copy_n(vectors, kRuns, runs);
        for_each_of<kRuns>([&](auto part) {
            vectors[part] = runs[0];
            for_each_of<kRuns - 1>([&](auto before) {
                constexpr int run = before + 1;
                vectors[part] = with_interleaved<kRuns, part, run>(vectors[part], runs[run],
                                                                   std::make_integer_sequence<int, lanes_of<V>>());
            });
        });
    }
}

// target[j * target_step + i] = source[i * source_step + j] for a block of kCount rows and columns, in registers.
template <int kCount, class T>
inline void transpose_block(const T* source, int64_t source_step, T* target, int64_t target_step) {
    using V = BitsVector<T, kCount>;
    V rows[kCount];
    if constexpr (sizeof(V) == 32) {
        // Shuffles across halves of vectors are expensive: each half is loaded as a quarter of the block. Both quarters
        // in a register are transposed at once.
        constexpr int half = kCount / 2;
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
            const T* const quarter = source + i % half * source_step + i / half * half;
            rows[i] = joined(load_bits<half>(quarter), load_bits<half>(quarter + half * source_step));
        }
        const auto first = [](V a, V b) { return interleave_halves<0>(a, b); };
        const auto last = [](V a, V b) { return interleave_halves<half / 2>(a, b); };
        transpose_rows<half>(rows, first, last);
        transpose_rows<half>(rows + half, first, last);
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) rows[i] = load_bits<kCount>(source + i * source_step);
        interleave_runs(rows);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) std::memcpy(target + i * target_step, &rows[i], sizeof(rows[i]));
}

// runs[r * run_step + i] = source[i * kRuns + r], where these do not overlap.
template <int kRuns, class T>
__attribute__((noinline)) void deinterleave_runs(const T* __restrict source, int64_t size, T* __restrict runs,
                                                 int64_t run_step) {
    constexpr bool are_blocks = kRuns == 8 && kRuns * sizeof(T) <= ONNXPOOL_VECTOR_BYTES;
    in_vectors<are_blocks ? kRuns : kShuffled<T>>(size, [&](int64_t i, auto n) {
        if constexpr (are_blocks && n == kRuns) {
            return transpose_block<kRuns>(source + i * kRuns, kRuns, runs + i, run_step);
        }
        for_each_of<kRuns>([&](auto run) {
            T* const target = runs + run * run_step + i;
            if constexpr (n == 1) {
                *target = source[i * kRuns + run];
            } else {
                store(target, load_every<kRuns, n, run>(source + i * kRuns));
            }
        });
    });
}

// target[i * kRuns + r] = runs[r * run_step + i].
template <int kRuns, class T>
__attribute__((noinline)) void interleave_runs(const T* runs, int64_t run_step, int64_t size, T* target) {
    in_vectors<kShuffled<T>>(size, [&](int64_t i, auto n) {
        if constexpr (n == 1) {
            for (int run = 0; run < kRuns; ++run) target[i * kRuns + run] = runs[run * run_step + i];
        } else {
            decltype(load<n>(runs)) vectors[kRuns];
            for (int run = 0; run < kRuns; ++run) vectors[run] = load<n>(runs + run * run_step + i);
            interleave_runs(vectors);
            for (int part = 0; part < kRuns; ++part) store(target + i * kRuns + part * n, vectors[part]);
        }
    });
}

// How what is read of a tap becomes accumulators: elements are lifted, accumulators are taken as they are. Loops get
// this and what follows, and the reductions in them, as copies: others would be read again after each store.
template <class R>
struct Lift {
    using Source = typename R::Element;
    const R reduction;
    template <class V>
    auto operator()(V x, int64_t) const {
        return reduction.lift(x);
    }
};

template <class A>
struct AsItIs {
    using Source = A;
    template <class V>
    V operator()(V a, int64_t) const {
        return a;
    }
};

// Puts accumulators into a buffer.
template <class A>
struct Keep {
    A* target;
    template <class V>
    void operator()(int64_t i, V a) const {
        store(target + i, a);
    }
};

// Puts the accumulators of each window or position, from the first one on, into a part of a buffer.
template <class A>
struct KeepParts {
    A* target;
    int64_t step;
    int64_t first = 0;
    Keep<A> operator()(int64_t part) const { return {target + (part - first) * step}; }
    template <class V>
    void operator()(int64_t part, int64_t i, V a) const {
        (*this)(part)(i, a);
    }
};

// Puts results into the output, of windows that share a divisor.
template <class R>
struct Finish {
    const R reduction;
    typename R::Element* y;
    typename R::Accumulator divisor;
    bool streams;
    template <class V>
    void operator()(int64_t i, V a) const {
        if constexpr (R::kDivides) a = a / divisor;
        store(y + i, reduction.finish(a), streams);
    }
};

// Puts results into the output, of windows with a divisor each.
template <class R>
struct FinishEach {
    const R reduction;
    typename R::Element* y;
    const typename R::Accumulator* divisors;
    Stores stores;
    template <class V>
    void operator()(int64_t i, V a) const {
        if constexpr (R::kDivides) a = a / load<lanes_of<V>>(divisors + i);
        store(y + i, reduction.finish(a), stores);
    }
};

// What the accumulators of R combine with: the same for all sums, and for all maxima.
template <class A>
const Sum<A>& combiner_of(const Sum<A>& reduction) {
    return reduction;
}
template <class A>
const Largest<A>& combiner_of(const Largest<A>& reduction) {
    return reduction;
}
template <class R>
using CombinerOf = std::decay_t<decltype(combiner_of(std::declval<const R&>()))>;

// put(i, taps[0][i] + taps[1][i] + ... + taps[count - 1][i]) for 0 <= i < size and the combiner's "+", from left to
// right. There is at least one tap. Along the way, what comes kBytesAhead behind the kPrefetched rows of `prefetched`
// is prefetched.
template <int kPrefetched = 0, int kBytesAhead = 0, class Combiner, class Take, class Put>
inline void combine_taps(const Combiner& combiner, const typename Take::Source* const* taps, int64_t count,
                         int64_t size, const Take take, const Put put,
                         const typename Take::Source* const* prefetched = nullptr) {
    constexpr int lanes = kLanes<typename Combiner::Accumulator>;
    const auto *tap0 = taps[0], *tap1 = taps[count > 1 ? 1 : 0], *tap2 = taps[count > 2 ? 2 : 0];
    const typename Take::Source* kept[kPrefetched + 1];
    std::copy_n(prefetched, kPrefetched, kept);
    const auto prefetch_next = [&](int64_t i) {
        for (int k = 0; k < kPrefetched; ++k) prefetch_line_ahead<kBytesAhead>(kept[k] + i);
    };
    if (count == 1) {
        in_vectors<lanes>(size, [&](int64_t i, auto n) {
            prefetch_next(i);
            put(i, take(load<n>(tap0 + i), 0));
        });
    } else if (count == 2) {
        in_vectors<lanes>(size, [&](int64_t i, auto n) {
            prefetch_next(i);
            put(i, combiner.combine(take(load<n>(tap0 + i), 0), take(load<n>(tap1 + i), 1)));
        });
    } else {
        in_vectors<lanes>(size, [&](int64_t i, auto n) {
            prefetch_next(i);
            auto sum = combiner.combine(take(load<n>(tap0 + i), 0), take(load<n>(tap1 + i), 1));
            sum = combiner.combine(sum, take(load<n>(tap2 + i), 2));
            for (int64_t tap = 3; tap < count; ++tap) sum = combiner.combine(sum, take(load<n>(taps[tap] + i), tap));
            put(i, sum);
        });
    }
}

// What windows look at in memory that those of the row before did not.
template <class Source>
struct NewRows {
    const Source* const* rows = nullptr;  // from their first columns on
    int64_t count = 0;
    int64_t begin = 0;    // of the first window in them
    int64_t columns = 0;  // of a window, the last ones, that the window before did not look at
    int64_t size = 0;     // of a row,
    int64_t skip = 0;     // and what lies between its end and the row that will be new in its place
};

// Windows that look alike, the first of them at rows[0] ... rows[row_count - 1].
template <class Source>
struct Windows {
    const Source* const* rows;
    int64_t row_count;
    int64_t column_count;
    int64_t column_step;
    int64_t count;
    int64_t step;  // from one to the next
    NewRows<Source> new_rows = {};
};

// Combines the rows of each column, and then the columns: kRows and kColumns of them, if these are not 0, in vectors of
// kCount lanes. In one function: calls of the loops' bodies would cost more than these do.
template <int kRows, int kColumns, int kCount, class Combiner, class Take, class PutOf>
__attribute__((flatten)) inline void combine_windows_of(const Combiner& combiner,
                                                        const Windows<typename Take::Source> windows, int64_t lanes,
                                                        const Take take, const PutOf put_of) {
    using Source = typename Take::Source;
    constexpr int kKept = std::max(kRows, 1);
    const Source* kept[kKept];
    std::copy_n(windows.rows, kKept, kept);
    const int64_t row_count = kRows > 0 ? kRows : windows.row_count;
    const int64_t column_count = kColumns > 0 ? kColumns : windows.column_count;
    const int64_t column_step = windows.column_step, count = windows.count, step = windows.step;
    // What is new comes from memory and is prefetched: of one row for the next window at least, which may be far away,
    // of several as much as can be in flight at a time.
    const NewRows<Source> next = windows.new_rows;  // none in the buffers that rows are combined in
    constexpr bool can_be_new = kRows != 1 || !std::is_same_v<Take, AsItIs<Source>>;
    constexpr int kMostPrefetched = 64;
    const Source* prefetched[kMostPrefetched];
    int prefetched_count = 0;
    for (int64_t column = column_count - next.columns; column < column_count; ++column) {
        for (int64_t row = 0; row < next.count && prefetched_count < kMostPrefetched; ++row) {
            prefetched[prefetched_count++] = next.rows[row] + column * column_step;
        }
    }
    const int64_t ahead = row_count == 1 ? std::max<int64_t>(16384 / sizeof(Source), step)
                                         : 8192 / int{sizeof(Source)} / std::max<int64_t>(next.count, 1);
    for (int64_t window = 0; window < count; ++window) {
        const auto put = put_of(window);
        in_whole_vectors<kCount>(lanes, [&](int64_t i, auto n) {
            int64_t place = window * step + i;
            if (can_be_new && prefetched_count > 0) {
                int64_t later = next.begin + place + ahead;
                if (later + (column_count - 1) * column_step >= next.size) later += next.skip;
                for (int k = 0; k < prefetched_count; ++k) prefetch_lines_to(prefetched[k] + later);
            }
            const auto column_at = [&](int64_t first) {
                const auto element = [&](int64_t row) {
                    return take(load<n>((kRows > 0 ? kept[kRows > 0 ? row : 0] : windows.rows[row]) + first), row);
                };
                auto sum = element(0);
                for (int64_t row = 1; row < row_count; ++row) sum = combiner.combine(sum, element(row));
                return sum;
            };
            auto sum = column_at(place);
            for (int64_t column = 1; column < column_count; ++column) {
                place += column_step;
                sum = combiner.combine(sum, column_at(place));
            }
            put(i, sum);
        });
    }
}

// For each window: put_of(window)(i, result) for 0 <= i < lanes.
template <class Combiner, class Take, class PutOf>
inline void combine_windows(const Combiner& combiner, const Windows<typename Take::Source>& windows, int64_t lanes,
                            const Take& take, const PutOf& put_of) {
    const auto sized = [&](auto rows, auto columns) {
        with_lanes_for<kLanes<typename Combiner::Accumulator>>(lanes, [&](auto count) {
            combine_windows_of<rows, columns, count>(combiner, windows, lanes, take, put_of);
        });
    };
    const auto has = [&](int64_t rows, int64_t columns) {
        return windows.row_count == rows && windows.column_count == columns;
    };
    constexpr std::integral_constant<int, 0> any;
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, 2> two;
    constexpr std::integral_constant<int, 3> three;
    if (has(1, 1)) return sized(one, one);
    if (has(1, 2)) return sized(one, two);
    if (has(1, 3)) return sized(one, three);
    if (has(2, 2)) return sized(two, two);
    if (has(3, 3)) return sized(three, three);
    if (has(2, 3)) return sized(two, three);
    if (has(3, 2)) return sized(three, two);
    if (windows.row_count == 1) return sized(one, any);
    sized(any, any);
}

// Puts sums; whether any of them is out of the reduction's range.
template <class R, class Put>
inline bool finish_sums([[maybe_unused]] const R& reduction, const typename R::Accumulator* sums, int64_t size,
                        const Put& put) {
    bool any = false;
    in_vectors<kLanes<typename R::Accumulator>>(size, [&](int64_t i, auto n) { put(i, load<n>(sums + i)); });
    if constexpr (may_leave_range<R>) {
        constexpr int lanes = kLanes<typename R::Accumulator>;
        decltype(reduction.out_of_range(load<lanes>(sums))) anywhere{};
        int64_t i = 0;
        for (; i + lanes <= size; i += lanes) anywhere |= reduction.out_of_range(load<lanes>(sums + i));
        for (int lane = 0; lane < lanes; ++lane) any |= anywhere[lane] != 0;
        for (; i < size; ++i) any |= reduction.out_of_range(sums[i]);
    }
    return any;
}
