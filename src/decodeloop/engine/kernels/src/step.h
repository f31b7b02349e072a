// One forward over a batch, from token ids to logits, on a team of threads.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "attention.h"
#include "batch.h"
#include "kernels.h"
#include "kv.h"
#include "memory.h"
#include "model.h"
#include "rope.h"
#include "rows.h"
#include "threads.h"

namespace decodeloop {

// Where a step's time goes, as its first thread sees it.
enum class Section { Embed, Qkv, Attention, Output, Mlp, Head };
constexpr int kSections = 6;

struct Outputs {
    float* logits = nullptr;  // [rows][vocab_size, or vocabulary_size]
    float* hidden = nullptr;  // [hidden_layers][rows][hidden_size]
};

class Step {
public:
    // The first `layers` layers of `model`, which must be complete; it, `team` and `kv` must outlive the step.
    Step(const Model& model, int64_t layers, const Kernels* kernels, Team& team, const KvPool& kv);

    // std::invalid_argument for what is out of range, before anything is written.
    void run(const Batch& batch, const Outputs& outputs);

    const std::array<double, kSections>& seconds() const { return seconds_; }
    void reset_seconds() { seconds_ = {}; }

private:
    using Matrices = std::initializer_list<const Matrix*>;
    // A unit of the head that a sub-vocabulary touches, and what to take from it.
    struct Pick {
        int64_t unit;
        std::vector<std::pair<int, int64_t>> columns;  // (output in the unit, place in the vocabulary)
    };

    void reserve(const Batch& batch);
    void pick_units(const Batch& batch);
    void work(int thread);
    void embed(int thread);
    void attention_block(int thread, int64_t layer);
    void attend(int thread, int64_t layer, const Matrix& reader);
    void mlp_block(int thread, int64_t layer, const Matrix& next);
    void head(int thread);
    void head_unit(int thread, int unit, const RowSet& x);
    void place_heads(int thread, int64_t layer, int64_t token, int64_t kv_head);
    void place_vector(int thread, const float* x, Vector bias, Vector norm, int64_t layer, int64_t token, float* out);
    void add_branch(int thread, const Matrix& matrix, Vector bias, const RowSet& input, Vector post_norm,
                    const Matrix& next);
    void keep_hidden(int thread, int64_t layer);
    const RowSet& normed(int thread, const int32_t* index, int64_t rows, Vector norm, Matrices readers);
    void prepare_for(const RowSet& rows, int64_t row, int64_t from, int64_t to, Matrices readers) const;
    void product(const Matrix& matrix, int64_t unit, const char* next, const RowSet& x, int64_t rows, float* y,
                 int64_t y_stride) const;
    const char* following(int thread, const Matrix& matrix, int64_t unit, const Matrix& next) const;
    void lap(int thread, Section section);
    float* tile(int thread) const;  // [2][tokens][32] of the thread's own
    float* stream(int64_t token) const;
    float* branch(int64_t token) const;
    float* qkv(int64_t token) const;

    const Model& model_;
    const Shape& shape_;
    int64_t layers_;
    const Kernels* kernels_;
    Team& team_;
    const KvPool& kv_;
    RopeTable rope_, window_rope_;
    Attention attention_;

    const Batch* batch_ = nullptr;
    Outputs outputs_;
    int64_t width_;                     // of the residual stream, padded
    int64_t q_width_, kv_width_;        // outputs of q, and of k or v, padded to whole units
    int64_t tile_floats_ = 0;
    Buffer stream_, branch_, qkv_, tiles_;
    Rows normed_, attended_, gated_;
    std::vector<Rows> own_normed_;      // each thread's, for a few rows
    std::vector<Pick> picks_;
    std::array<double, kSections> seconds_{};
    std::chrono::steady_clock::time_point lap_start_;
};

}  // namespace decodeloop
