// One window spans a plane: every plane is read once, by a team of threads, 16 bytes at a time wherever it lies.
#pragma once

#include "window.cuh"

namespace onnxpool::cuda {

template <class A>
__device__ inline A* shared() {
    extern __shared__ uint4 shared_memory[];
    return reinterpret_cast<A*>(shared_memory);
}

// ---- Accumulators of several threads ----

// combine() for accumulators that are not neighbours: where order matters, their indices tell it.
template <class R, class A = typename R::Accumulator>
__device__ inline A merge(const R& reduction, const A& a, const A& b) {
    if constexpr (R::kIndexed) {
        if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
        return a.index < b.index ? reduction.combine(a, b) : reduction.combine(b, a);
    } else {
        return reduction.combine(a, b);
    }
}

template <class A>
__device__ inline A shuffle_xor(const A& value, int mask) {
    constexpr int words = (sizeof(A) + 3) / 4;
    uint32_t bits[words] = {};
    std::memcpy(bits, &value, sizeof(A));
#pragma unroll
    for (int i = 0; i < words; ++i) bits[i] = __shfl_xor_sync(0xffffffffu, bits[i], mask);
    A other;
    std::memcpy(&other, bits, sizeof(A));
    return other;
}

// The accumulators of `team` neighbouring threads, a power of two up to a warp, in all of them.
template <class R, class A = typename R::Accumulator>
__device__ inline A merge_team(const R& reduction, A accumulator, int team) {
    for (int mask = 1; mask < team; mask *= 2) {
        accumulator = merge(reduction, accumulator, shuffle_xor(accumulator, mask));
    }
    return accumulator;
}

// combine_datum(), where a datum is known by its number within the plane.
template <class R, class A = typename R::Accumulator>
__device__ inline A combine_datum(const R& reduction, const A& accumulator, typename R::Element x, int32_t number) {
    if constexpr (R::kIndexed) {
        return reduction.combine(accumulator, reduction.lift(x, number));
    } else {
        return combine_datum(reduction, accumulator, x);
    }
}

// ---- Sums of 0 ----

// A sum of powers is 0 where all data are, and where their powers have vanished. To know which, all threads look at the
// data once more, rather than the one that finishes a plane. If a datum is not 0, the smallest normal number takes the
// place of the sum: it is out of range as well.
template <class R, class A = typename R::Accumulator>
__device__ inline bool may_have_vanished(const R& reduction, const A& sum) {
    if constexpr (may_be_out_of_range<R>) return sum == 0 && !reduction.no_power_vanishes;
    return false;
}

template <class R>
__device__ inline typename R::Accumulator vanished_sum() {
    return std::numeric_limits<typename R::Accumulator>::min();
}

template <class T>
__device__ inline bool is_zero(T element) {
    return static_cast<comparable_t<T>>(element) == 0;
}

// What merge_team() gives to a team, of which has_datum() tells whether one of this thread's data is not 0.
template <class R, class HasDatum, class A = typename R::Accumulator>
__device__ inline A keep_from_vanishing(const R& reduction, A sum, int team, const HasDatum& has_datum) {
    if constexpr (may_be_out_of_range<R>) {
        const bool looks = may_have_vanished(reduction, sum);
        if (!__any_sync(0xffffffffu, looks)) return sum;
        uint32_t has_vanished = looks && has_datum();
        for (int mask = 1; mask < team; mask *= 2) has_vanished |= shuffle_xor(has_vanished, mask);
        if (has_vanished) return vanished_sum<R>();
    }
    return sum;
}

// ---- What all of these kernels share ----

// The largest power of two up to `limit`, which is 1 or more.
constexpr int64_t power_of_two_below(int64_t limit) {
    int64_t power = 1;
    while (2 * power <= limit) power *= 2;
    return power;
}

// The threads of a warp for so many items, two or more: a power of two.
constexpr int64_t threads_for(int64_t items) {
    return std::min<int64_t>(kWarpThreads, 2 * power_of_two_below(items - 1));
}

// Blocks that run at the same time, and keep the device busy.
constexpr int kBlocksAtOnce = 4;
inline int64_t wanted_blocks() { return kBlocksAtOnce * multiprocessors(); }

struct Planes {
    int32_t size = 0;         // elements of a plane
    int64_t stride = 0;       // between elements of a plane: 1, or with channels innermost more
    int32_t parts = 1;        // of a plane, by different blocks
    int32_t part = 0;         // elements of each, but for the last one
    void* partial = nullptr;  // accumulators of all parts: [plane][part]

