#pragma once

#include <cstddef>
#include <cstdint>

namespace flowtrain::cuda {

/// Dtypes that kernels compute with.
enum class Float : std::uint8_t { kFloat32, kBfloat16, kFloat16 };

constexpr std::size_t bytes_of(Float dtype) { return dtype == Float::kFloat32 ? 4 : 2; }

}  // namespace flowtrain::cuda
