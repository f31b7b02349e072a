// Products of input rows with one unit (32 outputs) of a packed matrix, for any Simd.
//
// Each output is one chain of additions over the inputs in order, whatever the tile: that is what makes a row's result
// independent of its company. A tile shares each weight that it loads and unpacks among its rows; while it runs it
// brings its share of the next unit into the cache.
#pragma once

#include "../kernels.h"
#include "../numbers.h"

namespace decodeloop {

template <class S>
struct Tiling {
    static constexpr int kUnitVectors = kUnit / S::kLanes;
    static constexpr int kMaxRows = (S::kRegisters - 1) / 2 - 1;
    // Fewer rows read a plain stream, which the hardware foresees better than instructions can.
    static constexpr int kFewestPrefetching = S::kRegisters > 16 ? 5 : 2;
    // One sum a row, weights, a mask, an input and a product.
    static constexpr int kMaxGroupRows = S::kRegisters - 4;

    // Accumulators, a weight for each column of them, and one input have to fit in the registers.
    static constexpr int vectors(int rows) {
        int count = kUnitVectors;
        while (count > 1 && count * rows + count + 1 > S::kRegisters) count /= 2;
        return count;
    }
};

template <class S>
struct F32Weights {
    using Input = float;
    static constexpr int kInputs = 1;  // taken at once
    static constexpr int kSteps = 1;
    static constexpr int kVectorBytes = S::kLanes * 4;
    template <int kStep>
    static typename S::F weight(const char* w) {
        return S::load(reinterpret_cast<const float*>(w));
    }
    template <int kStep>
    static typename S::F input(const float* x) {
        return S::set1(*x);
    }
    static typename S::F mac(typename S::F acc, typename S::F w, typename S::F x) { return S::fma(w, x, acc); }
    static const float* row(const RowSet& x, int64_t m) { return x.f32 + m * x.stride; }
    static void store(float* p, typename S::F x) { S::store(p, x); }
};

template <class S>
struct Bf16Weights {
    using Input = typename S::Input;
    static constexpr int kInputs = 2;
    static constexpr int kSteps = S::kPairSteps;
    static constexpr int kVectorBytes = S::kLanes * 4;
    template <int kStep>
    static typename S::F weight(const char* w) {
        return S::template pair_weight<kStep>(reinterpret_cast<const uint16_t*>(w));
    }
    template <int kStep>
    static typename S::F input(const Input* x) {
        return S::template pair_input<kStep>(x);
    }
    static typename S::F mac(typename S::F acc, typename S::F w, typename S::F x) { return S::pair_mac(acc, w, x); }
    static const Input* row(const RowSet& x, int64_t m) { return S::input_row(x, m); }
    static void store(Input* p, typename S::F x) { S::store_inputs(p, x); }
    // The first of a pair alone, whatever the second holds.
    static typename S::F low_weight(const char* w) { return S::low_weight(reinterpret_cast<const uint16_t*>(w)); }
    static typename S::F low_input(const Input* x) { return S::low_input(x); }
};

// One element of the weights' steps: acc[m][v] += weight[v] * input[m].
template <class S, class W, int kStep, int kRows, int kVectors>
static inline __attribute__((always_inline)) void float_step(typename S::F (&acc)[kRows][kVectors], const char* w,
                                                             const typename W::Input* x, int64_t stride) {
    typename S::F weight[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) weight[v] = W::template weight<kStep>(w + v * W::kVectorBytes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
        const typename S::F input = W::template input<kStep>(x + m * stride);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[m][v] = W::mac(acc[m][v], weight[v], input);
    }
}

// kRows rows from `row` on.
template <class S, class W, int kRows>
static void float_tile(const MatmulArgs& a, int64_t row) {
    constexpr int kVectors = Tiling<S>::vectors(kRows);
    constexpr int kPasses = Tiling<S>::kUnitVectors / kVectors;
    constexpr int kStepBytes = Tiling<S>::kUnitVectors * W::kVectorBytes;
    constexpr bool kPrefetches = kRows >= Tiling<S>::kFewestPrefetching;
    const int64_t steps = a.inputs / W::kInputs;
    const int64_t ahead_step = kStepBytes * kRows / (kPasses * a.rows);
    const int64_t done = kStepBytes * row / a.rows * steps;
    for (int pass = 0; pass < kPasses; ++pass) {
        const char* w = a.unit + pass * kVectors * W::kVectorBytes;
        const char* ahead = a.next + done + pass * steps * ahead_step;
        const typename W::Input* x = W::row(*a.x, row);
        typename S::F acc[kRows][kVectors];
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) acc[m][v] = S::zero();
        for (int64_t k = 0; k < steps; ++k) {
            if constexpr (kPrefetches) S::prefetch(ahead);
            if constexpr (kPrefetches && kStepBytes > 64 && kPasses == 1) S::prefetch(ahead + 64);
            float_step<S, W, 0, kRows, kVectors>(acc, w, x, a.x->stride);
            if constexpr (W::kSteps == 2) float_step<S, W, 1, kRows, kVectors>(acc, w, x, a.x->stride);
            w += kStepBytes;
            x += W::kInputs;
            ahead += ahead_step;
        }
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v)
                S::store(a.y + (row + m) * a.y_stride + (pass * kVectors + v) * S::kLanes, acc[m][v]);
    }
}

