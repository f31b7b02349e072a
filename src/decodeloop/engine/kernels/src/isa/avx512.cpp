#include "groups_avx512.h"
#include "simd_avx512.h"
#include "table.h"

namespace decodeloop {

namespace {

bool machine_has_it() {
#ifdef DECODELOOP_EMULATED_AVX512
    return true;
#else
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
#endif
}

}  // namespace

const Kernels* kernels_avx512() {
    if (!machine_has_it()) return nullptr;
    static const Kernels kernels = [] {
        Kernels k = table<avx512::Simd>("avx512");
        k.matmul[static_cast<int>(Format::Int8)] = avx512::group_matmul<Format::Int8>;
        k.matmul[static_cast<int>(Format::Int4)] = avx512::group_matmul<Format::Int4>;
        k.matmul[static_cast<int>(Format::Int4Symmetric)] = avx512::group_matmul<Format::Int4Symmetric>;
        return k;
    }();
    return &kernels;
}

}  // namespace decodeloop
