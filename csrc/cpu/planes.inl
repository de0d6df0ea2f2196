// Part of kernels.inl: see there.
// One window spans the plane, which is read once.

template <class R, class V>
inline typename R::Accumulator combine_lanes(const R& reduction, V a) {
    if constexpr (lanes_of<V> == 2) {
        return reduction.combine(a[0], a[1]);
    } else {
        constexpr int half = lanes_of<V> / 2;
        return combine_lanes(reduction, reduction.combine(part_of<0, half>(a), part_of<half, half>(a)));
    }
}

// Reduces a run in several accumulators, more of them if it is long: whatever the width of vectors, x[i] goes to number
// i % kAccumulators.
template <int kAccumulators, class R>
inline typename R::Accumulator reduce_contiguous(const R& reduction, const typename R::Element* x, int64_t size) {
    using Accumulator = typename R::Accumulator;
    constexpr bool is_long = kAccumulators > 16;
    constexpr int lanes = std::min(kLanes<Accumulator>, kAccumulators);
    constexpr int vectors = kAccumulators / lanes;
    using V = Vector<Accumulator, lanes>;
    V partial[vectors];
    for (V& accumulators : partial) accumulators = filled<V>(reduction.identity());
    const auto take_in = [&](V& accumulators, int64_t i) {
        accumulators = reduction.combine(accumulators, lift_at(reduction, load<lanes>(x + i), i));
    };
    // As many as there is room for in registers take in their elements of a part that stays in the first cache.
    constexpr int kept = std::min(vectors, 8);
    constexpr int64_t part = 2048, line = 64 / sizeof(typename R::Element);
    const int64_t whole = size / kAccumulators * kAccumulators;
    for (int64_t begin = 0; begin < whole; begin += part) {
        const int64_t end = std::min(begin + part, whole);
#pragma GCC unroll 4
        for (int first = 0; first < vectors; first += kept) {
            V sums[kept];
            std::copy_n(partial + first, kept, sums);
            for (int64_t i = begin + first * lanes; i < end; i += kAccumulators) {
                // One run of memory: nothing else needs places in the first cache.
                if (!is_long || !kHardwarePrefetchesRuns) {
                    for (int j = 0; j < kept * lanes; j += line) prefetch_line_ahead<8192, Cache::kL1>(x + i + j);
                }
#pragma GCC unroll 8
                for (int v = 0; v < kept; ++v) take_in(sums[v], i + v * lanes);
            }
            std::copy_n(sums, kept, partial + first);
        }
    }
    int64_t done = whole;
#pragma GCC unroll 32
    for (int v = 0; v < vectors; ++v) {
        if (done + lanes <= size) {
            take_in(partial[v], done);
            done += lanes;
        } else if (done < size) {
            const V accumulators = lift_at(reduction, load_first<lanes>(x + done, size - done), done);
            using Numbers = with_numbers_t<integer_t<sizeof(Accumulator), true>, V>;
            const auto missing = counting<Numbers>() >= static_cast<number_t<Numbers>>(size - done);
            partial[v] = reduction.combine(partial[v], missing ? filled<V>(reduction.identity()) : accumulators);
            done = size;
        }
    }
#pragma GCC unroll 8
    for (int half = vectors / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) partial[i] = reduction.combine(partial[i], partial[i + half]);
    }
    return combine_lanes(reduction, partial[0]);
}

// Results of the planes of these channels, given what they add up to.
template <class R>
void finish_planes(const R& reduction, const Call& call, int64_t image, int64_t channel,
                   const typename R::Accumulator* sums, int64_t count) {
    using T = typename R::Element;
    const Geometry& geometry = call.geometry;
    const int64_t size = plane_size(geometry, input_size);
    T* y = plane_at<T>(call.y, image, channel);
    int64_t* indices = is_keyed<R> ? plane_at<int64_t>(call.indices, image, channel) : nullptr;
    const auto finish =
        results_of(reduction, call, y, 0, indices, image, channel).at(0, static_cast<typename R::Accumulator>(size));
    [[maybe_unused]] const bool any_out_of_range = finish_sums(reduction, sums, count, finish);
    if constexpr (may_leave_range<R>) {
        Range taps[kMaxSpatialRank];
        for (int a = 0; a < geometry.rank; ++a) taps[a] = data_taps(geometry.axes[a], 0);
        const T* x = plane_at<const T>(call.x, image, channel);
        for (int64_t i = 0; any_out_of_range && i < count; ++i) {
            if (reduction.out_of_range(sums[i])) y[i] = rescaled_norm<T>(call, taps, x + i * call.x.strides[1]);
        }
    }
}

// Planes that are contiguous in memory. Units are planes.
template <class R>
void forward_planes(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int64_t size = plane_size(geometry, input_size);
    // Results are finished in vectors where they follow each other.
    constexpr int64_t most = 64;
    const bool in_order = call.y.strides[1] == 1;
    Accumulator sums[most];
    for (int64_t plane = begin; plane < end;) {
        const int64_t image = plane / geometry.channels, channel = plane % geometry.channels;
        const int64_t count = std::min({end - plane, geometry.channels - channel, in_order ? most : 1});
        const T* x = plane_at<const T>(call.x, image, channel);
        for (int64_t i = 0; i < count; ++i) {
            const T* data = x + i * call.x.strides[1];
            sums[i] = size < 512 ? reduce_contiguous<16>(reduction, data, size)
                                 : reduce_contiguous<64>(reduction, data, size);
        }
        finish_planes(reduction, call, image, channel, sums, count);
        plane += count;
    }
}

