#include "probe.h"

#include <chrono>
#include <cstring>
#include <vector>

namespace decodeloop {

namespace {

// Every word of a plain stream, in sums that don't wait for each other.
uint64_t sum_words(const char* from, int64_t bytes) {
    constexpr int kSums = 16;
    const uint64_t* words = reinterpret_cast<const uint64_t*>(from);
    uint64_t sums[kSums] = {};
    for (int64_t at = 0; at < bytes / int64_t{sizeof(uint64_t)}; at += kSums)
#pragma GCC unroll 16
        for (int i = 0; i < kSums; ++i) sums[i] += words[at + i];
    uint64_t total = 0;
    for (const uint64_t sum : sums) total += sum;
    return total;
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
            sums[static_cast<size_t>(thread) * 8] += sum_words(buffer_.data() + piece * kPiece, kPiece);
        });
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
    for (const uint64_t sum : sums) sink_ += sum;
    return static_cast<double>(pieces * kPiece) / elapsed.count();
}

}  // namespace decodeloop
