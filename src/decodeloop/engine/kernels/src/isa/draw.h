// What a draw asks of a row of logits, for any Simd: its maximum, its entropy, its weight, and which tokens matter.
#pragma once

#include "../kernels.h"
#include "../noise.h"
#include "rows.h"

namespace decodeloop {

constexpr float kNever = -__builtin_inff();

// The next vector of `left` values; what is missing is minus infinity.
template <class S>
static inline typename S::F load_part(const float* x, int64_t left) {
    if (left >= S::kLanes) return S::load(x);
    float lanes[S::kLanes];
    for (int i = 0; i < S::kLanes; ++i) lanes[i] = i < left ? x[i] : kNever;
    return S::load(lanes);
}

// The first of the largest; -1 where there is a NaN or the largest is infinite.
template <class S>
static int64_t likeliest(const float* x, int64_t n) {
    constexpr unsigned kAll = (1u << S::kLanes) - 1;
    typename S::F largest = S::set1(kNever);
    unsigned numbers = kAll;
    for (int64_t i = 0; i < n; i += S::kLanes) {
        const typename S::F values = load_part<S>(x + i, n - i);
        numbers &= S::at_least(values, S::set1(kNever));
        largest = S::max(largest, values);
    }
    const float top = lane_max<S>(largest);
    if (numbers != kAll || top == kNever || top == -kNever) return -1;
    for (int64_t i = 0;; i += S::kLanes) {
        const unsigned found = S::at_least(load_part<S>(x + i, n - i), S::set1(top));
        if (found != 0) return i + __builtin_ctz(found);
    }
}

// In nats, of the softmax of (x - top) * scale.
template <class S>
static float entropy(const float* x, int64_t n, float top, float scale) {
    constexpr int64_t kPiece = 1024;
    double total = 0, moment = 0;
    for (int64_t from = 0; from < n; from += kPiece) {
        typename S::F weights = S::zero(), products = S::zero();
        for (int64_t i = from; i < n && i < from + kPiece; i += S::kLanes) {
            const typename S::F shifted = S::mul(S::sub(load_part<S>(x + i, n - i), S::set1(top)), S::set1(scale));
            const typename S::F bounded = S::max(shifted, S::set1(-200.0f));
            const typename S::F weight = S::where_finite(shifted, exp<S>(bounded));
            weights = S::add(weights, weight);
            products = S::fma(weight, bounded, products);
        }
        total += static_cast<double>(lane_sum<S>(weights));
        moment += static_cast<double>(lane_sum<S>(products));
    }
    const double nats = __builtin_log(total) - moment / total;
    return nats > 0 ? static_cast<float>(nats) : 0.0f;
}

// Words of kScreenIds ids in order: the blocks from `block` on, S::kWords of them at a time.
template <class S>
static void noise_words(const NoiseKey& noise, uint32_t block, uint32_t* words) {
    using W = typename S::W;
    W keys[kPhiloxRounds][2];
    for (int round = 0; round < kPhiloxRounds; ++round)
        for (int i = 0; i < 2; ++i)
            keys[round][i] = S::word(noise.key[i] + static_cast<uint32_t>(round) * kPhiloxKeySteps[i]);
    const W multipliers[2] = {S::word(kPhiloxMultipliers[0]), S::word(kPhiloxMultipliers[1])};
    for (int at = 0; at < kScreenIds / kPhiloxWords; at += S::kWords) {
        W c0 = S::counting(block + static_cast<uint32_t>(at)), c1 = S::word(noise.position);
        W c2 = S::word(kCoupledHigh), c3 = S::word(0);
#pragma GCC unroll 10
        for (int round = 0; round < kPhiloxRounds; ++round) {
            const W even = S::product(c0, multipliers[0]), odd = S::product(c2, multipliers[1]);
            c0 = S::differ(S::differ(S::high_half(odd), c1), keys[round][0]);
            c2 = S::differ(S::differ(S::high_half(even), c3), keys[round][1]);
            c1 = odd;
            c3 = even;
        }
        S::store_blocks(words + at * kPhiloxWords, c0, c1, c2, c3);
    }
}

// Which of the ids may have a score of `least` or more, judged by their high words. With c = 2^32 - 1 - hi,
// E >= c 2^-32; and a float's bits, read as a number, are a piecewise linear log2, nowhere above the true one.
template <class S>
static int screen(const ScreenArgs& a) {
    constexpr float kLn2 = 0.69314718f, kSlack = 1e-4f;
    noise_words<S>(a.noise, static_cast<uint32_t>(a.first / kPhiloxWords), a.words);
    const typename S::F least = S::set1(a.least - (24 + 127) * kLn2 - kSlack);
    const float* x = a.logits + a.first;
    int found = 0;
    for (int64_t i = 0; i < a.count; i += S::kLanes) {
        const typename S::F shifted = S::sub(load_part<S>(x + i, a.count - i), S::set1(a.top));
        const typename S::F log2 = S::bits_of_rest(a.words + i);
        const typename S::F bound = S::fma(log2, S::set1(-kLn2 / 8388608.0f), S::mul(shifted, S::set1(a.scale)));
        for (unsigned left = S::at_least(bound, least); left != 0; left &= left - 1)
            a.found[found++] = static_cast<int32_t>(i + __builtin_ctz(left));
    }
    return found;
}

template <class S>
static int above(const float* x, int64_t n, float least, int32_t* found) {
    int count = 0;
    for (int64_t i = 0; i < n; i += S::kLanes) {
        unsigned left = S::at_least(load_part<S>(x + i, n - i), S::set1(least));
        for (; left != 0; left &= left - 1) found[count++] = static_cast<int32_t>(i + __builtin_ctz(left));
    }
    return count;
}

// A register of float64, as the compiler does it.
template <class S>
struct Doubles {
    static constexpr int kLanes = S::kLanes / 2;
    typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
    typedef double D __attribute__((vector_size(kLanes * sizeof(double))));
    typedef int64_t Bits __attribute__((vector_size(kLanes * sizeof(int64_t))));

