// How fast this machine reads memory: the floor of a step that reads every weight once.
#pragma once

#include <cstdint>

#include "memory.h"
#include "threads.h"

namespace decodeloop {

class BandwidthProbe {
public:
    // A buffer larger than the caches, read by `threads` threads.
    BandwidthProbe(int64_t bytes, int threads);

    // Bytes a second of one pass over the buffer.
    double measure();

private:
    static constexpr int64_t kPiece = 256 << 10;  // taken at once, so that threads end together
    Buffer buffer_;
    Team team_;
    uint64_t sink_ = 0;  // what was read must be used
};

}  // namespace decodeloop
