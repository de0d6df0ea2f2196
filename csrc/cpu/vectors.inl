// Part of kernels.inl: see there.
// Between memory and the vectors that reductions compute with.

// As many accumulators as a register holds.
template <class A>
constexpr int kLanes = ONNXPOOL_VECTOR_BYTES / sizeof(A);

template <class V>
constexpr int lanes_of = is_vector<V> ? sizeof(V) / sizeof(number_t<V>) : 1;

// 0, 1, 2, ...
template <class V, int... i>
inline V counting(std::integer_sequence<int, i...>) {
    return V{i...};
}
template <class V>
inline V counting() {
    if constexpr (is_vector<V>) {
        return counting<V>(std::make_integer_sequence<int, Shape<V>::kCount>());
    } else {
        return 0;
    }
}

template <class T, int kCount>
using BitsVector = Vector<unsigned_t<T>, kCount>;

// The conversions of element_types.h for vectors; float16's by the processor's own instructions, where it has them.
template <class T, class Bits>
inline auto floats_of(Bits bits) {
    using Floats = with_numbers_t<float, Bits>;
    if constexpr (std::is_same_v<T, BFloat16>) {
        return reinterpret<Floats>(convert<uint32_t>(bits) << 16);
#if defined(ONNXPOOL_AVX512)
    } else if constexpr (sizeof(Floats) == 64) {
        return (Floats)_mm512_cvtph_ps((__m256i)bits);
#endif
#if defined(ONNXPOOL_F16C)
    } else if constexpr (sizeof(Floats) == 32) {
        return (Floats)_mm256_cvtph_ps((__m128i)bits);
#endif
    } else {
        const auto wide = convert<uint32_t>(bits);
        const auto size = (wide & 0x7fffu) << 13;
        const auto finite = bits_of(reinterpret<Floats>(size) * 0x1p112f);
        return reinterpret<Floats>((wide & 0x8000u) << 16 | (size >= 0x0f800000u ? size | 0x7f800000u : finite));
    }
}

template <class T, class Floats>
inline auto halves_of(Floats value) {
    const auto bits = bits_of(value);
    const decltype(bits_of(value)) zero{};
    if constexpr (std::is_same_v<T, BFloat16>) {
        const auto rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        return convert<uint16_t>(value != value ? zero + 0x7fc0u : rounded);
    } else {
        const auto sign = (bits >> 16) & 0x8000u;
        const auto size = bits & 0x7fffffffu;
#if defined(ONNXPOOL_AVX512)
        if constexpr (sizeof(Floats) == 64) {
            const auto half = _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT);
            const auto rounded = convert<uint32_t>((with_numbers_t<uint16_t, Floats>)half);
            return convert<uint16_t>(value != value ? sign | 0x7e00u : rounded);
        }
#endif
#if defined(ONNXPOOL_F16C)
        if constexpr (sizeof(Floats) == 32) {
            const auto half = _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
            const auto rounded = convert<uint32_t>((with_numbers_t<uint16_t, Floats>)half);
            return convert<uint16_t>(value != value ? sign | 0x7e00u : rounded);
        }
#endif
        const auto subnormal = bits_of(reinterpret<Floats>(size) + 0.5f) - 0x3f000000u;
        const auto normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
        const auto finite = size < 0x38800000u ? subnormal : normal;
        const auto rounded = size >= 0x477ff000u ? zero + 0x7c00u : finite;
        return convert<uint16_t>(sign | (value != value ? zero + 0x7e00u : rounded));
    }
}

// The values of elements with these bits.
template <class T, class Bits>
inline auto values_of(Bits bits) {
    if constexpr (is_half_precision<T>) {
        return floats_of<T>(bits);
    } else {
        return reinterpret<with_numbers_t<T, Bits>>(bits);
    }
}

template <int kCount, class T>
inline BitsVector<T, kCount> load_bits(const T* source) {
    BitsVector<T, kCount> bits;
    std::memcpy(&bits, source, sizeof(bits));
    return bits;
}

