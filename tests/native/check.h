// Counting checks for a plain test program.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

inline int& failures() {
    static int count = 0;
    return count;
}

inline void check(bool holds, const std::string& what) {
    if (holds) return;
    if (++failures() <= 20) std::printf("FAILED: %s\n", what.c_str());
}

inline void check_near(double got, double expected, double tolerance, const std::string& what) {
    check(std::fabs(got - expected) <= tolerance,
          what + ": " + std::to_string(got) + ", not " + std::to_string(expected));
}

inline std::vector<float> normal_values(size_t count, unsigned seed, float scale = 1.0f) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = draw(generator);
    return values;
}

inline bool same_bits(const float* a, const float* b, size_t count) {
    return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// The parts of the test, each for one instruction set or for none.
namespace decodeloop {
struct Kernels;
}
void test_matmul(const decodeloop::Kernels& kernels);
void test_rows(const decodeloop::Kernels& kernels);
void test_attention(const decodeloop::Kernels& kernels);
void test_draw(const decodeloop::Kernels& kernels);
void test_numbers();
void test_matrix();
void test_kv();
void test_pace();
void test_threads();