// How many vectors of outputs share each input of a tile of four-bit groups: two where the registers hold their sums.
template <class S>
static constexpr int group_vectors(int rows) {
    return Tiling<S>::kUnitVectors > 2 && 2 * (rows + 2) <= S::kRegisters ? 2 : 1;
}

// The bytes of vector v's weights within a group: 16 outputs lie after the other 16.
template <class S>
static constexpr int vector_place(int v, int half_bytes) {
    constexpr int kHalf = Tiling<S>::kUnitVectors / 2;
    return v / kHalf * half_bytes + v % kHalf * S::kLanes * 4;
}

template <class S, int kRows, int kVectors>
static inline __attribute__((always_inline)) void nibble_step(typename S::I (&acc)[kRows][kVectors],
                                                              const typename S::I (&weight)[kVectors],
                                                              const int8_t* x) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
        const typename S::I input = S::input_quad(x + m * kGroup);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[m][v] = S::nibble_mac(acc[m][v], weight[v], input);
    }
}

// dots[v][m] = exact products of a group's inputs with kVectors vectors of four-bit weights.
template <class S, int kRows, int kVectors>
static inline __attribute__((always_inline)) void nibble_dots(const char* w, const int8_t* x,
                                                              typename S::F (&dots)[kVectors][kRows]) {
    typename S::I acc[kRows][kVectors];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[m][v] = S::zero_int();
#pragma GCC unroll 1
    for (int j = 0; j < 4; ++j, w += 64, x += 8) {
        typename S::I weight[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) weight[v] = S::low_nibbles(w + v * S::kLanes * 4);
        nibble_step<S, kRows, kVectors>(acc, weight, x);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) weight[v] = S::high_nibbles(w + v * S::kLanes * 4);
        nibble_step<S, kRows, kVectors>(acc, weight, x + 4);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) dots[v][m] = S::nibble_total(acc[m][v]);
}

// y[m] += dots[m] * d * the row's scale + min * its scaled sum, for one vector of outputs.
template <class S, Format kFormat, int kRows>
static inline __attribute__((always_inline)) void add_scaled(const RowSet& x, int64_t place, const uint16_t* scales,
                                                             typename S::F (&dots)[kRows], float* y) {
    const typename S::F d = S::load_half(scales);
    typename S::F min = S::zero();
    if constexpr (kFormat == Format::Int4) min = S::load_half(scales + kUnit);
    if constexpr (kFormat == Format::Int4Symmetric) min = S::mul(d, S::set1(-8.0f));
    const float* scale_of = (kFormat == Format::Int8 && S::kWideInputs ? x.scale16 : x.scale) + place;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
        const typename S::F scale = S::mul(d, S::set1(scale_of[m]));
        typename S::F sum = S::fma(dots[m], scale, S::load(y + m * kUnit));
        if constexpr (kFormat != Format::Int8) sum = S::fma(min, S::set1(x.scaled_sum[place + m]), sum);
        S::store(y + m * kUnit, sum);
    }
}

