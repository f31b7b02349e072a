#include "batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "threads.h"

namespace decodeloop {

namespace {

void require_range(int64_t value, int64_t end, const char* what, int64_t index) {
    if (value < 0 || value >= end)
        throw std::invalid_argument(std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
                                    ", not in 0.." + std::to_string(end - 1));
}

}  // namespace

void Batch::check_entries_differ() const {
    std::vector<int64_t> written;
    for (int64_t i = 0; i < tokens; ++i)
        written.push_back(int64_t{block(slots[i], entry(i))} * kBlockTokens + entry(i) % kBlockTokens);
    std::sort(written.begin(), written.end());
    if (std::adjacent_find(written.begin(), written.end()) != written.end())
        throw std::invalid_argument("two tokens of the batch would be written to the same KV entry");
}

void Batch::check_branch(int64_t i, const KvPool& kv) const {
    require_range(entries[i] / kBlockTokens, table_columns, "the block of entries", i);
    require_range(block(slots[i], entries[i]), kv.blocks(), "the KV block of token", i);
    if (entries[i] < positions[i]) throw std::invalid_argument("a token's KV entry must not lie below its position");
    if (parents[i] < 0) return;
    require_range(parents[i], i, "parents", i);
    if (slots[parents[i]] != slots[i]) throw std::invalid_argument("a token and its parent must be of one slot");
    if (positions[parents[i]] + 1 != positions[i])
        throw std::invalid_argument("a token's position must be its parent's plus one");
}

void Batch::check(const Shape& shape, int64_t layers, const KvPool& kv) const {
    if (tokens == 0) throw std::invalid_argument("a batch needs at least one token");
    const int64_t most = Team::kMaxUnits / (2 * shape.kv_heads);  // attention has two items a token at most
    if (tokens > most)
        throw std::invalid_argument(std::to_string(tokens) + " tokens are more than a step's " + std::to_string(most));
    for (int64_t i = 0; i < tokens; ++i) {
        require_range(ids[i], shape.vocab_size, "tokens", i);
        require_range(positions[i], shape.max_context, "positions", i);
        require_range(slots[i], table_rows, "slots", i);
        require_range(positions[i] / kBlockTokens, table_columns, "the block of positions", i);
        // The token before this one in its slot needs no second look: its blocks are a prefix of this one's.
        const bool follows = i > 0 && slots[i] == slots[i - 1] && positions[i] >= positions[i - 1];
        for (int64_t p = follows ? positions[i - 1] : 0; p / kBlockTokens <= positions[i] / kBlockTokens;
             p += kBlockTokens)
            require_range(block(slots[i], p), kv.blocks(), "the KV block of token", i);
        if (entries != nullptr) check_branch(i, kv);
    }
    check_entries_differ();
    for (int64_t r = 0; r < rows; ++r) require_range(logit_rows[r], tokens, "logit_rows", r);
    for (int64_t v = 0; v < vocabulary_size; ++v) require_range(vocabulary[v], shape.vocab_size, "vocabulary", v);
    for (size_t h = 0; h < hidden_layers.size(); ++h)
        require_range(hidden_layers[h], layers + 1, "hidden_layers", static_cast<int64_t>(h));
}

}  // namespace decodeloop