// kCount elements as values, or one.
template <int kCount, class T>
inline auto load(const T* source) {
    if constexpr (kCount == 1) {
        return static_cast<comparable_t<T>>(*source);
    } else {
        return values_of<T>(load_bits<kCount>(source));
    }
}

template <class T, class V>
inline void store(T* target, V values) {
    if constexpr (!is_vector<V>) {
        *target = static_cast<T>(values);
    } else if constexpr (is_half_precision<T>) {
        const auto bits = halves_of<T>(values);
        std::memcpy(target, &bits, sizeof(bits));
    } else {
        static_assert(std::is_same_v<number_t<V>, T>);
        std::memcpy(target, &values, sizeof(values));
    }
}

// A non-temporal store, to where a vector begins at a multiple of its size: it bypasses the caches, so that a cache
// line that is written as a whole is not read first. Other threads see it after finish_streaming().
template <class T, class V>
inline void store_streaming(T* target, V values) {
#if defined(ONNXPOOL_X86)
    constexpr int size = lanes_of<V> * static_cast<int>(sizeof(T));
    if constexpr (is_vector<V> && size >= 16 && size <= ONNXPOOL_VECTOR_BYTES) {
        Vector<char, size> bytes;
        store(reinterpret_cast<T*>(&bytes), values);
        if constexpr (size == 16) _mm_stream_si128(reinterpret_cast<__m128i*>(target), (__m128i)bytes);
#if defined(ONNXPOOL_FMA)
        if constexpr (size == 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(target), (__m256i)bytes);
#endif
#if defined(ONNXPOOL_AVX512)
        if constexpr (size == 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(target), (__m512i)bytes);
#endif
        return;
    }
#endif
    store(target, values);
}

template <class T, class V>
inline void store(T* target, V values, bool streams) {
    streams ? store_streaming(target, values) : store(target, values);
}

inline void finish_streaming([[maybe_unused]] bool streams) {
#if defined(ONNXPOOL_X86)
    if (streams) _mm_sfence();
#endif
}

// Whether the hardware prefetcher does well with long runs of memory that are read once, in order: then prefetching
// them costs more than it gains. So it is on Zen 3; Zen 4, which has AVX-512, reads them faster if they are prefetched.
constexpr bool kHardwarePrefetchesRuns = ONNXPOOL_VECTOR_BYTES < 64;

// Compilers may drop calls of functions that do nothing but prefetch, unless they are inlined.
#define ONNXPOOL_PREFETCHING __attribute__((always_inline)) inline

// Prefetches the cache line with this element. By default into L2, which can have several times as many misses in
// flight as L1 has: those of L1 are too few to hide the latency of memory. Zen 4 drops some of what is prefetched while
// many misses are in flight, but seldom all of several `attempts`; so does Zen 5.
enum class Cache { kL1, kL2 };
template <Cache kCache = Cache::kL2, class T>
ONNXPOOL_PREFETCHING void prefetch_line(const T* element, int attempts) {
    for (int i = 0; i < attempts; ++i) __builtin_prefetch(element, 0, kCache == Cache::kL1 ? 3 : 2);
}

// Prefetches these elements, in two attempts; there need not be any.
template <class T>
ONNXPOOL_PREFETCHING void prefetch(const T* elements, int64_t size) {
    constexpr int64_t line = 64 / sizeof(T);
    for (int64_t i = 0; i < size; i += line) prefetch_line(elements + i, 2);
}

// How far ahead of what is read elements are prefetched, and how many of them at a time: more would exceed the misses
// that can be in flight.
template <class T>
constexpr int64_t kPrefetchDistance = 10240 / sizeof(T);
template <class T>
constexpr int64_t kPrefetchedTogether = 1024 / sizeof(T);

// Prefetches as many elements as these, kPrefetchDistance behind them. To be done for all that are read: the hardware
// prefetcher learns from misses, of which few are left then.
template <class T>
ONNXPOOL_PREFETCHING void prefetch_ahead(const T* elements, int64_t size) {
    prefetch(elements + kPrefetchDistance<T>, size);
}

