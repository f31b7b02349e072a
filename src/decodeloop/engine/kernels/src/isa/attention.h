// Attention of a few rows over one chunk of positions, for any Simd and format W of keys and values.
//
// A row's score at a position is one chain over the head's dimensions, and its output one chain over positions in
// order: neither depends on the rows that share the loads of keys and values.
#pragma once

#include "../kernels.h"
#include "matmul.h"
#include "rows.h"

namespace decodeloop {

// A chunk as one row sees it: positions [from, to) counted from the chunk's start. `from` is even, so that a pair of
// values is never split (a score that is masked out weighs nothing).
struct Span {
    int64_t from, to;
};

static inline Span span_of(const AttentionArgs& a, int row) {
    const int64_t from = a.first[row] > a.start ? a.first[row] - a.start : 0;
    const int64_t to = a.last[row] - a.start + 1;
    return {from / 2 * 2, to < kChunk ? to : kChunk};
}

// Both formats hold 4 bytes a lane and step: a float, or a pair of bfloat16.
constexpr int64_t kLaneBytes = 4;

template <class S, class W, int kRows, int kVectors>
static inline __attribute__((always_inline)) void steps(typename S::F (&acc)[kRows][kVectors], const char* w,
                                                        const typename W::Input* x, int64_t stride) {
    float_step<S, W, 0, kRows, kVectors>(acc, w, x, stride);
    if constexpr (W::kSteps == 2) float_step<S, W, 1, kRows, kVectors>(acc, w, x, stride);
}

template <class S>
static inline void prefetch_lines(const char* from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) S::prefetch(from + line);
}

// How many vectors of 16 sums a tile of rows takes at once: enough to keep the multipliers busy.
template <class S>
static constexpr int at_once(int rows, int most) {
    constexpr int kVectors = kBlockTokens / S::kLanes;
    int count = 1;
    while (count < most && 2 * count * kVectors * (rows + 1) < S::kRegisters) count *= 2;
    return count;
}

template <class W, int kStep, int kBlocks, int kVectors, int kRows, class F>
static inline __attribute__((always_inline)) void score_step(F (&acc)[kRows][kBlocks * kVectors],
                                                             const char* const* keys, int64_t at,
                                                             const typename W::Input* q, int64_t stride) {
    F weight[kBlocks * kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kBlocks * kVectors; ++v)
        weight[v] = W::template weight<kStep>(keys[v / kVectors] + at + v % kVectors * W::kVectorBytes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        const F input = W::template input<kStep>(q + r * stride);
#pragma GCC unroll 16
        for (int v = 0; v < kBlocks * kVectors; ++v) acc[r][v] = W::mac(acc[r][v], weight[v], input);
    }
}

// q . k for kRows rows and the positions of kBlocks blocks.
template <class S, class W, int kRows, int kBlocks>
static void score_blocks(const typename W::Input* q, int64_t head_dim, const char* const* blocks, float* scores) {
    constexpr int kVectors = kBlockTokens / S::kLanes;
    typename S::F acc[kRows][kBlocks * kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kBlocks * kVectors; ++v) acc[r][v] = S::zero();
    const char* keys[kBlocks];
#pragma GCC unroll 8
    for (int b = 0; b < kBlocks; ++b) keys[b] = blocks[b];
    for (int64_t d = 0, at = 0; d < head_dim; d += W::kInputs, at += kBlockTokens * kLaneBytes) {
        score_step<W, 0, kBlocks, kVectors, kRows>(acc, keys, at, q + d, head_dim);
        if constexpr (W::kSteps == 2) score_step<W, 1, kBlocks, kVectors, kRows>(acc, keys, at, q + d, head_dim);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kBlocks * kVectors; ++v) S::store(scores + r * kChunk + v * S::kLanes, acc[r][v]);
}