    static constexpr int64_t kMostParts = 1024;

    // The elements of a part.
    __device__ RangeOf<int32_t> elements(int32_t number) const {
        const int32_t begin = number * part;
        return {begin, begin + part < size ? part : size - begin, 1};
    }

    // Cuts the plane into parts of at least `smallest` elements: no more of them than keep the device busy, to the end.
    void split(int64_t blocks, int64_t smallest) {
        const int64_t most = std::clamp<int64_t>(size / smallest, 1, kMostParts);
        const int64_t at_once = wanted_blocks();
        const auto idle_share = [&](int64_t parts) {
            const int64_t waves = ceil_div(blocks * parts, at_once);
            return 1 - static_cast<double>(blocks * parts) / static_cast<double>(std::max<int64_t>(1, waves * at_once));
        };
        // Fewer leave more than a tenth idle at once.
        int64_t wanted = std::clamp<int64_t>(ceil_div(9 * at_once, 10 * std::max<int64_t>(1, blocks)), 1, most);
        while (wanted < most && idle_share(wanted) > 0.1) ++wanted;
        part = static_cast<int32_t>(ceil_div(size, wanted));
        parts = static_cast<int32_t>(ceil_div(size, part));
    }
};

template <class R>
__device__ inline void write_result(const R& reduction, const Problem<Small>& problem, const Planes& planes,
                                    const Position<Small>& plane, const typename R::Accumulator& accumulator) {
    using T = typename R::Element;
    const T* x = problem.x.template plane<const T>(plane.image, plane.channel);
    T* y = problem.y.template plane<T>(plane.image, plane.channel);
    if constexpr (may_be_out_of_range<R>) {
        if (accumulator == 0) {  // all data are
            *y = reduction.empty();
            return;
        }
    }
    const auto taps = [&] {
        const int32_t origin[Small::kRank] = {};
        Box<Small> box;
        window_at(problem, origin, box);
        return box;
    };
    *y = finish_window(reduction, problem, taps, x, accumulator, planes.size);
    if constexpr (R::kIndexed) {
        *problem.indices.template plane<int64_t>(plane.image, plane.channel) =
            plane.image * problem.flat.image_stride + plane.channel * problem.flat.channel_stride + accumulator.index;
    }
}

// A plane's accumulator is finished, or that of a part is kept.
template <class R>
__device__ inline void write_part(const R& reduction, const Problem<Small>& problem, const Planes& planes,
                                  int64_t plane, int32_t part, const typename R::Accumulator& accumulator) {
    if (planes.parts == 1) {
        write_result(reduction, problem, planes, problem.places[plane], accumulator);
    } else {
        static_cast<typename R::Accumulator*>(planes.partial)[plane * planes.parts + part] = accumulator;
    }
}

// A team of threads for each plane.
template <class R>
__global__ void __launch_bounds__(kThreads)
    combine_parts(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                  const __grid_constant__ Planes planes, int32_t team) {
    const int64_t plane = (first_block + blockIdx.x) * (kThreads / team) + threadIdx.x / team;
    const bool is_plane = plane < problem.places.count;  // all threads of a warp take part in every shuffle
    const R reduction(problem.parameters);
    const auto* partial = static_cast<const typename R::Accumulator*>(planes.partial) + plane * planes.parts;
    typename R::Accumulator accumulator = reduction.identity();
    for (int32_t i = threadIdx.x % team; is_plane && i < planes.parts; i += team) {
        accumulator = merge(reduction, accumulator, partial[i]);
    }
    accumulator = merge_team(reduction, accumulator, team);
    if (is_plane && threadIdx.x % team == 0) {
        write_result(reduction, problem, planes, problem.places[plane], accumulator);
    }
}

// ---- Large contiguous planes: a team of threads, a warp or the block, for each part of a plane ----

template <class R>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    forward_large_planes(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                         const __grid_constant__ Planes planes, int32_t team) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    constexpr int lanes = kVectorLanes<T>;
    constexpr int unroll = 8;  // loads that are on their way at the same time
    const R reduction(problem.parameters);
    const int64_t number_of_part = (first_block + blockIdx.x) * (kThreads / team) + threadIdx.x / team;
    const int64_t plane = number_of_part / planes.parts;
    if (plane >= problem.places.count) return;  // the whole team
    const auto part = static_cast<int32_t>(number_of_part - plane * planes.parts);
    const int32_t member = threadIdx.x % team;
    const Position<Small> position = problem.places[plane];
    const auto elements = planes.elements(part);
    const T* x = problem.x.template plane<const T>(position.image, position.channel);
    const int32_t end = elements.begin + elements.count;

