// The engine for Python. Arrays are checked by their types here and by their contents in Batch::check.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "draw.h"
#include "engine.h"
#include "lookup_module.h"
#include "memory.h"
#include "probe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace decodeloop {

namespace {

template <class T, size_t kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <class T, size_t kDims>
using Out = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Ints = In<int32_t, 1>;

template <class T>
T take(const nb::dict& from, const char* key) {
    if (!from.contains(key)) throw std::invalid_argument(std::string("the model's shape lacks ") + key);
    return nb::cast<T>(from[key]);
}

Shape shape_of(const nb::dict& d) {
    Shape s;
    s.vocab_size = take<int64_t>(d, "vocab_size");
    s.hidden_size = take<int64_t>(d, "hidden_size");
    s.layers = take<int64_t>(d, "layers");
    s.heads = take<int64_t>(d, "heads");
    s.kv_heads = take<int64_t>(d, "kv_heads");
    s.head_dim = take<int64_t>(d, "head_dim");
    s.ffn_size = take<int64_t>(d, "ffn_size");
    s.max_context = take<int64_t>(d, "max_context");
    s.norm_eps = take<float>(d, "norm_eps");
    const std::string activation = take<std::string>(d, "activation");
    if (activation != "silu" && activation != "gelu_tanh")
        throw std::invalid_argument("no activation '" + activation + "'; choose from silu, gelu_tanh");
    s.activation = activation == "silu" ? Activation::Silu : Activation::GeluTanh;
    s.tied_embeddings = take<bool>(d, "tied_embeddings");
    s.qk_norm = take<bool>(d, "qk_norm");
    s.post_norms = take<bool>(d, "post_norms");
    s.attention_bias = take<bool>(d, "attention_bias");
    s.embedding_scale = take<float>(d, "embedding_scale");
    s.query_scale = take<float>(d, "query_scale");
    s.window = take<int64_t>(d, "window");
    s.window_layers = take<std::vector<bool>>(d, "window_layers");
    s.attention_softcap = take<float>(d, "attention_softcap");
    s.final_softcap = take<float>(d, "final_softcap");
    return s;
}

struct Request {
    Ints tokens, positions, slots;
    In<int32_t, 2> block_tables;
    Ints logit_rows;
    std::optional<Ints> entries, parents, vocabulary;
    std::vector<int64_t> hidden_layers;
};

void require_shape(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string(what) + " has the wrong shape");
}

Batch batch_of(const Request& r) {
    Batch batch;
    batch.tokens = static_cast<int64_t>(r.tokens.shape(0));
    batch.ids = r.tokens.data();
    batch.positions = r.positions.data();
    batch.slots = r.slots.data();
    batch.table_rows = static_cast<int64_t>(r.block_tables.shape(0));
    batch.table_columns = static_cast<int64_t>(r.block_tables.shape(1));
    batch.block_tables = r.block_tables.data();
    batch.rows = static_cast<int64_t>(r.logit_rows.shape(0));
    batch.logit_rows = r.logit_rows.data();
    require_shape(r.positions.shape(0) == r.tokens.shape(0), "positions");
    require_shape(r.slots.shape(0) == r.tokens.shape(0), "slots");
    require_shape(r.entries.has_value() == r.parents.has_value(), "entries or parents");
    if (r.entries) {
        require_shape(r.entries->shape(0) == r.tokens.shape(0), "entries");
        require_shape(r.parents->shape(0) == r.tokens.shape(0), "parents");
        batch.entries = r.entries->data();
        batch.parents = r.parents->data();
    }
    if (r.vocabulary) {
        batch.vocabulary_size = static_cast<int64_t>(r.vocabulary->shape(0));
        batch.vocabulary = r.vocabulary->data();
    }
    batch.hidden_layers = r.hidden_layers;
    return batch;
}

