// A hash map of keys to small indices that only grows: one array, linear probing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace decodeloop {

constexpr int32_t kNone = -1;

template <class Key>
class FlatMap {
  public:
    // The key's value, or kNone.
    int32_t find(Key key) const {
        if (slots_.empty()) return kNone;
        return slots_[place_of(key)].value;
    }

    // value is not negative.
    void put(Key key, int32_t value) {
        if (2 * (size_ + 1) > slots_.size()) grow();
        Slot& slot = slots_[place_of(key)];
        size_ += slot.value == kNone;
        slot = {key, value};
    }

    size_t size() const { return size_; }
    size_t nbytes() const { return slots_.size() * sizeof(Slot); }

  private:
    struct Slot {
        Key key{};
        int32_t value = kNone;
    };

    // Where the key is, or would be.
    size_t place_of(Key key) const {
        size_t place = hash(key) & (slots_.size() - 1);
        while (slots_[place].value != kNone && slots_[place].key != key) place = (place + 1) & (slots_.size() - 1);
        return place;
    }

    static size_t hash(Key key) {
        uint64_t bits = static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15u;
        if constexpr (sizeof(Key) > sizeof(uint64_t)) bits ^= static_cast<uint64_t>(key >> 64) * 0xc2b2ae3d27d4eb4fu;
        bits ^= bits >> 32;
        bits *= 0xd6e8feb86659fd93u;
        return static_cast<size_t>(bits ^ (bits >> 32));
    }

    void grow() {
        std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
        old.swap(slots_);
        for (const Slot& slot : old)
            if (slot.value != kNone) slots_[place_of(slot.key)] = slot;
    }

    std::vector<Slot> slots_;  // a power of two of them, at most half in use
    size_t size_ = 0;
};

}  // namespace decodeloop