    Accumulator partial[lanes];
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) partial[lane] = reduction.identity();
    const auto take = [&](int lane, T element, int32_t number) {
        partial[lane] = combine_datum(reduction, partial[lane], element, number);
    };
    // Up to the first 16-byte boundary, and after the last one, element by element.
    const auto misaligned = static_cast<int32_t>(reinterpret_cast<uintptr_t>(x + elements.begin) % kVectorBytes /
                                                 static_cast<int>(sizeof(T)));
    int32_t number = elements.begin + (lanes - misaligned) % lanes;
    if (number > end) number = end;
    if (elements.begin + member < number) take(0, x[elements.begin + member], elements.begin + member);
    const int32_t vectors_end = number + (end - number) / lanes * lanes;
    const int32_t step = team * lanes;
    for (number += member * lanes; number < vectors_end; number += unroll * step) {
        T loaded[unroll][lanes];
#pragma unroll
        for (int i = 0; i < unroll; ++i) {
            if (number + i * step < vectors_end) load(x + number + i * step, loaded[i]);
        }
#pragma unroll
        for (int i = 0; i < unroll; ++i) {
            if (number + i * step >= vectors_end) break;
#pragma unroll
            for (int lane = 0; lane < lanes; ++lane) take(lane, loaded[i][lane], number + i * step + lane);
        }
    }
    if (vectors_end + member < end) take(0, x[vectors_end + member], vectors_end + member);

#pragma unroll
    for (int lane = 1; lane < lanes; ++lane) partial[0] = merge(reduction, partial[0], partial[lane]);
    const auto has_datum = [&] {
        bool all_are_zero = true;
#pragma unroll 8
        for (int32_t i = elements.begin + member; i < end; i += team) all_are_zero &= is_zero(x[i]);
        return !all_are_zero;
    };
    Accumulator accumulator =
        keep_from_vanishing(reduction, merge_team(reduction, partial[0], kWarpThreads), kWarpThreads, has_datum);
    if (team > kWarpThreads) {  // one team
        Accumulator* warps = shared<Accumulator>();
        if (threadIdx.x % kWarpThreads == 0) warps[threadIdx.x / kWarpThreads] = accumulator;
        __syncthreads();
        if (member == 0) {
            for (int warp = 1; warp < kWarps; ++warp) accumulator = merge(reduction, accumulator, warps[warp]);
        }
    }
    if (member == 0) write_part(reduction, problem, planes, plane, part, accumulator);
}

// ---- Small planes, one behind the other in memory: a block copies several, then a team takes each ----

struct Packing {
    int32_t planes = 1;  // of a block; all but the last block's lie between 16-byte boundaries
    int32_t team = 1;    // threads of a plane
    int32_t bytes = 0;   // of the copy, with what fills the last 16 of them
};