// Prefetches what a loop that reads a vector here will read later, in four attempts for each line.
template <int kBytesAhead, Cache kCache = Cache::kL2, class T>
ONNXPOOL_PREFETCHING void prefetch_line_ahead(const T* source) {
    constexpr int attempts = kCache == Cache::kL2 ? ONNXPOOL_VECTOR_BYTES / 16 : 1;
    prefetch_line<kCache>(source + kBytesAhead / sizeof(T), attempts);
}

// The same for a loop that comes to `later` in the end: an attempt for its line and, if vectors fill lines, for the
// three before it, of which those turns attempted theirs.
template <class T>
ONNXPOOL_PREFETCHING void prefetch_lines_to(const T* later) {
    constexpr int64_t line = 64 / sizeof(T);
    for (int i = 0; i < ONNXPOOL_VECTOR_BYTES / 16; ++i) prefetch_line(later - i * line, 1);
}

// Stores miss the caches, too: the lines that will be written next are prefetched, or the caches are bypassed.
enum class Stores { kPlain, kPrefetching, kStreaming };

template <class T, class V>
inline void store(T* target, V values, Stores stores) {
    if (stores == Stores::kPrefetching) __builtin_prefetch(target + 8192 / sizeof(T), 1);
    store(target, values, stores == Stores::kStreaming);
}

template <class T, class V>
inline void store_prefetching(T* target, V values, bool streams) {
    store(target, values, streams ? Stores::kStreaming : Stores::kPrefetching);
}

// Numbers kBegin, kBegin + 2, kBegin + 4, ... of first and second, which follow each other.
template <int kBegin, class V, int... i>
inline V every_second(V first, V second, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(first, second, (kBegin + 2 * i)...);
}
template <int kBegin, class V>
inline V every_second(V first, V second) {
    if constexpr (sizeof(V) == 32 && lanes_of<V> == 8) {  // halves first: AVX2 has nothing else that leaves them
        const V front = __builtin_shufflevector(first, second, 0, 1, 2, 3, 8, 9, 10, 11);
        const V back = __builtin_shufflevector(first, second, 4, 5, 6, 7, 12, 13, 14, 15);
        constexpr int b = kBegin;
        return __builtin_shufflevector(front, back, b, b + 2, b + 8, b + 10, b + 4, b + 6, b + 12, b + 14);
    }
    return every_second<kBegin>(first, second, std::make_integer_sequence<int, lanes_of<V>>());
}

// Of numbers kBegin, kBegin + kStep, ... of vectors that follow each other: those of the first ones, and those of the
// one with this number.
template <int kStep, int kBegin, int kVector, class V, int... i>
inline V with_every_of(V taken, V next, std::integer_sequence<int, i...>) {
    constexpr int count = lanes_of<V>;
    constexpr auto lane = [](int wanted) {
        const int place = kBegin + wanted * kStep;
        if (place / count == kVector) return count + place % count;
        return kVector == 1 ? place % count : wanted;  // the first one is still as it was
    };
    return __builtin_shufflevector(taken, next, lane(i)...);
}

// Numbers kBegin, kBegin + kStep, ... of kStep vectors that follow each other.
template <int kStep, int kBegin, int kVector = kStep - 1, class V>
inline V every_of(const V* vectors) {
    if constexpr (kVector == 0) {
        return vectors[0];
    } else {
        return with_every_of<kStep, kBegin, kVector>(every_of<kStep, kBegin, kVector - 1>(vectors), vectors[kVector],
                                                     std::make_integer_sequence<int, lanes_of<V>>());
    }
}

