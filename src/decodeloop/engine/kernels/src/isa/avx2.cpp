#include "simd_avx2.h"
#include "table.h"

namespace decodeloop {

const Kernels* kernels_avx2() {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
        return nullptr;
    static const Kernels kernels = with_group_products<avx2::Simd>(table<avx2::Simd>("avx2"));
    return &kernels;
}

}  // namespace decodeloop
