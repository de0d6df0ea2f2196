// Divides random numbers of all magnitudes by a Divider: csrc/cuda/problem.cuh decodes the numbers of places with them.
#include <cstdint>
#include <cstdio>
#include <random>

#include "../../csrc/cuda/problem.cuh"

int main() {
    std::mt19937_64 random(1);
    const auto up_to_bits = [&](int bits) { return static_cast<int64_t>(random() >> 1 >> (63 - bits)); };
    for (int i = 0; i < 5'000'000; ++i) {
        const int64_t any = up_to_bits(static_cast<int>(random() % 30)) + 1, power = int64_t{1} << random() % 31;
        const auto divisor = static_cast<int32_t>(i % 8 == 0 ? power : any);
        int64_t numerator = up_to_bits(static_cast<int>(random() % 62));
        if (i % 4 == 0) numerator -= numerator % divisor;  // and one less is the worst there is
        if (i % 8 == 4 && numerator > 0) --numerator;
        const onnxpool::cuda::Divider<int32_t> divider(divisor);
        const bool is_small = numerator <= INT32_MAX;
        const auto narrow = static_cast<int32_t>(is_small ? numerator : 0);
        if (numerator / divider != numerator / divisor || narrow / divider != narrow / divisor ||
            narrow % divider != narrow % divisor) {
            std::printf("%lld / %d\n", static_cast<long long>(numerator), static_cast<int>(divisor));
            return 1;
        }
    }
}
