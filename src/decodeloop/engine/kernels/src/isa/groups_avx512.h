// Products with weights in groups, in 32 registers of 16 lanes: a group's weights are unpacked once, and every row's sum
// stays in a register from the first group to the last.
//
// Up to four rows take both halves of a unit in turn, group by group; more rows take one half through all groups, then
// the other.
#pragma once

#include "../kernels.h"
#include "../numbers.h"
#include "simd_avx512.h"

namespace decodeloop::avx512 {

constexpr int kQuads = kGroup / 4;  // of inputs
constexpr int kTogether = 4;  // rows whose products are taken in turn, so that none waits for the one before
constexpr int kMostGroupRows = 16;
constexpr int kMostRowsBothHalves = 4;

template <Format kFormat>
struct GroupLayout {
    static constexpr bool kEight = kFormat == Format::Int8;
    static constexpr int kHalfBytes = kEight ? 512 : 256;
    static constexpr int kHalves = kFormat == Format::Int4 ? 2 : 1;  // of scales: d, and min where there is one
    static constexpr int kBytes = 2 * kHalfBytes + kHalves * kUnit * 2;
};

// The weights of 16 outputs, four inputs a register, as 0..15, or as 0..255 for what is stored as -128..127.
template <Format kFormat>
static inline __attribute__((always_inline)) void unpack(const char* w, Simd::I (&weight)[kQuads]) {
    if constexpr (kFormat == Format::Int8) {
#pragma GCC unroll 8
        for (int quad = 0; quad < kQuads; ++quad) weight[quad] = Simd::biased_bytes(w + quad * 64);
    } else {
#pragma GCC unroll 4
        for (int pair = 0; pair < kQuads / 2; ++pair) {
            weight[2 * pair] = Simd::low_nibbles(w + pair * 64);
            weight[2 * pair + 1] = Simd::high_nibbles(w + pair * 64);
        }
    }
}

// y[m] += a group's products with 16 outputs, by their scales and the rows'.
template <Format kFormat, int kRows>
static inline __attribute__((always_inline)) void add_group(const RowSet& x, int64_t place, const char* w,
                                                            const uint16_t* scales, Simd::F (&y)[kRows]) {
    using F = Simd::F;
    using I = Simd::I;
    I weight[kQuads];
    unpack<kFormat>(w, weight);
    const F d = Simd::load_half(scales);
    F min = Simd::zero();
    if constexpr (kFormat == Format::Int4) min = Simd::load_half(scales + kUnit);
    if constexpr (kFormat == Format::Int4Symmetric) min = Simd::mul(d, Simd::set1(-8.0f));
    const int8_t* input = x.int8 + place * kGroup;
#pragma GCC unroll 16
    for (int from = 0; from < kRows; from += kTogether) {
        I dots[kTogether];
#pragma GCC unroll 4
        for (int i = 0; i < kTogether; ++i)
            if (from + i < kRows)
                dots[i] = kFormat == Format::Int8 ? Simd::set1_int(x.bias[place + from + i]) : Simd::zero_int();
#pragma GCC unroll 8
        for (int quad = 0; quad < kQuads; ++quad)
#pragma GCC unroll 4
            for (int i = 0; i < kTogether; ++i)
                if (from + i < kRows)
                    dots[i] = Simd::nibble_mac(dots[i], weight[quad],
                                               Simd::input_quad(input + (from + i) * kGroup + 4 * quad));
#pragma GCC unroll 4
        for (int i = 0; i < kTogether; ++i) {
            if (from + i >= kRows) break;
            const int m = from + i;
            const F scale = Simd::mul(d, Simd::set1(x.scale[place + m]));
            y[m] = Simd::fma(Simd::nibble_total(dots[i]), scale, y[m]);
            if constexpr (kFormat != Format::Int8) y[m] = Simd::fma(min, Simd::set1(x.scaled_sum[place + m]), y[m]);
        }
    }
}

// kRows rows from `row` on.
template <Format kFormat, int kRows>
static void group_tile(const MatmulArgs& a, int64_t row) {
    using Layout = GroupLayout<kFormat>;
    constexpr int kAtOnce = kRows <= kMostRowsBothHalves ? 2 : 1, kPasses = 2 / kAtOnce;
    const int64_t groups = a.inputs / kGroup;
    const int64_t ahead_step = Layout::kBytes * kRows / (kPasses * a.rows);
    const char* ahead = a.next + Layout::kBytes * row / a.rows * groups;
    for (int pass = 0; pass < kPasses; ++pass) {
        Simd::F y[kAtOnce][kRows];
#pragma GCC unroll 2
        for (int half = 0; half < kAtOnce; ++half)
#pragma GCC unroll 16
            for (int m = 0; m < kRows; ++m) y[half][m] = Simd::zero();
        const char* group = a.unit;
        for (int64_t g = 0; g < groups; ++g, group += Layout::kBytes, ahead += ahead_step) {
            for (int64_t line = 0; line < ahead_step; line += 64) Simd::prefetch(ahead + line);
#pragma GCC unroll 2
            for (int half = 0; half < kAtOnce; ++half) {
                const int at = pass + half;
                const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + 2 * Layout::kHalfBytes);
                add_group<kFormat, kRows>(*a.x, a.x->place(row, g), group + at * Layout::kHalfBytes,
                                          scales + at * Simd::kLanes, y[half]);
            }
        }
#pragma GCC unroll 2
        for (int half = 0; half < kAtOnce; ++half)
#pragma GCC unroll 16
            for (int m = 0; m < kRows; ++m)
                Simd::store(a.y + (row + m) * a.y_stride + (pass + half) * Simd::kLanes, y[half][m]);
    }
}

template <Format kFormat, int kRows>
static void run_group_tile(int rows, const MatmulArgs& a, int64_t row) {
    if constexpr (kRows > 1)
        if (rows < kRows) return run_group_tile<kFormat, kRows - 1>(rows, a, row);
    group_tile<kFormat, kRows>(a, row);
}

// As few tiles as there can be, alike.
template <Format kFormat>
static void group_matmul(const MatmulArgs& a) {
    for (int64_t row = 0; row < a.rows;) {
        const int64_t left = a.rows - row;
        const int rows = static_cast<int>(ceil_div(left, ceil_div(left, kMostGroupRows)));
        run_group_tile<kFormat, kMostGroupRows>(rows, a, row);
        row += rows;
    }
}

}  // namespace decodeloop::avx512
