// A number that threads wait for.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

namespace decodeloop {

// Waiting spins for some microseconds, then sleeps. It never yields: current Linux schedulers take a whole time slice
// for a yield, and beside a busy neighbour a step of a hundred short waits would then take a hundred slices.
class WaitedNumber {
public:
    uint32_t load() const { return value_.load(std::memory_order_acquire); }

    void store(uint32_t value) {
        value_.store(value, std::memory_order_seq_cst);
        wake();
    }

    void add(uint32_t value) {
        value_.fetch_add(value, std::memory_order_seq_cst);
        wake();
    }

    bool replace(uint32_t& expected, uint32_t value) {
        const bool replaced = value_.compare_exchange_weak(expected, value, std::memory_order_seq_cst);
        if (replaced) wake();
        return replaced;
    }

    // Until done(value).
    template <class Done>
    void wait(const Done& done) {
        for (int spin = 0; spin < kSpins; ++spin) {
            if (done(load())) return;
            relax();
        }
        for (uint32_t seen = load(); !done(seen); seen = load()) {
            sleepers_.fetch_add(1, std::memory_order_seq_cst);
            sleep_while(seen);
            sleepers_.fetch_sub(1, std::memory_order_relaxed);
        }
    }

private:
    static constexpr int kSpins = 1000;

    static void relax() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    void wake() {
        if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
#if defined(__linux__)
        syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
        value_.notify_all();
#endif
    }

    void sleep_while(uint32_t seen) {
#if defined(__linux__)
        syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
        value_.wait(seen);
#endif
    }

    alignas(64) std::atomic<uint32_t> value_{0};
    std::atomic<int> sleepers_{0};
};

}  // namespace decodeloop
