#include "threads.h"

#include <time.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

namespace decodeloop {

namespace {

constexpr uint32_t kOpen = 1u << 31;

uint64_t pack(uint32_t phase, int begin, int end) {
    return (uint64_t{phase} << 32) | (static_cast<uint64_t>(begin) << 16) | static_cast<uint64_t>(end);
}

Pace::Clock::duration thread_cpu_time() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Phases are counted modulo 2^32.
bool is_after(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }

}  // namespace

Team::Team(int threads) : threads_(threads), active_(threads), pace_(threads) {
    if (threads < 1) throw std::invalid_argument("a team needs at least one thread");
    places_ = std::make_unique<Place[]>(static_cast<size_t>(threads));
    shares_ = std::make_unique<Share[]>(static_cast<size_t>(threads));
}

Team::~Team() {
    if (owner_pid_ != getpid()) {
        abandon_workers();
        return;
    }
    stop_.store(true);
    round_.add(1);
    for (std::thread& worker : workers_) worker.join();
}

// After a fork the workers exist in the parent alone: here their handles can be neither joined nor destroyed.
void Team::abandon_workers() { new std::vector<std::thread>(std::move(workers_)); }

void Team::start_workers() {
    abandon_workers();
    workers_.clear();
    owner_pid_ = getpid();
    for (int thread = 1; thread < threads_; ++thread)
        workers_.emplace_back([this, thread, seen = round_.load()] { work_until_told(thread, seen); });
}

void Team::run(const std::function<void(int)>& work) {
    const auto started = Pace::Clock::now();
    run_uneven(work);
    Pace::Clock::duration cpu{};
    for (int thread = 0; thread < threads_; ++thread) cpu += places_[static_cast<size_t>(thread)].cpu;
    const auto ended = Pace::Clock::now();
    pace_.observe(ended, ended - started, cpu);
}

void Team::run_uneven(const std::function<void(int)>& work) {
    if (threads_ > 1 && owner_pid_ != getpid()) start_workers();
    active_.store(pace_.threads(Pace::Clock::now()), std::memory_order_relaxed);
    first_phase_ = places_[0].phase;
    for (int thread = 0; thread < threads_; ++thread) {
        shares_[static_cast<size_t>(thread)].state.store(pack(first_phase_ - 1, 0, 0), std::memory_order_relaxed);
        places_[static_cast<size_t>(thread)].cpu = {};
    }
    work_ = &work;
    gate_.store(kOpen);
    round_.add(1);
    take_part(0);
    uint32_t inside = gate_.load();
    while (!gate_.replace(inside, inside & ~kOpen)) {
    }
    gate_.wait([](uint32_t gate) { return gate == 0; });
}

void Team::take_part(int thread) {
    Place& place = places_[static_cast<size_t>(thread)];
    const Pace::Clock::duration before = thread_cpu_time();
    place.phase = first_phase_;
    (*work_)(thread);
    place.cpu = thread_cpu_time() - before;
}

bool Team::enter() {
    uint32_t inside = gate_.load();
    while ((inside & kOpen) != 0)
        if (gate_.replace(inside, inside + 1)) return true;
    return false;
}

void Team::work_until_told(int thread, uint32_t seen) {
    for (;;) {
        round_.wait([&](uint32_t round) { return round != seen; });
        seen = round_.load();
        if (stop_.load()) return;
        if (!enter()) continue;
        if (thread < active()) take_part(thread);
        gate_.add(static_cast<uint32_t>(-1));
    }
}

void Team::finish(uint32_t phase, uint32_t count, uint32_t done) {
    if (done > 0 && done_.fetch_add(done, std::memory_order_acq_rel) + done == count) {
        done_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1);
        return;
    }
    phase_.wait([&](uint32_t current) { return is_after(current, phase); });
}

// A share whose phase is an earlier one has not been started: whoever comes first, its owner or another, starts it.
// One of a later phase belongs to threads that are ahead of this one.
bool Team::take(int owner, uint32_t phase, int count, bool from_end, int& unit) {
    std::atomic<uint64_t>& state = shares_[static_cast<size_t>(owner)].state;
    uint64_t seen = state.load(std::memory_order_relaxed);
    for (;;) {
        const uint32_t seen_phase = static_cast<uint32_t>(seen >> 32);
        int begin = static_cast<int>((seen >> 16) & 0xffffu), end = static_cast<int>(seen & 0xffffu);
        if (is_after(seen_phase, phase)) return false;
        if (seen_phase != phase) {
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
    const int threads = active();
    for (int other = 1; other < threads; ++other)
        if (take((thread + other) % threads, phase, count, true, unit)) return unit;
    return -1;
}

}  // namespace decodeloop