    // exp of -708 (or less: the same) to 0.
    static inline __attribute__((always_inline)) D exp(D x) {
        constexpr double kLog2E = 1.4426950408889634, kMagic = 6755399441055744.0;  // 1.5 * 2^52: rounds
        constexpr double kLn2High = 2977044471.0 / 4294967296.0, kLn2Low = 1.9082149292705877e-10;
        x = x > -708.0 ? x : D{} - 708.0;
        const D shifted = x * kLog2E + kMagic;
        const D twos = shifted - kMagic;
        const D rest = x - twos * kLn2High - twos * kLn2Low;
        D series = D{} + 1.0 / 479001600.0;
        constexpr double kOf[] = {39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1};
#pragma GCC unroll 12
        for (const double factorial : kOf) series = series * rest + 1.0 / factorial;
        return reinterpret_cast<D>(reinterpret_cast<Bits>(series) + (reinterpret_cast<Bits>(shifted) << 52));
    }
};

template <class S>
static double weight(const float* x, int64_t n, double top, double scale) {
    using V = Doubles<S>;
    typename V::D sum{};
    for (int64_t i = 0; i < n; i += V::kLanes) {
        typename V::Floats floats = typename V::Floats{} + kNever;
        if (n - i >= V::kLanes) {
            __builtin_memcpy(&floats, x + i, sizeof floats);
        } else {
            for (int64_t j = 0; i + j < n; ++j) floats[j] = x[i + j];
        }
        sum += V::exp((__builtin_convertvector(floats, typename V::D) - top) * scale);
    }
    double total = 0;
    for (int i = 0; i < V::kLanes; ++i) total += sum[i];
    return total;
}

}  // namespace decodeloop
