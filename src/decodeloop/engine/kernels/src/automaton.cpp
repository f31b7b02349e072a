#include "automaton.h"

#include <algorithm>
#include <stdexcept>

namespace decodeloop {

namespace {

constexpr int32_t kRoot = 0;

uint64_t key_of(int32_t state, int32_t token) {
    return static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(token);
}

}  // namespace

SuffixAutomaton::SuffixAutomaton(int32_t depth) : depth_(depth) {
    if (depth < 1) throw std::invalid_argument("such a depth leaves no context to count");
    new_state(0);
    begin_text();
}

void SuffixAutomaton::begin_text() {
    last_ = kRoot;
    end_ = {kRoot, 0};
}

void SuffixAutomaton::read(const std::vector<int32_t>& tokens) {
    for (int32_t token : tokens) {
        last_ = grow(token);
        tally(token);
        ++size_;
    }
}

Context SuffixAutomaton::own_end(int32_t limit) const {
    Place place = end_;
    if (place.state == last_) {  // the one state whose contexts came only here
        const int32_t link = at(last_).link;
        place = link == kNone ? Place{kRoot, 0} : Place{link, at(link).length};
    }
    place = shortened(place, limit);
    return {place.state, place.length, size_};
}

void SuffixAutomaton::advance(Context& context, const std::vector<int32_t>& tokens, int32_t limit) const {
    Place place = shortened({context.state, context.length}, limit);
    for (int32_t token : tokens) {
        int32_t target = step(place.state, token);
        while (target == kNone && place.state != kRoot) {
            place.state = at(place.state).link;
            place.length = at(place.state).length;
            target = step(place.state, token);
        }
        if (target != kNone) place = shortened({target, place.length + 1}, limit);
    }
    context = {place.state, place.length, size_};
}

Run SuffixAutomaton::likeliest(const Context& context, int32_t count, double floor) const {
    Run run;
    int32_t state = context.state;
    double score = 1.0;
    while (static_cast<int32_t>(run.tokens.size()) < count) {
        while (state != kRoot && at(state).best == kNone) state = at(state).link;
        if (state == kRoot) break;
        const int32_t token = at(state).best, target = step(state, token);
        score *= static_cast<double>(at(target).count) / static_cast<double>(at(state).followed);
        if (score < floor) break;
        run.tokens.push_back(token);
        run.scores.push_back(score);
        state = target;
    }
    return run;
}

int64_t SuffixAutomaton::nbytes() const {
    return static_cast<int64_t>(states_.capacity() * sizeof(State) + branches_.capacity() * sizeof(Branch) +
                                branch_of_.nbytes());
}

// The state of the whole text with `token` added.
int32_t SuffixAutomaton::grow(int32_t token) {
    const int32_t last = last_;
    int32_t known = step(last, token);
    if (known != kNone)  // an earlier text went the same way
        return at(known).length == at(last).length + 1 ? known : split(known, last, token);
    const int32_t added = new_state(at(last).length + 1);
    int32_t state = last;
    while (state != kNone && (known = step(state, token)) == kNone) {
        connect(state, token, added);
        state = at(state).link;
    }
    int32_t link = known;
    if (state == kNone)
        link = kRoot;
    else if (at(known).length != at(state).length + 1)
        link = split(known, state, token);
    at(added).link = link;
    return added;
}

// Part the contexts of `state` that are one longer than `before`'s, or shorter, from its longer ones.
int32_t SuffixAutomaton::split(int32_t state, int32_t before, int32_t token) {
    const int32_t twin = new_state(at(before).length + 1), length = at(twin).length;
    at(twin) = at(state);
    at(twin).length = length;
    at(twin).branches = kNone;
    for (int32_t i = at(state).branches; i != kNone; i = branches_[static_cast<size_t>(i)].next) {
        const Branch copied = branches_[static_cast<size_t>(i)];
        branch(twin, copied.token, copied.target);
    }
    at(state).link = twin;
    while (before != kNone && step(before, token) == state) {
        connect(before, token, twin);
        before = at(before).link;
    }
    return twin;
}

// `token` came after every suffix of the text: count the contexts of at most `depth` tokens that it ended.
void SuffixAutomaton::tally(int32_t token) {
    const Place start = shortened(end_, depth_ - 1);
    int32_t arrived = kNone;
    for (int32_t state = start.state; state != kNone; state = at(state).link) {
        const int32_t target = step(state, token);
        if (target != arrived) {  // contexts of several states may have ended in one
            ++at(target).count;
            arrived = target;
        }
        State& here = at(state);
        ++here.followed;
        const int32_t rival = here.best;
        if (rival != token && (rival == kNone || at(target).count >= at(step(state, rival)).count)) here.best = token;
    }
    end_ = shortened({step(start.state, token), start.length + 1}, depth_ - 1);
}

// Where the last `limit` tokens of a context are; also finds a context again whose state was split.
SuffixAutomaton::Place SuffixAutomaton::shortened(Place place, int32_t limit) const {
    place.length = std::min(place.length, limit);
    while (place.state != kRoot && place.length <= at(at(place.state).link).length) place.state = at(place.state).link;
    return place;
}

int32_t SuffixAutomaton::step(int32_t state, int32_t token) const {
    const State& from = at(state);
    if (from.token == token) return from.target;
    if (from.branches == kNone) return kNone;
    const int32_t found = branch_of_.find(key_of(state, token));
    return found == kNone ? kNone : branches_[static_cast<size_t>(found)].target;
}

void SuffixAutomaton::connect(int32_t state, int32_t token, int32_t target) {
    State& from = at(state);
    if (from.token == kNone || from.token == token) {
        from.token = token;
        from.target = target;
    } else {
        branch(state, token, target);
    }
}

void SuffixAutomaton::branch(int32_t state, int32_t token, int32_t target) {
    const int32_t known = branch_of_.find(key_of(state, token));
    if (known != kNone) {
        branches_[static_cast<size_t>(known)].target = target;
        return;
    }
    const int32_t added = static_cast<int32_t>(branches_.size());
    branches_.push_back({token, target, at(state).branches});
    at(state).branches = added;
    branch_of_.put(key_of(state, token), added);
}

int32_t SuffixAutomaton::new_state(int32_t length) {
    states_.push_back({});
    states_.back().length = length;
    return static_cast<int32_t>(states_.size()) - 1;
}

}  // namespace decodeloop
