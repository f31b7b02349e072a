// What Python holds: loaded weights, and engines that run them.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batch.h"
#include "dispatch.h"
#include "kv.h"
#include "model.h"
#include "step.h"
#include "threads.h"

namespace decodeloop {

// A model's weights, with the kernels and the threads that run them. Engines share it, one step at a time.
class Weights {
public:
    Weights(Shape shape, const std::string& isa, int threads)
        : kernels_(choose_kernels(isa)), model_(std::move(shape)), team_(threads) {}

    // weights: [outputs][inputs]
    void add_floats(const std::string& name, const std::string& format, const float* weights, int64_t outputs,
                    int64_t inputs) {
        Matrix& matrix = model_.add_matrix(name, format_named(format), outputs, inputs);
        for_rows(outputs, [&](int64_t row) { matrix.set_row(row, weights + row * inputs); });
    }

    // blocks: [outputs][row_bytes] of a GGUF tensor of `kind`, kept bit for bit where `format` is theirs
    void add_blocks(const std::string& name, const std::string& format, const std::string& kind, const uint8_t* blocks,
                    int64_t outputs, int64_t row_bytes) {
        const int64_t inputs = row_bytes / block_bytes(kind) * block_weights(kind);
        const Format own = format_of_blocks(kind), asked = format_named(format);
        const bool four_bits = asked == Format::Int4 && own == Format::Int4Symmetric;
        Matrix& matrix = model_.add_matrix(name, four_bits ? own : asked, outputs, inputs);
        for_rows(outputs, [&](int64_t row) { matrix.set_row_blocks(row, blocks + row * row_bytes, kind); });
    }

    Model& model() { return model_; }
    Team& team() { return team_; }
    const Kernels* kernels() const { return kernels_; }

private:
    template <class Work>
    void for_rows(int64_t rows, const Work& work) {
        const int units = static_cast<int>(ceil_div(rows, kUnit));
        team_.run([&](int thread) {
            team_.share(thread, units, [&](int unit) {
                for (int64_t row = int64_t{unit} * kUnit; row < rows && row < (int64_t{unit} + 1) * kUnit; ++row)
                    work(row);
            });
        });
    }

    const Kernels* kernels_;
    Model model_;
    Team team_;
};

// The first `layers` layers of a model with a cache of their own.
class Engine {
public:
    Engine(std::shared_ptr<Weights> weights, int64_t layers, KvFormat kv_format)
        : weights_(std::move(weights)),
          kv_(kv_format, layers, shape().kv_heads, shape().head_dim),
          step_(checked(layers), layers, weights_->kernels(), weights_->team(), kv_) {}

    Step& step() { return step_; }
    KvPool& kv() { return kv_; }
    const Shape& shape() const { return weights_->model().shape(); }

private:
    const Model& checked(int64_t layers) const {
        weights_->model().check_complete();
        if (layers < 1 || layers > shape().layers)
            throw std::invalid_argument("layers must be within 1.." + std::to_string(shape().layers));
        return weights_->model();
    }

    std::shared_ptr<Weights> weights_;
    KvPool kv_;
    Step step_;
};

}  // namespace decodeloop
