// Where each n-gram of a growing text ended last, as decodeloop.speculation.drafters.ngram.SuffixIndex defines it.
#pragma once

#include <cstdint>
#include <vector>

#include "flat_map.h"

namespace decodeloop {

class Ngrams {
  public:
    // std::invalid_argument where max_n tokens of token_bits don't fit a key.
    Ngrams(int max_n, int min_n, int token_bits);

    void read(const std::vector<int32_t>& tokens);

    int64_t size() const { return size_; }
    int64_t match_end() const { return match_end_; }
    int64_t match_len() const { return match_len_; }
    int64_t nbytes() const;

  private:
    using Key = unsigned __int128;  // the n-gram itself: no collisions to check for

    struct Level {
        int n;
        Key mask;
        FlatMap<Key> ends;
    };

    void read_one(int32_t token);

    std::vector<Level> levels_;  // the longest first
    int bits_;
    Key packed_ = 0;
    int64_t size_ = 0, match_end_ = -1, match_len_ = 0;
};

}  // namespace decodeloop
