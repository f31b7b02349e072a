// The tokens of one step, as the caller packs them.
#pragma once

#include <cstdint>
#include <vector>

#include "kv.h"
#include "model.h"

namespace decodeloop {

// See decodeloop.speculation.forward.Batch. `block_tables` counts blocks of 16 entries.
class Batch {
public:
    int64_t tokens = 0;
    const int32_t* ids = nullptr;        // [tokens]
    const int32_t* positions = nullptr;  // [tokens]
    const int32_t* slots = nullptr;      // [tokens]
    const int32_t* entries = nullptr;    // [tokens] where each token is written; null: at its position
    const int32_t* parents = nullptr;    // [tokens] with entries
    int64_t table_rows = 0, table_columns = 0;
    const int32_t* block_tables = nullptr;  // [table_rows][table_columns]
    int64_t rows = 0;
    const int32_t* logit_rows = nullptr;  // [rows]
    int64_t vocabulary_size = 0;
    const int32_t* vocabulary = nullptr;  // [vocabulary_size], or null for all
    std::vector<int64_t> hidden_layers;

    int32_t block(int32_t slot, int64_t position) const {
        return block_tables[slot * table_columns + position / kBlockTokens];
    }

    int32_t entry(int64_t token) const { return entries == nullptr ? positions[token] : entries[token]; }

    // std::invalid_argument names the first thing that is out of range: nothing may be written or read by a bad index.
    void check(const Shape& shape, int64_t layers, const KvPool& kv) const;

private:
    void check_entries_differ() const;
    void check_branch(int64_t token, const KvPool& kv) const;
};

}  // namespace decodeloop