void forward(Engine& engine, Ints tokens, Ints positions, Ints slots, In<int32_t, 2> block_tables, Ints logit_rows,
             std::optional<Ints> entries, std::optional<Ints> parents, std::optional<Ints> vocabulary,
             std::vector<int64_t> hidden_layers, Out<float, 2> logits, Out<float, 3> hidden) {
    const Request request{tokens, positions, slots, block_tables, logit_rows, entries, parents, vocabulary,
                          std::move(hidden_layers)};
    const Batch batch = batch_of(request);
    const Shape& shape = engine.shape();
    const int64_t width = vocabulary ? batch.vocabulary_size : shape.vocab_size;
    require_shape(static_cast<int64_t>(logits.shape(0)) == batch.rows && static_cast<int64_t>(logits.shape(1)) == width,
                  "logits");
    require_shape(hidden.shape(0) == batch.hidden_layers.size() &&
                      static_cast<int64_t>(hidden.shape(1)) == batch.rows &&
                      static_cast<int64_t>(hidden.shape(2)) == shape.hidden_size,
                  "hidden");
    nb::gil_scoped_release release;
    engine.step().run(batch, {logits.data(), hidden.data()});
}

void copy_kv(Engine& engine, Ints sources, Ints destinations) {
    require_shape(sources.shape(0) == destinations.shape(0), "destinations");
    engine.kv().copy(sources.data(), destinations.data(), static_cast<int64_t>(sources.shape(0)));
}

// Lists rather than arrays: there are few of them, and each array costs more than its contents.
using Drawn = std::tuple<std::vector<int32_t>, std::vector<float>, std::vector<int32_t>>;

Drawn draw_rows(Weights& weights, In<float, 2> logits, const std::vector<int32_t>& first,
                const std::vector<int32_t>& count, const std::vector<int32_t>& drafted,
                const std::vector<uint32_t>& keys, const std::vector<int64_t>& positions,
                const std::vector<double>& temperatures, const std::vector<double>& least,
                const std::vector<int64_t>& top_k, const std::vector<double>& top_p) {
    const size_t rows = logits.shape(0), sequences = first.size();
    require_shape(logits.shape(1) >= 1, "logits");
    require_shape(drafted.size() == rows, "drafted");
    require_shape(count.size() == sequences && keys.size() == 2 * sequences, "count or keys");
    require_shape(positions.size() == sequences && temperatures.size() == sequences, "positions or temperatures");
    require_shape(least.size() == sequences && top_k.size() == sequences && top_p.size() == sequences, "filters");
    std::vector<Filters> filters(sequences);
    for (size_t i = 0; i < sequences; ++i) filters[i] = {least[i], top_k[i], top_p[i]};
    DrawBatch batch;
    batch.rows = static_cast<int64_t>(rows);
    batch.vocab_size = static_cast<int64_t>(logits.shape(1));
    batch.sequences = static_cast<int64_t>(sequences);
    batch.logits = logits.data();
    batch.first = first.data();
    batch.count = count.data();
    batch.drafted = drafted.data();
    batch.keys = keys.data();
    batch.positions = positions.data();
    batch.temperatures = temperatures.data();
    batch.filters = filters.data();
    Drawn out{std::vector<int32_t>(rows), std::vector<float>(rows), std::vector<int32_t>(sequences)};
    auto& [tokens, entropies, emitted] = out;
    nb::gil_scoped_release release;
    draw(*weights.kernels(), weights.team(), batch, {tokens.data(), entropies.data(), emitted.data()});
    return out;
}

std::map<std::string, double> section_seconds(Engine& engine) {
    const auto& seconds = engine.step().seconds();
    const char* names[kSections] = {"embed", "qkv", "attention", "output", "mlp", "head"};
    std::map<std::string, double> out;
    for (int i = 0; i < kSections; ++i) out[names[i]] = seconds[static_cast<size_t>(i)];
    engine.step().reset_seconds();
    return out;
}

