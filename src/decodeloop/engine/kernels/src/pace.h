// How many threads a team should use beside whatever else runs on its cores.
#pragma once

#include <algorithm>
#include <chrono>

namespace decodeloop {

// Where others use the cores too, n threads get less than n cores, and those that run wait for those that don't. When
// about half a core is missing, one thread fewer is no slower: the others keep their cores. It is asked back a while
// later, and after ever longer whiles if that was a mistake.
class Pace {
public:
    using Clock = std::chrono::steady_clock;

    explicit Pace(int threads) : most_(threads), threads_(threads), cores_(threads) {}

    // For a step that begins now.
    int threads(Clock::time_point now) {
        if (threads_ < most_ && now >= retry_at_) {
            ++threads_;
            cores_ = threads_;
            tried_at_ = now;
        }
        return threads_;
    }

    // A step took `elapsed`, in which its threads used `cpu`, all of them together.
    void observe(Clock::time_point now, Clock::duration elapsed, Clock::duration cpu) {
        if (threads_ == 1) return;
        const double wall = static_cast<double>(std::max<Clock::rep>(elapsed.count(), 1));
        cores_ += kWeight * (static_cast<double>(cpu.count()) / wall - cores_);
        if (now - tried_at_ > kSettled) patience_ = kFirstPatience;
        if (cores_ > threads_ - kMissing) return;
        --threads_;
        cores_ = threads_;
        retry_at_ = now + patience_;
        patience_ = std::min<Clock::duration>(2 * patience_, kMostPatience);
    }

private:
    static constexpr double kWeight = 0.3;  // of the latest step in the mean
    static constexpr double kMissing = 0.5;  // cores
    static constexpr Clock::duration kFirstPatience = std::chrono::milliseconds(100);
    static constexpr Clock::duration kMostPatience = std::chrono::milliseconds(1600);
    static constexpr Clock::duration kSettled = std::chrono::seconds(1);

    int most_, threads_;
    double cores_;  // that the threads got, in the mean of the last steps
    Clock::duration patience_ = kFirstPatience;
    Clock::time_point retry_at_{}, tried_at_{};
};

}  // namespace decodeloop
