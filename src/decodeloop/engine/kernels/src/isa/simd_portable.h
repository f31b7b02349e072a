// Any machine: the compiler's own four-float vectors, which become NEON or SSE2 registers.
#pragma once

#include <cstdint>
#include <cstring>

#include "../kernels.h"
#include "../numbers.h"

namespace decodeloop::portable {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed weights are little-endian");

struct Simd {
    static constexpr int kLanes = 4;
    static constexpr int kRegisters = 16;
    typedef float F __attribute__((vector_size(16)));
    typedef int32_t I __attribute__((vector_size(16)));

    static F zero() { return F{}; }
    static F set1(float x) { return F{x, x, x, x}; }
    static F load(const float* p) {
        F x;
        std::memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
    static F add(F a, F b) { return a + b; }
    static F sub(F a, F b) { return a - b; }
    static F mul(F a, F b) { return a * b; }
    static F div(F a, F b) { return a / b; }
    static F fma(F a, F b, F c) { return a * b + c; }
    static F max(F a, F b) { return a > b ? a : b; }
    static F min(F a, F b) { return a < b ? a : b; }
    static F abs(F x) { return reinterpret_cast<F>(reinterpret_cast<I>(x) & 0x7fffffff); }
    static F round(F x) {
        const F magic = set1(12582912.0f);  // 1.5 * 2^23: adding it leaves no room for a fraction
        return (x + magic) - magic;
    }
    static F where_finite(F score, F x) {
        return reinterpret_cast<F>((score != set1(-__builtin_inff())) & reinterpret_cast<I>(x));
    }
    static F pow2(F whole) { return reinterpret_cast<F>((__builtin_convertvector(whole, I) + 127) << 23); }
    static F load_half(const uint16_t* p) {
        return F{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
    }
    static void prefetch(const char* p) { __builtin_prefetch(p, 0, 2); }

    using Input = float;
    static constexpr int kPairSteps = 2;
    template <int kStep>
    static F pair_weight(const uint16_t* pairs) {
        I raw;
        std::memcpy(&raw, pairs, sizeof raw);
        if constexpr (kStep == 0) return reinterpret_cast<F>(raw << 16);
        return reinterpret_cast<F>(raw & static_cast<int32_t>(0xffff0000u));
    }
    static F low_weight(const uint16_t* pairs) { return pair_weight<0>(pairs); }
    template <int kStep>
    static F pair_input(const Input* x) {
        return set1(x[kStep]);
    }
    static F pair_mac(F acc, F weight, F input) { return acc + weight * input; }
    static F low_input(const Input* x) { return pair_input<0>(x); }
    static void store_inputs(Input* p, F x) { store(p, x); }
    static constexpr RowKind kPairRows = RowKind::F32;
    static const Input* input_row(const RowSet& x, int64_t m) { return x.f32 + m * x.stride; }

    // Four inputs of kLanes outputs, as bytes.
    typedef int8_t Bytes __attribute__((vector_size(16)));
    static I zero_int() { return I{}; }
    static I low_nibbles(const char* p) { return reinterpret_cast<I>(load_bytes(p) & 15); }
    static I high_nibbles(const char* p) { return reinterpret_cast<I>((load_bytes(p) >> 4) & 15); }
    static I input_quad(const int8_t* x) {
        int32_t four;
        std::memcpy(&four, x, sizeof four);
        return I{four, four, four, four};
    }
    static I nibble_mac(I acc, I w, I x) { return acc + quad_products(w, x); }
    static F nibble_total(I acc) { return __builtin_convertvector(acc, F); }
    template <int kRows>
    static void byte_dots(const char* w, const RowSet& rows, int64_t row, int64_t group, F (&dots)[kRows]) {
        const int8_t* x = rows.int8 + rows.place(row, group) * kGroup;
        I acc[kRows] = {};
        for (int quad = 0; quad < 8; ++quad) {
            const I weight = reinterpret_cast<I>(load_bytes(w + quad * 64));
            for (int m = 0; m < kRows; ++m)
                acc[m] += quad_products(weight, input_quad(x + m * kGroup + 4 * quad));
        }
        for (int m = 0; m < kRows; ++m) dots[m] = __builtin_convertvector(acc[m], F);
    }
    static constexpr bool kWideInputs = false;

    static void store_int8(int8_t* p, const F* x) {
        for (int i = 0; i < 32; ++i) p[i] = static_cast<int8_t>(x[i / kLanes][i % kLanes]);
    }

    // Bit i: a[i] >= b[i].
    static unsigned at_least(F a, F b) {
        unsigned bits = 0;
        for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(a[i] >= b[i]) << i;
        return bits;
    }

    // Words for random numbers: each in the low half of 64 bits, whatever the high half holds.
    typedef uint64_t W __attribute__((vector_size(16)));
    static constexpr int kWords = 2;
    static W word(uint32_t x) { return W{x, x}; }
    static W counting(uint32_t x) { return W{x, uint64_t{x} + 1}; }
    static W product(W a, W b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
    static W high_half(W x) { return x >> 32; }
    static W differ(W a, W b) { return a ^ b; }
    // [kWords][4]: a block after the other.
    static void store_blocks(uint32_t* p, W w0, W w1, W w2, W w3) {
        for (int i = 0; i < kWords; ++i, p += 4) {
            p[0] = static_cast<uint32_t>(w0[i]);
            p[1] = static_cast<uint32_t>(w1[i]);
            p[2] = static_cast<uint32_t>(w2[i]);
            p[3] = static_cast<uint32_t>(w3[i]);
        }
    }
    // The bits of float(~word >> 8), read as numbers.
    static F bits_of_rest(const uint32_t* words) {
        typedef uint32_t Words __attribute__((vector_size(16)));
        Words raw;
        std::memcpy(&raw, words, sizeof raw);
        const F rest = __builtin_convertvector(reinterpret_cast<I>(~raw >> 8), F);
        return __builtin_convertvector(reinterpret_cast<I>(rest), F);
    }

private:
    static Bytes load_bytes(const char* p) {
        Bytes bytes;
        std::memcpy(&bytes, p, sizeof bytes);
        return bytes;
    }
    // Each lane: the sum of four products of bytes. Byte i of a lane is brought to its top and shifted down again.
    static I quad_products(I w, I x) {
        return (w << 24 >> 24) * (x << 24 >> 24) + (w << 16 >> 24) * (x << 16 >> 24) +
               (w << 8 >> 24) * (x << 8 >> 24) + (w >> 24) * (x >> 24);
    }
};

}  // namespace decodeloop::portable