// Four- and eight-bit weights: exact integer products of a group, then one multiply-add by the scales.
template <class S, Format kFormat, int kRows>
static void group_tile(const MatmulArgs& a, int64_t row) {
    constexpr bool kEight = kFormat == Format::Int8;
    constexpr int kHalfBytes = kEight ? 512 : 256;  // 16 outputs
    constexpr int kBytes = 2 * kHalfBytes + kUnit * (kFormat == Format::Int4 ? 4 : 2);
    constexpr int kVectors = kEight ? 1 : group_vectors<S>(kRows);
    const int64_t groups = a.inputs / kGroup;
    const int64_t ahead_step = kBytes * kRows / a.rows;
    const char* ahead = a.next + kBytes * row / a.rows * groups;
    alignas(64) float y[kRows][kUnit] = {};
    const char* group = a.unit;
    for (int64_t g = 0; g < groups; ++g, group += kBytes, ahead += ahead_step) {
        for (int64_t line = 0; line < ahead_step; line += 64) S::prefetch(ahead + line);
        const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + 2 * kHalfBytes);
        const int64_t place = a.x->place(row, g);
        for (int v = 0; v < Tiling<S>::kUnitVectors; v += kVectors) {
            const char* w = group + vector_place<S>(v, kHalfBytes);
            typename S::F dots[kVectors][kRows];
            if constexpr (kEight)
                S::template byte_dots<kRows>(w, *a.x, row, g, dots[0]);
            else
                nibble_dots<S, kRows, kVectors>(w, a.x->int8 + place * kGroup, dots);
#pragma GCC unroll 4
            for (int i = 0; i < kVectors; ++i) {
                const int output = (v + i) * S::kLanes;
                add_scaled<S, kFormat, kRows>(*a.x, place, scales + output, dots[i], &y[0][output]);
            }
        }
    }
    for (int m = 0; m < kRows; ++m)
        for (int n = 0; n < kUnit; n += S::kLanes) S::store(a.y + (row + m) * a.y_stride + n, S::load(y[m] + n));
}

template <class S, Format kFormat>
struct Tile {
    template <int kRows>
    static void run(int rows, const MatmulArgs& a, int64_t row) {
        if constexpr (kRows > 1)
            if (rows < kRows) return run<kRows - 1>(rows, a, row);
        if constexpr (kFormat == Format::F32)
            float_tile<S, F32Weights<S>, kRows>(a, row);
        else if constexpr (kFormat == Format::BF16)
            float_tile<S, Bf16Weights<S>, kRows>(a, row);
        else
            group_tile<S, kFormat, kRows>(a, row);
    }
};

// Full tiles first: they keep the multipliers busiest. A rest too small for that, or of the four rows that leave half of
// 16 registers idle, takes rows from the last full tile.
template <class S>
static int float_rows(int64_t rows) {
    constexpr int kMax = Tiling<S>::kMaxRows;
    if (rows <= kMax) return static_cast<int>(rows);
    constexpr int kFewest = S::kRegisters > 16 ? 3 : 2;
    if (rows < kMax + kFewest) return static_cast<int>(rows) - kFewest;
    if (rows == kMax + 4) return kMax - 1;
    return kMax;
}

// As few tiles as there can be, alike.
template <class S>
static int group_rows(int64_t rows) {
    return static_cast<int>(ceil_div(rows, ceil_div(rows, Tiling<S>::kMaxGroupRows)));
}

template <class S, Format kFormat>
static void matmul(const MatmulArgs& a) {
    constexpr bool kGroups = kFormat != Format::F32 && kFormat != Format::BF16;
    for (int64_t row = 0; row < a.rows;) {
        const int rows = kGroups ? group_rows<S>(a.rows - row) : float_rows<S>(a.rows - row);
        Tile<S, kFormat>::template run<kGroups ? Tiling<S>::kMaxGroupRows : Tiling<S>::kMaxRows>(rows, a, row);
        row += rows;
    }
}

}  // namespace decodeloop