// Adds a row to the sums of some lanes, whole vectors next to each other in memory; its elements are x_step apart. In
// the order of memory: what the row has so far stays in the first cache.
template <class R, class Take>
void add_row_by_columns(const R& reduction, const typename R::Element* x, int64_t columns, int64_t x_step,
                        const Take& take, const typename R::Accumulator* sums, typename R::Accumulator* new_sums,
                        int64_t lanes) {
    constexpr int kCount = kLanes<typename R::Accumulator>;
    using V = decltype(load<kCount>(sums));
    for (int64_t column = 0; column < columns; ++column, x += x_step) {
        const auto add = [&](const auto& combine) {
            for (int64_t i = 0; i < lanes; i += kCount) {
                prefetch(x + i + 8192 / sizeof(*x), 1);  // four attempts would take the place of loads
                store(new_sums + i, combine(i, V(take(load<kCount>(x + i), column))));
            }
        };
        const auto with_row = [&](int64_t i, V element) {
            return reduction.combine(load<kCount>(new_sums + i), element);
        };
        if (column == 0) {
            add([](int64_t, V element) { return element; });
        } else if (column < columns - 1) {
            add(with_row);
        } else {
            add([&](int64_t i, V element) {
                return reduction.combine(load<kCount>(sums + i), V(with_row(i, element)));
            });
        }
    }
}

// The same for any lanes; what the row has stays in registers where these are few, or vectors are short.
template <class R, class Take>
void add_row(const R& reduction, const typename R::Element* x, int64_t columns, int64_t x_step, const Take& take,
             const typename R::Accumulator* sums, typename R::Accumulator* new_sums, int64_t lanes) {
    using T = typename R::Element;
    // Prefetched is the next row, which comes when all lanes of this one are done, or a part of it.
    constexpr int64_t part = (1 << 16) / sizeof(T), line = 64 / sizeof(T);
    const int64_t ahead = std::clamp<int64_t>(part / std::max<int64_t>(1, x_step), 1, columns) * x_step;
    const auto add = [&](int64_t lane, auto count, auto vectors) {
        using V = decltype(load<count>(sums));
        V row[vectors];
        const T* element = x + lane;
        const auto next = [&](int v, int64_t column) {
            const T* const source = element + v * count;
            if (v * count % line == 0) prefetch_line_ahead<0>(source + ahead);
            return V(take(load<count>(source), column));
        };
        for (int v = 0; v < vectors; ++v) row[v] = next(v, 0);
        for (int64_t column = 1; column < columns; ++column) {
            element += x_step;
            for (int v = 0; v < vectors; ++v) row[v] = reduction.combine(row[v], next(v, column));
        }
        for (int v = 0; v < vectors; ++v) {
            const int64_t i = lane + v * count;
            store(new_sums + i, reduction.combine(load<count>(sums + i), row[v]));
        }
    };
    constexpr int vector = kLanes<typename R::Accumulator>, kept = 8;  // in registers
    int64_t lane = 0;
    // Short vectors of what the row has would go to the cache and back too often.
    if (ONNXPOOL_VECTOR_BYTES == 64 && lanes > kept * vector && columns > 1) {
        lane = lanes / vector * vector;
        add_row_by_columns(reduction, x, columns, x_step, take, sums, new_sums, lane);
    }
    const auto add_all = [&](auto vectors) {
        constexpr int64_t together = vector * vectors;
        for (; lane + together <= lanes; lane += together) add(lane, std::integral_constant<int, vector>(), vectors);
    };
    add_all(std::integral_constant<int, kept>());
    add_all(std::integral_constant<int, 4>());
    add_all(std::integral_constant<int, 2>());
    const int64_t done = lane;
    in_vectors<vector>(lanes - done,
                       [&](int64_t i, auto count) { add(done + i, count, std::integral_constant<int, 1>()); });
}

// Blocks of channels that are next to each other: position by position, row by row. Units are blocks.
template <class R>
void forward_plane_lanes(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    const int last = geometry.rank - 1;
    const int64_t columns = geometry.axes[last].input, x_step = call.x.strides[2 + last];
    const int64_t block = lanes_per_row(call), blocks = ceil_div(geometry.channels, block);
    constexpr int64_t most_blocks = 4;  // together: memory is read in longer runs
    std::vector<int64_t> positions(columns);
    Buffer<Accumulator> sums(most_blocks * block), next_sums(most_blocks * block);
    for (int64_t unit = begin; unit < end;) {
        const int64_t image = unit / blocks, first_block = unit % blocks, channel = first_block * block;
        const int64_t together = std::min({end - unit, blocks - first_block, most_blocks});
        const int64_t lanes = std::min(together * block, geometry.channels - channel);
        unit += together;
        const T* x = plane_at<const T>(call.x, image, channel);
        std::fill_n(sums.begin(), lanes, reduction.identity());
        for_each_row_of_plane<1>(geometry, input_size, {call.x.strides + 2},
                                 [&](const int64_t*, int64_t number, const int64_t (&offsets)[1]) {
                                     std::iota(positions.begin(), positions.end(), number * columns);
                                     add_row(reduction, x + offsets[0], columns, x_step,
                                             lift_rows(reduction, positions), sums.data(), next_sums.data(), lanes);
                                     std::swap(sums, next_sums);
                                 });
        finish_planes(reduction, call, image, channel, sums.data(), lanes);
    }
}