// With elements of two bytes, five blocks run at once if launch bounds ask for it: what is rare must not take
// registers.
template <class R>
__global__ void __launch_bounds__(kThreads, sizeof(typename R::Element) < 4 ? 5 : 0)
    forward_packed_planes(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                          const __grid_constant__ Planes planes, Packing packing) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    constexpr int lanes = kVectorLanes<T>;
    constexpr int unroll = 8;
    const R reduction(problem.parameters);
    const int64_t first_plane = (first_block + blockIdx.x) * packing.planes;
    const int64_t remaining = problem.places.count - first_plane;
    const int32_t count = remaining < packing.planes ? static_cast<int32_t>(remaining) : packing.planes;
    const int32_t size = count * planes.size;
    const T* x = static_cast<const T*>(problem.x.data) + first_plane * planes.size;
    T* copy = shared<T>();
    auto* accumulators = reinterpret_cast<Accumulator*>(shared<char>() + packing.bytes);
    constexpr int32_t step = kThreads * lanes;
    const int32_t whole = size / lanes * lanes;
    for (int32_t number = threadIdx.x * lanes; number < whole; number += unroll * step) {
        T loaded[unroll][lanes];
#pragma unroll
        for (int i = 0; i < unroll; ++i) {
            if (number + i * step < whole) load(x + number + i * step, loaded[i]);
        }
#pragma unroll
        for (int i = 0; i < unroll; ++i) {
            if (number + i * step < whole) store(loaded[i], copy + number + i * step);
        }
    }
    if (whole + static_cast<int32_t>(threadIdx.x) < size) copy[whole + threadIdx.x] = x[whole + threadIdx.x];
    __syncthreads();

    const int32_t teams = kThreads / packing.team;
    const int32_t member = threadIdx.x % packing.team;
    for (int32_t first = 0; first < count; first += teams) {  // all threads of a warp take part in every shuffle
        const int32_t plane = first + threadIdx.x / packing.team;
        Accumulator accumulator = reduction.identity();
        if (plane < count) {
            const T* elements = copy + plane * planes.size;
            if (planes.size % lanes == 0) {
                for (int32_t i = member * lanes; i < planes.size; i += packing.team * lanes) {
                    T loaded[lanes];
                    load(elements + i, loaded);
#pragma unroll
                    for (int lane = 0; lane < lanes; ++lane) {
                        accumulator = combine_datum(reduction, accumulator, loaded[lane], i + lane);
                    }
                }
            } else if constexpr (is_half_precision<T>) {  // in pairs, from where a word begins
                const int32_t lead = plane * planes.size % 2, pairs = (planes.size - lead) / 2;
                const auto take = [&](T element, int32_t number) {
                    accumulator = combine_datum(reduction, accumulator, element, number);
                };
                if (lead > 0 && member == 0) take(elements[0], 0);
#pragma unroll 4
                for (int32_t i = member; i < pairs; i += packing.team) {
                    T pair[2];
                    load(elements + lead + 2 * i, pair);
                    take(pair[0], lead + 2 * i);
                    take(pair[1], lead + 2 * i + 1);
                }
                const int32_t last = lead + 2 * pairs;
                if (last < planes.size && member == 0) take(elements[last], last);
            } else {
#pragma unroll 4
                for (int32_t i = member; i < planes.size; i += packing.team) {
                    accumulator = combine_datum(reduction, accumulator, elements[i], i);
                }
            }
        }
        const auto has_datum = [&] {
            for (int32_t i = member; plane < count && i < planes.size; i += packing.team) {
                if (!is_zero(copy[plane * planes.size + i])) return true;
            }
            return false;
        };
        accumulator =
            keep_from_vanishing(reduction, merge_team(reduction, accumulator, packing.team), packing.team, has_datum);
        if (plane < count && member == 0) accumulators[plane] = accumulator;
    }
    // Threads side by side write results side by side.
    __syncthreads();
    for (int32_t plane = threadIdx.x; plane < count; plane += kThreads) {
        write_result(reduction, problem, planes, problem.places[first_plane + plane], accumulators[plane]);
    }
}

// ---- Channels innermost: threads side by side take vectors of channels, those behind each other elements ----

// Channels of a thread: as many as one access moves, and as the block's accumulators leave room for.
template <class R>
constexpr int kPlaneLanes = std::min<int64_t>(
    kVectorLanes<typename R::Element>,
    power_of_two_below(kSharedBytes / kThreads / static_cast<int64_t>(sizeof(typename R::Accumulator))));

// The channels of an image in groups of `width` threads, a power of two.
struct ChannelGroups {
    int32_t width = 1;
    int32_t count = 1;

    // Wide ones, unless there are fewer than `wanted` of them in all images then: narrower ones still read whole lines
    // of 128 bytes.
    ChannelGroups(int64_t vectors, int64_t images, int64_t wanted) {
        constexpr int64_t narrowest = 128 / kVectorBytes;
        int64_t threads = threads_for(std::max<int64_t>(2, vectors));
        while (threads > narrowest && images * ceil_div(vectors, threads) < wanted) threads /= 2;
        width = static_cast<int32_t>(threads);
        count = static_cast<int32_t>(ceil_div(vectors, threads));
    }
};

// What a thread takes: a vector of `lanes` channels of an image, and of a part's elements every `rows`-th from `row`
// on.
struct ChannelShare {
    int64_t image;
    int32_t part, channel, column, row, rows;

    __device__ ChannelShare(const Planes& planes, const ChannelGroups& groups, int lanes, int64_t block) {
        part = static_cast<int32_t>(block % planes.parts);
        block /= planes.parts;
        image = block / groups.count;
        column = threadIdx.x % groups.width;
        row = threadIdx.x / groups.width;
        rows = kThreads / groups.width;
        channel = (static_cast<int32_t>(block - image * groups.count) * groups.width + column) * lanes;
    }
};

