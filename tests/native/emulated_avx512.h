// AVX-512 by SIMDe's portable emulation, and the four conversions that its released versions lack.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#include <cmath>
#include <cstring>

#include "numbers.h"

namespace decodeloop::emulated {

template <class To, class From, class Lane, class Source, class Convert>
static inline To convert_lanes(From from, Convert convert) {
    Source in[16];
    Lane out[16];
    std::memcpy(in, &from, sizeof in);
    for (int i = 0; i < 16; ++i) out[i] = convert(in[i]);
    To to;
    std::memcpy(&to, out, sizeof to);
    return to;
}

static inline simde__m512i cvtps_epi32(simde__m512 x) {
    return convert_lanes<simde__m512i, simde__m512, int32_t, float>(
        x, [](float v) { return static_cast<int32_t>(std::nearbyint(v)); });
}

static inline simde__m512 cvtepi32_ps(simde__m512i x) {
    return convert_lanes<simde__m512, simde__m512i, float, int32_t>(x, [](int32_t v) { return static_cast<float>(v); });
}

static inline simde__m512 cvtph_ps(simde__m256i x) {
    return convert_lanes<simde__m512, simde__m256i, float, uint16_t>(x, half_to_float);
}

static inline simde__m256bh cvtneps_pbh(simde__m512 x) {
    return convert_lanes<simde__m256bh, simde__m512, uint16_t, float>(x, float_to_bf16);
}

}  // namespace decodeloop::emulated

#undef _mm512_cvtps_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtneps_pbh
#define _mm512_cvtps_epi32(x) decodeloop::emulated::cvtps_epi32(x)
#define _mm512_cvtepi32_ps(x) decodeloop::emulated::cvtepi32_ps(x)
#define _mm512_cvtph_ps(x) decodeloop::emulated::cvtph_ps(x)
#define _mm512_cvtneps_pbh(x) decodeloop::emulated::cvtneps_pbh(x)
