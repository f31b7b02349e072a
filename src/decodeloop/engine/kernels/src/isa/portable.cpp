#include "simd_portable.h"
#include "table.h"

namespace decodeloop {

const Kernels* kernels_portable() {
    static const Kernels kernels = table<portable::Simd>("portable");
    return &kernels;
}

}  // namespace decodeloop
