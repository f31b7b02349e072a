// The end of a step: logits of chosen rows, of the whole vocabulary or of a part.
#include <algorithm>
#include <map>

#include "step.h"

namespace decodeloop {

void Step::pick_units(const Batch& batch) {
    picks_.clear();
    if (batch.vocabulary == nullptr) return;
    std::map<int64_t, size_t> known;
    for (int64_t place = 0; place < batch.vocabulary_size; ++place) {
        const int64_t unit = batch.vocabulary[place] / kUnit;
        const auto [found, is_new] = known.try_emplace(unit, picks_.size());
        if (is_new) picks_.push_back({unit, {}});
        picks_[found->second].columns.emplace_back(batch.vocabulary[place] % kUnit, place);
    }
}

void Step::head(int thread) {
    if (batch_->rows == 0) return;
    const Matrix& matrix = model_.head();
    const RowSet& x = normed(thread, batch_->logit_rows, batch_->rows, model_.final_norm(), {&matrix});
    const bool picked = batch_->vocabulary != nullptr;
    team_.share(thread, static_cast<int>(picked ? static_cast<int64_t>(picks_.size()) : matrix.units()),
                [&](int unit) { head_unit(thread, unit, x); });
}

void Step::head_unit(int thread, int unit, const RowSet& x) {
    const Matrix& matrix = model_.head();
    const int64_t rows = batch_->rows, vocab = shape_.vocab_size;
    const auto cap = [&](float* logits, int64_t stride) {
        if (shape_.final_softcap <= 0) return;
        for (int64_t row = 0; row < rows; ++row) kernels_->softcap(logits + row * stride, kUnit, shape_.final_softcap);
    };
    if (batch_->vocabulary == nullptr && (int64_t{unit} + 1) * kUnit <= vocab) {
        float* logits = outputs_.logits + int64_t{unit} * kUnit;
        product(matrix, unit, following(thread, matrix, unit, model_.layer(0).q), x, rows, logits, vocab);
        return cap(logits, vocab);
    }
    float* logits = tile(thread);
    const Pick* pick = batch_->vocabulary == nullptr ? nullptr : &picks_[static_cast<size_t>(unit)];
    const int64_t place = pick == nullptr ? unit : pick->unit;
    product(matrix, place, matrix.unit(place), x, rows, logits, kUnit);
    cap(logits, kUnit);
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = logits + row * kUnit;
        if (pick == nullptr)
            std::copy(from, from + vocab % kUnit, outputs_.logits + row * vocab + place * kUnit);
        else
            for (const auto& [column, to] : pick->columns)
                outputs_.logits[row * batch_->vocabulary_size + to] = from[column];
    }
}

}  // namespace decodeloop
