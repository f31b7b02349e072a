// Matrix products against double precision, and each row's bits against the row alone.
#include "check.h"
#include "kernels.h"
#include "matrix.h"
#include "numbers.h"
#include "rows.h"

using namespace decodeloop;

namespace {

const char* const kNames[kFormats] = {"fp32", "bf16", "int8", "int4", "int4_symmetric"};

Matrix random_matrix(Format format, int64_t outputs, int64_t inputs, Arena& arena) {
    Matrix matrix(format, outputs, inputs, arena);
    for (int64_t n = 0; n < outputs; ++n)
        matrix.set_row(n, normal_values(static_cast<size_t>(inputs), static_cast<unsigned>(n + 1)).data());
    return matrix;
}

// What the kernels are given for input k of a row, in the kind that they want.
double input_value(const RowSet& set, RowKind kind, int64_t row, int64_t k) {
    const int64_t at = row * set.stride + k;
    if (kind == RowKind::F32) return set.f32[at];
    if (kind == RowKind::BF16) return bf16_to_float(set.bf16[at]);
    const int64_t place = set.place(row, k / kGroup), four = place * kGroup + k % kGroup / 4 * 4;
    constexpr int kOrder[] = {0, 2, 1, 3};
    if (kind == RowKind::Int16) return double{set.scale16[place]} * set.int16[four + kOrder[k % 4]];
    return double{set.scale[place]} * set.int8[place * kGroup + k % kGroup];
}

std::vector<float> product(const Kernels& kernels, const Matrix& matrix, const RowSet& x, int64_t rows) {
    const int64_t width = matrix.units() * kUnit;
    std::vector<float> y(static_cast<size_t>(rows * width), NAN);
    for (int64_t unit = 0; unit < matrix.units(); ++unit)
        kernels.matmul[static_cast<int>(matrix.format())](
            {matrix.unit(unit), matrix.unit(unit), matrix.padded_inputs(), &x, rows, y.data() + unit * kUnit, width});
    return y;
}

void test_format(const Kernels& kernels, Format format, int64_t outputs, int64_t inputs) {
    constexpr int64_t kMostRows = 33;
    const std::string name = std::string(kernels.name) + " " + kNames[static_cast<int>(format)];
    Arena arena;
    const Matrix matrix = random_matrix(format, outputs, inputs, arena);
    const RowKind kind = kernels.row_kind[static_cast<int>(format)];
    Rows rows;
    rows.reserve(kMostRows, inputs);
    for (int64_t m = 0; m < kMostRows; ++m) {
        const std::vector<float> x = normal_values(static_cast<size_t>(inputs), static_cast<unsigned>(1000 + m));
        std::copy(x.begin(), x.end(), rows.row(m));
        prepare(kernels, kind, rows.set(), m, 0, rows.set().stride / kGroup);
    }
    const int64_t width = matrix.units() * kUnit;
    const std::vector<float> all = product(kernels, matrix, rows.set(), kMostRows);
    std::vector<float> weights(static_cast<size_t>(inputs));
    for (int64_t n = 0; n < outputs; ++n) {
        matrix.row(n, weights.data());
        for (int64_t m = 0; m < 3; ++m) {
            double expected = 0, size = 0;
            for (int64_t k = 0; k < inputs; ++k) {
                const double term = double{weights[static_cast<size_t>(k)]} * input_value(rows.set(), kind, m, k);
                expected += term;
                size += std::fabs(term);
            }
            check_near(all[static_cast<size_t>(m * width + n)], expected, 2e-6 * size, name);
        }
    }
    for (int64_t m = 0; m < kMostRows; ++m)
        for (int64_t n = outputs; n < width; ++n)
            check(all[static_cast<size_t>(m * width + n)] == 0, name + ": outputs beyond the last are zero");
    for (int64_t count = 1; count < kMostRows; ++count) {
        const std::vector<float> some = product(kernels, matrix, rows.set(), count);
        const std::string rows = name + ": " + std::to_string(count) + " rows";
        check(same_bits(some.data(), all.data(), some.size()), rows + ", same bits");
    }
}

}  // namespace

void test_matmul(const Kernels& kernels) {
    for (const Format format : {Format::F32, Format::BF16, Format::Int8, Format::Int4, Format::Int4Symmetric}) {
        test_format(kernels, format, 70, 96);
        test_format(kernels, format, 32, 576);
        test_format(kernels, format, 5, 40);  // a last group that is not full
    }
}
