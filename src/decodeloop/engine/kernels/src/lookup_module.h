// What free drafters look texts up in, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace decodeloop {

void bind_lookup(nanobind::module_& m);

}  // namespace decodeloop
