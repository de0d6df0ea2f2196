// Part of kernels.inl: see there.
// One window spans a plane that is contiguous in memory: the plane is read once, into several accumulators.

template <int kCount, class R>
inline typename R::Accumulator combine_halves(const R& reduction, typename R::Accumulator* partial) {
    if constexpr (kCount == 1) {
        return partial[0];
    } else {
        constexpr int half = kCount / 2;
        for (int i = 0; i < half; ++i) partial[i] = reduction.combine(partial[i], partial[i + half]);
        return combine_halves<half>(reduction, partial);
    }
}

template <int kAccumulators, class R>
inline typename R::Accumulator reduce_contiguous(const R& reduction, const typename R::Element* x, int64_t size) {
    typename R::Accumulator partial[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) partial[i] = reduction.identity();
    int64_t done = 0;
    for (; done + kAccumulators <= size; done += kAccumulators) {
        for (int i = 0; i < kAccumulators; ++i) {
            partial[i] = reduction.combine(partial[i], lift_at(reduction, load<1>(x + done + i), done + i));
        }
    }
    for (int i = 0; i < size - done; ++i) {
        partial[i] = reduction.combine(partial[i], lift_at(reduction, load<1>(x + done + i), done + i));
    }
    return combine_halves<kAccumulators>(reduction, partial);
}

template <class R>
void forward_planes(const Call& call, int64_t begin, int64_t end) {
    using T = typename R::Element;
    const R reduction(call.parameters);
    const Geometry& geometry = call.geometry;
    int64_t size = 1;
    Range taps[kMaxSpatialRank];
    for (int a = 0; a < geometry.rank; ++a) {
        size *= geometry.axes[a].input;
        taps[a] = data_taps(geometry.axes[a], 0);
    }
    for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t image = plane / geometry.channels;
        const int64_t channel = plane % geometry.channels;
        const T* x = static_cast<const T*>(call.x.data) + image * call.x.strides[0] + channel * call.x.strides[1];
        T* y = static_cast<T*>(call.y.data) + image * call.y.strides[0] + channel * call.y.strides[1];
        const auto accumulator =
            size < 512 ? reduce_contiguous<16>(reduction, x, size) : reduce_contiguous<64>(reduction, x, size);
        *y = finish_window(reduction, call, taps, x, accumulator, static_cast<double>(size));
        if constexpr (is_keyed<R>) {
            auto* indices = static_cast<int64_t*>(call.indices.data);
            indices[image * call.indices.strides[0] + channel * call.indices.strides[1]] =
                image * call.index_strides[0] + channel * call.index_strides[1] + reduction.position(accumulator);
        }
    }
}
