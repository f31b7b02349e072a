#include "attention.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "numbers.h"

namespace decodeloop {

namespace {

constexpr int64_t kGroupTokens = 16;         // of a slot that share loads of keys and values, at most
constexpr int64_t kItemsPerThread = 4;       // wanted, so that threads end together
constexpr int64_t kSmallestItem = 4096;      // row-positions: below, cutting costs more than it gains
constexpr int64_t kMostPartials = 16 << 20;  // floats

}  // namespace

Attention::Attention(const Shape& shape, const Kernels* kernels, const KvPool& kv)
    : shape_(shape),
      kernels_(kernels),
      kv_(kv),
      repeat_(shape.heads / shape.kv_heads),
      head_dim_(kv.padded_head_dim()),
      state_stride_(round_up(head_dim_ + 2, 16)) {}

int64_t Attention::first_visible(int64_t sorted, bool window) const {
    return window ? std::max<int64_t>(0, position_at(sorted) - shape_.window + 1) : 0;
}

void Attention::plan(const Batch& batch, int threads) {
    batch_ = &batch;
    tree_.plan(batch);
    order_.resize(static_cast<size_t>(batch.tokens));
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
        return batch.slots[a] != batch.slots[b] ? batch.slots[a] < batch.slots[b]
                                                : batch.positions[a] < batch.positions[b];
    });
    sorted_.resize(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) sorted_[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
    queries_.reserve(static_cast<size_t>(batch.tokens * shape_.heads * head_dim_) * sizeof(float));
    state_floats_ = std::min(batch.tokens, kGroupTokens) * repeat_ * state_stride_;
    scratch_bytes_ = round_up(2 * state_floats_ * static_cast<int64_t>(sizeof(float)), 64) +
                     kChunkBlocks * kv_.piece_bytes();
    scratch_.reserve(static_cast<size_t>(scratch_bytes_ * threads));
    plan_groups(plans_[0], false, threads);
    if (!shape_.window_layers.empty()) plan_groups(plans_[1], true, threads);
    const int64_t partials = std::max(plans_[0].partials, plans_[1].partials);
    partials_.reserve(static_cast<size_t>(partials) * sizeof(float));
}

// Tokens of a slot to a group: fewer where groups are too few for the threads, but enough to fill the kernels' tiles.
int64_t Attention::group_tokens(const Batch& batch, int threads) const {
    const int64_t groups = shape_.kv_heads * ceil_div(batch.tokens, kGroupTokens);  // at least
    const int64_t parts = ceil_div(kItemsPerThread * threads, groups);
    const int64_t tile = std::max<int64_t>(1, kMaxAttentionRows / repeat_);
    return std::min(kGroupTokens, round_up(ceil_div(std::min(batch.tokens, kGroupTokens), parts), tile));
}

void Attention::plan_groups(Plan& plan, bool window, int threads) {
    const int64_t most = group_tokens(*batch_, threads);
    plan.groups.clear();
    plan.items.clear();
    plan.partials = 0;
    int64_t work = 0;  // row-positions
    for (int64_t from = 0, to = 0; from < batch_->tokens; from = to) {
        const int32_t slot = batch_->slots[token_at(from)];
        while (to < batch_->tokens && to - from < most && batch_->slots[token_at(to)] == slot) ++to;
        const int64_t first_chunk = first_visible(from, window) / kChunk, end_chunk = position_at(to - 1) / kChunk + 1;
        for (int64_t head = 0; head < shape_.kv_heads; ++head) {
            plan.groups.push_back({from, to, head, first_chunk, end_chunk, 0, 1});
            work += rows(plan.groups.back()) * (end_chunk - first_chunk) * kChunk;
        }
    }
    const int64_t item_work = std::max(kSmallestItem, work / (kItemsPerThread * threads));
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        Group& group = plan.groups[g];
        const int64_t chunks = group.end_chunk - group.first_chunk;
        const int64_t pieces = std::clamp(rows(group) * chunks * kChunk / item_work, int64_t{1}, chunks);
        const int64_t wanted = rows(group) * chunks * state_stride_;
        if (threads > 1 && pieces > 1 && plan.partials + wanted <= kMostPartials) {
            group.items = static_cast<int>(pieces);
            group.partials = plan.partials;
            plan.partials += wanted;
        }
        for (int64_t piece = 0; piece < group.items; ++piece)
            plan.items.push_back({static_cast<int>(g), group.first_chunk + chunks * piece / group.items,
                                  group.first_chunk + chunks * (piece + 1) / group.items});
    }
    plan.done = std::make_unique<std::atomic<int>[]>(plan.groups.size());
}

float* Attention::query(int64_t token, int64_t head) {
    const int64_t place = sorted_[static_cast<size_t>(token)];
    const int64_t row = (head / repeat_ * batch_->tokens + place) * repeat_ + head % repeat_;
    return reinterpret_cast<float*>(queries_.data()) + row * head_dim_;
}

Attention::Scratch Attention::scratch(int thread) const {
    char* own = scratch_.data() + thread * scratch_bytes_;
    float* states = reinterpret_cast<float*>(own);
    return {states, states + state_floats_, own + scratch_bytes_ - kChunkBlocks * kv_.piece_bytes()};
}

// Positions ascend along a group's tokens, so those that see anything of a chunk are a run.
void Attention::visible_tokens(const Group& group, int64_t chunk, bool window, int64_t& from, int64_t& to) const {
    from = group.first_token;
    to = group.end_token;
    while (from < to && position_at(from) < chunk * kChunk) ++from;
    while (to > from && first_visible(to - 1, window) >= (chunk + 1) * kChunk) --to;
}

