// Gumbel noise, as decodeloop.speculation.noise defines it to the last bit.
#pragma once

#include <cstdint>
#include <cstring>

namespace decodeloop {

constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr uint32_t kPhiloxKeySteps[2] = {0x9E3779B9u, 0xBB67AE85u};
constexpr int kPhiloxRounds = 10;
constexpr int kPhiloxWords = 4;  // of a block

// Which draw's noise: a request's key, and where in its text.
struct NoiseKey {
    uint32_t key[2];
    uint32_t position;
};

// Domains of the counter: the high and the low word of the coupled draw.
constexpr uint32_t kCoupledHigh = 0, kCoupledLow = 1;

// Philox4x32-10 (Salmon et al., SC 2011): the word of one token id.
static inline uint32_t noise_word(const NoiseKey& noise, uint32_t domain, int64_t id) {
    uint32_t c[4] = {static_cast<uint32_t>(id / kPhiloxWords), noise.position, domain, 0};
    uint32_t k[2] = {noise.key[0], noise.key[1]};
    for (int round = 0; round < kPhiloxRounds; ++round) {
        const uint64_t even = uint64_t{kPhiloxMultipliers[0]} * c[0], odd = uint64_t{kPhiloxMultipliers[1]} * c[2];
        c[0] = static_cast<uint32_t>(odd >> 32) ^ c[1] ^ k[0];
        c[1] = static_cast<uint32_t>(odd);
        c[2] = static_cast<uint32_t>(even >> 32) ^ c[3] ^ k[1];
        c[3] = static_cast<uint32_t>(even);
        k[0] += kPhiloxKeySteps[0];
        k[1] += kPhiloxKeySteps[1];
    }
    return c[id % kPhiloxWords];
}

// log(1 + f) for -0.3 < f < 0.42.
static inline double log_near_one(double f) {
    const double s = f / (2.0 + f);
    const double z = s * s;
    double tail = 1.0 / 25.0;
    for (int j = 11; j >= 1; --j) tail = tail * z + 1.0 / (2 * j + 1);
    return 2.0 * s + 2.0 * s * (tail * z);
}

// log of a positive normal number.
static inline double noise_log(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1022);
    bits = (bits & 0x000fffffffffffffu) | 0x3fe0000000000000u;  // in [1/2, 1)
    double mantissa;
    std::memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa < 0.7071067811865476) {
        mantissa *= 2.0;
        exponent -= 1.0;
    }
    constexpr double kLn2High = 2977044471.0 / 4294967296.0, kLn2Low = 1.9082149292705877e-10;
    return exponent * kLn2High + (log_near_one(mantissa - 1.0) + exponent * kLn2Low);
}

// At most 0.1 above what gumbel(high, low) can be, as a rule. With c = 2^32 - 1 - high, E >= c 2^-32; and a float's
// bits, read as a number, are a piecewise linear log2, nowhere above the true one.
static inline double gumbel_bound(uint32_t high) {
    constexpr double kLn2 = 0.6931471805599453, kSlack = 1e-9;
    const auto rest = static_cast<float>(~high >> 8);
    int32_t bits;
    std::memcpy(&bits, &rest, sizeof bits);
    return (24 + 127 - bits / 8388608.0) * kLn2 + kSlack;
}

static inline double gumbel(uint32_t high, uint32_t low) {
    constexpr double kUnit64 = 1.0 / 18446744073709551616.0;
    const uint64_t n = (uint64_t{high} << 32) | low, m = ~n;
    const double u = (static_cast<double>(n) + 0.5) * kUnit64;
    const double w = (static_cast<double>(m) + 0.5) * kUnit64;
    const double exponential = m < (uint64_t{1} << 62) ? -log_near_one(-w) : -noise_log(u);
    return -noise_log(exponential);
}

}  // namespace decodeloop
