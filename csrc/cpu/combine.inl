// Part of kernels.inl: see there.
// The one loop that everything fast is made of: several rows of elements or accumulators are combined into one.

// How a source becomes an accumulator: elements are lifted, accumulators are taken as they are.
template <class R>
struct Lift {
    const R& reduction;
    typename R::Accumulator operator()(typename R::Element x) const { return reduction.lift(x); }
};

template <class A>
struct AsItIs {
    A operator()(A a) const { return a; }
};

// target[i] = rows[0][i * step] + ... + rows[kCount - 1][i * step] for the combiner's "+", each row from its element
// `first` on; unless this is the first batch, target[i] comes before them. kStep 0 means `step`.
template <int kCount, bool kFirst, int kStep, class Combiner, class Source, class Take>
inline void combine_batch(const Combiner& combiner, typename Combiner::Accumulator* __restrict target,
                          const Source* const* rows, int64_t first, int64_t size, int64_t step, Take take) {
    const Source* __restrict row0 = rows[0] + first;
    const Source* __restrict row1 = rows[kCount > 1 ? 1 : 0] + first;
    const Source* __restrict row2 = rows[kCount > 2 ? 2 : 0] + first;
    const int64_t stride = kStep ? kStep : step;
    for (int64_t i = 0; i < size; ++i) {
        auto a = take(row0[i * stride]);
        if constexpr (!kFirst) a = combiner.combine(target[i], a);
        if constexpr (kCount > 1) a = combiner.combine(a, take(row1[i * stride]));
        if constexpr (kCount > 2) a = combiner.combine(a, take(row2[i * stride]));
        target[i] = a;
    }
}

template <bool kFirst, int kStep, class Combiner, class Source, class Take>
inline void combine_some(const Combiner& combiner, typename Combiner::Accumulator* target, const Source* const* rows,
                         int64_t count, int64_t first, int64_t size, int64_t step, Take take) {
    switch (count) {
        case 1:
            return combine_batch<1, kFirst, kStep>(combiner, target, rows, first, size, step, take);
        case 2:
            return combine_batch<2, kFirst, kStep>(combiner, target, rows, first, size, step, take);
        default:
            return combine_batch<3, kFirst, kStep>(combiner, target, rows, first, size, step, take);
    }
}

// Any number of rows, three at a time.
template <int kStep, class Combiner, class Source, class Take>
inline void combine_rows(const Combiner& combiner, typename Combiner::Accumulator* target,
                         const std::vector<const Source*>& rows, int64_t first, int64_t size, int64_t step, Take take) {
    const auto count = static_cast<int64_t>(rows.size());
    combine_some<true, kStep>(combiner, target, rows.data(), count, first, size, step, take);
    for (int64_t done = 3; done < count; done += 3) {
        combine_some<false, kStep>(combiner, target, rows.data() + done, count - done, first, size, step, take);
    }
}

template <class R>
void combine_elements(const R& reduction, typename R::Accumulator* target,
                      const std::vector<const typename R::Element*>& rows, int64_t first, int64_t size, int64_t step) {
    const Lift<R> take{reduction};
    if (step == 1) return combine_rows<1>(reduction, target, rows, first, size, 1, take);
    if (step == 2) return combine_rows<2>(reduction, target, rows, first, size, 2, take);
    return combine_rows<0>(reduction, target, rows, first, size, step, take);
}

// What the accumulators of R combine with: the same for all sums, and for all maxima.
template <class A>
const Sum<A>& combiner_of(const Sum<A>& reduction) {
    return reduction;
}

template <class A>
const Largest<A>& combiner_of(const Largest<A>& reduction) {
    return reduction;
}
