// What happens to a row between matrix products, for any Simd. Rows are padded with zeros to whole groups of 32.
#pragma once

#include "../kernels.h"
#include "../numbers.h"

namespace decodeloop {

// Lanes added in a fixed order: those half a vector apart, and so on.
template <class S>
static inline float lane_sum(typename S::F x) {
    if constexpr (requires { S::lane_sum(x); }) return S::lane_sum(x);
    float lanes[S::kLanes];
    S::store(lanes, x);
    for (int width = S::kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

template <class S>
static inline float lane_max(typename S::F x) {
    if constexpr (requires { S::lane_max(x); }) return S::lane_max(x);
    float lanes[S::kLanes];
    S::store(lanes, x);
    float largest = lanes[0];
    for (int i = 1; i < S::kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}

// e^x within 2 ulp; below -87 a number near the smallest normal one, NaN for NaN. Reduction by ln 2 in two parts, then
// the Taylor-like minimax polynomial of degree 6 (Cephes expf).
template <class S>
static inline typename S::F exp(typename S::F x) {
    x = S::max(S::set1(-87.0f), x);
    x = S::min(S::set1(88.0f), x);
    const typename S::F n = S::round(S::mul(x, S::set1(1.44269504f)));
    typename S::F r = S::fma(n, S::set1(-0.693359375f), x);
    r = S::fma(n, S::set1(2.12194440e-4f), r);
    typename S::F p = S::set1(1.9875691500e-4f);
    p = S::fma(p, r, S::set1(1.3981999507e-3f));
    p = S::fma(p, r, S::set1(8.3334519073e-3f));
    p = S::fma(p, r, S::set1(4.1665795894e-2f));
    p = S::fma(p, r, S::set1(1.6666665459e-1f));
    p = S::fma(p, r, S::set1(5.0000001201e-1f));
    p = S::fma(p, S::mul(r, r), S::add(r, S::set1(1.0f)));
    return S::mul(p, S::pow2(n));
}

// 1 - 2 / (e^2x + 1): absolute error below 1e-6.
template <class S>
static inline typename S::F tanh(typename S::F x) {
    const typename S::F e = exp<S>(S::add(x, x));
    return S::sub(S::set1(1.0f), S::div(S::set1(2.0f), S::add(e, S::set1(1.0f))));
}

template <class S>
static void rms_norm(const float* x, const float* weight, int64_t n, int64_t padded, float eps, float* out) {
    typename S::F squares[2] = {S::zero(), S::zero()};
    for (int64_t i = 0; i < padded; i += 2 * S::kLanes)
        for (int v = 0; v < 2; ++v) {
            const typename S::F value = S::load(x + i + v * S::kLanes);
            squares[v] = S::fma(value, value, squares[v]);
        }
    const float mean = lane_sum<S>(S::add(squares[0], squares[1])) / static_cast<float>(n);
    const typename S::F scale = S::set1(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < padded; i += S::kLanes)
        S::store(out + i, S::mul(S::mul(S::load(x + i), scale), S::load(weight + i)));
}

static inline void to_bf16(const RowSet& rows, int64_t row, int64_t from, int64_t to) {
    const float* x = rows.f32 + row * rows.stride;
    uint16_t* out = rows.bf16 + row * rows.stride;
    for (int64_t i = from * kGroup; i < to * kGroup; ++i) out[i] = float_to_bf16(x[i]);
}

// Whole numbers up to `most` in a group of a row, by the scale that is returned.
template <class S>
static inline float whole_numbers(const float* x, float most, typename S::F (&values)[kGroup / S::kLanes]) {
    typename S::F largest = S::zero();
    for (int v = 0; v < kGroup / S::kLanes; ++v) {
        values[v] = S::load(x + v * S::kLanes);
        largest = S::max(largest, S::abs(values[v]));
    }
    const float top = lane_max<S>(largest), inverse = top > 0 ? most / top : 0.0f;
    for (int v = 0; v < kGroup / S::kLanes; ++v) values[v] = S::round(S::mul(values[v], S::set1(inverse)));
    return top / most;
}

template <class S>
static void to_int8(const RowSet& rows, int64_t row, int64_t from, int64_t to) {
    for (int64_t g = from; g < to; ++g) {
        const int64_t place = rows.place(row, g);
        typename S::F values[kGroup / S::kLanes];
        const float scale = whole_numbers<S>(rows.f32 + row * rows.stride + g * kGroup, 127.0f, values);
        typename S::F sum = S::zero();
        for (const typename S::F value : values) sum = S::add(sum, value);
        S::store_int8(rows.int8 + place * kGroup, values);
        const float total = lane_sum<S>(sum);  // a sum of small integers: exact
        rows.scale[place] = scale;
        rows.bias[place] = -128 * static_cast<int32_t>(total);
        rows.scaled_sum[place] = scale * total;
    }
}

// Where eight-bit weights are widened for their products, their inputs are finer at no cost: a group's products, at most
// 32 * 127 * 32767, have room in 32 bits.
template <class S>
static void to_int16(const RowSet& rows, int64_t row, int64_t from, int64_t to) {
    if constexpr (S::kWideInputs)
        for (int64_t g = from; g < to; ++g) {
            const int64_t place = rows.place(row, g);
            typename S::F values[kGroup / S::kLanes];
            rows.scale16[place] = whole_numbers<S>(rows.f32 + row * rows.stride + g * kGroup, 32767.0f, values);
            S::store_int16(rows.int16 + place * kGroup, values);
        }
}

template <class S>
static void add(const float* x, int64_t n, float* sum) {
    for (int64_t i = 0; i < n; i += S::kLanes) S::store(sum + i, S::add(S::load(sum + i), S::load(x + i)));
}

template <class S>
static void gate(const float* gate, const float* up, int64_t n, Activation activation, float* out) {
    for (int64_t i = 0; i < n; i += S::kLanes) {
        const typename S::F x = S::load(gate + i);
        typename S::F y;
        if (activation == Activation::Silu) {
            y = S::div(x, S::add(S::set1(1.0f), exp<S>(S::sub(S::zero(), x))));
        } else {
            const typename S::F cube = S::mul(S::mul(x, x), x);
            const typename S::F inner = S::mul(S::set1(0.7978845608f), S::fma(S::set1(0.044715f), cube, x));
            y = S::mul(S::mul(S::set1(0.5f), x), S::add(S::set1(1.0f), tanh<S>(inner)));
        }
        S::store(out + i, S::mul(y, S::load(up + i)));
    }
}

template <class S>
static void softcap(float* x, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i += S::kLanes)
        S::store(x + i, S::mul(S::set1(cap), tanh<S>(S::mul(S::load(x + i), S::set1(1.0f / cap)))));
}

static inline void rotate(float* x, const float* cos, const float* sin, int64_t head_dim) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

static inline void store_kv_f32(const float* k, const float* v, int64_t head_dim, int64_t padded, int64_t offset,
                                char* block) {
    float* keys = reinterpret_cast<float*>(block) + offset;
    float* values = reinterpret_cast<float*>(block) + (kBlockTokens + offset) * padded;
    for (int64_t i = 0; i < head_dim; ++i) {
        keys[i * kBlockTokens] = k[i];
        values[i] = v[i];
    }
}

static inline void store_kv_bf16(const float* k, const float* v, int64_t head_dim, int64_t padded, int64_t offset,
                                 char* block) {
    uint16_t* keys = reinterpret_cast<uint16_t*>(block) + offset * 2;
    uint16_t* values =
        reinterpret_cast<uint16_t*>(block) + (kBlockTokens + offset / 2 * 2) * padded + offset % 2;
    uint16_t rounded_keys[kMaxHeadDim], rounded_values[kMaxHeadDim];  // apart from the stores: as vectors
    for (int64_t i = 0; i < head_dim; ++i) rounded_keys[i] = float_to_bf16(k[i]);
    for (int64_t i = 0; i < head_dim; ++i) rounded_values[i] = float_to_bf16(v[i]);
    for (int64_t i = 0; i < head_dim; i += 2) std::memcpy(keys + i * kBlockTokens, rounded_keys + i, 2 * sizeof *keys);
    for (int64_t i = 0; i < head_dim; ++i) values[2 * i] = rounded_values[i];
}

}  // namespace decodeloop
