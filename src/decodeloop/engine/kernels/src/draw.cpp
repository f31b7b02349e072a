#include "draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace decodeloop {

namespace {

void require(bool holds, const char* what, int64_t sequence) {
    if (!holds) throw std::invalid_argument(std::string(what) + " of sequence " + std::to_string(sequence));
}

// The lowest id among those with the highest score, as if every score were evaluated.
class Race {
public:
    Race(const float* logits, double temperature, const NoiseKey& noise, int64_t likeliest)
        : logits_(logits), top_(logits[likeliest]), temperature_(temperature), noise_(noise) {
        enter(likeliest, noise_word(noise, kCoupledHigh, likeliest));
    }

    void enter(int64_t id, uint32_t high) {
        const double log_weight = (static_cast<double>(logits_[id]) - top_) / temperature_;
        const double score = log_weight + gumbel(high, noise_word(noise_, kCoupledLow, id));
        if (score > best_ || (score == best_ && id < winner_)) {
            best_ = score;
            winner_ = id;
        }
    }

    double best() const { return best_; }
    int64_t winner() const { return winner_; }

private:
    const float* logits_;
    double top_, temperature_;
    NoiseKey noise_;
    double best_ = -std::numeric_limits<double>::infinity();
    int64_t winner_ = 0;
};

int64_t winner(const Kernels& kernels, const float* logits, int64_t vocab_size, double temperature,
               const NoiseKey& noise, int64_t likeliest) {
    uint32_t words[kScreenIds];
    int32_t found[kScreenIds];
    Race race(logits, temperature, noise, likeliest);
    const auto scale = static_cast<float>(1.0 / temperature);
    for (int64_t first = 0; first < vocab_size; first += kScreenIds) {
        const int64_t count = std::min<int64_t>(kScreenIds, vocab_size - first);
        const auto least = static_cast<float>(race.best());
        const int left = kernels.screen({logits, first, count, noise, logits[likeliest], scale, least, words, found});
        for (int i = 0; i < left; ++i) race.enter(first + found[i], words[found[i]]);
    }
    return race.winner();
}

void draw_sequence(const Kernels& kernels, const DrawBatch& batch, const DrawOutputs& outputs, int64_t sequence) {
    const double temperature = batch.temperatures[sequence];
    int32_t& emitted = outputs.emitted[sequence];
    emitted = 0;
    for (int64_t i = 0; i < batch.count[sequence]; ++i) {
        const int64_t row = batch.first[sequence] + i;
        const float* logits = batch.logits + row * batch.vocab_size;
        int64_t token = kernels.likeliest(logits, batch.vocab_size);
        if (token < 0) {
            emitted = 0;
            return;
        }
        outputs.entropies[row] = 0.0f;
        if (temperature > 0) {
            const auto position = static_cast<uint32_t>(batch.positions[sequence] + i);
            const NoiseKey noise{{batch.keys[2 * sequence], batch.keys[2 * sequence + 1]}, position};
            const auto scale = static_cast<float>(1.0 / temperature);
            outputs.entropies[row] = kernels.entropy(logits, batch.vocab_size, logits[token], scale);
            token = winner(kernels, logits, batch.vocab_size, temperature, noise, token);
        }
        outputs.tokens[row] = static_cast<int32_t>(token);
        emitted = static_cast<int32_t>(i + 1);
        if (token != batch.drafted[row]) return;
    }
}

}  // namespace

void DrawBatch::check() const {
    for (int64_t s = 0; s < sequences; ++s) {
        require(count[s] >= 1 && first[s] >= 0 && int64_t{first[s]} + count[s] <= rows, "rows out of range", s);
        require(positions[s] >= 0 && positions[s] + count[s] <= std::numeric_limits<uint32_t>::max(),
                "position out of range", s);
        require(temperatures[s] == 0 || (std::isfinite(temperatures[s]) && temperatures[s] >= 1e-30),
                "temperature neither 0 nor a positive number", s);
    }
}

void draw(const Kernels& kernels, Team& team, const DrawBatch& batch, const DrawOutputs& outputs) {
    batch.check();
    const auto work = [&](int sequence) { draw_sequence(kernels, batch, outputs, sequence); };
    if (batch.sequences == 1) return work(0);
    team.run_uneven([&](int thread) { team.share(thread, static_cast<int>(batch.sequences), work); });
}

}  // namespace decodeloop
