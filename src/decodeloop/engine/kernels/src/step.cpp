#include "step.h"

#include <algorithm>

#include "numbers.h"

namespace decodeloop {

namespace {

// Up to so many rows each thread normalises for itself: cheaper than to share the work and meet.
constexpr int64_t kOwnRows = 8;

float* floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
int64_t padded_outputs(const Matrix& matrix) { return matrix.units() * kUnit; }

}  // namespace

Step::Step(const Model& model, int64_t layers, const Kernels* kernels, Team& team, const KvPool& kv)
    : model_(model),
      shape_(model.shape()),
      layers_(layers),
      kernels_(kernels),
      team_(team),
      kv_(kv),
      rope_(model.frequencies()),
      window_rope_(model.window_frequencies()),
      attention_(model.shape(), kernels, kv),
      width_(round_up(shape_.hidden_size, kGroup)),
      q_width_(padded_outputs(model.layer(0).q)),
      kv_width_(padded_outputs(model.layer(0).k)),
      own_normed_(static_cast<size_t>(team.threads())) {}

float* Step::stream(int64_t token) const { return floats(stream_) + token * width_; }
float* Step::branch(int64_t token) const { return floats(branch_) + token * width_; }
float* Step::qkv(int64_t token) const { return floats(qkv_) + token * (q_width_ + 2 * kv_width_); }
float* Step::tile(int thread) const { return floats(tiles_) + thread * tile_floats_; }

void Step::reserve(const Batch& batch) {
    const auto reserve_floats = [](Buffer& buffer, int64_t count) {
        buffer.reserve(static_cast<size_t>(count) * sizeof(float));
    };
    const int64_t tokens = batch.tokens, most = std::max(tokens, batch.rows);
    reserve_floats(stream_, tokens * width_);
    reserve_floats(qkv_, tokens * (q_width_ + 2 * kv_width_));
    if (shape_.post_norms) reserve_floats(branch_, tokens * width_);
    tile_floats_ = std::max(2 * most * kUnit, 4 * round_up(shape_.head_dim, kGroup));
    reserve_floats(tiles_, tile_floats_ * team_.threads());
    normed_.reserve(most, shape_.hidden_size);
    attended_.reserve(tokens, shape_.heads * shape_.head_dim);
    gated_.reserve(tokens, shape_.ffn_size);
    for (Rows& rows : own_normed_) rows.reserve(kOwnRows, shape_.hidden_size);
    int32_t furthest = 0;
    for (int64_t i = 0; i < tokens; ++i) furthest = std::max(furthest, batch.positions[i]);
    rope_.reserve(furthest + 1);
    if (shape_.window > 0) window_rope_.reserve(furthest + 1);
}

void Step::run(const Batch& batch, const Outputs& outputs) {
    batch.check(shape_, layers_, kv_);
    batch_ = &batch;
    outputs_ = outputs;
    reserve(batch);
    pick_units(batch);
    attention_.plan(batch, team_.threads());
    lap_start_ = std::chrono::steady_clock::now();
    team_.run([this](int thread) { work(thread); });
}

void Step::lap(int thread, Section section) {
    if (thread != 0) return;
    const auto now = std::chrono::steady_clock::now();
    seconds_[static_cast<size_t>(section)] += std::chrono::duration<double>(now - lap_start_).count();
    lap_start_ = now;
}

void Step::work(int thread) {
    embed(thread);
    keep_hidden(thread, 0);
    lap(thread, Section::Embed);
    for (int64_t layer = 0; layer < layers_; ++layer) {
        attention_block(thread, layer);
        mlp_block(thread, layer, layer + 1 < layers_ ? model_.layer(layer + 1).q : model_.head());
        keep_hidden(thread, layer + 1);
    }
    head(thread);
    lap(thread, Section::Head);
}

void Step::embed(int thread) {
    team_.share(thread, static_cast<int>(batch_->tokens), [&](int token) {
        float* x = stream(token);
        model_.embed().row(batch_->ids[token], x);
        for (int64_t i = 0; i < shape_.hidden_size; ++i) x[i] *= shape_.embedding_scale;
        std::fill(x + shape_.hidden_size, x + width_, 0.0f);
    });
}

void Step::keep_hidden(int thread, int64_t layer) {
    for (size_t h = 0; h < batch_->hidden_layers.size(); ++h) {
        if (batch_->hidden_layers[h] != layer) continue;
        team_.share(thread, static_cast<int>(batch_->rows), [&](int row) {
            const float* x = stream(batch_->logit_rows[row]);
            const int64_t place = static_cast<int64_t>(h) * batch_->rows + row;
            std::copy(x, x + shape_.hidden_size, outputs_.hidden + place * shape_.hidden_size);
        });
    }
}

void Step::prepare_for(const RowSet& rows, int64_t row, int64_t from, int64_t to, Matrices readers) const {
    bool prepared[kRowKinds] = {};
    for (const Matrix* matrix : readers) {
        const RowKind kind = kernels_->row_kind[static_cast<int>(matrix->format())];
        bool& done = prepared[static_cast<int>(kind)];
        if (!done) prepare(*kernels_, kind, rows, row, from, to);
        done = true;
    }
}

// Rows of the residual stream (row r is token index[r], or r itself), normalised, in the kinds that `readers` want.
const RowSet& Step::normed(int thread, const int32_t* index, int64_t rows, Vector norm, Matrices readers) {
    const auto norm_row = [&](const Rows& out, int64_t row) {
        const float* x = stream(index == nullptr ? row : index[row]);
        kernels_->rms_norm(x, norm, shape_.hidden_size, width_, shape_.norm_eps, out.row(row));
        prepare_for(out.set(), row, 0, width_ / kGroup, readers);
    };
    if (rows <= kOwnRows) {
        const Rows& own = own_normed_[static_cast<size_t>(thread)];
        for (int64_t row = 0; row < rows; ++row) norm_row(own, row);
        return own.set();
    }
    team_.share(thread, static_cast<int>(rows), [&](int row) { norm_row(normed_, row); });
    return normed_.set();
}

// What this thread will read after a unit: the next of its share, or the first of its share of the next matrix.
const char* Step::following(int thread, const Matrix& matrix, int64_t unit, const Matrix& next) const {
    const int64_t end = team_.share_begin(thread + 1, static_cast<int>(matrix.units()));
    if (unit + 1 != end && unit + 1 < matrix.units()) return matrix.unit(unit + 1);
    return next.unit(team_.share_begin(thread, static_cast<int>(next.units())));
}

void Step::product(const Matrix& matrix, int64_t unit, const char* next, const RowSet& x, int64_t rows, float* y,
                   int64_t y_stride) const {
    kernels_->matmul[static_cast<int>(matrix.format())](
        {matrix.unit(unit), next, matrix.padded_inputs(), &x, rows, y, y_stride});
}

void Step::attention_block(int thread, int64_t layer) {
    const Layer& w = model_.layer(layer);
    const int64_t tokens = batch_->tokens;
    const RowSet& x = normed(thread, nullptr, tokens, w.attn_norm, {&w.q, &w.k, &w.v});
    const int q_units = static_cast<int>(w.q.units()), kv_units = static_cast<int>(w.k.units());
    team_.share(thread, q_units + 2 * kv_units, [&](int unit) {
        const Matrix& matrix = unit < q_units ? w.q : unit < q_units + kv_units ? w.k : w.v;
        const int64_t own = unit < q_units ? unit : (unit - q_units) % kv_units;
        const Matrix& next = unit < q_units ? w.k : unit < q_units + kv_units ? w.v : w.o;
        const char* ahead = own + 1 < matrix.units() ? matrix.unit(own + 1) : next.unit(0);
        product(matrix, own, ahead, x, tokens, qkv(0) + int64_t{unit} * kUnit, q_width_ + 2 * kv_width_);
    });
    lap(thread, Section::Qkv);
    team_.share(thread, static_cast<int>(tokens * shape_.kv_heads), [&](int unit) {
        place_heads(thread, layer, unit / shape_.kv_heads, unit % shape_.kv_heads);
    });
    attend(thread, layer, w.o);
    lap(thread, Section::Attention);
    add_branch(thread, w.o, w.o_bias, attended_.set(), w.post_attn_norm, w.gate);
    lap(thread, Section::Output);
}

// Attention's results, in the kind that `reader` wants: made of each head when it is done, if a head is whole groups.
void Step::attend(int thread, int64_t layer, const Matrix& reader) {
    const RowSet& out = attended_.set();
    const int64_t head_groups = shape_.head_dim / kGroup;
    const bool whole = shape_.head_dim % kGroup == 0;
    const Attention::Finished finished = [&](int64_t token, int64_t head) {
        if (whole) prepare_for(out, token, head * head_groups, (head + 1) * head_groups, {&reader});
    };
    team_.share(thread, attention_.items(shape_.has_window(layer)),
                [&](int item) { attention_.run(item, thread, layer, out, finished); });
    if (whole || kernels_->row_kind[static_cast<int>(reader.format())] == RowKind::F32) return;
    team_.share(thread, static_cast<int>(batch_->tokens),
                [&](int token) { prepare_for(out, token, 0, out.stride / kGroup, {&reader}); });
}

// The heads of one token that share a key head: queries go to attention, keys and values to the cache.
void Step::place_heads(int thread, int64_t layer, int64_t token, int64_t kv_head) {
    const Layer& w = model_.layer(layer);
    const int64_t dim = shape_.head_dim, repeat = shape_.heads / shape_.kv_heads;
    const auto bias_of = [&](Vector bias, int64_t head) { return bias == nullptr ? nullptr : bias + head * dim; };
    const float* of_token = qkv(token);
    for (int64_t head = kv_head * repeat; head < (kv_head + 1) * repeat; ++head) {
        float* q = attention_.query(token, head);
        place_vector(thread, of_token + head * dim, bias_of(w.q_bias, head), w.q_norm, layer, token, q);
        for (int64_t i = 0; i < dim; ++i) q[i] *= shape_.query_scale;
    }
    const int64_t padded = round_up(dim, kGroup);
    float* k = tile(thread) + 2 * padded;
    float* v = k + padded;
    place_vector(thread, of_token + q_width_ + kv_head * dim, bias_of(w.k_bias, kv_head), w.k_norm, layer, token, k);
    const float* value = of_token + q_width_ + kv_width_ + kv_head * dim;
    const float* v_bias = bias_of(w.v_bias, kv_head);
    for (int64_t i = 0; i < dim; ++i) v[i] = v_bias == nullptr ? value[i] : value[i] + v_bias[i];
    const int64_t entry = batch_->entry(token);
    kernels_->store_kv[static_cast<int>(kv_.format())](
        k, v, dim, kv_.padded_head_dim(), entry % kBlockTokens,
        kv_.block(layer, kv_head, batch_->block(batch_->slots[token], entry)));
}

// A query or key vector with its bias added, normalised and rotated as the model asks.
void Step::place_vector(int thread, const float* x, Vector bias, Vector norm, int64_t layer, int64_t token,
                        float* out) {
    const int64_t dim = shape_.head_dim, padded = round_up(dim, kGroup);
    float* raw = tile(thread);
    float* scaled = raw + padded;
    std::fill(raw + dim, raw + padded, 0.0f);
    for (int64_t i = 0; i < dim; ++i) raw[i] = bias == nullptr ? x[i] : x[i] + bias[i];
    if (norm != nullptr) kernels_->rms_norm(raw, norm, dim, padded, shape_.norm_eps, scaled);
    std::copy_n(norm != nullptr ? scaled : raw, dim, out);
    const RopeTable& rope = shape_.has_window(layer) ? window_rope_ : rope_;
    const int64_t position = batch_->positions[token];
    kernels_->rotate(out, rope.cos(position), rope.sin(position), dim);
}

// stream += matrix . input + bias, normalised first where the model has a norm after the branch.
void Step::add_branch(int thread, const Matrix& matrix, Vector bias, const RowSet& input, Vector post_norm,
                      const Matrix& next) {
    const int64_t tokens = batch_->tokens;
    team_.share(thread, static_cast<int>(matrix.units()), [&](int unit) {
        const int64_t column = int64_t{unit} * kUnit;
        float* out = post_norm == nullptr ? tile(thread) : branch(0) + column;
        const int64_t stride = post_norm == nullptr ? kUnit : width_;
        product(matrix, unit, following(thread, matrix, unit, next), input, tokens, out, stride);
        for (int64_t token = 0; token < tokens; ++token) {
            if (bias != nullptr) kernels_->add(bias + column, kUnit, out + token * stride);
            if (post_norm == nullptr) kernels_->add(out + token * stride, kUnit, stream(token) + column);
        }
    });
    if (post_norm == nullptr) return;
    team_.share(thread, static_cast<int>(tokens), [&](int token) {
        kernels_->rms_norm(branch(token), post_norm, shape_.hidden_size, width_, shape_.norm_eps, branch(token));
        kernels_->add(branch(token), width_, stream(token));
    });
}

void Step::mlp_block(int thread, int64_t layer, const Matrix& next) {
    const Layer& w = model_.layer(layer);
    const int64_t tokens = batch_->tokens;
    const RowSet& x = normed(thread, nullptr, tokens, w.mlp_norm, {&w.gate, &w.up});
    team_.share(thread, static_cast<int>(w.gate.units()), [&](int unit) {
        float* gate = tile(thread);
        float* up = gate + tokens * kUnit;
        product(w.gate, unit, following(thread, w.gate, unit, w.down), x, tokens, gate, kUnit);
        product(w.up, unit, following(thread, w.up, unit, w.down), x, tokens, up, kUnit);
        for (int64_t token = 0; token < tokens; ++token) {
            float* out = gated_.row(token) + int64_t{unit} * kUnit;
            kernels_->gate(gate + token * kUnit, up + token * kUnit, kUnit, shape_.activation, out);
            prepare_for(gated_.set(), token, unit, unit + 1, {&w.down});
        }
    });
    add_branch(thread, w.down, nullptr, gated_.set(), w.post_mlp_norm, next);
    lap(thread, Section::Mlp);
}

}  // namespace decodeloop
