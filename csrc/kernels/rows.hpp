#pragma once

#include <cstdint>

namespace flowtrain::kernels {

/// Values of the heads of packed tokens: element (head, token, i) is at
/// data[head * head_stride + token * token_stride + i].
template <class Float>
struct Rows {
  Float* data;
  std::int64_t head_stride;
  std::int64_t token_stride;
};

}  // namespace flowtrain::kernels
