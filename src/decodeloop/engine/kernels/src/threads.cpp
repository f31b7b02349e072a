#include "threads.h"

#include <sched.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace decodeloop {

namespace {

constexpr int kSpins = 400;            // some microseconds
constexpr int kIdleYields = 400;       // between steps, before a worker goes to sleep

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Until `done()`: spin, then yield.
template <class Done>
void wait_until(const Done& done) {
    for (int spin = 0; !done(); ++spin) {
        if (spin < kSpins)
            relax();
        else
            sched_yield();
    }
}

uint64_t pack(uint32_t phase, int begin, int end) {
    return (uint64_t{phase & 0xffffffu} << 40) | (static_cast<uint64_t>(begin) << 20) | static_cast<uint64_t>(end);
}

}  // namespace

Team::Team(int threads) : threads_(threads) {
    if (threads < 1) throw std::invalid_argument("a team needs at least one thread");
    shares_ = std::make_unique<Share[]>(static_cast<size_t>(threads));
    phases_ = std::make_unique<Phase[]>(static_cast<size_t>(threads));
}

Team::~Team() {
    if (owner_pid_ != getpid()) {
        abandon_workers();
        return;
    }
    stop_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

// After a fork the workers exist in the parent alone: here their handles can be neither joined nor destroyed.
void Team::abandon_workers() { new std::vector<std::thread>(std::move(workers_)); }

void Team::start_workers() {
    abandon_workers();
    workers_.clear();
    owner_pid_ = getpid();
    arrived_.store(0);
    for (int thread = 1; thread < threads_; ++thread)
        workers_.emplace_back([this, thread, seen = round_.load()] { work_until_told(thread, seen); });
}

void Team::run(const std::function<void(int)>& work) {
    if (threads_ > 1 && owner_pid_ != getpid()) start_workers();
    work_ = &work;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    work(0);
    barrier();
}

void Team::work_until_told(int thread, uint32_t seen) {
    for (;;) {
        for (int wait = 0; round_.load(std::memory_order_acquire) == seen; ++wait) {
            if (wait < kSpins)
                relax();
            else if (wait < kSpins + kIdleYields)
                sched_yield();
            else
                round_.wait(seen, std::memory_order_acquire);
        }
        ++seen;
        if (stop_.load()) return;
        (*work_)(thread);
        barrier();
    }
}

void Team::barrier() {
    if (threads_ == 1) return;
    const uint32_t passed = passed_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        passed_.store(passed + 1, std::memory_order_release);
        return;
    }
    wait_until([&] { return passed_.load(std::memory_order_acquire) != passed; });
}

// A share whose phase is an earlier one has not been started: whoever comes first, its owner or another, starts it.
bool Team::take(int owner, uint32_t phase, int count, bool from_end, int& unit) {
    std::atomic<uint64_t>& state = shares_[static_cast<size_t>(owner)].state;
    uint64_t seen = state.load(std::memory_order_relaxed);
    for (;;) {
        int begin = static_cast<int>((seen >> 20) & 0xfffffu), end = static_cast<int>(seen & 0xfffffu);
        if ((seen >> 40) != (phase & 0xffffffu)) {
            begin = share_begin(owner, count);
            end = share_begin(owner + 1, count);
        }
        if (begin >= end) return false;
        unit = from_end ? --end : begin++;
        if (state.compare_exchange_weak(seen, pack(phase, begin, end), std::memory_order_relaxed)) return true;
    }
}

int Team::claim(int thread, uint32_t phase, int count) {
    int unit;
    if (take(thread, phase, count, false, unit)) return unit;
    for (int other = 1; other < threads_; ++other)
        if (take((thread + other) % threads_, phase, count, true, unit)) return unit;
    return -1;
}

}  // namespace decodeloop
