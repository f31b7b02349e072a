// Memory for the input rows of matrix products.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "memory.h"
#include "numbers.h"

namespace decodeloop {

// Rows of one width in every kind. What lies beyond the width stays zero, as products need it: the layout changes only
// with new, zeroed memory.
class Rows {
public:
    const RowSet& set() const { return set_; }
    float* row(int64_t index) const { return set_.f32 + index * set_.stride; }

    void reserve(int64_t rows, int64_t width) {
        const int64_t stride = round_up(width, kGroup);
        if (rows <= capacity_ && stride == set_.stride) return;
        capacity_ = round_up(rows, 8);
        const int64_t count = capacity_ * stride, groups = count / kGroup;
        memory_.release();
        memory_.reserve(static_cast<size_t>(count * (4 + 2 + 2 + 1) + groups * (4 + 4 + 4 + 4)));
        char* at = memory_.data();
        const auto take = [&](int64_t bytes) {
            char* piece = at;
            at += bytes;
            return piece;
        };
        set_.stride = stride;
        set_.capacity = capacity_;
        set_.f32 = reinterpret_cast<float*>(take(count * 4));
        set_.bf16 = reinterpret_cast<uint16_t*>(take(count * 2));
        set_.int16 = reinterpret_cast<int16_t*>(take(count * 2));
        set_.scale = reinterpret_cast<float*>(take(groups * 4));
        set_.scale16 = reinterpret_cast<float*>(take(groups * 4));
        set_.scaled_sum = reinterpret_cast<float*>(take(groups * 4));
        set_.bias = reinterpret_cast<int32_t*>(take(groups * 4));
        set_.int8 = reinterpret_cast<int8_t*>(take(count));
    }

private:
    Buffer memory_;
    RowSet set_;
    int64_t capacity_ = 0;
};

// Bring groups [from, to) of a row into the kind that a product wants.
inline void prepare(const Kernels& kernels, RowKind kind, const RowSet& rows, int64_t row, int64_t from, int64_t to) {
    if (kind == RowKind::BF16) kernels.to_bf16(rows, row, from, to);
    if (kind == RowKind::Int8) kernels.to_int8(rows, row, from, to);
    if (kind == RowKind::Int16) kernels.to_int16(rows, row, from, to);
}

}  // namespace decodeloop
