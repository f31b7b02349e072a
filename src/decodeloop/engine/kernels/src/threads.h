// A small team of threads that runs one step together, in phases.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "pace.h"
#include "waiting.h"

namespace decodeloop {

// A phase is over when its units are done, whoever did them: a thread that the system keeps off its core between two
// phases, or that wakes up late, delays nobody. When it comes it finds its phases over and catches up with the others.
class Team {
public:
    static constexpr int kMaxUnits = 0xffff;  // of one share()

    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return threads_; }
    // How many of them take part now: fewer while the system keeps some off their cores.
    int active() const { return active_.load(std::memory_order_relaxed); }

    // `work(thread)` on the caller, being thread 0, and on the threads that come while it runs; returns when all of
    // them have left. `work` must not throw, and must call share() alike on every thread.
    void run(const std::function<void(int)>& work);

    // The same for work that may leave threads idle, hence says nothing about neighbours.
    void run_uneven(const std::function<void(int)>& work);

    // Inside `run`: `work(unit)` for units 0..count, each by one thread; returns when all are done. A thread starts
    // with a contiguous share of its own and, when that is done, takes from the ends of the others' shares.
    //
    // What a thread does between two calls may be late, or happen again for a phase that is over: it may read what
    // other threads write, but must not write what they read.
    template <class Work>
    void share(int thread, int count, const Work& work) {
        if (count <= 0) return;
        const uint32_t phase = places_[thread].phase++;
        uint32_t done = 0;
        for (int unit; (unit = claim(thread, phase, count)) >= 0; ++done) work(unit);
        finish(phase, static_cast<uint32_t>(count), done);
    }

    // The first unit of `thread`'s own share of `count`.
    int share_begin(int thread, int count) const { return static_cast<int>(int64_t{count} * thread / active()); }

private:
    struct alignas(64) Place {  // a thread's own
        uint32_t phase = 0;
        Pace::Clock::duration cpu{};  // spent in this run()
    };
    struct alignas(64) Share {
        std::atomic<uint64_t> state{0};  // phase : 32, begin : 16, end : 16
    };

    int claim(int thread, uint32_t phase, int count);
    bool take(int owner, uint32_t phase, int count, bool from_end, int& unit);
    void finish(uint32_t phase, uint32_t count, uint32_t done);
    void take_part(int thread);
    void start_workers();
    void abandon_workers();
    void work_until_told(int thread, uint32_t seen);
    bool enter();

    int threads_;
    std::atomic<int> active_;
    Pace pace_;
    int64_t owner_pid_ = 0;
    std::vector<std::thread> workers_;
    std::unique_ptr<Place[]> places_;
    std::unique_ptr<Share[]> shares_;
    const std::function<void(int)>* work_ = nullptr;
    uint32_t first_phase_ = 0;               // of the current run()
    WaitedNumber round_;                     // counts run()s, for those who sleep in between
    WaitedNumber gate_;                      // how many workers are inside, and kOpen
    WaitedNumber phase_;                     // the current one
    alignas(64) std::atomic<uint32_t> done_{0};  // units of it
    std::atomic<bool> stop_{false};
};

}  // namespace decodeloop