template <class R>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    forward_channel_planes(int64_t first_block, const __grid_constant__ Problem<Small> problem,
                           const __grid_constant__ Planes planes, ChannelGroups groups) {
    using T = typename R::Element;
    constexpr int lanes = kPlaneLanes<R>;
    constexpr int unroll = 8;
    const R reduction(problem.parameters);
    const auto channels = static_cast<int32_t>(problem.places.channel_blocks);
    const auto [image, part, channel, column, row, rows] =
        ChannelShare(planes, groups, lanes, first_block + blockIdx.x);
    const auto elements = planes.elements(part);
    const int32_t end = elements.begin + elements.count;

    typename R::Accumulator accumulators[lanes];
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) accumulators[lane] = reduction.identity();
    if (channel < channels) {
        const T* x = problem.x.template plane<const T>(image, channel);
        for (int32_t number = elements.begin + row; number < end; number += unroll * rows) {
            T loaded[unroll][lanes];
#pragma unroll
            for (int i = 0; i < unroll; ++i) {
                if (number + i * rows < end) load(x + (number + i * rows) * planes.stride, loaded[i]);
            }
#pragma unroll
            for (int i = 0; i < unroll; ++i) {
                if (number + i * rows >= end) break;
#pragma unroll
                for (int lane = 0; lane < lanes; ++lane) {
                    accumulators[lane] =
                        combine_datum(reduction, accumulators[lane], loaded[i][lane], number + i * rows);
                }
            }
        }
    }

    auto* of_block = shared<typename R::Accumulator>();  // [lane][row][column]
    int32_t kept_rows = rows;
    for (;; kept_rows /= 2) {
        if (row < kept_rows) {
#pragma unroll
            for (int lane = 0; lane < lanes; ++lane) of_block[lane * kThreads + threadIdx.x] = accumulators[lane];
        }
        __syncthreads();
        if (kept_rows <= 8) break;
        if (row < kept_rows / 2) {
            const int32_t other = threadIdx.x + kept_rows / 2 * groups.width;
#pragma unroll
            for (int lane = 0; lane < lanes; ++lane) {
                accumulators[lane] = merge(reduction, accumulators[lane], of_block[lane * kThreads + other]);
            }
        }
        __syncthreads();
    }
    // Every lane is finished by threads of its own.
    for (int32_t first_lane = 0; first_lane < lanes; first_lane += rows) {
        const int32_t lane = first_lane + row;
        const bool finishes = lane < lanes && channel < channels;
        auto accumulator = reduction.identity();
        if (finishes) {
            const auto* of_lane = of_block + lane * kThreads + column;
            accumulator = of_lane[0];
            for (int32_t i = 1; i < kept_rows; ++i) {
                accumulator = merge(reduction, accumulator, of_lane[i * groups.width]);
            }
        }
        if constexpr (may_be_out_of_range<R>) {
            static_assert(lanes <= kThreads / kWarpThreads);  // of_block is free: there is no next turn
            const bool looks = finishes && may_have_vanished(reduction, accumulator);
            if (__syncthreads_or(looks)) {
                const T* x = problem.x.template plane<const T>(image, channel);
                uint32_t lanes_with_data = 0;
#pragma unroll 4
                for (int32_t number = elements.begin + row; channel < channels && number < end; number += rows) {
                    T loaded[lanes];
                    load(x + number * planes.stride, loaded);
#pragma unroll
                    for (int l = 0; l < lanes; ++l) lanes_with_data |= (is_zero(loaded[l]) ? 0u : 1u) << l;
                }
                auto* of_threads = shared<uint32_t>();
                of_threads[threadIdx.x] = lanes_with_data;
                __syncthreads();
                for (int32_t i = 0; looks && i < rows; ++i) {
                    if (of_threads[i * groups.width + column] >> lane & 1) accumulator = vanished_sum<R>();
                }
            }
        }
        if (finishes) write_part(reduction, problem, planes, image * channels + channel + lane, part, accumulator);
    }
}

// ---- The choice ----

// What lies between neighbouring elements of a plane, if that is the same everywhere.
inline std::optional<int64_t> element_stride(const Geometry& geometry, const int64_t* strides) {
    std::optional<int64_t> stride;
    int64_t elements = 1;  // along the axes so far
    for (int a = geometry.rank - 1; a >= 0; --a) {
        const int64_t size = geometry.axes[a].input;
        if (size == 1) continue;
        if (!stride) stride = strides[2 + a];
        if (strides[2 + a] != *stride * elements) return std::nullopt;
        elements *= size;
    }
    return stride.value_or(1);
}

