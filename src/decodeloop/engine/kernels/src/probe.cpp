#include "probe.h"

#include <chrono>
#include <cstring>
#include <vector>

namespace decodeloop {

namespace {

// One addition a cache line is enough to read it.
uint64_t read_lines(const char* from, int64_t bytes) {
    constexpr int64_t kAhead = 4096;
    uint64_t sums[4] = {};
    for (int64_t at = 0; at < bytes; at += 256)
        for (int line = 0; line < 4; ++line) {
            __builtin_prefetch(from + at + kAhead + line * 64, 0, 3);
            uint64_t word;
            std::memcpy(&word, from + at + line * 64, sizeof word);
            sums[line] += word;
        }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

BandwidthProbe::BandwidthProbe(int64_t bytes, int threads) : buffer_(static_cast<size_t>(bytes)), team_(threads) {
    std::memset(buffer_.data(), 1, buffer_.bytes());
}

double BandwidthProbe::measure() {
    const int pieces = static_cast<int>(static_cast<int64_t>(buffer_.bytes()) / kPiece);
    std::vector<uint64_t> sums(static_cast<size_t>(team_.threads()) * 8);  // a cache line each
    const auto started = std::chrono::steady_clock::now();
    team_.run([&](int thread) {
        team_.share(thread, pieces, [&](int piece) {
            sums[static_cast<size_t>(thread) * 8] += read_lines(buffer_.data() + piece * kPiece, kPiece);
        });
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
    for (const uint64_t sum : sums) sink_ += sum;
    return static_cast<double>(pieces * kPiece) / elapsed.count();
}

}  // namespace decodeloop