// Blocks [from, to) for a.rows rows; brings their values, and the keys that follow, into the cache.
template <class S, class W, int kRows>
static void score_rows(const AttentionArgs& a, const typename W::Input* q, int64_t from, int64_t to, float* scores) {
    if constexpr (kRows > 1)
        if (a.rows < kRows) return score_rows<S, W, kRows - 1>(a, q, from, to, scores);
    constexpr int kBlocks = at_once<S>(kRows, 8);
    const int64_t key_bytes = kBlockTokens / W::kInputs * kLaneBytes * a.head_dim;
    const auto prefetch = [&](int64_t b) {
        prefetch_lines<S>(a.blocks[b] + key_bytes, key_bytes);
        if (b + kBlocks < to) prefetch_lines<S>(a.blocks[b + kBlocks], key_bytes);
    };
    int64_t b = from;
    for (; b + kBlocks <= to; b += kBlocks) {
        for (int i = 0; i < kBlocks; ++i) prefetch(b + i);
        score_blocks<S, W, kRows, kBlocks>(q, a.head_dim, a.blocks + b, scores + b * kBlockTokens);
    }
    for (; b < to; ++b) {
        prefetch(b);
        score_blocks<S, W, kRows, 1>(q, a.head_dim, a.blocks + b, scores + b * kBlockTokens);
    }
}

// partials += weights . values over positions [from, to), for kRows rows and kStrips strips of 16 dimensions. At an odd
// `to` the other half of the last pair of values is left alone: it may hold anything.
template <class S, class W, int kRows, int kStrips>
static void weigh_strips(const AttentionArgs& a, const typename W::Input* weights, int64_t from, int64_t to,
                         int64_t strip, float* partials) {
    constexpr int kVectors = kStrips * kBlockTokens / S::kLanes;
    const int64_t step_bytes = a.head_dim * kLaneBytes;
    const int64_t key_bytes = kBlockTokens / W::kInputs * step_bytes;
    typename S::F acc[kRows][kVectors];
    partials += strip * kBlockTokens;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) acc[r][v] = S::load(partials + r * a.partial_stride + v * S::kLanes);
    for (int64_t p = from; p < to;) {
        const char* values = a.blocks[p / kBlockTokens] + key_bytes + strip * kBlockTokens * kLaneBytes +
                             p % kBlockTokens / W::kInputs * step_bytes;
        const int64_t block_end = round_up(p + 1, kBlockTokens), end = block_end < to ? block_end : to;
        for (; p + W::kInputs <= end; p += W::kInputs, values += step_bytes)
            steps<S, W, kRows, kVectors>(acc, values, weights + p, kChunk);
        if constexpr (W::kInputs == 2) {
            if (p == end) continue;
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v)
                    acc[r][v] = W::mac(acc[r][v], W::low_weight(values + v * W::kVectorBytes),
                                       W::low_input(weights + r * kChunk + p));
            ++p;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) S::store(partials + r * a.partial_stride + v * S::kLanes, acc[r][v]);
}

template <class S, class W, int kRows>
static void weigh_rows(int rows, const AttentionArgs& a, const typename W::Input* weights, int64_t from, int64_t to,
                       float* partials) {
    if (from >= to) return;
    if constexpr (kRows > 1)
        if (rows < kRows) return weigh_rows<S, W, kRows - 1>(rows, a, weights, from, to, partials);
    constexpr int kStrips = at_once<S>(kRows, 4);
    const int64_t strips = a.head_dim / kBlockTokens;
    int64_t strip = 0;
    for (; strip + kStrips <= strips; strip += kStrips)
        weigh_strips<S, W, kRows, kStrips>(a, weights, from, to, strip, partials);
    for (; strip < strips; ++strip) weigh_strips<S, W, kRows, 1>(a, weights, from, to, strip, partials);
}

