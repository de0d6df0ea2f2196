// Part of kernels.inl: see there.
// A maximum and its position as one integer, so that "the larger value, of equal ones the first" is the larger key, and
// maxima with indices run through the same loops as all other reductions.

template <class T>
using key_t = std::conditional_t<std::is_integral_v<T>, int32_t, int64_t>;

// From the highest bit: the value, as bits that order like it, and bits that count down with the position in the plane.
// Integers of 8 bits leave 24 of 32 for that. Others take 32 of 64 (NaN above everything, both zeros alike) and leave
// 31, the last one being whether the value is -0.
template <class T>
struct KeyedMax : Largest<key_t<T>> {
    using Element = T;
    using typename Largest<key_t<T>>::Accumulator;
    static constexpr bool kIsInteger = std::is_integral_v<T>;
    static constexpr int kValueShift = kIsInteger ? 24 : 32, kPositionShift = kIsInteger ? 0 : 1;
    static constexpr int64_t kMostPositions = int64_t{1} << (kValueShift - kPositionShift);
    static constexpr Accumulator kFirstPosition = static_cast<Accumulator>((kMostPositions - 1) << kPositionShift);
    static constexpr int kMiddle = std::is_same_v<T, uint8_t> ? 128 : 0;  // of integers, which becomes 0

    explicit KeyedMax(const Parameters&) {}

    // The key of x at position 0.
    template <class V>
    auto lift(V x) const {
        if constexpr (kIsInteger) {
            return key_of(convert<int32_t>(x) - kMiddle, 0);
        } else {
            constexpr auto lowest = std::numeric_limits<int32_t>::min(), highest = std::numeric_limits<int32_t>::max();
            const auto bits = reinterpret<with_numbers_t<int32_t, V>>(x);
            const decltype(with_numbers_t<int32_t, V>(bits)) zero{};
            const auto negative_zero = bits == lowest ? zero + 1 : zero;
            const auto ordered = (bits ^ ((bits >> 31) & highest)) + negative_zero;
            return key_of(x != x ? zero + highest : ordered, convert<int64_t>(negative_zero));
        }
    }

    // The key of the same value that much further on.
    template <class V, class Position>
    V moved(V key, Position positions) const {
        return key - (convert<Accumulator>(positions) << kPositionShift);
    }

    template <class V>
    auto position(V key) const {
        return convert<int64_t>((kFirstPosition - (key & kFirstPosition)) >> kPositionShift);
    }

    template <class V>
    auto finish(V key) const {
        const auto ordered = convert<int32_t>(key >> kValueShift);
        if constexpr (kIsInteger) {
            return convert<T>(ordered + kMiddle);
        } else {
            const auto bits = ordered ^ ((ordered >> 31) & std::numeric_limits<int32_t>::max());
            const auto sign = convert<uint32_t>(key & 1) << 31;
            return convert<T>(reinterpret<with_numbers_t<float, V>>(convert<uint32_t>(bits) | sign));
        }
    }

    T empty() const { return static_cast<T>(lowest_finite<T>()); }

private:
    template <class V, class Flag>
    static auto key_of(V ordered, Flag flag) {
        const auto high = convert<std::make_unsigned_t<Accumulator>>(ordered) << kValueShift;
        return reinterpret<with_numbers_t<Accumulator, V>>(high) + (kFirstPosition + flag);
    }
};

// The largest of keys that are there already, as a reduction.
template <class A>
struct LargestKey : Largest<A> {
    using Element = A;
    template <class V>
    V lift(V key) const {
        return key;
    }
};

// Maxima of int8 and uint8, compiled once for both: with its highest bit flipped, an int8 is the uint8 that is 128
// larger.
struct ByteMax : Largest<uint8_t> {
    using Element = uint8_t;

    explicit ByteMax(const Parameters& parameters)
        : flipped_(parameters.element_type == ElementType::kInt8 ? 0x80 : 0) {}

    template <class V>
    V lift(V x) const {
        return static_cast<V>(x ^ flipped_);
    }
    template <class V>
    V finish(V maximum) const {
        return lift(maximum);
    }
    Element empty() const { return lift(identity()); }

private:
    uint8_t flipped_;
};

// Maxima of half-precision numbers of either type as those of 16-bit integers, which a vector holds twice as many of as
// of float32: elements are the numbers' bits. Of both zeros, +0 is the larger one.
struct HalfMax : Largest<int16_t> {
    using Element = int16_t;

    explicit HalfMax(const Parameters& parameters) : HalfMax(parameters.element_type == ElementType::kFloat16) {}

