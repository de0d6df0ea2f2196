// Part of kernels.inl: see there.
// Of a plane's elements, the shares of its rows of results, one after the other: each row asks memory for its share of
// what will be read next, every part of it once, whatever windows have in common, and before the first of them reads
// it.
template <class T>
class PlaneShares {
public:
    // Rows of results read `columns` elements from their taps' offsets on, each `offset_step` elements. If x is not in
    // memory, or lies in a way that needs no asking, nothing is asked for.
    PlaneShares(const Call& call, const RowTaps& taps, int64_t offset_step, int64_t columns, bool is_in_memory)
        : call_(call) {
        const Geometry& geometry = call.geometry;
        if (!is_in_memory || !has_dense_planes(geometry, call.x, input_size)) return;
        if (kForeseesRuns && geometry.rank == 1) return;
        const auto rows = static_cast<int64_t>(taps.rows.size());
        extent_ = plane_size(geometry, input_size);
        share_ = ceil_div(extent_, rows);
        for (int64_t row = 0; row < rows; ++row) {
            lead_ = std::max(lead_, taps.elements_end(row, 1, 0) * offset_step + columns - (row + 1) * share_);
        }
        lead_ = std::min(lead_, kMostLead);
    }

    bool any() const { return extent_ > 0; }

    // Of the rows from `row` to `end`.
    Range of(int64_t row, int64_t end) const { return {row * share_, (end - row) * share_, 1}; }

    // This plane, of which shares will be asked for from now on.
    const T* begin_plane(int64_t image, int64_t channel) {
        plane_ = plane_at<const T>(call_.x, image, channel);
        next_plane_ = channel + 1 < call_.geometry.channels ? plane_ + call_.x.strides[1]
                                                            : plane_at<const T>(call_.x, image + 1, 0);
        return plane_;
    }

    // Asks for as much as this part of the shares is: as far ahead as rows read beyond theirs, or of the next plane.
    ONNXPOOL_ASKING void ask_for_next(const Range& part) const {
        const int64_t asked = part.begin + lead_ + kAhead<T>;
        prefetch(asked < extent_ ? plane_ + asked : next_plane_ + (asked - extent_), part.count);
    }

private:
    static constexpr int64_t kMostLead = (1 << 18) / sizeof(T);

    const Call& call_;
    int64_t extent_ = 0;  // of planes that are asked for
    int64_t share_ = 0;   // of each row
    int64_t lead_ = 0;    // how far rows read beyond their shares
    const T *plane_ = nullptr, *next_plane_ = nullptr;
};
