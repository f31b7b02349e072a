// Tokens of a draft tree: where the keys and values of their paths lie.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "batch.h"
#include "kv.h"

namespace decodeloop {

// A tree's token sees entries 0..position of its slot, but for its path through the tree, which lies at other entries.
// For such a token the blocks that differ are laid out anew, as the chain that its path would be: then the kernels
// treat it as they will when the path has been accepted, bit for bit.
class Tree {
public:
    static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

    void plan(const Batch& batch);

    // The first block, counted in positions / 16, in which a token's path differs from its slot's entries.
    int64_t first_block(int64_t token) const {
        return first_blocks_.empty() ? kNone : first_blocks_[static_cast<size_t>(token)];
    }

    // Lay out block `block` (at or after first_block) of a token for one layer and key head.
    void lay_out(const Batch& batch, const KvPool& kv, int64_t layer, int64_t kv_head, int64_t token, int64_t block,
                 char* piece) const;

private:
    std::vector<int64_t> first_blocks_;  // [tokens]; empty: there is no tree
};

}  // namespace decodeloop
