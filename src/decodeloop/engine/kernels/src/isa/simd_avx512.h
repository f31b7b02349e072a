// AVX-512 with BF16 and VNNI: 16 floats, products of bfloat16 pairs and of byte quads in one instruction.
#pragma once

#ifdef DECODELOOP_EMULATED_AVX512  // a header, for tests on machines without it
#include DECODELOOP_EMULATED_AVX512
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "../kernels.h"

namespace decodeloop::avx512 {

struct Simd {
    static constexpr int kLanes = 16;
    static constexpr int kRegisters = 32;
    using F = __m512;
    using I = __m512i;

    static F zero() { return _mm512_setzero_ps(); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    // The second operand where either is NaN.
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F abs(F x) { return _mm512_abs_ps(x); }
    static F round(F x) { return _mm512_roundscale_ps(x, 0); }
    // x where `score` is above minus infinity (or NaN), else 0
    static F where_finite(F score, F x) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(score, set1(-__builtin_inff()), _CMP_NEQ_UQ), x);
    }
    static F pow2(F whole) {
        const I exponent = _mm512_add_epi32(_mm512_cvtps_epi32(whole), _mm512_set1_epi32(127));
        return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
    }
    static F load_half(const uint16_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static void prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }
    static float lane_sum(F x) {
        const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), high_lanes(x));
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static float lane_max(F x) {
        const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x), high_lanes(x));
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    // bfloat16 pairs [kLanes][2] times a pair of inputs, carried in float registers.
    using Input = uint16_t;
    static constexpr RowKind kPairRows = RowKind::BF16;
    static const Input* input_row(const RowSet& x, int64_t m) { return x.bf16 + m * x.stride; }
    static constexpr int kPairSteps = 1;
    template <int kStep>
    static F pair_weight(const uint16_t* pairs) {
        return _mm512_castsi512_ps(load_bytes(pairs));
    }
    template <int kStep>
    static F pair_input(const Input* x) {
        int32_t pair;
        __builtin_memcpy(&pair, x, sizeof pair);
        return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
    }
    static F pair_mac(F acc, F weight, F input) { return _mm512_dpbf16_ps(acc, as_pairs(weight), as_pairs(input)); }
    // The first element of each pair, whatever the second holds.
    static F low_weight(const uint16_t* pairs) {
        return _mm512_castsi512_ps(_mm512_and_si512(load_bytes(pairs), _mm512_set1_epi32(0xffff)));
    }
    static F low_input(const Input* x) { return _mm512_castsi512_ps(_mm512_set1_epi32(*x)); }
    static void store_inputs(Input* p, F x) {
        const __m256bh rounded = _mm512_cvtneps_pbh(x);
        __builtin_memcpy(p, &rounded, sizeof rounded);
    }

    // Four-bit weights: vectors of kLanes outputs by four inputs.
    static I zero_int() { return _mm512_setzero_si512(); }
    static I low_nibbles(const char* p) { return _mm512_and_si512(load_bytes(p), _mm512_set1_epi8(15)); }
    static I high_nibbles(const char* p) {
        return _mm512_and_si512(_mm512_srli_epi16(load_bytes(p), 4), _mm512_set1_epi8(15));
    }
    static I input_quad(const int8_t* x) {
        int32_t four;
        __builtin_memcpy(&four, x, sizeof four);
        return _mm512_set1_epi32(four);
    }
    static I nibble_mac(I acc, I w, I x) { return _mm512_dpbusd_epi32(acc, w, x); }
    static F nibble_total(I acc) { return _mm512_cvtepi32_ps(acc); }

    static constexpr bool kWideInputs = false;
    // Eight-bit weights, biased to 0..255 as the instruction wants them.
    static I biased_bytes(const char* p) {
        return _mm512_xor_si512(load_bytes(p), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
    static I set1_int(int32_t x) { return _mm512_set1_epi32(x); }

    // 32 whole numbers.
    static void store_int8(int8_t* p, const F* x) {
        for (int half = 0; half < 2; ++half) {
            const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x[half]));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 16 * half), bytes);
        }
    }

    // Bit i: a[i] >= b[i].
    static unsigned at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

    // Words for random numbers: each in the low half of 64 bits, whatever the high half holds.
    using W = __m512i;
    static constexpr int kWords = 8;
    static W word(uint32_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
    static W counting(uint32_t x) { return _mm512_add_epi64(word(x), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0)); }
    static W product(W a, W b) { return _mm512_mul_epu32(a, b); }
    static W high_half(W x) { return _mm512_srli_epi64(x, 32); }
    static W differ(W a, W b) { return _mm512_xor_si512(a, b); }
    // [kWords][4]: a block after the other.
    static void store_blocks(uint32_t* p, W w0, W w1, W w2, W w3) {
        const W half = word(0xffffffffu);
        const W low = _mm512_or_si512(_mm512_and_si512(w0, half), _mm512_slli_epi64(w1, 32));
        const W high = _mm512_or_si512(_mm512_and_si512(w2, half), _mm512_slli_epi64(w3, 32));
        const W first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
        const W second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
        _mm512_storeu_si512(p, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(p + 16, _mm512_permutex2var_epi64(low, second, high));
    }
    // The bits of float(~word >> 8), read as numbers.
    static F bits_of_rest(const uint32_t* words) {
        const I rest = _mm512_xor_si512(load_bytes(words), _mm512_set1_epi32(-1));
        return _mm512_cvtepi32_ps(_mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srli_epi32(rest, 8))));
    }

private:
    static __m256 high_lanes(F x) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)); }
    static I load_bytes(const void* p) { return _mm512_loadu_si512(p); }
    static __m512bh as_pairs(F x) {
        __m512bh pairs;
        __builtin_memcpy(&pairs, &x, sizeof pairs);
        return pairs;
    }
};

}  // namespace decodeloop::avx512
