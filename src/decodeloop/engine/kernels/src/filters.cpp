#include "filters.h"

#include <algorithm>
#include <cmath>

namespace decodeloop {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kReaches[] = {3.0, 8.0, kInfinity};  // how far under the maximum to look, until that is enough
constexpr int64_t kPiece = 1024;
// Exponentials are off by less than 1e-14, relatively: these are in the order of their arguments.
constexpr double kApart = 1e-12;
constexpr double kLowest = -700.0;  // exponentials under it lose digits

// Candidates with a log-weight of -reach or more.
void gather(const Kernels& kernels, const LogitRow& row, double reach, std::vector<Candidate>& found) {
    found.clear();
    const double border = row.top - reach * row.temperature;
    const double slack = 1e-6 * (std::fabs(row.top) + reach * row.temperature);
    const double lowest = std::numeric_limits<float>::lowest();  // no less: minus infinity can't be drawn
    const auto least = static_cast<float>(std::max(border - slack, lowest));
    int32_t places[kPiece];
    for (int64_t first = 0; first < row.vocab_size; first += kPiece) {
        const int count = kernels.above(row.logits + first, std::min(kPiece, row.vocab_size - first), least, places);
        for (int i = 0; i < count; ++i) {
            const int64_t id = first + places[i];
            const double log_weight = row.log_weight(id);
            if (log_weight >= -reach) found.push_back({log_weight, std::exp(log_weight), static_cast<int32_t>(id)});
        }
    }
}

double total_of(const Candidate* begin, const Candidate* end) {
    double total = 0;
    for (const Candidate* c = begin; c != end; ++c) total += c->weight;
    return total;
}

struct Beginning {
    size_t count;
    double without_last, with_last;  // weights
};

// Puts the candidates in order by halves, as far as that takes: the fewest first ones whose weights reach `wanted`, or
// all of them.
Beginning reaching(std::vector<Candidate>& candidates, double wanted) {
    constexpr std::ptrdiff_t kFew = 24;
    Candidate *begin = candidates.data(), *end = begin + candidates.size();
    double sum = 0;
    while (end - begin > kFew) {
        Candidate* middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, before);
        const double with_half = sum + total_of(begin, middle);
        if (with_half >= wanted) {
            end = middle;
        } else {
            begin = middle;
            sum = with_half;
        }
    }
    std::sort(begin, end, before);
    double without = sum;
    for (Candidate* c = begin; c != end; ++c) {
        without = sum;
        sum += c->weight;
        if (sum >= wanted || c + 1 == end) {
            end = c + 1;
            break;
        }
    }
    return {static_cast<size_t>(end - candidates.data()), without, sum};
}

enum class Answer { Kept, LookFurther, Unclear };

// The nucleus of all that have a log-weight of -reach or more; `total`: the weight of those it is a share of.
//
// Unclear is what another order of additions, V of them at most each off by 2^-53, could turn around, or another
// exponential.
Answer nucleus(const LogitRow& row, double top_p, double total, double reach, std::vector<Candidate>& candidates) {
    const double wanted = top_p * total;
    const double margin = total * (1e-12 + 1e-15 * static_cast<double>(row.vocab_size));
    const Answer not_here = reach < kInfinity ? Answer::LookFurther : Answer::Unclear;
    const Beginning nucleus = reaching(candidates, wanted);
    if (nucleus.with_last < wanted + margin) return not_here;
    if (nucleus.count > 1 && nucleus.without_last >= wanted - margin) return Answer::Unclear;
    const double border = candidates[nucleus.count - 1].log_weight;
    if (border - kApart <= -reach) return not_here;
    if (border < kLowest) return Answer::Unclear;
    for (const Candidate& c : candidates)
        if (c.log_weight != border && std::fabs(c.log_weight - border) <= kApart) return Answer::Unclear;
    candidates.resize(nucleus.count);
    return Answer::Kept;
}

// With everything that has a log-weight of -reach or more; `all`: nothing else can stay.
Answer filter(const Kernels& kernels, const LogitRow& row, const Filters& filters, double reach, bool all,
              std::vector<Candidate>& found) {
    if (filters.top_k > 0 && filters.top_k <= static_cast<int64_t>(found.size())) {
        std::nth_element(found.begin(), found.begin() + (filters.top_k - 1), found.end(), before);
        found.resize(static_cast<size_t>(filters.top_k));
        all = true;
    }
    if (filters.top_k > 0 && !all) return Answer::LookFurther;
    if (found.empty()) return Answer::Unclear;
    if (!(filters.top_p < 1.0)) return Answer::Kept;
    if (all) return nucleus(row, filters.top_p, total_of(found.data(), found.data() + found.size()), kInfinity, found);
    const double total = kernels.weight(row.logits, row.vocab_size, row.top, 1.0 / row.temperature);
    return nucleus(row, filters.top_p, total, reach, found);
}

}  // namespace

bool keep(const Kernels& kernels, const LogitRow& row, const Filters& filters, std::vector<Candidate>& kept) {
    for (double reach : kReaches) {
        const bool all = filters.least > -kInfinity || reach == kInfinity;
        if (all) reach = -filters.least;
        gather(kernels, row, reach, kept);
        const Answer answer = filter(kernels, row, filters, reach, all, kept);
        if (answer != Answer::LookFurther) return answer == Answer::Kept;
    }
    return false;
}

}  // namespace decodeloop
