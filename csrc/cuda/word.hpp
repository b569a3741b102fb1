#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/deadline.hpp"
#include "cuda/registration.hpp"
#include "os/fd.hpp"
#include "os/mapping.hpp"

namespace flowtrain::cuda {

/// A 64-bit word that CUDA streams and host threads of several processes write and wait for. A
/// stream of one process can wait for a stream of another, without a host in between.
///
/// Values grow. A waiter continues once the word is at least its value. *Poison* is above all
/// values, so that a process that finds a writer dead can release every waiter, also on devices.
///
/// Memory:   a page of its own: a sealed memfd, registered with the device if one is given.
/// Threads:  any number of readers; one writer at a time.
/// Progress: write_on, store_on and wait_on only enqueue; wait spins until its deadline.
/// Ordering: a stream's work before a write is visible to any reader of the value: cuda.word.
/// Errors:   CudaError; BadArgument for a value above kLargest.
class StreamWord {
 public:
  /// The device compares by the sign of the difference, so half of the range must stay unused.
  static constexpr std::uint64_t kLargest = (std::uint64_t{1} << 62) - 1;
  static constexpr std::uint64_t kPoison = (std::uint64_t{1} << 63) - 1;

  /// Makes a word of value 0.
  /// @param device  Device whose streams use it; none if only host threads do.
  static StreamWord create(std::optional<int> device);
  /// Maps a word of another process, by its descriptor.
  static StreamWord open(os::Fd fd, std::optional<int> device);

  /// Descriptor for other processes, owned by this object.
  const os::Fd& fd() const { return fd_; }

  /// Enqueues a write of `value` by the stream itself, ordered after all its earlier work.
  void write_on(CUstream stream, std::uint64_t value) const;
  /// As write_on, by a kernel of one thread, for devices whose streams cannot write words.
  void store_on(CUstream stream, std::uint64_t value) const;
  /// Makes later work of the stream wait until the word is at least `value`.
  void wait_on(CUstream stream, std::uint64_t value) const;

  std::uint64_t load() const noexcept;
  void store(std::uint64_t value) const;
  void poison() const noexcept;
  /// Spins until the word is at least `value`. Returns the word, or nothing on timeout.
  std::optional<std::uint64_t> wait(std::uint64_t value, const Deadline& deadline) const noexcept;

 private:
  StreamWord(os::Fd fd, std::optional<int> device);
  const HostRegistration& registered() const;
  std::atomic<std::uint64_t>& word() const noexcept;

  os::Fd fd_;
  os::Mapping mapping_;
  std::optional<HostRegistration> registration_;  // Destroyed before the mapping.
  int device_ = 0;
};

/// Launches a kernel of one thread that stores `value` at `address` with system-wide release order.
void launch_store(CUstream stream, CUdeviceptr address, std::uint64_t value);

}  // namespace flowtrain::cuda
