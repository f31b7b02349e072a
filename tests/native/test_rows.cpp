// Norms, activations, rotations and quantised rows against double precision.
#include <algorithm>
#include <array>

#include "check.h"
#include "kernels.h"
#include "rows.h"

using namespace decodeloop;

namespace {

void test_norm(const Kernels& kernels) {
    for (const int64_t width : {64, 96, 40, 576}) {
        const int64_t padded = round_up(width, kGroup);
        std::vector<float> x = normal_values(static_cast<size_t>(padded), 1), out(x.size());
        std::vector<float> weight = normal_values(static_cast<size_t>(padded), 2);
        std::fill(x.begin() + width, x.end(), 0.0f);
        std::fill(weight.begin() + width, weight.end(), 0.0f);
        double squares = 0;
        for (const float value : x) squares += double{value} * value;
        kernels.rms_norm(x.data(), weight.data(), width, padded, 1e-5f, out.data());
        for (int64_t i = 0; i < padded; ++i) {
            const auto at = static_cast<size_t>(i);
            check_near(out[at], x[at] / std::sqrt(squares / static_cast<double>(width) + 1e-5) * weight[at], 2e-6,
                       std::string(kernels.name) + " rms_norm");
        }
    }
}

void test_activations(const Kernels& kernels) {
    std::vector<float> gate(64), up(64, 1.0f), silu(64), gelu(64), capped(64);
    for (int i = 0; i < 64; ++i) gate[static_cast<size_t>(i)] = -20.0f + 0.625f * static_cast<float>(i);
    capped = gate;
    kernels.gate(gate.data(), up.data(), 64, Activation::Silu, silu.data());
    kernels.gate(gate.data(), up.data(), 64, Activation::GeluTanh, gelu.data());
    kernels.softcap(capped.data(), 64, 30.0f);
    for (size_t i = 0; i < 64; ++i) {
        const double x = gate[i];
        const std::string at = std::string(kernels.name) + " at " + std::to_string(x);
        const double size = 1e-6 * (1 + std::fabs(x));
        check_near(silu[i], x / (1 + std::exp(-x)), size, at + " silu");
        check_near(gelu[i], 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))), size,
                   at + " gelu");
        check_near(capped[i], 30 * std::tanh(x / 30), 3e-5, at + " softcap");
    }
    float poison[32] = {};
    poison[3] = NAN;
    float ones[32], out[32];
    std::fill(ones, ones + 32, 1.0f);
    kernels.gate(poison, ones, 32, Activation::Silu, out);
    check(std::isnan(out[3]) && !std::isnan(out[2]), std::string(kernels.name) + " silu of NaN is NaN, and it alone");
}

void test_quantise(const Kernels& kernels) {
    const std::string name = std::string(kernels.name) + " to_int8";
    Rows rows;
    rows.reserve(2, 96);
    const std::vector<float> x = normal_values(96, 3);
    std::copy(x.begin(), x.end(), rows.row(0));  // row 1 stays zero
    const RowSet& set = rows.set();
    for (int64_t row = 0; row < 2; ++row) kernels.to_int8(set, row, 0, 3);
    for (int64_t g = 0; g < 3; ++g) {
        const int64_t place = set.place(0, g), zeros = set.place(1, g);
        int sum = 0;
        float largest = 0;
        for (int64_t i = 0; i < kGroup; ++i) {
            const auto at = static_cast<size_t>(g * kGroup + i);
            const int q = set.int8[place * kGroup + i];
            check_near(q * double{set.scale[place]}, x[at], 0.5001 * set.scale[place], name + " rounds to nearest");
            largest = std::max(largest, std::fabs(x[at]));
            sum += q;
        }
        check_near(set.scale[place], largest / 127, 1e-7, name + " scale");
        check(set.bias[place] == -128 * sum, name + " bias");
        check_near(set.scaled_sum[place], sum * double{set.scale[place]}, 1e-5, name + " scaled sum");
        check(set.scale[zeros] == 0 && set.bias[zeros] == 0 && set.int8[zeros * kGroup] == 0, name + " of zeros");
    }
}

void test_quantise_finely(const Kernels& kernels) {
    if (kernels.row_kind[static_cast<int>(Format::Int8)] != RowKind::Int16) return;
    Rows rows;
    rows.reserve(2, 64);
    const std::vector<float> x = normal_values(64, 5);
    std::copy(x.begin(), x.end(), rows.row(1));  // row 0 stays zero
    const RowSet& set = rows.set();
    for (int64_t row = 0; row < 2; ++row) kernels.to_int16(set, row, 0, 2);
    for (size_t i = 0; i < 64; ++i) {
        const int64_t group = static_cast<int64_t>(i) / kGroup, place = set.place(1, group), zeros = set.place(0, group);
        const size_t at = i % kGroup / 4 * 4 + std::array<size_t, 4>{0, 2, 1, 3}[i % 4];
        const double scale = set.scale16[place];
        check_near(set.int16[place * kGroup + static_cast<int64_t>(at)] * scale, x[i], 0.51 * scale, "to_int16");
        check(set.scale16[zeros] == 0 && set.int16[zeros * kGroup + static_cast<int64_t>(at)] == 0, "to_int16 of zeros");
    }
}

void test_rotate(const Kernels& kernels) {
    std::vector<float> x = normal_values(24, 4), before = x, cosines(12), sines(12);
    for (size_t i = 0; i < 12; ++i) {
        cosines[i] = std::cos(0.3f * static_cast<float>(i));
        sines[i] = std::sin(0.3f * static_cast<float>(i));
    }
    kernels.rotate(x.data(), cosines.data(), sines.data(), 24);
    for (size_t i = 0; i < 12; ++i) {
        check_near(x[i], before[i] * cosines[i] - before[i + 12] * sines[i], 1e-6, "rotate, first half");
        check_near(x[i + 12], before[i + 12] * cosines[i] + before[i] * sines[i], 1e-6, "rotate, second half");
    }
}

}  // namespace

void test_rows(const Kernels& kernels) {
    test_norm(kernels);
    test_activations(kernels);
    test_quantise(kernels);
    test_quantise_finely(kernels);
    test_rotate(kernels);
}