// Scores of whole blocks to softmax weights; the largest score and the sum of weights go to the partial.
template <class S, class W>
static void soften(const AttentionArgs& a, int row, float* scores, typename W::Input* weights, float* partial) {
    const Span span = span_of(a, row);
    const int64_t begin = span.from / kBlockTokens * kBlockTokens, end = round_up(span.to, kBlockTokens);
    if (a.softcap > 0) softcap<S>(scores + begin, end - begin, a.softcap);
    const float hidden = -__builtin_inff();
    for (int64_t p = begin; p < end && a.start + p < a.first[row]; ++p) scores[p] = hidden;
    for (int64_t p = span.to; p < end; ++p) scores[p] = hidden;
    typename S::F largest = S::set1(hidden);
    for (int64_t p = begin; p < end; p += S::kLanes) largest = S::max(largest, S::load(scores + p));
    const float top = lane_max<S>(largest);
    typename S::F sum = S::zero();
    for (int64_t p = begin; p < end; p += S::kLanes) {
        const typename S::F score = S::load(scores + p);
        const typename S::F weight = S::where_finite(score, exp<S>(S::sub(score, S::set1(top))));
        W::store(weights + p, weight);
        sum = S::add(sum, weight);
    }
    partial[a.head_dim] = top;
    partial[a.head_dim + 1] = lane_sum<S>(sum);
}

template <class S, class W>
static void attend(const AttentionArgs& a) {
    alignas(64) float scores[kMaxAttentionRows * kChunk];
    alignas(64) typename W::Input weights[kMaxAttentionRows * kChunk];
    alignas(64) typename W::Input q[kMaxAttentionRows * kMaxHeadDim];
    Span all{kChunk, 0}, common{0, kChunk};
    for (int r = 0; r < a.rows; ++r) {
        const Span span = span_of(a, r);
        all = {span.from < all.from ? span.from : all.from, span.to > all.to ? span.to : all.to};
        common = {span.from > common.from ? span.from : common.from, span.to < common.to ? span.to : common.to};
        float* partial = a.partials + r * a.partial_stride;
        for (int64_t d = 0; d < a.head_dim; d += S::kLanes) {
            W::store(q + r * a.head_dim + d, S::load(a.q + r * a.q_stride + d));
            S::store(partial + d, S::zero());
        }
    }
    score_rows<S, W, kMaxAttentionRows>(a, q, all.from / kBlockTokens, ceil_div(all.to, kBlockTokens), scores);
    for (int r = 0; r < a.rows; ++r)
        soften<S, W>(a, r, scores + r * kChunk, weights + r * kChunk, a.partials + r * a.partial_stride);

    // What all rows see is weighed together; what only some see, before and after it, row by row.
    common.to = common.to / 2 * 2;
    if (common.from >= common.to) common = {kChunk, kChunk};
    const auto alone = [&](int r, int64_t from, int64_t to) {
        weigh_rows<S, W, 1>(1, a, weights + r * kChunk, from, to, a.partials + r * a.partial_stride);
    };
    for (int r = 0; r < a.rows; ++r) {
        const Span span = span_of(a, r);
        alone(r, span.from, span.to < common.from ? span.to : common.from);
    }
    weigh_rows<S, W, kMaxAttentionRows>(a.rows, a, weights, common.from, common.to, a.partials);
    for (int r = 0; r < a.rows; ++r) alone(r, common.to, span_of(a, r).to);
}

// state = state (+) partial: both scaled to the larger of the two largest scores.
template <class S>
static void fold(const float* partial, int64_t head_dim, float* state) {
    const float top = partial[head_dim] > state[head_dim] ? partial[head_dim] : state[head_dim];
    const typename S::F keep = exp<S>(S::set1(state[head_dim] - top));
    const typename S::F take = exp<S>(S::set1(partial[head_dim] - top));
    for (int64_t d = 0; d < head_dim; d += S::kLanes)
        S::store(state + d, S::fma(S::load(partial + d), take, S::mul(S::load(state + d), keep)));
    float keep_scale[S::kLanes], take_scale[S::kLanes];
    S::store(keep_scale, keep);
    S::store(take_scale, take);
    state[head_dim] = top;
    state[head_dim + 1] = state[head_dim + 1] * keep_scale[0] + partial[head_dim + 1] * take_scale[0];
}

static inline void normalise(const float* state, int64_t head_dim, int64_t padded, float* out) {
    const float inverse = 1.0f / state[padded + 1];
    for (int64_t d = 0; d < head_dim; ++d) out[d] = state[d] * inverse;
}

}  // namespace decodeloop
