#include "matrix.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "numbers.h"

namespace decodeloop {

namespace {

constexpr int kHalfUnit = kUnit / 2;

// Bytes of one group of one unit, and where the scales of its 32 outputs begin.
int64_t group_bytes(Format format) {
    switch (format) {
        case Format::F32: return kUnit * kGroup * 4;
        case Format::BF16: return kUnit * kGroup * 2;
        case Format::Int8: return kUnit * kGroup + kUnit * 2;
        case Format::Int4: return kUnit * kGroup / 2 + kUnit * 4;
        case Format::Int4Symmetric: return kUnit * kGroup / 2 + kUnit * 2;
    }
    return 0;
}

int64_t scales_offset(Format format) { return format == Format::Int8 ? kUnit * kGroup : kUnit * kGroup / 2; }

// Byte of input i of output n (within its unit) in a quantised group.
int64_t int8_offset(int n, int i) { return n / kHalfUnit * 512 + i / 4 * 64 + n % kHalfUnit * 4 + i % 4; }
int64_t nibble_offset(int n, int i) { return n / kHalfUnit * 256 + i / 8 * 64 + n % kHalfUnit * 4 + i % 4; }
bool is_high_nibble(int i) { return i / 4 % 2 == 1; }

uint16_t* half_at(char* bytes, int n) { return reinterpret_cast<uint16_t*>(bytes) + n; }

}  // namespace

Format format_named(const std::string& name) {
    if (name == "fp32") return Format::F32;
    if (name == "bf16") return Format::BF16;
    if (name == "int8") return Format::Int8;
    if (name == "int4") return Format::Int4;
    if (name == "int4_symmetric") return Format::Int4Symmetric;
    throw std::invalid_argument("no weight format '" + name + "'; choose from fp32, bf16, int8, int4, int4_symmetric");
}

Matrix::Matrix(Format format, int64_t outputs, int64_t inputs, Arena& arena)
    : format_(format), outputs_(outputs), inputs_(inputs) {
    if (outputs <= 0 || inputs <= 0) throw std::invalid_argument("a matrix needs outputs and inputs");
    data_ = arena.take(static_cast<size_t>(bytes()));
}

int64_t Matrix::padded_inputs() const { return round_up(inputs_, kGroup); }
int64_t Matrix::units() const { return ceil_div(outputs_, kUnit); }
int64_t Matrix::unit_bytes() const { return padded_inputs() / kGroup * group_bytes(format_); }

char* Matrix::group_at(int64_t output, int64_t group) const {
    return data_ + output / kUnit * unit_bytes() + group * group_bytes(format_);
}

void Matrix::set_group(int64_t output, int64_t group, const QuantGroup& value) {
    const int n = static_cast<int>(output % kUnit);
    char* block = group_at(output, group);
    for (int i = 0; i < kGroup; ++i) {
        if (format_ == Format::Int8) {
            block[int8_offset(n, i)] = static_cast<char>(value.q[i]);
            continue;
        }
        uint8_t& pair = reinterpret_cast<uint8_t&>(block[nibble_offset(n, i)]);
        const uint8_t q = static_cast<uint8_t>(value.q[i]);
        pair = static_cast<uint8_t>(is_high_nibble(i) ? (pair & 0x0f) | (q << 4) : (pair & 0xf0) | q);
    }
    *half_at(block + scales_offset(format_), n) = value.d;
    if (format_ == Format::Int4) *half_at(block + scales_offset(format_) + kUnit * 2, n) = value.min;
}

void Matrix::set_row(int64_t output, const float* weights) {
    const int n = static_cast<int>(output % kUnit);
    std::vector<float> padded(static_cast<size_t>(padded_inputs()));
    std::copy(weights, weights + inputs_, padded.begin());
    for (int64_t g = 0; g < padded_inputs() / kGroup; ++g) {
        const float* w = padded.data() + g * kGroup;
        char* block = group_at(output, g);
        for (int i = 0; i < kGroup; ++i) {
            if (format_ == Format::F32) reinterpret_cast<float*>(block)[i * kUnit + n] = w[i];
            if (format_ == Format::BF16)
                reinterpret_cast<uint16_t*>(block)[i / 2 * 2 * kUnit + n * 2 + i % 2] = float_to_bf16(w[i]);
        }
        if (format_ == Format::Int8) set_group(output, g, quantise_int8(w));
        if (format_ == Format::Int4) set_group(output, g, quantise_int4(w));
        if (format_ == Format::Int4Symmetric) set_group(output, g, quantise_int4_symmetric(w));
    }
}

void Matrix::set_row_blocks(int64_t output, const uint8_t* blocks, const std::string& kind) {
    if (format_of_blocks(kind) != format_)
        throw std::invalid_argument("blocks of " + kind + " are not of this matrix's format");
    if (inputs_ % block_weights(kind) != 0)
        throw std::invalid_argument("a row of " + std::to_string(inputs_) + " weights has no whole blocks of " + kind);
    for (int64_t g = 0; g < inputs_ / kGroup; ++g) set_group(output, g, read_group(blocks, g, kind));
}

void Matrix::row(int64_t output, float* weights) const {
    for (int64_t g = 0; g * kGroup < inputs_; ++g) {
        float group[kGroup];
        read_group_floats(output, g, group);
        std::copy(group, group + std::min<int64_t>(kGroup, inputs_ - g * kGroup), weights + g * kGroup);
    }
}

void Matrix::read_group_floats(int64_t output, int64_t group, float* weights) const {
    const int n = static_cast<int>(output % kUnit);
    char* block = group_at(output, group);
    if (format_ == Format::F32) {
        for (int i = 0; i < kGroup; ++i) weights[i] = reinterpret_cast<const float*>(block)[i * kUnit + n];
        return;
    }
    if (format_ == Format::BF16) {
        const uint16_t* pairs = reinterpret_cast<const uint16_t*>(block) + n * 2;
        for (int i = 0; i < kGroup; ++i) weights[i] = bf16_to_float(pairs[i / 2 * 2 * kUnit + i % 2]);
        return;
    }
    char* scales = block + scales_offset(format_);
    const float d = half_to_float(*half_at(scales, n));
    if (format_ == Format::Int8) {
        for (int i = 0; i < kGroup; ++i)
            weights[i] = d * static_cast<float>(static_cast<int8_t>(block[int8_offset(n, i)]));
        return;
    }
    const float min = format_ == Format::Int4 ? half_to_float(*half_at(scales + kUnit * 2, n)) : -8.0f * d;
    for (int i = 0; i < kGroup; ++i) {
        const uint8_t pair = static_cast<uint8_t>(block[nibble_offset(n, i)]);
        weights[i] = d * static_cast<float>(is_high_nibble(i) ? pair >> 4 : pair & 15) + min;
    }
}

}  // namespace decodeloop
