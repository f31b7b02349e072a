// Groups of 32 weights: from floats, and from the blocks of GGUF files.
#pragma once

#include <cstdint>
#include <string>

#include "format.h"

namespace decodeloop {

// 32 weights that share a scale, as block-quantised files have them.
struct QuantGroup {
    int8_t q[kGroup];  // 0..15 for the four-bit formats
    uint16_t d;        // half
    uint16_t min;      // half; Int4 alone
};

void group_floats(const QuantGroup& group, Format format, float* weights);

QuantGroup quantise_int8(const float* weights);
QuantGroup quantise_int4(const float* weights);
QuantGroup quantise_int4_symmetric(const float* weights);

// The format that keeps blocks of `kind`; std::invalid_argument when there is none.
Format format_of_blocks(const std::string& kind);
int64_t block_bytes(const std::string& kind);    // of one block
int64_t block_weights(const std::string& kind);  // in one block

// Group `group` of a row of blocks of `kind`.
QuantGroup read_group(const uint8_t* blocks, int64_t group, const std::string& kind);

}  // namespace decodeloop
