// Part of kernels.inl: see there.

// The sums of elements that follow each other in grad_x. Caches hold those that windows still send to; the ones before
// are complete and leave as whole cache lines, past the caches if grad_x exceeds them.
template <class T>
class SumsInOrder {
public:
    using Accumulator = accumulator_t<T>;

    // For elements from `begin` on, with room for so many at least.
    SumsInOrder(const Call& call, int64_t begin, int64_t room)
        : SumsInOrder(static_cast<T*>(call.grad_x.data), begin, room, exceeds_caches<T>(call)) {}

    // The sums of elements begin ... end - 1, when all before them are complete.
    Accumulator* between(int64_t begin, int64_t end) {
        const int64_t used = until_;
        complete_ = begin - first_;
        until_ = std::max(until_, end - first_);
        if (until_ - origin_ > room()) make_room(used);
        return sums_.data() + (complete_ - origin_);
    }

    // How many elements are complete and have not been written.
    int64_t waiting() const { return complete_ - written_; }

    // Writes about so many of those: to write all of them at once would be to wait for memory.
    void write(int64_t count) { write_lines(std::min(complete_, written_ + count)); }

    // Writes the rest, up to this element.
    void finish(int64_t end) {
        between(end, end);
        write_lines(complete_);
        write_elements(complete_);
        finish_streaming(streams_);
    }

private:
    static constexpr int64_t kLineBytes = 64, kLine = kLineBytes / sizeof(T);

    SumsInOrder(T* grad_x, int64_t begin, int64_t room, bool streams)
        : first_(begin - static_cast<int64_t>(reinterpret_cast<uintptr_t>(grad_x + begin) % kLineBytes / sizeof(T))),
          lines_(grad_x + first_),
          written_(begin - first_),
          complete_(written_),
          until_(written_),
          streams_(streams),
          sums_((ceil_div(room, kLine) + 1) * kLine, Accumulator(0)) {}

    int64_t room() const { return static_cast<int64_t>(sums_.size()); }

    template <class Count>
    static void take(T* target, Accumulator* sums, Count n, bool streams) {
        store_prefetching(target, convert<T>(load<n>(sums)), streams);
        store(sums, decltype(load<n>(sums)){});
    }

    // Writes elements of lines that others write to as well.
    void write_elements(int64_t end) {
        constexpr std::integral_constant<int, 1> one;
        for (; written_ < end; ++written_) take(lines_ + written_, sums_.data() + (written_ - origin_), one, false);
    }

    // Writes the whole lines that end here or before.
    void write_lines(int64_t end) {
        end = end / kLine * kLine;
        if (written_ >= end) return;
        write_elements(ceil_div(written_, kLine) * kLine);
        const int64_t size = end - written_;
        T* const target = lines_ + written_;
        Accumulator* const sums = sums_.data() + (written_ - origin_);
        constexpr std::integral_constant<int, kLanes<Accumulator>> n;
        if (streams_) {
            for (int64_t i = 0; i < size; i += n) take(target + i, sums + i, n, true);
        } else {
            for (int64_t i = 0; i < size; i += n) take(target + i, sums + i, n, false);
        }
        written_ = end;
    }

    // Makes room for elements up to until_. Windows have sent to those before `used`; all others are 0, and what has
    // been written. More may be complete than there is room for: elements that no window looks at.
    __attribute__((noinline)) void make_room(int64_t used) {
        const int64_t needed = until_ - complete_ + 2 * kLine;
        if (room() < needed) sums_.resize(2 * ceil_div(needed, kLine) * kLine, Accumulator(0));
        while (until_ - origin_ > room()) {
            if (until_ - written_ + kLine > room()) write_lines(std::min(complete_, origin_ + room()));
            const int64_t moved = written_ / kLine * kLine - origin_;
            const int64_t kept = std::max<int64_t>(0, used - origin_ - moved);
            Accumulator* const sums = sums_.data();
            std::copy(sums + moved, sums + moved + kept, sums);
            std::fill(sums + std::max(moved, kept), sums + moved + kept, Accumulator(0));
            origin_ += moved;
        }
    }

    // Elements are counted from one on that begins a line.
    const int64_t first_;
    T* const lines_;
    int64_t origin_ = 0;  // which sums_ begin with, and a line
    int64_t written_, complete_, until_;
    const bool streams_;
    Buffer<Accumulator> sums_;
};
