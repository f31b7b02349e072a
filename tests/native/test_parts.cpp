// What does not depend on an instruction set: number formats, packed matrices, the KV pool, the team of threads.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "check.h"
#include "kv.h"
#include "matrix.h"
#include "numbers.h"
#include "pace.h"
#include "threads.h"

using namespace decodeloop;

void test_numbers() {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<uint16_t>(bits);
        const float value = half_to_float(half);
        if (value == value) check(float_to_half(value) == half, "half " + std::to_string(bits) + " there and back");
        const float wide = bf16_to_float(half);
        if (wide == wide) check(float_to_bf16(wide) == half, "bfloat16 " + std::to_string(bits) + " there and back");
    }
    check(float_to_bf16(1.00390625f) == 0x3f80 && float_to_bf16(1.01171875f) == 0x3f82, "bfloat16 ties go to even");
    check(float_to_half(1.00048828125f) == 0x3c00 && float_to_half(1.00146484375f) == 0x3c02, "half ties go to even");
    check(float_to_half(65520.0f) == 0x7c00 && float_to_half(65519.0f) == 0x7bff, "half overflow");
    check(float_to_half(2.98e-8f) == 0 && float_to_half(5.9604645e-8f) == 1, "half's smallest");
    check(std::isnan(half_to_float(float_to_half(NAN))) && std::isnan(bf16_to_float(float_to_bf16(NAN))), "NaN stays");
}

void test_matrix() {
    constexpr int64_t kInputs = 70, kOutputs = 37;
    const double worst[kFormats] = {0, 1.0 / 256, 1.0 / 200, 1.0 / 14, 1.0 / 7};  // of a group's largest weight
    for (int f = 0; f < kFormats; ++f) {
        Arena arena;
        Matrix matrix(static_cast<Format>(f), kOutputs, kInputs, arena);
        for (int64_t n = 0; n < kOutputs; ++n)
            matrix.set_row(n, normal_values(kInputs, static_cast<unsigned>(n + 1)).data());
        for (int64_t n = 0; n < kOutputs; ++n) {
            const std::vector<float> expected = normal_values(kInputs, static_cast<unsigned>(n + 1));
            std::vector<float> got(kInputs);
            matrix.row(n, got.data());
            for (size_t k = 0; k < kInputs; ++k) check_near(got[k], expected[k], worst[f] * 4, "a packed row");
        }
        check(matrix.units() == 2 && matrix.padded_inputs() == 96, "units and padding");
    }
    Arena arena;
    Matrix matrix(Format::Int4, 3, 64, arena);
    uint8_t blocks[40] = {0x00, 0x3c, 0x00, 0xc0};  // d 1, min -2
    for (int i = 0; i < 16; ++i) blocks[4 + i] = static_cast<uint8_t>(i | ((15 - i) << 4));
    matrix.set_row_blocks(1, blocks, "Q4_1");
    float row[64];
    matrix.row(1, row);
    for (int i = 0; i < 16; ++i) {
        check(row[i] == static_cast<float>(i) - 2, "Q4_1, low half");
        check(row[16 + i] == static_cast<float>(15 - i) - 2, "Q4_1, high half");
    }
    check(row[32] == 0, "Q4_1, second block");
}

void test_kv() {
    for (const KvFormat format : {KvFormat::BF16, KvFormat::F32}) {
        KvPool kv(format, 2, 2, 20);
        kv.allocate(3);
        const int64_t bytes = kv.block_bytes() * 3;
        for (int64_t i = 0; i < bytes; ++i) kv.block(0, 0, 0)[i] = static_cast<char>(i * 7 % 113);
        std::vector<char> before(kv.block(0, 0, 0), kv.block(0, 0, 0) + bytes);
        const int32_t there[] = {5, 6, 40}, back[] = {6, 5, 41};
        kv.copy(there, back, 3);
        check(std::memcmp(before.data(), kv.block(0, 0, 0), static_cast<size_t>(bytes)) != 0, "entries were copied");
        const int32_t again[] = {6, 5}, home[] = {5, 6};
        kv.copy(again, home, 2);
        bool same = true;
        std::vector<char> entry(static_cast<size_t>(kv.piece_bytes())), old_entry(entry.size());
        for (int64_t layer = 0; layer < 2; ++layer)
            for (int64_t head = 0; head < 2; ++head)
                for (const int64_t e : {5, 6, 40, 41}) {
                    const int64_t from = e == 41 ? 40 : e;
                    const int64_t at = kv.block(layer, head, from / kBlockTokens) - kv.block(0, 0, 0);
                    kv.copy_entry(before.data() + at, from % kBlockTokens, old_entry.data(), 0);
                    kv.copy_entry(kv.block(layer, head, e / kBlockTokens), e % kBlockTokens, entry.data(), 0);
                    same = same && entry == old_entry;
                }
        check(same, "entries swapped twice are home, a copied one is its source");
    }
}

void test_pace() {
    using std::chrono::milliseconds;
    Pace pace(2);
    Pace::Clock::time_point now{};
    const auto step = [&](int cpu_ms) {
        const int threads = pace.threads(now);
        now += milliseconds(10);
        pace.observe(now, milliseconds(10), milliseconds(cpu_ms));
        return threads;
    };
    const auto steps_alone = [&] {
        int count = 1;
        while (step(10) == 1) ++count;
        return count;
    };
    const auto crowd = [&] {
        int count = 0;
        while (step(11) == 2) ++count;
        return count;
    };
    for (int i = 0; i < 20; ++i) check(step(16) == 2, "a little missing is no reason");
    check(crowd() < 6, "a core that is nearly all taken is one");
    check(std::abs(steps_alone() - 10) < 2, "it is tried again after 100 ms");
    crowd();
    check(std::abs(steps_alone() - 20) < 2, "and after 200 ms when that fails");
    for (int i = 0; i < 150; ++i) check(step(19) == 2, "it stays where the neighbour has gone");
    crowd();
    check(std::abs(steps_alone() - 10) < 2, "and asks as soon as at first");
}

void test_threads() {
    Team team(3);
    for (int round = 0; round < 200; ++round) {
        const int count = round % 17;
        std::unique_ptr<std::atomic<int>[]> taken(new std::atomic<int>[static_cast<size_t>(count * 2 + 1)]);
        for (int i = 0; i <= count * 2; ++i) taken[static_cast<size_t>(i)] = 0;
        std::atomic<bool> apart{true};
        team.run([&](int thread) {
            team.share(thread, count, [&](int unit) { taken[static_cast<size_t>(unit)].fetch_add(1); });
            for (int i = 0; i < count; ++i)
                if (taken[static_cast<size_t>(i)].load() != 1) apart = false;  // all done before anyone goes on
            team.share(thread, count, [&](int unit) { taken[static_cast<size_t>(count + unit)].fetch_add(1); });
        });
        bool once = true;
        for (int i = 0; i < count * 2; ++i) once = once && taken[static_cast<size_t>(i)].load() == 1;
        check(once && apart, "every unit once, phases apart");
    }
}
