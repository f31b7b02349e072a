// The pool of keys and values: blocks of 16 positions, for every layer and key head.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "memory.h"
#include "numbers.h"

namespace decodeloop {

// [layer][key head][block]: the blocks of a sequence that lie side by side are read as one stream.
class KvPool {
public:
    KvPool(KvFormat format, int64_t layers, int64_t kv_heads, int64_t head_dim)
        : format_(format), layers_(layers), kv_heads_(kv_heads), head_dim_(round_up(head_dim, kBlockTokens)) {}

    // Drops what was there. Throws std::bad_alloc.
    void allocate(int64_t blocks) {
        buffer_.release();
        blocks_ = 0;
        buffer_.reserve(static_cast<size_t>(blocks * block_bytes()));
        blocks_ = blocks;
    }

    // Copy entries (block * 16 + offset), all read before any is written.
    void copy(const int32_t* sources, const int32_t* destinations, int64_t count);

    KvFormat format() const { return format_; }
    int64_t blocks() const { return blocks_; }
    int64_t block_bytes() const { return layers_ * kv_heads_ * piece_bytes(); }  // of all layers and heads
    int64_t piece_bytes() const { return 2 * kBlockTokens * head_dim_ * element_bytes(); }
    int64_t padded_head_dim() const { return head_dim_; }

    char* block(int64_t layer, int64_t kv_head, int64_t index) const {
        return buffer_.data() + ((layer * kv_heads_ + kv_head) * blocks_ + index) * piece_bytes();
    }

    // The entry at `from` of one piece to the place `to` of another.
    void copy_entry(const char* source, int64_t from, char* destination, int64_t to) const;

private:
    int64_t element_bytes() const { return format_ == KvFormat::BF16 ? 2 : 4; }

    KvFormat format_;
    int64_t layers_, kv_heads_, head_dim_;
    int64_t blocks_ = 0;
    Buffer buffer_;
};

}  // namespace decodeloop
