#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/layout/dtype.hpp"
#include "check.hpp"

/// Called with each input, by the fuzzer or by replay.cpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace flowtrain::fuzz {

/// Reads the bytes of an input in order; zeros after its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  /// Next `width` bytes as a little-endian number.
  std::uint64_t number(std::size_t width) {
    std::uint64_t value = 0;
    const std::size_t count = std::min(width, left_);
    std::memcpy(&value, data_, count);
    data_ += count;
    left_ -= count;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

/// Makes a call that may throw an error of the core. Any other exception ends the run.
template <class Call>
void attempt(Call&& call) {
  try {
    call();
  } catch (const Error&) {
  } catch (const BadArgument&) {
  }
}

/// Checks that dtype, shape and bytes of an item agree, since views are made of its shape alone.
inline void check_valid(const channel::Item& item) {
  const channel::Descriptor& d = item.descriptor();
  CHECK(d.dtype < channel::kDtypes.size() && d.ndim <= channel::kMaxDims);
  std::uint64_t bytes = channel::kDtypes[d.dtype].bits / 8, strides = bytes;
  for (int i = 0; i < d.ndim; ++i) {
    bytes *= d.shape[i];
    CHECK(!__builtin_mul_overflow(strides, std::max(1U, d.shape[i]), &strides));
  }
  CHECK(bytes == d.bytes);
  std::uint8_t sum = 0;
  for (std::uint64_t i = 0; i < bytes; ++i) sum ^= static_cast<std::uint8_t>(item.data()[i]);
  [[maybe_unused]] static volatile std::uint8_t sink;
  sink = sum;
}

}  // namespace flowtrain::fuzz
