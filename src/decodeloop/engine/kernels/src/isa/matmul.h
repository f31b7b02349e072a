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

    // Accumulators, a vector of weights for each column of them, and one input have to fit in the registers.
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

// Tile `tile` of `tiles`: kRows rows from `row` on.
template <class S, class W, int kRows>
static void float_tile(const MatmulArgs& a, int64_t row, int64_t tile, int64_t tiles) {
    constexpr int kVectors = Tiling<S>::vectors(kRows);
    constexpr int kPasses = Tiling<S>::kUnitVectors / kVectors;
    constexpr int kStepBytes = Tiling<S>::kUnitVectors * W::kVectorBytes;
    const int64_t steps = a.inputs / W::kInputs;
    const int64_t ahead_step = kStepBytes / (kPasses * tiles);
    for (int pass = 0; pass < kPasses; ++pass) {
        const char* w = a.unit + pass * kVectors * W::kVectorBytes;
        const char* ahead = a.next + (tile * kPasses + pass) * steps * ahead_step;
        const typename W::Input* x = W::row(*a.x, row);
        typename S::F acc[kRows][kVectors];
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) acc[m][v] = S::zero();
        for (int64_t k = 0; k < steps; ++k) {
            S::prefetch(ahead);
            if constexpr (kStepBytes > 64 && kPasses == 1) S::prefetch(ahead + 64);
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

// Four- and eight-bit weights: exact integer dot products of a group, then one multiply-add by the scales.
template <class S, Format kFormat>
struct GroupWeights {
    static constexpr bool kEight = kFormat == Format::Int8;
    static constexpr int kHalfBytes = kEight ? 512 : 256;  // 16 outputs
    static constexpr int kScales = 2 * kHalfBytes;
    static constexpr int kBytes = kScales + kUnit * (kFormat == Format::Int4 ? 4 : 2);
    static const char* vector(const char* group, int v) {
        constexpr int kPerHalf = kUnit / 2 / S::kLanes;
        return group + v / kPerHalf * kHalfBytes + v % kPerHalf * S::kLanes * 4;
    }
};

template <class S, int kRows>
static inline __attribute__((always_inline)) void nibble_dots(const char* w, const int8_t* x, int64_t stride,
                                                              const int32_t* sum, int64_t groups,
                                                              typename S::F (&dots)[kRows]) {
    const typename S::Nibbles nibbles = S::load_nibbles(w);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) dots[m] = S::dot(nibbles, x + m * stride, sum[m * groups]);
}

template <class S, int kRows>
static inline __attribute__((always_inline)) void byte_dots(const char* w, const int8_t* x, int64_t stride,
                                                            const int32_t* sum, int64_t groups,
                                                            typename S::F (&dots)[kRows]) {
    typename S::I acc[kRows];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) acc[m] = S::zero_int();
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
        const typename S::Quad quad = S::load_quad(w + j * 64);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) acc[m] = S::dot4(acc[m], quad, x + m * stride + 4 * j);
    }
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) dots[m] = S::finish_dot(acc[m], sum[m * groups]);
}

template <class S, Format kFormat, int kRows>
static void group_tile(const MatmulArgs& a, int64_t row, int64_t tile, int64_t tiles) {
    using W = GroupWeights<S, kFormat>;
    constexpr int kVectors = Tiling<S>::kUnitVectors;
    const int64_t groups = a.inputs / kGroup;
    const int64_t ahead_step = W::kBytes / tiles;
    const char* ahead = a.next + tile * groups * ahead_step;
    typename S::F acc[kVectors][kRows];
    for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) acc[v][m] = S::zero();
    const char* group = a.unit;
    for (int64_t g = 0; g < groups; ++g, group += W::kBytes, ahead += ahead_step) {
        for (int64_t line = 0; line < ahead_step; line += 64) S::prefetch(ahead + line);
        const int8_t* x = a.x->int8 + row * a.x->stride + g * kGroup;
        const int64_t of_row = row * groups + g;
        for (int v = 0; v < kVectors; ++v) {
            typename S::F dots[kRows];
            if constexpr (W::kEight)
                byte_dots<S, kRows>(W::vector(group, v), x, a.x->stride, a.x->sum + of_row, groups, dots);
            else
                nibble_dots<S, kRows>(W::vector(group, v), x, a.x->stride, a.x->sum + of_row, groups, dots);
            const uint16_t* scales = reinterpret_cast<const uint16_t*>(group + W::kScales) + v * S::kLanes;
            const typename S::F d = S::load_half(scales);
            typename S::F min = S::zero();
            if constexpr (kFormat == Format::Int4) min = S::load_half(scales + kUnit);
            if constexpr (kFormat == Format::Int4Symmetric) min = S::mul(d, S::set1(-8.0f));
#pragma GCC unroll 16
            for (int m = 0; m < kRows; ++m) {
                const typename S::F scale = S::mul(d, S::set1(a.x->scale[of_row + m * groups]));
                acc[v][m] = S::fma(dots[m], scale, acc[v][m]);
                if constexpr (!W::kEight)
                    acc[v][m] = S::fma(min, S::set1(a.x->scaled_sum[of_row + m * groups]), acc[v][m]);
            }
        }
    }
    for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) S::store(a.y + (row + m) * a.y_stride + v * S::kLanes, acc[v][m]);
}

// Tiles as equal as can be: the last one must not be a lonely row.
template <class S, class Tile>
static void for_tiles(const MatmulArgs& a) {
    const int64_t tiles = ceil_div(a.rows, Tiling<S>::kMaxRows);
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t from = a.rows * tile / tiles, to = a.rows * (tile + 1) / tiles;
        Tile::template run<Tiling<S>::kMaxRows>(static_cast<int>(to - from), a, from, tile, tiles);
    }
}

template <class S, Format kFormat>
struct Tile {
    template <int kRows>
    static void run(int rows, const MatmulArgs& a, int64_t row, int64_t tile, int64_t tiles) {
        if constexpr (kRows > 1)
            if (rows < kRows) return run<kRows - 1>(rows, a, row, tile, tiles);
        if constexpr (kFormat == Format::F32)
            float_tile<S, F32Weights<S>, kRows>(a, row, tile, tiles);
        else if constexpr (kFormat == Format::BF16)
            float_tile<S, Bf16Weights<S>, kRows>(a, row, tile, tiles);
        else
            group_tile<S, kFormat, kRows>(a, row, tile, tiles);
    }
};

template <class S, Format kFormat>
static void matmul(const MatmulArgs& a) {
    for_tiles<S, Tile<S, kFormat>>(a);
}

}  // namespace decodeloop