// x[kBegin], x[kBegin + kStep], x[kBegin + 2 kStep], ..., from kStep whole vectors: kBegin is less than kStep.
template <int kStep, int kCount, int kBegin = 0, class T>
inline auto load_every(const T* x) {
    decltype(load<kCount>(x)) vectors[kStep];
    for (int v = 0; v < kStep; ++v) vectors[v] = load<kCount>(x + v * kCount);
    return every_of<kStep, kBegin>(vectors);
}

// deinterleaved[k]: numbers k, k + kStep, k + 2 kStep, ... of these.
template <int kStep, class V>
inline void deinterleave(const V* vectors, V* deinterleaved) {
    static_assert(kStep <= 4);
    if constexpr (kStep == 3) {
        deinterleaved[0] = every_of<3, 0>(vectors);
        deinterleaved[1] = every_of<3, 1>(vectors);
        deinterleaved[2] = every_of<3, 2>(vectors);
    } else if constexpr (kStep == 2) {
        deinterleaved[0] = every_second<0>(vectors[0], vectors[1]);
        deinterleaved[1] = every_second<1>(vectors[0], vectors[1]);
    } else {
        V even[2], odd[2];
        for (int i = 0; i < 2; ++i) {
            even[i] = every_second<0>(vectors[2 * i], vectors[2 * i + 1]);
            odd[i] = every_second<1>(vectors[2 * i], vectors[2 * i + 1]);
        }
        deinterleaved[0] = every_second<0>(even[0], even[1]);
        deinterleaved[1] = every_second<0>(odd[0], odd[1]);
        deinterleaved[2] = every_second<1>(even[0], even[1]);
        deinterleaved[3] = every_second<1>(odd[0], odd[1]);
    }
}

// Of the kRuns vectors in which as many runs are interleaved, the one with number kVector: from what the runs before
// kRun have put there, and from that run.
template <int kRuns, int kVector, int kRun, class V, int... i>
inline V with_interleaved(V interleaved, V run, std::integer_sequence<int, i...>) {
    constexpr int count = lanes_of<V>;
    constexpr auto lane = [](int wanted) {
        const int place = kVector * count + wanted;
        if (place % kRuns == kRun) return count + place / kRuns;
        return kRun == 1 ? place / kRuns : wanted;  // the first one is still as it was
    };
    return __builtin_shufflevector(interleaved, run, lane(i)...);
}

// The even and the odd numbers of first and second together.
template <class V>
inline void store_deinterleaved(V first, V second, number_t<V>* even, number_t<V>* odd) {
    if constexpr (sizeof(number_t<V>) == 1) {  // halves of integers of two bytes
        using Pairs = Vector<uint16_t, lanes_of<V> / 2>;
        const Pairs pairs[] = {(Pairs)first, (Pairs)second};
        for (int i = 0; i < 2; ++i) {
            store(even + i * lanes_of<V> / 2, convert<number_t<V>>(pairs[i]));
            store(odd + i * lanes_of<V> / 2, convert<number_t<V>>(pairs[i] >> 8));
        }
    } else {
        store(even, every_second<0>(first, second));
        store(odd, every_second<1>(first, second));
    }
}

// first[k], second[k], first[k + 1], second[k + 1], ... from k = kBegin on.
template <int kBegin, class V, int... i>
inline V interleave(V first, V second, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(first, second, (kBegin + i / 2 + i % 2 * lanes_of<V>)...);
}
template <int kBegin, class V>
inline V interleave(V first, V second) {
    if constexpr (sizeof(V) == 32 && lanes_of<V> == 4) {  // halves last, as there
        const V even = __builtin_shufflevector(first, second, 0, 4, 2, 6);
        const V odd = __builtin_shufflevector(first, second, 1, 5, 3, 7);
        return __builtin_shufflevector(even, odd, kBegin, kBegin + 1, kBegin + 4, kBegin + 5);
    }
    return interleave<kBegin>(first, second, std::make_integer_sequence<int, lanes_of<V>>());
}

