// Attention over paged keys and values, cut into items that threads take.
//
// A (sequence, key head) has a row for each of its tokens and query heads. Chunks of positions lie at fixed places, and
// a row folds its chunks in order: so its result depends neither on the other rows nor on how the work was cut.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "batch.h"
#include "kernels.h"
#include "kv.h"
#include "memory.h"
#include "model.h"
#include "tree.h"

namespace decodeloop {

class Attention {
public:
    Attention(const Shape& shape, const Kernels* kernels, const KvPool& kv);

    using Finished = std::function<void(int64_t token, int64_t head)>;

    // Lay out the work of `batch`, which must outlive the step.
    void plan(const Batch& batch, int threads);

    int items(bool window) const { return static_cast<int>(plans_[window].items.size()); }
    // Where the scaled and rotated query of a token's head goes: [head_dim padded], zeros beyond head_dim.
    float* query(int64_t token, int64_t head);
    // Do one item; the item that completes a group puts its rows' results into out, row token, from head * head_dim on,
    // and says so of each.
    void run(int item, int thread, int64_t layer, const RowSet& out, const Finished& finished);

private:
    struct Group {  // a run of one slot's tokens, for one key head
        int64_t first_token, end_token;  // in sorted order
        int64_t kv_head;
        int64_t first_chunk, end_chunk;
        int64_t partials;  // offset, where the chunks are cut into several items
        int items;
    };
    struct Item {
        int group;
        int64_t first_chunk, end_chunk;
    };
    struct Plan {
        std::vector<Group> groups;
        std::vector<Item> items;
        std::unique_ptr<std::atomic<int>[]> done;  // items of each group, in this layer
        int64_t partials = 0;                      // floats
    };
    struct Scratch {  // a thread's own
        float* states;
        float* partials;
        char* blocks;  // of a tree's token
    };
    struct Place {  // of one run() call
        int64_t layer;
        bool window;
        Scratch scratch;
    };

    int64_t group_tokens(const Batch& batch, int threads) const;
    void plan_groups(Plan& plan, bool window, int threads);
    void attend_chunk(const Place& place, const Group& group, int64_t chunk, float* partials) const;
    void attend_rows(const Place& place, const Group& group, int64_t chunk, int64_t from, int64_t to,
                     const char* const* blocks, float* partials) const;
    void find_blocks(const Place& place, const Group& group, int64_t chunk, int64_t from, int64_t to,
                     const char** blocks) const;
    void fold_chunk(const Place& place, const Group& group, int64_t chunk, const float* partials) const;
    void clear_states(const Place& place, const Group& group) const;
    void finish(const Place& place, const Group& group, const RowSet& out, const Finished& finished) const;
    Scratch scratch(int thread) const;
    int64_t token_at(int64_t sorted) const { return order_[static_cast<size_t>(sorted)]; }
    int64_t position_at(int64_t sorted) const { return batch_->positions[token_at(sorted)]; }
    int64_t rows(const Group& group) const { return (group.end_token - group.first_token) * repeat_; }
    int64_t first_visible(int64_t sorted, bool window) const;
    void visible_tokens(const Group& group, int64_t chunk, bool window, int64_t& from, int64_t& to) const;

    const Shape& shape_;
    const Kernels* kernels_;
    const KvPool& kv_;
    int64_t repeat_, head_dim_, state_stride_;
    const Batch* batch_ = nullptr;
    Tree tree_;
    std::vector<int64_t> order_;   // sorted -> token, by slot and position
    std::vector<int64_t> sorted_;  // token -> sorted
    Plan plans_[2];
    Buffer queries_, partials_, scratch_;
    int64_t state_floats_ = 0, scratch_bytes_ = 0;
};

}  // namespace decodeloop
