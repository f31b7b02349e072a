#include "quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "numbers.h"

namespace decodeloop {

namespace {

int clamp_round(float value, int low, int high) {
    return std::clamp(static_cast<int>(std::nearbyint(value)), low, high);
}

uint16_t load_half(const uint8_t* bytes) { return static_cast<uint16_t>(bytes[0] | (bytes[1] << 8)); }

void read_nibbles(const uint8_t* bytes, int8_t* q) {
    for (int i = 0; i < 16; ++i) {
        q[i] = static_cast<int8_t>(bytes[i] & 15);
        q[i + 16] = static_cast<int8_t>(bytes[i] >> 4);
    }
}

// Super-blocks of 8 groups: six-bit scales and minima in 12 bytes, scaled by two halves.
QuantGroup read_q4_k(const uint8_t* blocks, int64_t group) {
    const uint8_t* block = blocks + group / 8 * 144;
    const int j = static_cast<int>(group % 8);
    const uint8_t* packed = block + 4;
    int scale, min;
    if (j < 4) {
        scale = packed[j] & 63;
        min = packed[j + 4] & 63;
    } else {
        scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
    }
    QuantGroup out;
    out.d = float_to_half(half_to_float(load_half(block)) * static_cast<float>(scale));
    out.min = float_to_half(-half_to_float(load_half(block + 2)) * static_cast<float>(min));
    const uint8_t* nibbles = block + 16 + j / 2 * 32;
    for (int i = 0; i < kGroup; ++i) out.q[i] = static_cast<int8_t>(j % 2 == 0 ? nibbles[i] & 15 : nibbles[i] >> 4);
    return out;
}

std::invalid_argument unknown_blocks(const std::string& kind) {
    return std::invalid_argument("blocks of " + kind + " can't be kept; Q4_0, Q4_1, Q4_K and Q8_0 can");
}

}  // namespace

void group_floats(const QuantGroup& group, Format format, float* weights) {
    const float d = half_to_float(group.d);
    const float symmetric = format == Format::Int4Symmetric ? -8.0f * d : 0.0f;
    const float min = format == Format::Int4 ? half_to_float(group.min) : symmetric;
    for (int i = 0; i < kGroup; ++i) weights[i] = d * static_cast<float>(group.q[i]) + min;
}

QuantGroup quantise_int8(const float* weights) {
    float largest = 0;
    for (int i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(weights[i]));
    QuantGroup out{};
    out.d = float_to_half(largest / 127.0f);
    const float d = half_to_float(out.d);
    for (int i = 0; i < kGroup; ++i)
        out.q[i] = static_cast<int8_t>(d == 0 ? 0 : clamp_round(weights[i] / d, -127, 127));
    return out;
}

QuantGroup quantise_int4(const float* weights) {
    const auto [low, high] = std::minmax_element(weights, weights + kGroup);
    QuantGroup out{};
    out.d = float_to_half((*high - *low) / 15.0f);
    out.min = float_to_half(*low);
    const float d = half_to_float(out.d), min = half_to_float(out.min);
    for (int i = 0; i < kGroup; ++i)
        out.q[i] = static_cast<int8_t>(d == 0 ? 0 : clamp_round((weights[i] - min) / d, 0, 15));
    return out;
}

QuantGroup quantise_int4_symmetric(const float* weights) {
    float extreme = 0;  // with its sign: it gets the code 0, the one that has no opposite
    for (int i = 0; i < kGroup; ++i)
        if (std::fabs(weights[i]) > std::fabs(extreme)) extreme = weights[i];
    QuantGroup out{};
    out.d = float_to_half(extreme / -8.0f);
    const float d = half_to_float(out.d);
    for (int i = 0; i < kGroup; ++i)
        out.q[i] = static_cast<int8_t>(d == 0 ? 8 : clamp_round(weights[i] / d + 8.0f, 0, 15));
    return out;
}

int64_t block_bytes(const std::string& kind) {
    if (kind == "Q4_0") return 18;
    if (kind == "Q4_1") return 20;
    if (kind == "Q8_0") return 34;
    if (kind == "Q4_K") return 144;
    throw unknown_blocks(kind);
}

int64_t block_weights(const std::string& kind) { return kind == "Q4_K" ? 256 : 32; }

Format format_of_blocks(const std::string& kind) {
    if (kind == "Q4_0") return Format::Int4Symmetric;
    if (kind == "Q4_1" || kind == "Q4_K") return Format::Int4;
    if (kind == "Q8_0") return Format::Int8;
    throw unknown_blocks(kind);
}

QuantGroup read_group(const uint8_t* blocks, int64_t group, const std::string& kind) {
    if (kind == "Q4_K") return read_q4_k(blocks, group);
    const uint8_t* block = blocks + group * block_bytes(kind);
    QuantGroup out{};
    out.d = load_half(block);
    if (kind == "Q8_0") {
        std::memcpy(out.q, block + 2, kGroup);
    } else if (kind == "Q4_1") {
        out.min = load_half(block + 2);
        read_nibbles(block + 4, out.q);
    } else {
        read_nibbles(block + 2, out.q);
    }
    return out;
}

}  // namespace decodeloop