// The same in each half of vectors.
template <int kBegin, class V, int... i>
inline V interleave_halves(V first, V second, std::integer_sequence<int, i...>) {
    constexpr int half = lanes_of<V> / 2;
    return __builtin_shufflevector(first, second, (i / half * half + kBegin + i % half / 2 + i % 2 * lanes_of<V>)...);
}
template <int kBegin, class V>
inline V interleave_halves(V first, V second) {
    return interleave_halves<kBegin>(first, second, std::make_integer_sequence<int, lanes_of<V>>());
}

// The numbers of both, in one vector.
template <class V, int... i>
inline auto joined(V first, V second, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(first, second, i...);
}
template <class V>
inline auto joined(V first, V second) {
    return joined(first, second, std::make_integer_sequence<int, 2 * lanes_of<V>>());
}

// The kCount numbers of a vector from kBegin on. Taken from memory, they would keep the vector from being in a
// register.
template <int kBegin, class V, int... i>
inline auto part_of(V whole, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(whole, whole, (kBegin + i)...);
}
template <int kBegin, int kCount, class V>
inline auto part_of(V whole) {
    return part_of<kBegin>(whole, std::make_integer_sequence<int, kCount>());
}

// visit(first lane, the vector of kCount lanes from there on), for all of a vector.
template <int kCount, int kBegin = 0, class V, class Visit>
inline void for_each_part(V whole, const Visit& visit) {
    if constexpr (kBegin < lanes_of<V>) {
        visit(kBegin, part_of<kBegin, kCount>(whole));
        for_each_part<kCount, kBegin + kCount>(whole, visit);
    }
}

// Some lanes of V: one bit for each or, where processors have no such masks, all bits of its number.
#if defined(ONNXPOOL_AVX512)
template <class V>
using LanesOf = uint64_t;

inline uint64_t first_lanes(int64_t count) { return count < 64 ? (uint64_t{1} << count) - 1 : ~uint64_t{0}; }
#else
template <class V>
using LanesOf = decltype(V{} == V{});
#endif

// The lanes from `begin` on, before `end`; either may lie outside.
template <class V>
inline LanesOf<V> lanes_between(int64_t begin, int64_t end) {
    const auto inside = [](int64_t lane) { return std::clamp<int64_t>(lane, 0, lanes_of<V>); };
#if defined(ONNXPOOL_AVX512)
    return first_lanes(inside(end)) & ~first_lanes(inside(begin));
#else
    using Lane = number_t<LanesOf<V>>;
    const auto lanes = counting<LanesOf<V>>();
    return (lanes >= static_cast<Lane>(inside(begin))) & (lanes < static_cast<Lane>(inside(end)));
#endif
}

// Lane by lane, a's number in these and b's in the others.
template <class V>
inline V where(LanesOf<V> lanes, V a, V b) {
#if defined(ONNXPOOL_AVX512)
    using Number = number_t<V>;
    if constexpr (std::is_same_v<Number, float>) {
        return (V)_mm512_mask_blend_ps(lanes, (__m512)b, (__m512)a);
    } else if constexpr (std::is_same_v<Number, double>) {
        return (V)_mm512_mask_blend_pd(lanes, (__m512d)b, (__m512d)a);
    } else if constexpr (sizeof(Number) == 8) {
        return (V)_mm512_mask_blend_epi64(lanes, (__m512i)b, (__m512i)a);
    } else if constexpr (sizeof(Number) == 4) {
        return (V)_mm512_mask_blend_epi32(lanes, (__m512i)b, (__m512i)a);
    } else if constexpr (sizeof(Number) == 2) {
        return (V)_mm512_mask_blend_epi16(lanes, (__m512i)b, (__m512i)a);
    } else {
        static_assert(sizeof(Number) == 1);
        return (V)_mm512_mask_blend_epi8(lanes, (__m512i)b, (__m512i)a);
    }
#else
    return lanes < 0 ? a : b;  // all bits or none: x86 selects by the first one
#endif
}

#if defined(ONNXPOOL_AVX512)