    template <class V>
    V lift(V bits) const {
        return moved(turned(bits), -below_infinity_);
    }
    template <class V>
    V finish(V key) const {
        const V nan = filled<V>(nan_);
        return key > highest_ ? nan : turned(moved(key, below_infinity_));
    }
    Element empty() const { return lowest_finite_; }

private:
    explicit HalfMax(bool is_float16)
        : nan_(is_float16 ? 0x7e00 : 0x7fc0),
          lowest_finite_(static_cast<Element>(is_float16 ? Half(lowest_finite<Half>()).bits
                                                         : BFloat16(lowest_finite<BFloat16>()).bits)),
          below_infinity_(is_float16 ? 0x7fff - 0x7c00 : 0x7fff - 0x7f80),
          highest_(static_cast<Element>(0x7fff - 2 * below_infinity_)) {}

    // Negative numbers count down.
    template <class V>
    static V turned(V bits) {
        return static_cast<V>(bits ^ ((bits >> 15) & 0x7fff));
    }
    template <class V>
    static V moved(V key, int distance) {
        return reinterpret<V>(static_cast<bits_t<V>>(bits_of(key) + static_cast<uint16_t>(distance)));
    }

    Element nan_, lowest_finite_;
    // NaNs with a sign lie below -infinity, so many of them. With -infinity as the lowest integer they wrap round, to
    // where the other NaNs are: above infinity, which becomes the highest of all others.
    int below_infinity_;
    Element highest_;
};

template <class R>
constexpr bool is_keyed = false;
template <class T>
constexpr bool is_keyed<KeyedMax<T>> = true;

// Whether positions fit into keys and are what Indices count, and Indices lie as Y does.
template <class T>
bool can_be_keyed(const Call& call) {
    const Geometry& geometry = call.geometry;
    double positions = 1;
    bool row_major = true;
    if (!std::equal(call.y.strides, call.y.strides + 2 + geometry.rank, call.indices.strides)) return false;
    for (int a = geometry.rank - 1; a >= 0; --a) {
        const int64_t size = geometry.axes[a].input;
        row_major &= size == 1 || static_cast<double>(call.index_strides[2 + a]) == positions;
        positions *= static_cast<double>(size);
    }
    return row_major && positions <= static_cast<double>(KeyedMax<T>::kMostPositions);
}

// Positions of neighbouring keys, as the keys' own numbers.
template <class R, class V>
inline V columns_from(int64_t first, int64_t step, V) {
    using Number = typename R::Accumulator;
    return static_cast<Number>(first) + static_cast<Number>(step) * counting<V>();
}

// The accumulators of neighbouring elements, of which the first is at this position of its plane.
template <class R, class V>
inline auto lift_at(const R& reduction, V x, int64_t position) {
    const auto lifted = reduction.lift(x);
    if constexpr (is_keyed<R>) {
        return reduction.moved(lifted, columns_from<R>(position, 1, lifted));
    } else {
        return lifted;
    }
}

// Makes keys of the elements of several rows, whose positions still lack the column.
template <class R>
struct LiftRows {
    using Source = typename R::Element;
    const R reduction;
    const int64_t* positions;  // of the rows' first elements
    template <class V>
    auto operator()(V x, int64_t row) const {
        return reduction.moved(reduction.lift(x), positions[row]);
    }
};

// Puts such keys into a buffer and adds their columns: `column` for the first one, growing by `step`.
template <class R>
struct KeepColumns {
    const R reduction;
    typename R::Accumulator* target;
    int64_t column;
    int64_t step;
    template <class V>
    void operator()(int64_t i, V key) const {
        store(target + i, reduction.moved(key, columns_from<R>(column + step * i, step, key)));
    }
};

// The strides that positions are counted with, where R has any.
template <class R>
const int64_t* position_strides(const Call& call) {
    return is_keyed<R> ? call.index_strides + 2 : nullptr;
}

// What makes accumulators of the elements of several rows, whatever R is.
template <class R>
auto lift_rows(const R& reduction, const std::vector<int64_t>& positions) {
    if constexpr (is_keyed<R>) {
        return LiftRows<R>{reduction, positions.data()};
    } else {
        return Lift<R>{reduction};
    }
}

// What puts the combined rows into a buffer, whatever R is.
template <class R>
auto keep_columns(const R& reduction, typename R::Accumulator* target, int64_t column, int64_t step) {
    if constexpr (is_keyed<R>) {
        return KeepColumns<R>{reduction, target, column, step};
    } else {
        return Keep<typename R::Accumulator>{target};
    }
}

// The indices of these lanes' first elements.
inline void find_first_indices(const Call& call, int64_t image, int64_t channel, int64_t lanes, int64_t* indices) {
    for (int64_t lane = 0; lane < lanes; ++lane) indices[lane] = first_index(call, image, channel + lane);
}

// Maxima and Indices.
template <class R>
struct FinishKeys {
    const R reduction;
    typename R::Element* y;
    int64_t* indices;
    int64_t index;  // of the first plane's first element
    int64_t step;   // to the next lane's plane
    template <class V>
    void operator()(int64_t i, V key) const {
        store(y + i, reduction.finish(key));
        const auto position = reduction.position(key);
        using Positions = std::remove_const_t<decltype(position)>;
        store(indices + i, position + (index + step * (i + counting<Positions>())));
    }
};