inline int64_t plane_size(const Geometry& geometry) {
    int64_t size = 1;
    for (int a = 0; a < geometry.rank; ++a) size *= geometry.axes[a].input;
    return size;
}

// Planes lie one behind the other.
inline bool is_dense(const Geometry& geometry, const int64_t* strides) {
    const int64_t size = plane_size(geometry);
    return element_stride(geometry, strides) == 1 && (geometry.channels == 1 || strides[1] == size) &&
           (geometry.batch <= 1 || strides[0] == geometry.channels * size);
}

// Planes of `Problem`, which has one place for each: false if none of these kernels takes them.
template <class R>
bool forward_planes(const Call& call, const Context& context) {
    using T = typename R::Element;
    using Accumulator = typename R::Accumulator;
    const Geometry& geometry = call.geometry;
    Planes planes;
    const std::optional<int64_t> stride = element_stride(geometry, call.x.strides);
    if (!stride) return false;
    planes.stride = *stride;
    if (R::kIndexed && element_stride(geometry, call.index_strides) != 1) return false;
    Problem<Small> problem(call);
    problem.number(call, &Problem<Small>::AxisType::output, 1);
    planes.size = static_cast<int32_t>(plane_size(geometry));
    const int64_t count = problem.places.count;

    const auto split = [&](int64_t blocks, int64_t smallest) {
        planes.split(blocks, smallest);
        if (planes.parts > 1) planes.partial = context.allocate(count * planes.parts * sizeof(Accumulator));
    };
    const auto finish = [&] {
        if (planes.parts > 1) {
            const auto team = static_cast<int32_t>(threads_for(planes.parts));
            launch(combine_parts<R>, ceil_div(count, kThreads / team), 0, context.stream, problem, planes, team);
        }
        return true;
    };

    if (planes.stride != 1) {
        constexpr int lanes = kPlaneLanes<R>;
        if (!has_channel_vectors(call, call.x, &Axis::input, sizeof(T))) return false;
        const int64_t vectors = geometry.channels / lanes;
        const ChannelGroups groups(vectors, geometry.batch, 9 * wanted_blocks() / 10);
        const int64_t blocks = geometry.batch * groups.count;
        split(blocks, 4 * kThreads / groups.width);
        launch(forward_channel_planes<R>, blocks * planes.parts, kThreads * lanes * sizeof(Accumulator), context.stream,
               problem, planes, groups);
        return finish();
    }

    const int64_t bytes = planes.size * static_cast<int64_t>(sizeof(T));
    // This many planes lie between 16-byte boundaries.
    const int64_t unit = kVectorBytes / std::min<int64_t>(kVectorBytes, bytes & -bytes);
    if (is_dense(geometry, call.x.strides) && is_aligned(call.x.data) && bytes <= 4096) {
        constexpr int64_t bytes_of_block = 24 * 1024;
        const int64_t most = bytes_of_block / (unit * (bytes + static_cast<int64_t>(sizeof(Accumulator))));
        if (most > 0) {
            Packing packing;
            packing.planes = static_cast<int32_t>(unit * std::clamp<int64_t>(count / wanted_blocks() / unit, 1, most));
            packing.bytes = static_cast<int32_t>(ceil_div(packing.planes * bytes, kVectorBytes) * kVectorBytes);
            while (packing.team < kWarpThreads && 2 * packing.team * packing.planes <= kThreads) packing.team *= 2;
            launch(forward_packed_planes<R>, ceil_div(count, packing.planes),
                   packing.bytes + packing.planes * sizeof(Accumulator), context.stream, problem, planes, packing);
            return true;
        }
    }
    if (count >= 24 * multiprocessors()) {  // enough planes for a warp each
        planes.part = planes.size;
        launch(forward_large_planes<R>, ceil_div(count, kWarps), 0, context.stream, problem, planes, kWarpThreads);
        return true;
    }
    split(count, 4 * kThreads * kVectorLanes<T>);
    launch(forward_large_planes<R>, count * planes.parts, kWarps * sizeof(Accumulator), context.stream, problem, planes,
           kThreads);
    return finish();
}

}  // namespace onnxpool::cuda
