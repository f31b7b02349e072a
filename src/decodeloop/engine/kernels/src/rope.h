// Rotary embedding: cosines and sines of the positions in use.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace decodeloop {

class RopeTable {
public:
    // inverse_frequencies: [head_dim / 2]
    explicit RopeTable(std::vector<float> inverse_frequencies) : frequencies_(std::move(inverse_frequencies)) {}

    int64_t pairs() const { return static_cast<int64_t>(frequencies_.size()); }

    // Grows to hold `positions`. Angles are products in single precision, as the reference implementations have them.
    void reserve(int64_t positions) {
        const int64_t wanted = positions * pairs();
        for (int64_t i = static_cast<int64_t>(cos_.size()); i < wanted; ++i) {
            const float angle = static_cast<float>(i / pairs()) * frequencies_[static_cast<size_t>(i % pairs())];
            cos_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
            sin_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
        }
    }

    const float* cos(int64_t position) const { return cos_.data() + position * pairs(); }
    const float* sin(int64_t position) const { return sin_.data() + position * pairs(); }

private:
    std::vector<float> frequencies_, cos_, sin_;
};

}  // namespace decodeloop
