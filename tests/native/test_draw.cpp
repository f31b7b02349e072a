// Draws against every score evaluated one by one, filters against a sort, and the noise against published numbers.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "check.h"
#include "draw.h"
#include "kernels.h"
#include "noise.h"

using namespace decodeloop;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// The known answers of Random123 for Philox4x32-10.
void test_philox() {
    const std::array<uint32_t, 4> zeros = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
    for (int id = 0; id < 4; ++id)
        check(noise_word({{0, 0}, 0}, 0, id) == zeros[static_cast<size_t>(id)], "a known word");
}

int64_t slow_winner(const std::vector<float>& x, double temperature, const NoiseKey& noise) {
    const double top = *std::max_element(x.begin(), x.end());
    double best = -std::numeric_limits<double>::infinity();
    int64_t winner = -1;
    for (size_t i = 0; i < x.size(); ++i) {
        const auto id = static_cast<int64_t>(i);
        const double noise_of = gumbel(noise_word(noise, kCoupledHigh, id), noise_word(noise, kCoupledLow, id));
        const double score = (x[i] - top) / temperature + noise_of;
        if (score > best) {
            best = score;
            winner = id;
        }
    }
    return winner;
}

double slow_entropy(const std::vector<float>& x, double temperature) {
    const double top = *std::max_element(x.begin(), x.end());
    double total = 0, moment = 0;
    for (const float value : x) {
        const double shifted = (value - top) / temperature;
        if (shifted < -700) continue;
        total += std::exp(shifted);
        moment += std::exp(shifted) * shifted;
    }
    return std::log(total) - moment / total;
}

struct Drawn {
    std::vector<int32_t> tokens;
    std::vector<float> entropies;
    int32_t emitted;
};

// One sequence over all of `logits`' rows.
Drawn drawn(const Kernels& kernels, const std::vector<float>& logits, int64_t vocab_size, double temperature,
            const NoiseKey& noise, std::vector<int32_t> drafted = {}, const Filters& filters = {}) {
    Team team(1);
    const int64_t rows = static_cast<int64_t>(logits.size()) / vocab_size, position = noise.position;
    const auto count = static_cast<int32_t>(rows), first = int32_t{0};
    drafted.resize(static_cast<size_t>(rows), -1);
    Drawn out{std::vector<int32_t>(static_cast<size_t>(rows)), std::vector<float>(static_cast<size_t>(rows)), 0};
    draw(kernels, team,
         {rows, vocab_size, 1, logits.data(), &first, &count, drafted.data(), noise.key, &position, &temperature,
          &filters},
         {out.tokens.data(), out.entropies.data(), &out.emitted});
    return out;
}

void test_winners(const Kernels& kernels) {
    for (const int size : {1, 3, 8, 17, 1024, 1030, 3001})
        for (const double temperature : {0.02, 0.7, 1.0, 4.0})
            for (uint32_t position = 0; position < 12; ++position) {
                std::vector<float> x = normal_values(static_cast<size_t>(size), position + 1, 3.0f);
                if (position % 3 == 1)
                    for (float& value : x) value = std::round(value);  // ties
                if (position % 4 == 2)
                    for (size_t i = 1; i < x.size(); i += 3) x[i] = -kInfinity;
                const NoiseKey noise{{position * 77u, 5u}, position};
                const Drawn one = drawn(kernels, x, size, temperature, noise);
                const std::string at = std::string(kernels.name) + " draw of " + std::to_string(size);
                check(one.emitted == 1 && one.tokens[0] == slow_winner(x, temperature, noise), at);
                check_near(one.entropies[0], slow_entropy(x, temperature), 2e-5, at + ", entropy");
                const auto top = std::max_element(x.begin(), x.end()) - x.begin();
                check(drawn(kernels, x, size, 0, noise).tokens[0] == top, at + ", greedy");
            }
}

// What filters leave, by sorting all of it; the rest is minus infinity.
std::vector<float> slowly_filtered(const std::vector<float>& x, double temperature, const Filters& filters) {
    const double top = *std::max_element(x.begin(), x.end());
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    const auto log_weight = [&](size_t id) { return (x[id] - top) / temperature; };
    size_t count = 0;
    while (count < x.size() && log_weight(order[count]) >= filters.least) ++count;
    if (filters.top_k > 0) count = std::min(count, static_cast<size_t>(filters.top_k));
    double total = 0, sum = 0;
    for (size_t i = 0; i < count; ++i) total += std::exp(log_weight(order[i]));
    size_t kept = 0;
    while (kept < count && (filters.top_p >= 1.0 || kept == 0 || sum < filters.top_p * total))
        sum += std::exp(log_weight(order[kept++]));
    std::vector<float> left(x.size(), -kInfinity);
    for (size_t i = 0; i < kept; ++i) left[order[i]] = x[order[i]];
    return left;
}

