// Attention of rows over chunks against double precision; bits alone and in company; unseen entries are never read.
#include <algorithm>
#include <limits>

#include "check.h"
#include "kernels.h"
#include "numbers.h"

using namespace decodeloop;

namespace {

constexpr int kHeadDim = 40;                 // padded to 48
constexpr int kPadded = 48;
constexpr int kStride = 64;
constexpr int kPositions = 2 * kChunk + 37;  // three chunks, the last one odd

struct Case {
    const Kernels& kernels;
    KvFormat format;
    float softcap;
    std::vector<float> k, v;           // [positions][head_dim], as the cache holds them
    std::vector<std::vector<char>> blocks;

    Case(const Kernels& of, KvFormat kv_format, float cap) : kernels(of), format(kv_format), softcap(cap) {
        const size_t count = static_cast<size_t>(kPositions) * kHeadDim;
        k = normal_values(count, 1);
        v = normal_values(count, 2);
        const size_t bytes = 2 * kBlockTokens * kPadded * (format == KvFormat::BF16 ? 2 : 4);
        for (int position = 0; position < kPositions; ++position) {
            if (position % kBlockTokens == 0) blocks.emplace_back(bytes, static_cast<char>(0xff));  // NaN throughout
            float* key = k.data() + position * kHeadDim;
            float* value = v.data() + position * kHeadDim;
            float padded_key[kPadded] = {}, padded_value[kPadded] = {};
            std::copy(key, key + kHeadDim, padded_key);
            std::copy(value, value + kHeadDim, padded_value);
            kernels.store_kv[static_cast<int>(format)](padded_key, padded_value, kPadded, kPadded,
                                                       position % kBlockTokens, blocks.back().data());
            if (format == KvFormat::F32) continue;
            for (int d = 0; d < kHeadDim; ++d) {
                key[d] = bf16_to_float(float_to_bf16(key[d]));
                value[d] = bf16_to_float(float_to_bf16(value[d]));
            }
        }
    }

    // [rows][head_dim] the attention of rows that see first[r]..last[r].
    std::vector<float> run(const std::vector<float>& q, const std::vector<int32_t>& first,
                           const std::vector<int32_t>& last) const {
        const int rows = static_cast<int>(first.size());
        std::vector<float> states(static_cast<size_t>(rows) * kStride, 0.0f), partials(states.size());
        for (int r = 0; r < rows; ++r)
            states[static_cast<size_t>(r * kStride + kPadded)] = -std::numeric_limits<float>::infinity();
        for (int chunk = 0; chunk * kChunk < kPositions; ++chunk) {
            int from = 0, to = rows;
            while (from < to && last[static_cast<size_t>(from)] < chunk * kChunk) ++from;
            while (to > from && first[static_cast<size_t>(to - 1)] >= (chunk + 1) * kChunk) --to;
            if (from == to) continue;
            const char* pointers[kChunkBlocks] = {};
            for (int b = 0; b < kChunkBlocks && chunk * kChunkBlocks + b < static_cast<int>(blocks.size()); ++b)
                pointers[b] = blocks[static_cast<size_t>(chunk * kChunkBlocks + b)].data();
            kernels.attend[static_cast<int>(format)](
                {q.data() + from * kPadded, kPadded, to - from, kPadded, pointers, int64_t{chunk} * kChunk,
                 first.data() + from, last.data() + from, softcap, partials.data() + from * kStride, kStride});
            for (int r = from; r < to; ++r)
                kernels.fold(partials.data() + r * kStride, kPadded, states.data() + r * kStride);
        }
        std::vector<float> out(static_cast<size_t>(rows) * kHeadDim);
        for (int r = 0; r < rows; ++r)
            kernels.normalise(states.data() + r * kStride, kHeadDim, kPadded, out.data() + r * kHeadDim);
        return out;
    }

    std::vector<double> expected(const float* q, int32_t first, int32_t last) const {
        std::vector<double> scores, out(kHeadDim, 0.0);
        double top = -1e300, total = 0;
        for (int32_t position = first; position <= last; ++position) {
            double score = 0;
            for (int d = 0; d < kHeadDim; ++d) score += double{q[d]} * k[static_cast<size_t>(position * kHeadDim + d)];
            scores.push_back(softcap > 0 ? softcap * std::tanh(score / softcap) : score);
            top = std::max(top, scores.back());
        }
        for (double& score : scores) total += score = std::exp(score - top);
        for (int32_t position = first; position <= last; ++position)
            for (int d = 0; d < kHeadDim; ++d)
                out[static_cast<size_t>(d)] += scores[static_cast<size_t>(position - first)] / total *
                                               v[static_cast<size_t>(position * kHeadDim + d)];
        return out;
    }
};

void compare(const Case& c, const std::vector<int32_t>& first, const std::vector<int32_t>& last) {
    const std::string name = std::string(c.kernels.name) + " attention at " + std::to_string(last.front());
    std::vector<float> q = normal_values(first.size() * kPadded, 3, 0.4f);
    for (size_t r = 0; r < first.size(); ++r)
        std::fill_n(q.begin() + static_cast<int>(r * kPadded + kHeadDim), 8, 0.0f);
    const std::vector<float> together = c.run(q, first, last);
    const double tolerance = c.format == KvFormat::F32 ? 2e-6 : 2e-2;  // of weights and queries rounded to bfloat16
    for (size_t r = 0; r < first.size(); ++r) {
        const std::vector<double> expected = c.expected(q.data() + r * kPadded, first[r], last[r]);
        for (size_t d = 0; d < kHeadDim; ++d)
            check_near(together[r * kHeadDim + d], expected[d], tolerance, name);
        const std::vector<float> own(q.begin() + static_cast<int>(r * kPadded),
                                     q.begin() + static_cast<int>((r + 1) * kPadded));
        const std::vector<float> alone = c.run(own, {first[r]}, {last[r]});
        check(same_bits(alone.data(), together.data() + r * kHeadDim, kHeadDim), name + ": same bits alone");
    }
}

}  // namespace

void test_attention(const Kernels& kernels) {
    for (const KvFormat format : {KvFormat::BF16, KvFormat::F32})
        for (const float softcap : {0.0f, 5.0f}) {
            const Case c(kernels, format, softcap);
            const int32_t end = kPositions - 1;
            compare(c, {0}, {0});
            compare(c, {0, 0, 0}, {4, 4, 5});
            compare(c, {0, 0, 0, 0, 0, 0}, {250, 251, 254, 255, 256, 257});
            compare(c, {0, 0, 0, 0, 0}, {end - 4, end - 3, end - 2, end - 1, end});
            compare(c, {3, 4, 250, 257}, {10, 11, 257, 264});           // windows
            compare(c, {239, 240, 241, 242, 243, 244}, {300, 301, 302, 303, 304, 305});
            compare(c, {511, 512}, {511, 512});                           // nothing shared
        }
}
