#include "../kernels.h"

namespace decodeloop {

const Kernels* kernels_avx512() { return nullptr; }

}  // namespace decodeloop
