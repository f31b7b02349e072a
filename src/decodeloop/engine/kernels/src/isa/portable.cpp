#include "simd_portable.h"
#include "table.h"

namespace decodeloop {

const Kernels* kernels_portable() {
    static const Kernels kernels = with_group_products<portable::Simd>(table<portable::Simd>("portable"));
    return &kernels;
}

}  // namespace decodeloop
