// Number formats and small arithmetic. Internal linkage throughout: these are also compiled into the per-ISA units,
// and a copy made of wide instructions must never be the one that the linker keeps for everybody.
#pragma once

#include <cstdint>
#include <cstring>

namespace decodeloop {

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_to_float(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

// Round to nearest even; NaN stays NaN.
static inline uint16_t float_to_bf16(float value) {
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) return float_of(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    return sign ? -tiny : tiny;
}

// Round to nearest even; overflow goes to infinity, as IEEE conversion does.
static inline uint16_t float_to_half(float value) {
    const uint32_t bits = float_bits(value);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 puts the wanted bits at the mantissa's end, rounded
        const uint32_t rounded = float_bits(float_of(magnitude) + 0.5f) - 0x3f000000u;
        return static_cast<uint16_t>(sign | rounded);
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
    return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace decodeloop
