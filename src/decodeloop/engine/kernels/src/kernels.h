// What a step asks of an instruction set. One table per ISA, chosen at run time; everything else is plain C++.
//
// Every function here is batch-invariant: what it computes for one row does not depend on the other rows it is given.
#pragma once

#include <cstdint>

#include "format.h"
#include "noise.h"

namespace decodeloop {

// How a kernel wants its input rows.
enum class RowKind { F32, BF16, Int8, Int16 };
constexpr int kRowKinds = 4;

// Input rows of matrix products, zero beyond their width. f32 and bf16: [rows][stride]. Int8 rows lie group by group, as
// products take them: [groups][capacity][32] integers, and [groups][capacity] scales, sums of a group's integers times
// their scale (scaled_sum) and times -128 (bias). Int16 rows lie likewise, in each four of them the even ones first; they have scales of their own.
struct RowSet {
    int64_t stride = 0;
    int64_t capacity = 0;  // in rows
    float* f32 = nullptr;
    uint16_t* bf16 = nullptr;
    int8_t* int8 = nullptr;
    int16_t* int16 = nullptr;
    float* scale = nullptr;
    float* scale16 = nullptr;
    float* scaled_sum = nullptr;
    int32_t* bias = nullptr;

    int64_t place(int64_t row, int64_t group) const { return group * capacity + row; }
};

struct MatmulArgs {
    const char* unit;  // weights of 32 outputs
    const char* next;  // the unit to bring into the cache meanwhile
    int64_t inputs;    // padded
    const RowSet* x;
    int64_t rows;
    float* y;  // [rows][32], y_stride apart
    int64_t y_stride;
};

constexpr int kBlockTokens = 16;       // positions in a block of keys and values
constexpr int kChunkBlocks = 16;       // blocks that attention treats at once
constexpr int kChunk = kBlockTokens * kChunkBlocks;
constexpr int kMaxAttentionRows = 6;
constexpr int kMaxHeadDim = 512;

// How a block of keys and values lies in memory; F32 is for comparing everything else with a reference.
// BF16: keys [head_dim / 2][16][2], then values [8][head_dim][2]. F32: keys [head_dim][16], then values [16][head_dim].
enum class KvFormat { BF16, F32 };
constexpr int kKvFormats = 2;

// Softmax-weighted sums over one chunk of positions, not yet normalised.
// A partial is [head_dim padded] sums, then the largest score, then the sum of weights.
struct AttentionArgs {
    const float* q;  // [rows][head_dim], q_stride apart, scaled; rows in order of position
    int64_t q_stride;
    int rows;
    int64_t head_dim;  // padded to 16
    const char* const* blocks;  // the chunk's
    int64_t start;              // the chunk's first position
    const int32_t* first;       // [rows] what each row sees: positions first..last, some of them in this chunk
    const int32_t* last;
    float softcap;  // 0: none
    float* partials;  // [rows], partial_stride apart
    int64_t partial_stride;
};

// Ids whose noise is made at once.
constexpr int kScreenIds = 1024;

struct ScreenArgs {
    const float* logits;  // the whole row
    int64_t first, count;  // ids first..first + count; first is a multiple of kScreenIds, count at most that
    NoiseKey noise;
    float top, scale, least;  // a token's score is (logit - top) * scale + its noise
    uint32_t* words;          // [kScreenIds] out: high words
    int32_t* found;           // [kScreenIds] out: which, counted from `first`, may have a score of `least` or more
};

enum class Activation { Silu, GeluTanh };

struct Kernels {
    const char* name;
    RowKind row_kind[kFormats];
    void (*matmul[kFormats])(const MatmulArgs&);
    // groups [from, to) of a row from f32 to the other kinds
    void (*to_bf16)(const RowSet& rows, int64_t row, int64_t from, int64_t to);
    void (*to_int8)(const RowSet& rows, int64_t row, int64_t from, int64_t to);
    void (*to_int16)(const RowSet& rows, int64_t row, int64_t from, int64_t to);
    // out = x / rms(x) * weight; n padded to 32 with zeros
    void (*rms_norm)(const float* x, const float* weight, int64_t n, int64_t padded, float eps, float* out);
    void (*add)(const float* x, int64_t n, float* sum);
    void (*gate)(const float* gate, const float* up, int64_t n, Activation activation, float* out);
    void (*softcap)(float* x, int64_t n, float cap);
    // rotate-half in place; cos, sin: [head_dim / 2]
    void (*rotate)(float* x, const float* cos, const float* sin, int64_t head_dim);
    void (*store_kv[kKvFormats])(const float* k, const float* v, int64_t head_dim, int64_t padded, int64_t offset,
                                 char* block);
    void (*attend[kKvFormats])(const AttentionArgs&);
    // state = state (+) partial, in the order of chunks
    void (*fold)(const float* partial, int64_t head_dim, float* state);
    void (*normalise)(const float* state, int64_t head_dim, int64_t padded, float* out);
    int64_t (*likeliest)(const float* x, int64_t n);
    float (*entropy)(const float* x, int64_t n, float top, float scale);
    int (*screen)(const ScreenArgs&);  // how many were found
    // which of x[0..n) are `least` or more, and how many
    int (*above)(const float* x, int64_t n, float least, int32_t* found);
    // the sum of exp((x - top) * scale), terms off by less than 1e-12 of themselves; those under 1e-300 are as good as 0
    double (*weight)(const float* x, int64_t n, double top, double scale);
};

// Null where this build or this machine lacks the instructions.
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels* kernels_portable();

}  // namespace decodeloop
