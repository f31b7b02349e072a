// A small team of threads that runs one step together, in phases.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace decodeloop {

// Threads wait by spinning for a few microseconds, then by yielding: beside a busy neighbour a spinning thread would
// take the time that the one it waits for needs.
class Team {
public:
    static constexpr int kMaxUnits = (1 << 20) - 1;  // of one share()

    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return threads_; }

    // `work(thread)` on every thread, the caller being thread 0; returns when all are done. `work` must not throw.
    void run(const std::function<void(int)>& work);

    // Inside `run`: wait until all threads have come here.
    void barrier();

    // Inside `run`: `work(unit)` for units 0..count, each by one thread, then a barrier. A thread starts with a
    // contiguous share of its own and, when done, takes from the ends of the others' shares. All threads call it alike.
    template <class Work>
    void share(int thread, int count, const Work& work) {
        const uint32_t phase = ++phases_[thread].value;
        int unit;
        while ((unit = claim(thread, phase, count)) >= 0) work(unit);
        barrier();
    }

    // The first unit of `thread`'s own share of `count`.
    int share_begin(int thread, int count) const { return static_cast<int>(int64_t{count} * thread / threads_); }

private:
    struct alignas(64) Share {
        std::atomic<uint64_t> state{0};  // phase : 24 bits, begin : 20, end : 20
    };
    struct alignas(64) Phase {
        uint32_t value = 0;
    };

    int claim(int thread, uint32_t phase, int count);
    bool take(int owner, uint32_t phase, int count, bool from_end, int& unit);
    void start_workers();
    void abandon_workers();
    void work_until_told(int thread, uint32_t seen);

    int threads_;
    int64_t owner_pid_ = 0;
    std::vector<std::thread> workers_;
    std::unique_ptr<Share[]> shares_;
    std::unique_ptr<Phase[]> phases_;
    const std::function<void(int)>* work_ = nullptr;
    alignas(64) std::atomic<uint32_t> round_{0};  // counts run()s
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> passed_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace decodeloop