KvFormat kv_format_named(const std::string& name) {
    if (name == "bf16") return KvFormat::BF16;
    if (name == "fp32") return KvFormat::F32;
    throw std::invalid_argument("no format '" + name + "' of keys and values; choose from bf16, fp32");
}

void bind_weights(nb::module_& m) {
    nb::class_<Weights>(m, "Weights")
        .def(
            "__init__",
            [](Weights* self, const nb::dict& shape, const std::string& isa, int threads) {
                new (self) Weights(shape_of(shape), isa, threads);
            },
            "shape"_a, "isa"_a, "threads"_a)
        .def(
            "add_floats",
            [](Weights& w, const std::string& name, const std::string& format, In<float, 2> weights) {
                w.add_floats(name, format, weights.data(), static_cast<int64_t>(weights.shape(0)),
                             static_cast<int64_t>(weights.shape(1)));
            },
            "name"_a, "format"_a, "weights"_a)
        .def(
            "add_blocks",
            [](Weights& w, const std::string& name, const std::string& format, const std::string& kind,
               In<uint8_t, 2> blocks) {
                w.add_blocks(name, format, kind, blocks.data(), static_cast<int64_t>(blocks.shape(0)),
                             static_cast<int64_t>(blocks.shape(1)));
            },
            "name"_a, "format"_a, "kind"_a, "blocks"_a)
        .def(
            "add_vector",
            [](Weights& w, const std::string& name, In<float, 1> values) {
                w.model().add_vector(name, values.data(), static_cast<int64_t>(values.shape(0)));
            },
            "name"_a, "values"_a)
        .def(
            "set_frequencies",
            [](Weights& w, std::vector<float> ordinary, std::vector<float> window) {
                w.model().set_frequencies(std::move(ordinary), std::move(window));
            },
            "ordinary"_a, "window"_a)
        .def("draw", &draw_rows, "logits"_a, "first"_a, "count"_a, "drafted"_a, "keys"_a, "positions"_a,
             "temperatures"_a, "least"_a, "top_k"_a, "top_p"_a)
        .def_prop_ro("isa", [](Weights& w) { return w.kernels()->name; })
        .def_prop_ro("threads", [](Weights& w) { return w.team().threads(); })
        .def_prop_ro("nbytes", [](Weights& w) { return w.model().weight_bytes(); });
}

void bind_engine(nb::module_& m) {
    nb::class_<Engine>(m, "Engine")
        .def(
            "__init__",
            [](Engine* self, std::shared_ptr<Weights> weights, int64_t layers, const std::string& kv_format) {
                new (self) Engine(std::move(weights), layers, kv_format_named(kv_format));
            },
            "weights"_a, "layers"_a, "kv_format"_a)
        .def(
            "allocate_kv", [](Engine& e, int64_t blocks) { e.kv().allocate(blocks); }, "blocks"_a)
        .def("forward", &forward, "tokens"_a, "positions"_a, "slots"_a, "block_tables"_a, "logit_rows"_a,
             "entries"_a.none(), "parents"_a.none(), "vocabulary"_a.none(), "hidden_layers"_a, "logits"_a, "hidden"_a)
        .def("copy_kv", &copy_kv, "sources"_a, "destinations"_a)
        .def("section_seconds", &section_seconds)
        .def_prop_ro("kv_block_bytes", [](Engine& e) { return e.kv().block_bytes(); });
}

}  // namespace

NB_MODULE(_native, m) {
    m.attr("sources") = DECODELOOP_SOURCES_DIGEST;
    m.def("kernels", [] {
        std::vector<std::string> names;
        for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
        return names;
    });
    m.def("huge_page_bytes", &huge_page_bytes);
    nb::class_<BandwidthProbe>(m, "BandwidthProbe")
        .def(nb::init<int64_t, int>(), "nbytes"_a, "threads"_a)
        .def("measure", &BandwidthProbe::measure, nb::call_guard<nb::gil_scoped_release>());
    bind_weights(m);
    bind_engine(m);
    bind_lookup(m);
}

}  // namespace decodeloop