// The elements, of kElementBytes, of these lanes; what belongs to other lanes is not read.
template <int kBytes, int kElementBytes>
inline auto read_lanes(const void* source, uint64_t lanes) {
    if constexpr (kBytes == 64) {
        return kElementBytes == 8   ? _mm512_maskz_loadu_epi64(lanes, source)
               : kElementBytes == 4 ? _mm512_maskz_loadu_epi32(lanes, source)
               : kElementBytes == 2 ? _mm512_maskz_loadu_epi16(lanes, source)
                                    : _mm512_maskz_loadu_epi8(lanes, source);
    } else if constexpr (kBytes == 32) {
        return kElementBytes == 8   ? _mm256_maskz_loadu_epi64(lanes, source)
               : kElementBytes == 4 ? _mm256_maskz_loadu_epi32(lanes, source)
               : kElementBytes == 2 ? _mm256_maskz_loadu_epi16(lanes, source)
                                    : _mm256_maskz_loadu_epi8(lanes, source);
    } else {
        return kElementBytes == 8   ? _mm_maskz_loadu_epi64(lanes, source)
               : kElementBytes == 4 ? _mm_maskz_loadu_epi32(lanes, source)
               : kElementBytes == 2 ? _mm_maskz_loadu_epi16(lanes, source)
                                    : _mm_maskz_loadu_epi8(lanes, source);
    }
}

#elif defined(ONNXPOOL_FMA)

// So many elements, at most kBytes; the others are 0. What is copied piece by piece could not be read at once as a
// whole: memory is read word by word into lanes, and what is less than a word goes through a register.
template <int kBytes, class T>
inline auto read_first(const T* source, int64_t count) {
    using Words = Vector<int32_t, kBytes / 4>;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    const auto whole = static_cast<int32_t>(bytes / 4);
    const auto is_whole = counting<Words>() < whole;
    const auto* const first = reinterpret_cast<const int*>(source);
    Words words;
    if constexpr (kBytes == 32) {
        words = (Words)_mm256_maskload_epi32(first, (__m256i)is_whole);
    } else {
        words = (Words)_mm_maskload_epi32(first, (__m128i)is_whole);
    }
    if constexpr (sizeof(T) < 4) {
        uint32_t rest = 0;
        const char* next = reinterpret_cast<const char*>(first + whole);
        if (bytes & 2) {
            uint16_t two;
            std::memcpy(&two, next, 2);
            rest = two;
            next += 2;
        }
        if (bytes & 1) rest |= static_cast<uint32_t>(static_cast<uint8_t>(*next)) << 8 * (bytes & 2);
        words = counting<Words>() == whole ? Words{} + static_cast<int32_t>(rest) : words;
    }
    return words;
}

#endif

// As load(), of the elements of these lanes; the others are 0. Slow where processors have no masks.
template <int kCount, class T>
inline auto load_lanes(const T* source, LanesOf<Vector<T, kCount>> lanes) {
    BitsVector<T, kCount> bits{};
#if defined(ONNXPOOL_AVX512)
    const auto read = read_lanes<sizeof(bits), sizeof(T)>(source, lanes);
    static_assert(sizeof(bits) <= sizeof(read));
    std::memcpy(&bits, &read, sizeof(bits));
#else
    for (int i = 0; i < kCount; ++i) {
        if (lanes[i] != 0) bits[i] = load_bits<1>(source + i)[0];
    }
#endif
    return values_of<T>(bits);
}

// As load(), of the first `count` elements; the others are 0.
template <int kCount, class T>
inline auto load_first(const T* source, int64_t count) {
#if defined(ONNXPOOL_AVX512)
    return load_lanes<kCount>(source, first_lanes(count));
#else
    BitsVector<T, kCount> bits{};
#if defined(ONNXPOOL_FMA)
    const auto read = read_first<std::max<int>(sizeof(bits), 16)>(source, count);
    std::memcpy(&bits, &read, sizeof(bits));
#else
    std::memcpy(&bits, source, count * sizeof(T));
#endif
    return values_of<T>(bits);
#endif
}
