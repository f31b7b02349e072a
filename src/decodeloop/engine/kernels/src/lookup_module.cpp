#include "lookup_module.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "automaton.h"
#include "ngrams.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace decodeloop {

void bind_lookup(nb::module_& m) {
    nb::class_<Ngrams>(m, "Ngrams")
        .def(nb::init<int, int, int>(), "max_n"_a, "min_n"_a, "token_bits"_a)
        .def("read", &Ngrams::read, "tokens"_a)
        .def("memory_bytes", &Ngrams::nbytes)
        .def_prop_ro("size", &Ngrams::size)
        .def_prop_ro("match_end", &Ngrams::match_end)
        .def_prop_ro("match_len", &Ngrams::match_len);
    nb::class_<Context>(m, "Context")
        .def_ro("state", &Context::state)
        .def_ro("length", &Context::length)
        .def_ro("size", &Context::size);
    nb::class_<SuffixAutomaton>(m, "SuffixAutomaton")
        .def(nb::init<int32_t>(), "depth"_a)
        .def("begin_text", &SuffixAutomaton::begin_text)
        .def("read", &SuffixAutomaton::read, "tokens"_a)
        .def("nowhere", [](const SuffixAutomaton&) { return Context{}; })
        .def("own_end", &SuffixAutomaton::own_end, "limit"_a)
        .def("advance", &SuffixAutomaton::advance, "context"_a, "tokens"_a, "limit"_a)
        .def(
            "likeliest",
            [](const SuffixAutomaton& held, const Context& context, int32_t count, double floor) {
                Run run = held.likeliest(context, count, floor);
                return std::pair(std::move(run.tokens), std::move(run.scores));
            },
            "context"_a, "count"_a, "floor"_a)
        .def("memory_bytes", &SuffixAutomaton::nbytes)
        .def("__len__", &SuffixAutomaton::states)
        .def_prop_ro("size", &SuffixAutomaton::size);
}

}  // namespace decodeloop
