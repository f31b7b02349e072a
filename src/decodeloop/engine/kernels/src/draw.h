// The coupled draw: the target's tokens at the rows of a draft, as decodeloop.speculation.noise defines them.
#pragma once

#include <cstdint>

#include "filters.h"
#include "kernels.h"
#include "noise.h"
#include "threads.h"

namespace decodeloop {

// Rows of S sequences, every sequence's one after the other; their p is the softmax of logits / temperature, filtered.
struct DrawBatch {
    int64_t rows = 0, vocab_size = 0, sequences = 0;
    const float* logits = nullptr;         // [rows][vocab_size]
    const int32_t* first = nullptr;        // [sequences] its first row
    const int32_t* count = nullptr;        // [sequences] its rows
    const int32_t* drafted = nullptr;      // [rows] the token drafted for the row's position, or -1
    const uint32_t* keys = nullptr;        // [sequences][2]
    const int64_t* positions = nullptr;    // [sequences] what its first row decides
    const double* temperatures = nullptr;  // [sequences] 0: the likeliest token, of equal ones the first
    const Filters* filters = nullptr;      // [sequences]

    // std::invalid_argument names what is out of range.
    void check() const;
};

// Rows are judged in order as long as the draft is right: a row behind a wrong token is never looked at.
struct DrawOutputs {
    int32_t* tokens = nullptr;   // [rows]
    float* entropies = nullptr;  // [rows] of p, in nats
    int32_t* emitted = nullptr;  // [sequences] tokens drawn; 0 where a row has no p (NaN, infinite,
                                 // nothing left), or what its filters keep is unclear
};

void draw(const Kernels& kernels, Team& team, const DrawBatch& batch, const DrawOutputs& outputs);

}  // namespace decodeloop
