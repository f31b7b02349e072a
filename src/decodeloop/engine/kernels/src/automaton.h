// A suffix automaton that counts, as decodeloop.speculation.drafters.automaton defines it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "flat_map.h"

namespace decodeloop {

// A place in an automaton: the last `length` tokens of something, as the state that stands for them.
struct Context {
    int32_t state = 0;
    int32_t length = 0;
    int64_t size = 0;  // of the automaton when the place was found
};

struct Run {
    std::vector<int32_t> tokens;
    std::vector<double> scores;
};

class SuffixAutomaton {
  public:
    // std::invalid_argument where depth leaves no context to count.
    explicit SuffixAutomaton(int32_t depth);

    void begin_text();
    void read(const std::vector<int32_t>& tokens);
    Context own_end(int32_t limit) const;
    void advance(Context& context, const std::vector<int32_t>& tokens, int32_t limit) const;
    Run likeliest(const Context& context, int32_t count, double floor) const;

    int64_t size() const { return size_; }
    int64_t states() const { return static_cast<int64_t>(states_.size()); }
    int64_t nbytes() const;

  private:
    struct State {
        int32_t length = 0, link = kNone, count = 0, followed = 0, best = kNone;
        int32_t token = kNone, target = kNone;  // the first transition
        int32_t branches = kNone;               // the latest of the others
    };
    struct Branch {
        int32_t token, target, next;
    };
    struct Place {
        int32_t state, length;
    };

    State& at(int32_t state) { return states_[static_cast<size_t>(state)]; }
    const State& at(int32_t state) const { return states_[static_cast<size_t>(state)]; }

    int32_t grow(int32_t token);
    int32_t split(int32_t state, int32_t before, int32_t token);
    void tally(int32_t token);
    Place shortened(Place place, int32_t limit) const;
    int32_t step(int32_t state, int32_t token) const;
    void connect(int32_t state, int32_t token, int32_t target);
    void branch(int32_t state, int32_t token, int32_t target);
    int32_t new_state(int32_t length);

    int32_t depth_;
    int64_t size_ = 0;  // tokens read
    int32_t last_ = 0;
    Place end_{0, 0};  // the text's last tokens, depth - 1 at most: the longest context whose successor counts
    std::vector<State> states_;
    std::vector<Branch> branches_;
    FlatMap<uint64_t> branch_of_;  // by state and token
};

}  // namespace decodeloop
