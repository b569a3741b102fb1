#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"
#include "cuda/float.hpp"

namespace flowtrain::bindings {

/// Errors: BadArgument for a name of no such dtype.
inline cuda::Float float_of(std::string_view name) {
  if (name == "float32") return cuda::Float::kFloat32;
  if (name == "bfloat16") return cuda::Float::kBfloat16;
  if (name == "float16") return cuda::Float::kFloat16;
  throw BadArgument("dtype '" + std::string(name) + "': must be float32, bfloat16 or float16");
}

}  // namespace flowtrain::bindings
