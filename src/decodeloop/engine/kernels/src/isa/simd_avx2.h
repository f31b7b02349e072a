// AVX2 + FMA + F16C: 8 floats, bfloat16 widened by shifts, integer products through 16-bit pairs.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../kernels.h"

namespace decodeloop::avx2 {

struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kRegisters = 16;
    using F = __m256;
    using I = __m256i;

    static F zero() { return _mm256_setzero_ps(); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    // The second operand where either is NaN.
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    static F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
    static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // x where `score` is above minus infinity (or NaN), else 0
    static F where_finite(F score, F x) {
        return _mm256_and_ps(_mm256_cmp_ps(score, _mm256_set1_ps(-__builtin_inff()), _CMP_NEQ_UQ), x);
    }
    static F pow2(F whole) {
        const I exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    }
    static F load_half(const uint16_t* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static void prefetch(const char* p) { _mm_prefetch(p, _MM_HINT_T1); }
    static float lane_sum(F x) {
        const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
    static float lane_max(F x) {
        const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
    }

    // bfloat16 pairs [kLanes][2] times a pair of inputs: two steps, one per element of the pair.
    using Input = float;
    static constexpr int kPairSteps = 2;
    template <int kStep>
    static F pair_weight(const uint16_t* pairs) {
        const I raw = _mm256_loadu_si256(reinterpret_cast<const I*>(pairs));
        if constexpr (kStep == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
        return _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }
    // The first element of each pair, whatever the second holds.
    static F low_weight(const uint16_t* pairs) { return pair_weight<0>(pairs); }
    template <int kStep>
    static F pair_input(const Input* x) {
        return _mm256_broadcast_ss(x + kStep);
    }
    static F pair_mac(F acc, F weight, F input) { return _mm256_fmadd_ps(weight, input, acc); }
    static F low_input(const Input* x) { return pair_input<0>(x); }
    static void store_inputs(Input* p, F x) { store(p, x); }
    static constexpr RowKind kPairRows = RowKind::F32;
    static const Input* input_row(const RowSet& x, int64_t m) { return x.f32 + m * x.stride; }

    // Four-bit weights: vectors of kLanes outputs by four inputs. The 16-bit sums of a group can't overflow: 8 quads of
    // pairs are at most 8 * 2 * 15 * 127.
    static I zero_int() { return _mm256_setzero_si256(); }
    static I low_nibbles(const char* p) { return _mm256_and_si256(load_bytes(p), _mm256_set1_epi8(15)); }
    static I high_nibbles(const char* p) {
        return _mm256_and_si256(_mm256_srli_epi16(load_bytes(p), 4), _mm256_set1_epi8(15));
    }
    static I input_quad(const int8_t* x) {
        int32_t four;
        __builtin_memcpy(&four, x, sizeof four);
        return _mm256_set1_epi32(four);
    }
    // In assembly, so that the sums are taken up at once: compilers put them off, and run out of registers.
    static I nibble_mac(I acc, I w, I x) {
        I product;
        asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(acc), "=&x"(product) : "x"(w), "x"(x));
        return acc;
    }
    static F nibble_total(I acc) { return _mm256_cvtepi32_ps(_mm256_madd_epi16(acc, _mm256_set1_epi16(1))); }

    // Eight-bit weights of kLanes outputs, widened: sixteen bits hold no two products of bytes. Even inputs of a quad are
    // taken together, then odd ones.
    template <int kRows>
    static void byte_dots(const char* w, const RowSet& rows, int64_t row, int64_t group, F (&dots)[kRows]) {
        const int16_t* x = rows.int16 + rows.place(row, group) * kGroup;
        I acc[kRows];
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) acc[m] = _mm256_setzero_si256();
#pragma GCC unroll 1
        for (int quad = 0; quad < 8; ++quad, w += 64, x += 4) {
            const I raw = load_bytes(w);
            const I odd = _mm256_srai_epi16(raw, 8), even = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
#pragma GCC unroll 16
            for (int m = 0; m < kRows; ++m) acc[m] = pair_products(acc[m], even, input_pair(x + m * kGroup));
#pragma GCC unroll 16
            for (int m = 0; m < kRows; ++m) acc[m] = pair_products(acc[m], odd, input_pair(x + 2 + m * kGroup));
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) dots[m] = _mm256_cvtepi32_ps(acc[m]);
    }

    // 32 whole numbers.
    static void store_int8(int8_t* p, const F* x) {
        const I low = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
        const I high = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3]));
        const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        const I bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
        _mm256_storeu_si256(reinterpret_cast<I*>(p), bytes);
    }
    static constexpr bool kWideInputs = true;  // eight-bit weights take Int16 rows
    static void store_int16(int16_t* p, const F* x) {
        const I order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        for (int half = 0; half < 2; ++half) {
            const I words = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2 * half]), _mm256_cvtps_epi32(x[2 * half + 1]));
            const I in_order = _mm256_permute4x64_epi64(words, 0b11011000);
            _mm256_storeu_si256(reinterpret_cast<I*>(p) + half, _mm256_shuffle_epi8(in_order, order));
        }
    }

    // Bit i: a[i] >= b[i].
    static unsigned at_least(F a, F b) {
        return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
    }

    // Words for random numbers: each in the low half of 64 bits, whatever the high half holds.
    using W = __m256i;
    static constexpr int kWords = 4;
    static W word(uint32_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
    static W counting(uint32_t x) { return _mm256_add_epi64(word(x), _mm256_setr_epi64x(0, 1, 2, 3)); }
    static W product(W a, W b) { return _mm256_mul_epu32(a, b); }
    static W high_half(W x) { return _mm256_srli_epi64(x, 32); }
    static W differ(W a, W b) { return _mm256_xor_si256(a, b); }
    // [kWords][4]: a block after the other.
    static void store_blocks(uint32_t* p, W w0, W w1, W w2, W w3) {
        const W low = _mm256_blend_epi32(w0, _mm256_slli_epi64(w1, 32), 0b10101010);
        const W high = _mm256_blend_epi32(w2, _mm256_slli_epi64(w3, 32), 0b10101010);
        const W even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
        _mm256_storeu_si256(reinterpret_cast<W*>(p), _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256(reinterpret_cast<W*>(p + 8), _mm256_permute2x128_si256(even, odd, 0x31));
    }
    // The bits of float(~word >> 8), read as numbers.
    static F bits_of_rest(const uint32_t* words) {
        const I rest = _mm256_xor_si256(load_bytes(reinterpret_cast<const char*>(words)), _mm256_set1_epi32(-1));
        return _mm256_cvtepi32_ps(_mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_srli_epi32(rest, 8))));
    }

private:
    static I input_pair(const int16_t* x) {
        int32_t two;
        __builtin_memcpy(&two, x, sizeof two);
        return _mm256_set1_epi32(two);
    }
    static I pair_products(I acc, I w, I x) {
        I product;
        asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(product) : "x"(w), "x"(x));
        return acc;
    }
    static I load_bytes(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const I*>(p)); }
};

}  // namespace decodeloop::avx2
