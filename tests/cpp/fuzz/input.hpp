#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "channel/consumer.hpp"
#include "channel/layout/dtype.hpp"
#include "check.hpp"

/// What the fuzzer, or a replay of what it found, calls with each input.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace flowtrain::fuzz {

/// The bytes of an input, one after another; zeros behind its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  /// `width` bytes as a number, the lowest first.
  std::uint64_t number(std::size_t width) {
    std::uint64_t value = 0;
    const std::size_t some = std::min(width, left_);
    std::memcpy(&value, data_, some);
    data_ += some;
    left_ -= some;
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

/// What the core may answer to damage: an error of its own kinds. All else ends the run.
template <class Call>
void attempt(Call&& call) {
  try {
    call();
  } catch (const Error&) {
  } catch (const BadArgument&) {
  }
}

/// An item that was given out is whole: views of it are made from its shape alone.
inline void check_whole(const channel::Item& item) {
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
