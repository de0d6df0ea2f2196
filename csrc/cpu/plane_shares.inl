// Part of kernels.inl: see there.
// A plane's elements are shared out evenly among its rows of results: with each row, its share is prefetched, some way
// ahead. So every element is prefetched once, whatever windows have in common, and before the first of them reads it.
template <class T>
class PlaneShares {
public:
    // Rows of results read `columns` elements from their taps' offsets on, which count steps of `offset_step` elements.
    // If x is in the caches already, or the hardware prefetcher does, nothing is prefetched.
    PlaneShares(const Call& call, const RowTaps& taps, int64_t offset_step, int64_t columns, bool is_in_memory)
        : call_(call) {
        const Geometry& geometry = call.geometry;
        if (!is_in_memory || !has_dense_planes(geometry, call.x, input_size)) return;
        if (kHardwarePrefetchesRuns && geometry.rank == 1) return;
        const auto rows = static_cast<int64_t>(taps.rows.size());
        extent_ = plane_size(geometry, input_size);
        share_ = ceil_div(extent_, rows);
        for (int64_t row = 0; row < rows; ++row) {
            lead_ = std::max(lead_, taps.elements_end(row, 1, 0) * offset_step + columns - (row + 1) * share_);
        }
        lead_ = std::min(lead_, kMostLead);
    }

    bool any() const { return extent_ > 0; }

    // The share of the rows from `row` to `end`.
    Range of(int64_t row, int64_t end) const { return {row * share_, (end - row) * share_, 1}; }

    // This plane, of which shares will be prefetched from now on.
    const T* begin_plane(int64_t image, int64_t channel) {
        plane_ = plane_at<const T>(call_.x, image, channel);
        next_plane_ = channel + 1 < call_.geometry.channels ? plane_ + call_.x.strides[1]
                                                            : plane_at<const T>(call_.x, image + 1, 0);
        return plane_;
    }

    // Prefetches as much as this part of the shares, as far ahead as rows read beyond theirs, or in the next plane.
    ONNXPOOL_PREFETCHING void prefetch_next(const Range& part) const {
        const int64_t begin = part.begin + lead_ + kPrefetchDistance<T>;
        prefetch(begin < extent_ ? plane_ + begin : next_plane_ + (begin - extent_), part.count);
    }

private:
    static constexpr int64_t kMostLead = (1 << 18) / sizeof(T);

    const Call& call_;
    int64_t extent_ = 0;  // of planes that are prefetched
    int64_t share_ = 0;   // of each row
    int64_t lead_ = 0;    // how far rows read beyond their shares
    const T *plane_ = nullptr, *next_plane_ = nullptr;
};
