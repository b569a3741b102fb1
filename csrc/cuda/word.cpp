#include "cuda/word.hpp"

#include <string>

#include "base/error.hpp"
#include "base/math.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

constexpr const char* kWhat = "stream word";

void check_value(std::uint64_t value) {
  if (value > StreamWord::kLargest) {
    throw BadArgument("stream word: value " + std::to_string(value) + " must be at most " +
                      std::to_string(StreamWord::kLargest));
  }
}

}  // namespace

StreamWord StreamWord::create(std::optional<int> device) {
  return {os::sealed_memfd(kWhat, kPageBytes), device};
}

StreamWord StreamWord::open(os::Fd fd, std::optional<int> device) {
  if (!os::is_sealed(fd, kPageBytes)) {
    throw BadArgument(
        "stream word: the descriptor is not that of a word; pass the one that the "
        "process that made the word serves");
  }
  return {std::move(fd), device};
}

StreamWord::StreamWord(os::Fd fd, std::optional<int> device)
    : fd_(std::move(fd)), mapping_(fd_, kPageBytes, kWhat), device_(device.value_or(0)) {
  if (device) registration_.emplace(mapping_.data(), kPageBytes, *device, kWhat);
}

const HostRegistration& StreamWord::registered() const {
  if (!registration_) {
    throw BadArgument("stream word: made without a device; pass device= to use it on a stream");
  }
  return *registration_;
}

std::atomic<std::uint64_t>& StreamWord::word() const noexcept {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data());
}

void StreamWord::write_on(CUstream stream, std::uint64_t value) const {
  check_value(value);
  const CUdeviceptr address = registered().device_address();
  const ContextScope scope(device_);
  // The default flags put a system-wide fence before the write.
  FLOWTRAIN_CUDA(StreamWriteValue64, kWhat, stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

void StreamWord::store_on(CUstream stream, std::uint64_t value) const {
  check_value(value);
  const CUdeviceptr address = registered().device_address();
  const ContextScope scope(device_);
  launch_store(stream, address, value);
}

void StreamWord::wait_on(CUstream stream, std::uint64_t value) const {
  check_value(value);
  const CUdeviceptr address = registered().device_address();
  const ContextScope scope(device_);
  FLOWTRAIN_CUDA(StreamWaitValue64, kWhat, stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
}

std::uint64_t StreamWord::load() const noexcept {
  return word().load(std::memory_order_acquire);  // sync: cuda.word
}

void StreamWord::store(std::uint64_t value) const {
  check_value(value);
  word().store(value, std::memory_order_release);  // sync: cuda.word
}

void StreamWord::poison() const noexcept {
  word().store(kPoison, std::memory_order_release);  // sync: cuda.word
}

std::optional<std::uint64_t> StreamWord::wait(std::uint64_t value,
                                              const Deadline& deadline) const noexcept {
  // Reading the clock costs more than reading the word.
  constexpr int kPolls = 256;
  do {
    for (int i = 0; i < kPolls; ++i) {
      const std::uint64_t seen = load();
      if (seen >= value) return seen;
    }
  } while (!deadline.passed());
  return std::nullopt;
}

}  // namespace flowtrain::cuda
