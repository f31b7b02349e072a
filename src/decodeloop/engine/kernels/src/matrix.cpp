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

QuantGroup Matrix::get_group(int64_t output, int64_t group) const {
    const int n = static_cast<int>(output % kUnit);
    char* block = group_at(output, group);
    QuantGroup value{};
    for (int i = 0; i < kGroup; ++i) {
        if (format_ == Format::Int8) {
            value.q[i] = static_cast<int8_t>(block[int8_offset(n, i)]);
            continue;
        }
        const uint8_t pair = static_cast<uint8_t>(block[nibble_offset(n, i)]);
        value.q[i] = static_cast<int8_t>(is_high_nibble(i) ? pair >> 4 : pair & 15);
    }
    value.d = *half_at(block + scales_offset(format_), n);
    if (format_ == Format::Int4) value.min = *half_at(block + scales_offset(format_) + kUnit * 2, n);
    return value;
}

void Matrix::set_row(int64_t output, const float* weights) {
    std::vector<float> padded(static_cast<size_t>(padded_inputs()));
    std::copy(weights, weights + inputs_, padded.begin());
    for (int64_t g = 0; g < padded_inputs() / kGroup; ++g) {
        const float* w = padded.data() + g * kGroup;
        switch (format_) {
            case Format::F32:
            case Format::BF16: set_floats(output, g, w); break;
            case Format::Int8: set_group(output, g, quantise_int8(w)); break;
            case Format::Int4: set_group(output, g, quantise_int4(w)); break;
            case Format::Int4Symmetric: set_group(output, g, quantise_int4_symmetric(w)); break;
        }
    }
}

void Matrix::set_floats(int64_t output, int64_t group, const float* weights) {
    const int n = static_cast<int>(output % kUnit);
    char* block = group_at(output, group);
    if (format_ == Format::F32) {
        for (int i = 0; i < kGroup; ++i) reinterpret_cast<float*>(block)[i * kUnit + n] = weights[i];
        return;
    }
    uint16_t* pairs = reinterpret_cast<uint16_t*>(block) + n * 2;
    for (int i = 0; i < kGroup; ++i) pairs[i / 2 * 2 * kUnit + i % 2] = float_to_bf16(weights[i]);
}

void Matrix::set_row_blocks(int64_t output, const uint8_t* blocks, const std::string& kind) {
    if (inputs_ % block_weights(kind) != 0)
        throw std::invalid_argument("a row of " + std::to_string(inputs_) + " weights has no whole blocks of " + kind);
    const Format own = format_of_blocks(kind);
    std::vector<float> weights(own == format_ ? 0 : static_cast<size_t>(inputs_));
    for (int64_t g = 0; g < inputs_ / kGroup; ++g) {
        const QuantGroup group = read_group(blocks, g, kind);
        if (own == format_)
            set_group(output, g, group);
        else
            group_floats(group, own, weights.data() + g * kGroup);
    }
    if (own != format_) set_row(output, weights.data());
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
    group_floats(get_group(output, group), format_, weights);
}

}  // namespace decodeloop
