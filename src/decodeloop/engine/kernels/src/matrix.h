// A weight matrix in the layout that the kernels read: packed by 32 output columns, streamed once a step.
#pragma once

#include <cstdint>
#include <string>

#include "format.h"
#include "memory.h"
#include "quantise.h"

namespace decodeloop {

Format format_named(const std::string& name);  // fp32, bf16, int8, int4, int4_symmetric; else std::invalid_argument

class Matrix {
public:
    Matrix() = default;
    Matrix(Format format, int64_t outputs, int64_t inputs, Arena& arena);

    Format format() const { return format_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return inputs_; }
    int64_t padded_inputs() const;  // zeros beyond inputs()
    int64_t units() const;
    int64_t unit_bytes() const;
    int64_t bytes() const { return units() * unit_bytes(); }
    const char* unit(int64_t index) const { return data_ + index * unit_bytes(); }

    // Store one output's weights, converted or quantised to format().
    void set_row(int64_t output, const float* weights);
    // Store one output's weights from a GGUF file's blocks of `kind` (Q4_0, Q4_1, Q4_K, Q8_0): bit for bit where
    // format() is theirs, else converted.
    void set_row_blocks(int64_t output, const uint8_t* blocks, const std::string& kind);
    // The weights of one output as floats: what an embedding lookup reads.
    void row(int64_t output, float* weights) const;

private:
    char* group_at(int64_t output, int64_t group) const;
    void set_group(int64_t output, int64_t group, const QuantGroup& value);
    QuantGroup get_group(int64_t output, int64_t group) const;
    void set_floats(int64_t output, int64_t group, const float* weights);
    void read_group_floats(int64_t output, int64_t group, float* weights) const;

    Format format_ = Format::F32;
    int64_t outputs_ = 0;
    int64_t inputs_ = 0;
    char* data_ = nullptr;
};

}  // namespace decodeloop
