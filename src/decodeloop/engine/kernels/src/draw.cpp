#include "draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace decodeloop {

namespace {

void require(bool holds, const char* what, int64_t sequence) {
    if (!holds) throw std::invalid_argument(std::string(what) + " of sequence " + std::to_string(sequence));
}

constexpr Candidate kLeast{-std::numeric_limits<double>::infinity(), 0, std::numeric_limits<int32_t>::max()};
constexpr size_t kDense = 16;  // noise of so many ids in a row costs as much as that of one by itself

// The lowest id among those with the highest score, as if every score were evaluated.
class Race {
public:
    explicit Race(const NoiseKey& noise) : noise_(noise) {}

    void enter(const Candidate& candidate, uint32_t high) {
        const double score = candidate.log_weight + gumbel(high, noise_word(noise_, kCoupledLow, candidate.id));
        if (score > best_ || (score == best_ && candidate.id < winner_)) {
            best_ = score;
            winner_ = candidate.id;
        }
    }

    double best() const { return best_; }
    int64_t winner() const { return winner_; }

private:
    NoiseKey noise_;
    double best_ = -std::numeric_limits<double>::infinity();
    int64_t winner_ = 0;
};

// Of all down to `last`.
int64_t winner(const Kernels& kernels, const LogitRow& row, const NoiseKey& noise, int64_t likeliest,
               const Candidate& last) {
    uint32_t words[kScreenIds];
    int32_t found[kScreenIds];
    Race race(noise);
    race.enter({0.0, 1.0, static_cast<int32_t>(likeliest)}, noise_word(noise, kCoupledHigh, likeliest));
    const auto top = static_cast<float>(row.top), scale = static_cast<float>(1.0 / row.temperature);
    for (int64_t first = 0; first < row.vocab_size; first += kScreenIds) {
        const int64_t count = std::min<int64_t>(kScreenIds, row.vocab_size - first);
        const auto least = static_cast<float>(race.best());
        const int left = kernels.screen({row.logits, first, count, noise, top, scale, least, words, found});
        for (int i = 0; i < left; ++i) {
            const int64_t id = first + found[i];
            const Candidate candidate{row.log_weight(id), 0, static_cast<int32_t>(id)};
            if (!before(last, candidate)) race.enter(candidate, words[found[i]]);
        }
    }
    return race.winner();
}

int64_t winner_among(const std::vector<Candidate>& few, const NoiseKey& noise) {
    Race race(noise);
    for (const Candidate& candidate : few) {
        const uint32_t high = noise_word(noise, kCoupledHigh, candidate.id);
        if (candidate.log_weight + gumbel_bound(high) >= race.best()) race.enter(candidate, high);
    }
    return race.winner();
}

float entropy_of(const std::vector<Candidate>& kept) {
    double total = 0, moment = 0;
    for (const Candidate& candidate : kept) {
        total += candidate.weight;
        moment += candidate.weight * candidate.log_weight;
    }
    return static_cast<float>(std::max(0.0, std::log(total) - moment / total));
}

struct Choice {
    int64_t token;  // -1: none can be made here
    float entropy;
};

Choice choose(const Kernels& kernels, const LogitRow& row, const Filters& filters, const NoiseKey& noise,
              int64_t likeliest, std::vector<Candidate>& kept) {
    if (!filters.any()) {
        const auto top = static_cast<float>(row.top), scale = static_cast<float>(1.0 / row.temperature);
        const float entropy = kernels.entropy(row.logits, row.vocab_size, top, scale);
        return {winner(kernels, row, noise, likeliest, kLeast), entropy};
    }
    if (!keep(kernels, row, filters, kept)) return {-1, 0.0f};
    if (kept.size() * kDense < static_cast<size_t>(row.vocab_size))
        return {winner_among(kept, noise), entropy_of(kept)};
    const Candidate last = *std::max_element(kept.begin(), kept.end(), before);
    return {winner(kernels, row, noise, likeliest, last), entropy_of(kept)};
}

void draw_sequence(const Kernels& kernels, const DrawBatch& batch, const DrawOutputs& outputs, int64_t sequence) {
    const double temperature = batch.temperatures[sequence];
    std::vector<Candidate> kept;
    int32_t& emitted = outputs.emitted[sequence];
    emitted = 0;
    for (int64_t i = 0; i < batch.count[sequence]; ++i) {
        const int64_t row = batch.first[sequence] + i;
        const float* logits = batch.logits + row * batch.vocab_size;
        const int64_t likeliest = kernels.likeliest(logits, batch.vocab_size);
        Choice choice{likeliest, 0.0f};
        if (likeliest >= 0 && temperature > 0) {
            const auto position = static_cast<uint32_t>(batch.positions[sequence] + i);
            const NoiseKey noise{{batch.keys[2 * sequence], batch.keys[2 * sequence + 1]}, position};
            const LogitRow given{logits, batch.vocab_size, logits[likeliest], temperature};
            choice = choose(kernels, given, batch.filters[sequence], noise, likeliest, kept);
        }
        if (choice.token < 0) {
            emitted = 0;
            return;
        }
        outputs.tokens[row] = static_cast<int32_t>(choice.token);
        outputs.entropies[row] = choice.entropy;
        emitted = static_cast<int32_t>(i + 1);
        if (choice.token != batch.drafted[row]) return;
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
