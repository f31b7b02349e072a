// min-p, top-k and top-p: which tokens of a row stay, as decodeloop.speculation.filters defines them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels.h"

namespace decodeloop {

struct Filters {
    double least = -std::numeric_limits<double>::infinity();  // log of min_p
    int64_t top_k = 0;                                        // 0 or less: all
    double top_p = 1.0;

    bool any() const { return least > -std::numeric_limits<double>::infinity() || top_k > 0 || top_p < 1.0; }
};

// A row of logits whose maximum is finite, and nowhere NaN.
struct LogitRow {
    const float* logits;
    int64_t vocab_size;
    double top;  // the maximum
    double temperature;

    double log_weight(int64_t id) const { return (static_cast<double>(logits[id]) - top) / temperature; }
};

struct Candidate {
    double log_weight;
    double weight;  // its exponential
    int32_t id;
};

// The order in which every filter keeps a beginning: the likelier first, of equals the lower id.
inline bool before(const Candidate& a, const Candidate& b) {
    return a.log_weight > b.log_weight || (a.log_weight == b.log_weight && a.id < b.id);
}

// Fills `kept` with what stays of the row, in no order, less what has weight 0 anyway. False where that depends on how
// exponentials and their sums are rounded, as the border of a nucleus may: then whoever defines the rounding must say.
bool keep(const Kernels& kernels, const LogitRow& row, const Filters& filters, std::vector<Candidate>& kept);

}  // namespace decodeloop
