#include "model.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "numbers.h"

namespace decodeloop {

namespace {

void require(bool holds, const std::string& otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

}  // namespace

void Shape::check() const {
    require(vocab_size > 0 && hidden_size > 0 && layers > 0 && ffn_size > 0 && max_context > 0,
            "a model needs a vocabulary, a hidden size, layers, a feed-forward size and a context");
    require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0,
            std::to_string(heads) + " heads can't share " + std::to_string(kv_heads) + " key heads evenly");
    require(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxHeadDim,
            "a head's size must be even and at most " + std::to_string(kMaxHeadDim) + ", not " +
                std::to_string(head_dim));
    require(window_layers.empty() || static_cast<int64_t>(window_layers.size()) == layers,
            "window_layers needs an entry for every layer");
    require(window_layers.empty() || window > 0, "window layers need a window");
}

Model::Model(Shape shape) : shape_(std::move(shape)) {
    shape_.check();
    layers_.resize(static_cast<size_t>(shape_.layers));
}

Layer* Model::layer_named(const std::string& name, std::string& part) {
    if (name.rfind("layers.", 0) != 0) return nullptr;
    char* end = nullptr;
    const long index = std::strtol(name.c_str() + 7, &end, 10);
    if (*end != '.' || index < 0 || index >= shape_.layers) return nullptr;
    part = end + 1;
    return &layers_[static_cast<size_t>(index)];
}

Matrix* Model::matrix_named(const std::string& name) {
    if (name == "embed") return &embed_;
    if (name == "head") return &head_;
    std::string part;
    Layer* layer = layer_named(name, part);
    if (layer == nullptr) return nullptr;
    const std::pair<const char*, Matrix*> parts[] = {
        {"q", &layer->q},       {"k", &layer->k},   {"v", &layer->v},       {"o", &layer->o},
        {"gate", &layer->gate}, {"up", &layer->up}, {"down", &layer->down},
    };
    for (const auto& [part_name, matrix] : parts)
        if (part == part_name) return matrix;
    return nullptr;
}

Vector* Model::vector_named(const std::string& name, int64_t& size) {
    size = shape_.hidden_size;
    if (name == "final_norm") return &final_norm_;
    std::string part;
    Layer* layer = layer_named(name, part);
    if (layer == nullptr) return nullptr;
    const int64_t head = shape_.head_dim, hidden = shape_.hidden_size;
    struct Part {
        const char* name;
        Vector* vector;
        int64_t size;
    };
    const Part parts[] = {
        {"attn_norm", &layer->attn_norm, hidden},
        {"mlp_norm", &layer->mlp_norm, hidden},
        {"post_attn_norm", &layer->post_attn_norm, hidden},
        {"post_mlp_norm", &layer->post_mlp_norm, hidden},
        {"o_bias", &layer->o_bias, hidden},
        {"q_norm", &layer->q_norm, head},
        {"k_norm", &layer->k_norm, head},
        {"q_bias", &layer->q_bias, shape_.heads * head},
        {"k_bias", &layer->k_bias, shape_.kv_heads * head},
        {"v_bias", &layer->v_bias, shape_.kv_heads * head},
    };
    for (const Part& candidate : parts)
        if (part == candidate.name) {
            size = candidate.size;
            return candidate.vector;
        }
    return nullptr;
}

Matrix& Model::add_matrix(const std::string& name, Format format, int64_t outputs, int64_t inputs) {
    Matrix* matrix = matrix_named(name);
    require(matrix != nullptr, "no matrix '" + name + "' in this model");
    *matrix = Matrix(format, outputs, inputs, arena_);
    return *matrix;
}

void Model::add_vector(const std::string& name, const float* values, int64_t count) {
    int64_t size = 0;
    Vector* vector = vector_named(name, size);
    require(vector != nullptr, "no vector '" + name + "' in this model");
    require(count == size, name + " has " + std::to_string(count) + " values, not " + std::to_string(size));
    float* copy = reinterpret_cast<float*>(arena_.take(static_cast<size_t>(round_up(count, kGroup)) * sizeof(float)));
    std::copy(values, values + count, copy);
    *vector = copy;
}

void Model::set_frequencies(std::vector<float> ordinary, std::vector<float> window) {
    frequencies_ = std::move(ordinary);
    window_frequencies_ = std::move(window);
}

void Model::check_complete() const {
    const Shape& s = shape_;
    const auto matrix = [](const Matrix& m, int64_t outputs, int64_t inputs, const std::string& name) {
        require(m.outputs() == outputs && m.inputs() == inputs,
                name + " is [" + std::to_string(m.outputs()) + ", " + std::to_string(m.inputs()) + "], not [" +
                    std::to_string(outputs) + ", " + std::to_string(inputs) + "]");
    };
    const auto vector = [](Vector v, bool wanted, const std::string& name) {
        require(!wanted || v != nullptr, name + " is missing");
    };
    matrix(embed_, s.vocab_size, s.hidden_size, "embed");
    if (!s.tied_embeddings) matrix(head_, s.vocab_size, s.hidden_size, "head");
    vector(final_norm_, true, "final_norm");
    const size_t pairs = static_cast<size_t>(s.head_dim / 2);
    require(frequencies_.size() == pairs && window_frequencies_.size() == pairs,
            "rotary frequencies: " + std::to_string(pairs) + " are needed of each kind");
    for (int64_t i = 0; i < s.layers; ++i) {
        const Layer& l = layer(i);
        const std::string at = "layers." + std::to_string(i) + ".";
        matrix(l.q, s.heads * s.head_dim, s.hidden_size, at + "q");
        matrix(l.k, s.kv_heads * s.head_dim, s.hidden_size, at + "k");
        matrix(l.v, s.kv_heads * s.head_dim, s.hidden_size, at + "v");
        matrix(l.o, s.hidden_size, s.heads * s.head_dim, at + "o");
        matrix(l.gate, s.ffn_size, s.hidden_size, at + "gate");
        matrix(l.up, s.ffn_size, s.hidden_size, at + "up");
        matrix(l.down, s.hidden_size, s.ffn_size, at + "down");
        vector(l.attn_norm, true, at + "attn_norm");
        vector(l.mlp_norm, true, at + "mlp_norm");
        vector(l.q_norm, s.qk_norm, at + "q_norm");
        vector(l.k_norm, s.qk_norm, at + "k_norm");
        vector(l.post_attn_norm, s.post_norms, at + "post_attn_norm");
        vector(l.post_mlp_norm, s.post_norms, at + "post_mlp_norm");
        vector(l.q_bias, s.attention_bias, at + "q_bias");
        vector(l.k_bias, s.attention_bias, at + "k_bias");
        vector(l.v_bias, s.attention_bias, at + "v_bias");
    }
}

}  // namespace decodeloop
