#include "kv.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace decodeloop {

namespace {

// Elements of one entry in a piece; see KvFormat.
template <class T>
void copy_elements(const char* source, int64_t from, char* destination, int64_t to, int64_t head_dim, int64_t pair) {
    const T* read = reinterpret_cast<const T*>(source);
    T* write = reinterpret_cast<T*>(destination);
    const int64_t values = kBlockTokens * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) {
        const int64_t key = d / pair * pair * kBlockTokens + d % pair;
        write[key + to * pair] = read[key + from * pair];
        write[values + to / pair * pair * head_dim + d * pair + to % pair] =
            read[values + from / pair * pair * head_dim + d * pair + from % pair];
    }
}

void check_entries(const int32_t* entries, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; ++i)
        if (entries[i] < 0 || entries[i] >= limit)
            throw std::invalid_argument("KV entry " + std::to_string(entries[i]) + " is not within 0.." +
                                        std::to_string(limit - 1));
}

}  // namespace

void KvPool::copy_entry(const char* source, int64_t from, char* destination, int64_t to) const {
    if (format_ == KvFormat::BF16)
        copy_elements<uint16_t>(source, from, destination, to, head_dim_, 2);
    else
        copy_elements<float>(source, from, destination, to, head_dim_, 1);
}

void KvPool::copy(const int32_t* sources, const int32_t* destinations, int64_t count) {
    check_entries(sources, count, blocks_ * kBlockTokens);
    check_entries(destinations, count, blocks_ * kBlockTokens);
    std::vector<char> kept(static_cast<size_t>(ceil_div(count, kBlockTokens) * piece_bytes()));
    const auto kept_piece = [&](int64_t i) { return kept.data() + i / kBlockTokens * piece_bytes(); };
    for (int64_t layer = 0; layer < layers_; ++layer)
        for (int64_t head = 0; head < kv_heads_; ++head) {
            for (int64_t i = 0; i < count; ++i)
                copy_entry(block(layer, head, sources[i] / kBlockTokens), sources[i] % kBlockTokens, kept_piece(i),
                           i % kBlockTokens);
            for (int64_t i = 0; i < count; ++i)
                copy_entry(kept_piece(i), i % kBlockTokens, block(layer, head, destinations[i] / kBlockTokens),
                           destinations[i] % kBlockTokens);
        }
}

}  // namespace decodeloop
