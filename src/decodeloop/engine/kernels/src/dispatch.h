#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace decodeloop {

// Those that this machine runs, the best first.
std::vector<const Kernels*> available_kernels();

// The best kernels that this machine runs for "", or those called `name`. std::invalid_argument names the choices.
const Kernels* choose_kernels(const std::string& name);

}  // namespace decodeloop
