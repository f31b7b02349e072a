#include "ngrams.h"

#include <algorithm>
#include <stdexcept>

namespace decodeloop {

Ngrams::Ngrams(int max_n, int min_n, int token_bits) : bits_(token_bits) {
    const int key_bits = 8 * static_cast<int>(sizeof(Key));
    if (min_n < 1 || max_n < min_n || token_bits < 1 || max_n * token_bits > key_bits)
        throw std::invalid_argument("no n-grams of such lengths");
    for (int n = max_n; n >= min_n; --n) {
        const int bits = n * token_bits;
        levels_.push_back({n, bits == key_bits ? ~Key{0} : (Key{1} << bits) - 1, {}});
    }
}

void Ngrams::read(const std::vector<int32_t>& tokens) {
    for (int32_t token : tokens) read_one(token);
}

int64_t Ngrams::nbytes() const {
    int64_t total = 0;
    for (const Level& level : levels_) total += static_cast<int64_t>(level.ends.nbytes());
    return total;
}

void Ngrams::read_one(int32_t token) {
    const int64_t end = size_++;
    packed_ = (packed_ << bits_ | static_cast<uint32_t>(token)) & levels_.front().mask;
    int64_t found = -1, length = 0;
    for (Level& level : levels_) {
        if (level.n > size_) continue;
        const Key key = packed_ & level.mask;
        if (!length) {
            found = level.ends.find(key);
            length = found >= 0 ? level.n : 0;
        }
        level.ends.put(key, static_cast<int32_t>(end));
    }
    if (length && found == match_end_ + 1) length = std::max(length, match_len_ + 1);  // the same match goes on
    match_end_ = found;
    match_len_ = length;
}

}  // namespace decodeloop
