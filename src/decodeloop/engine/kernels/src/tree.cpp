#include "tree.h"

#include <algorithm>
#include <cstring>

namespace decodeloop {

void Tree::plan(const Batch& batch) {
    first_blocks_.clear();
    if (batch.entries == nullptr) return;
    first_blocks_.assign(static_cast<size_t>(batch.tokens), kNone);
    for (int64_t token = 0; token < batch.tokens; ++token) {  // parents come before their children
        int64_t& first = first_blocks_[static_cast<size_t>(token)];
        if (batch.parents[token] >= 0) first = first_blocks_[static_cast<size_t>(batch.parents[token])];
        if (batch.entries[token] != batch.positions[token])
            first = std::min<int64_t>(first, batch.positions[token] / kBlockTokens);
    }
}

void Tree::lay_out(const Batch& batch, const KvPool& kv, int64_t layer, int64_t kv_head, int64_t token, int64_t block,
                   char* piece) const {
    const int32_t slot = batch.slots[token];
    std::memcpy(piece, kv.block(layer, kv_head, batch.block(slot, block * kBlockTokens)),
                static_cast<size_t>(kv.piece_bytes()));
    for (int64_t at = token; at >= 0 && batch.positions[at] >= block * kBlockTokens; at = batch.parents[at]) {
        if (batch.positions[at] / kBlockTokens != block) continue;
        kv.copy_entry(kv.block(layer, kv_head, batch.block(slot, batch.entries[at])), batch.entries[at] % kBlockTokens,
                      piece, batch.positions[at] % kBlockTokens);
    }
}

}  // namespace decodeloop
