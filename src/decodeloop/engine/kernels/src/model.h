// A decoder-only transformer of the Llama, Qwen3 or Gemma3 family: its shape and its weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "matrix.h"
#include "memory.h"

namespace decodeloop {

struct Shape {
    int64_t vocab_size = 0, hidden_size = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn_size = 0;
    int64_t max_context = 0;
    float norm_eps = 0;
    Activation activation = Activation::Silu;
    bool tied_embeddings = false, qk_norm = false, post_norms = false, attention_bias = false;
    float embedding_scale = 1, query_scale = 1;
    int64_t window = 0;                   // positions that a window layer sees; 0: all
    std::vector<bool> window_layers;      // empty: none
    float attention_softcap = 0, final_softcap = 0;  // 0: none

    bool has_window(int64_t layer) const { return !window_layers.empty() && window_layers[static_cast<size_t>(layer)]; }
    void check() const;  // std::invalid_argument
};

// A norm's weights or a bias, padded with zeros to whole groups.
using Vector = const float*;

struct Layer {
    Vector attn_norm = nullptr, mlp_norm = nullptr;
    Vector q_norm = nullptr, k_norm = nullptr;                      // with qk_norm
    Vector post_attn_norm = nullptr, post_mlp_norm = nullptr;       // with post_norms
    Vector q_bias = nullptr, k_bias = nullptr, v_bias = nullptr;    // with attention_bias
    Vector o_bias = nullptr;                                        // where stored
    Matrix q, k, v, o, gate, up, down;
};

class Model {
public:
    explicit Model(Shape shape);

    // Names as in a checkpoint: embed, head, final_norm, layers.{i}.{...}. std::invalid_argument for others.
    Matrix& add_matrix(const std::string& name, Format format, int64_t outputs, int64_t inputs);
    void add_vector(const std::string& name, const float* values, int64_t count);
    // [head_dim / 2] radians a position, of ordinary and of window layers.
    void set_frequencies(std::vector<float> ordinary, std::vector<float> window);
    void check_complete() const;  // std::invalid_argument names what is missing

    const Shape& shape() const { return shape_; }
    const Layer& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
    const Matrix& embed() const { return embed_; }
    const Matrix& head() const { return shape_.tied_embeddings ? embed_ : head_; }
    Vector final_norm() const { return final_norm_; }
    const std::vector<float>& frequencies() const { return frequencies_; }
    const std::vector<float>& window_frequencies() const { return window_frequencies_; }
    int64_t weight_bytes() const { return static_cast<int64_t>(arena_.bytes()); }

private:
    Matrix* matrix_named(const std::string& name);
    Vector* vector_named(const std::string& name, int64_t& size);
    Layer* layer_named(const std::string& name, std::string& part);

    Shape shape_;
    Arena arena_;
    std::vector<Layer> layers_;
    Matrix embed_, head_;
    Vector final_norm_ = nullptr;
    std::vector<float> frequencies_, window_frequencies_;
};

}  // namespace decodeloop