void test_filters(const Kernels& kernels) {
    for (const int size : {1, 7, 300, 5000})
        for (const double temperature : {0.3, 1.0, 4.0})
            for (const double least : {-kUnbounded, -0.5, -4.0})
                for (const int64_t top_k : {0, 1, 50, 4000})
                    for (const double top_p : {0.001, 0.5, 0.97, 1.0})
                        for (uint32_t position = 0; position < 2; ++position) {
                            std::vector<float> x = normal_values(static_cast<size_t>(size), position + 5, 2.0f);
                            if (position == 1)
                                for (float& value : x) value = std::round(value);  // ties
                            const Filters filters{least, top_k, top_p};
                            const NoiseKey noise{{position * 77u, 5u}, position};
                            const Drawn one = drawn(kernels, x, size, temperature, noise, {}, filters);
                            const std::vector<float> left = slowly_filtered(x, temperature, filters);
                            const std::string at = std::string(kernels.name) + " filters of " + std::to_string(size);
                            check(one.emitted == 1 && one.tokens[0] == slow_winner(left, temperature, noise), at);
                            check_near(one.entropies[0], slow_entropy(left, temperature), 2e-5, at + ", entropy");
                        }
}

void test_weight(const Kernels& kernels) {
    for (const int size : {1, 2, 15, 16, 33, 4001})
        for (const double scale : {0.01, 1.0, 30.0, 1e30}) {
            std::vector<float> x = normal_values(static_cast<size_t>(size), 3, 5.0f);
            x.back() = size > 1 ? -kInfinity : x.back();
            const double top = *std::max_element(x.begin(), x.end());
            double total = 0;
            for (const float value : x) total += std::exp((value - top) * scale);
            check_near(kernels.weight(x.data(), size, top, scale) / total, 1.0, 1e-13, "weight of " + std::to_string(size));
        }
}

void test_rows_in_order(const Kernels& kernels) {
    const std::string name = std::string(kernels.name) + " draft";
    const int64_t size = 50;
    const std::vector<float> x = normal_values(size * 4, 9, 2.0f);
    const NoiseKey noise{{1, 2}, 100};
    std::vector<int32_t> right;
    for (uint32_t row = 0; row < 4; ++row) {
        const std::vector<float> of_row(x.begin() + row * size, x.begin() + (row + 1) * size);
        right.push_back(static_cast<int32_t>(slow_winner(of_row, 1.0, {{1, 2}, 100 + row})));
    }
    for (int wrong_at = 0; wrong_at < 4; ++wrong_at) {
        std::vector<int32_t> drafted(right.begin(), right.begin() + 3);
        if (wrong_at < 3) drafted[static_cast<size_t>(wrong_at)] = -7;
        const Drawn out = drawn(kernels, x, size, 1.0, noise, drafted);
        check(out.emitted == wrong_at + 1, name + " ends behind what is wrong");
        check(std::equal(right.begin(), right.begin() + out.emitted, out.tokens.begin()), name + " and is right");
    }
}

void test_no_distribution(const Kernels& kernels) {
    for (const float bad : {std::nanf(""), kInfinity})
        for (const size_t at : {0, 5, 39}) {
            std::vector<float> x = normal_values(40, 3);
            x[at] = bad;
            check(drawn(kernels, x, 40, 1.0, {{1, 2}, 3}).emitted == 0, std::string(kernels.name) + " refuses it");
            check(drawn(kernels, x, 40, 0.0, {{1, 2}, 3}).emitted == 0, std::string(kernels.name) + " refuses it");
        }
    check(drawn(kernels, std::vector<float>(40, -kInfinity), 40, 1.0, {{1, 2}, 3}).emitted == 0, "nothing is left");
}

}  // namespace

void test_draw(const Kernels& kernels) {
    test_philox();
    test_winners(kernels);
    test_filters(kernels);
    test_weight(kernels);
    test_rows_in_order(kernels);
    test_no_distribution(kernels);
}