// The chunk's blocks that sorted tokens [from, to) see any of; a tree's token comes alone.
void Attention::find_blocks(const Place& place, const Group& group, int64_t chunk, int64_t from, int64_t to,
                            const char** blocks) const {
    const int64_t token = token_at(from);
    const int64_t first = std::max(first_visible(from, place.window) / kBlockTokens, chunk * kChunkBlocks);
    const int64_t last = std::min(position_at(to - 1) / kBlockTokens, (chunk + 1) * kChunkBlocks - 1);
    for (int64_t block = first; block <= last; ++block) {
        const int64_t index = block - chunk * kChunkBlocks;
        if (block < tree_.first_block(token)) {
            const int32_t held = batch_->block(batch_->slots[token], block * kBlockTokens);
            blocks[index] = kv_.block(place.layer, group.kv_head, held);
        } else {
            char* piece = place.scratch.blocks + index * kv_.piece_bytes();
            tree_.lay_out(*batch_, kv_, place.layer, group.kv_head, token, block, piece);
            blocks[index] = piece;
        }
    }
}

void Attention::attend_chunk(const Place& place, const Group& group, int64_t chunk, float* partials) const {
    int64_t from, to;
    visible_tokens(group, chunk, place.window, from, to);
    while (from < to) {
        const auto differs = [&](int64_t at) { return tree_.first_block(token_at(at)) < (chunk + 1) * kChunkBlocks; };
        int64_t end = from + 1;
        if (!differs(from))
            while (end < to && !differs(end)) ++end;
        const char* blocks[kChunkBlocks] = {};
        find_blocks(place, group, chunk, from, end, blocks);
        attend_rows(place, group, chunk, from, end, blocks, partials);
        from = end;
    }
}

void Attention::attend_rows(const Place& place, const Group& group, int64_t chunk, int64_t from, int64_t to,
                            const char* const* blocks, float* partials) const {
    const float* queries = reinterpret_cast<const float*>(queries_.data()) +
                           (group.kv_head * batch_->tokens + group.first_token) * repeat_ * head_dim_;
    const int64_t first_row = (from - group.first_token) * repeat_, count = (to - from) * repeat_;
    const int64_t tiles = ceil_div(count, kMaxAttentionRows);
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = first_row + count * tile / tiles, end = first_row + count * (tile + 1) / tiles;
        int32_t first[kMaxAttentionRows], last[kMaxAttentionRows];
        for (int64_t row = begin; row < end; ++row) {
            const int64_t sorted = group.first_token + row / repeat_;
            first[row - begin] = static_cast<int32_t>(first_visible(sorted, place.window));
            last[row - begin] = static_cast<int32_t>(position_at(sorted));
        }
        kernels_->attend[static_cast<int>(kv_.format())](
            {queries + begin * head_dim_, head_dim_, static_cast<int>(end - begin), head_dim_, blocks, chunk * kChunk,
             first, last, shape_.attention_softcap, partials + begin * state_stride_, state_stride_});
    }
}

void Attention::fold_chunk(const Place& place, const Group& group, int64_t chunk, const float* partials) const {
    int64_t from, to;
    visible_tokens(group, chunk, place.window, from, to);
    for (int64_t row = (from - group.first_token) * repeat_; row < (to - group.first_token) * repeat_; ++row)
        kernels_->fold(partials + row * state_stride_, head_dim_, place.scratch.states + row * state_stride_);
}

void Attention::clear_states(const Place& place, const Group& group) const {
    float* states = place.scratch.states;
    std::fill(states, states + rows(group) * state_stride_, 0.0f);
    for (int64_t row = 0; row < rows(group); ++row)
        states[row * state_stride_ + head_dim_] = -std::numeric_limits<float>::infinity();
}

void Attention::finish(const Place& place, const Group& group, const RowSet& out, const Finished& finished) const {
    for (int64_t row = 0; row < rows(group); ++row) {
        const int64_t token = token_at(group.first_token + row / repeat_);
        const int64_t head = group.kv_head * repeat_ + row % repeat_;
        kernels_->normalise(place.scratch.states + row * state_stride_, shape_.head_dim, head_dim_,
                            out.f32 + token * out.stride + head * shape_.head_dim);
        finished(token, head);
    }
}

void Attention::run(int index, int thread, int64_t layer, const RowSet& out, const Finished& finished) {
    const bool window = shape_.has_window(layer);
    Plan& plan = plans_[window];
    const Item& item = plan.items[static_cast<size_t>(index)];
    const Group& group = plan.groups[static_cast<size_t>(item.group)];
    const Place place{layer, window, scratch(thread)};
    if (group.items == 1) {
        clear_states(place, group);
        for (int64_t chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
            attend_chunk(place, group, chunk, place.scratch.partials);
            fold_chunk(place, group, chunk, place.scratch.partials);
        }
        return finish(place, group, out, finished);
    }
    float* partials = reinterpret_cast<float*>(partials_.data()) + group.partials;
    const int64_t chunk_floats = rows(group) * state_stride_;
    for (int64_t chunk = item.first_chunk; chunk < item.end_chunk; ++chunk)
        attend_chunk(place, group, chunk, partials + (chunk - group.first_chunk) * chunk_floats);
    std::atomic<int>& done = plan.done[static_cast<size_t>(item.group)];
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < group.items) return;
    done.store(0, std::memory_order_relaxed);
    clear_states(place, group);
    for (int64_t chunk = group.first_chunk; chunk < group.end_chunk; ++chunk)
        fold_chunk(place, group, chunk, partials + (chunk - group.first_chunk) * chunk_floats);
    finish(place, group, out, finished);
}

}  // namespace decodeloop
