#include "dispatch.h"

#include <stdexcept>

namespace decodeloop {

#ifndef DECODELOOP_X86
const Kernels* kernels_avx512() { return nullptr; }
const Kernels* kernels_avx2() { return nullptr; }
#endif

std::vector<const Kernels*> available_kernels() {
    std::vector<const Kernels*> available;
    for (const Kernels* kernels : {kernels_avx512(), kernels_avx2(), kernels_portable()})
        if (kernels != nullptr) available.push_back(kernels);
    return available;
}

const Kernels* choose_kernels(const std::string& name) {
    std::string names;
    for (const Kernels* kernels : available_kernels()) {
        if (name.empty() || name == kernels->name) return kernels;
        names += (names.empty() ? "" : ", ") + std::string(kernels->name);
    }
    throw std::invalid_argument("no kernels '" + name + "' on this machine; choose from " + names);
}

}  // namespace decodeloop
