#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/deadline.hpp"
#include "cuda/registration.hpp"
#include "os/fd.hpp"
#include "os/mapping.hpp"

namespace flowtrain::cuda {

/// A 64-bit word that streams and processors of several processes write and wait for, so that
/// one process's stream can go on when another's has come so far, without a host in between.
///
/// Values grow. A waiter goes on at its value or above; *poison* is above all of them, so that
/// whoever finds a writer dead sets every waiter free, also the device's.
///
/// Memory:   a page of its own: a sealed memfd, registered with the device where one is given.
/// Threads:  any; values are written by one at a time.
/// Progress: write_on, store_on and wait_on only enqueue; wait spins until its deadline.
/// Ordering: what a stream did before a write is seen by whoever sees the value: cuda.word.
/// Errors:   CudaError; a value above kLargest is a BadArgument.
class StreamWord {
 public:
  /// The device compares by the sign of the difference, so half of the range must stay free.
  static constexpr std::uint64_t kLargest = (std::uint64_t{1} << 62) - 1;
  static constexpr std::uint64_t kPoison = (std::uint64_t{1} << 63) - 1;

  /// A new word, zero.
  /// @param device  Device whose streams use it; none for a word of processors alone.
  static StreamWord create(std::optional<int> device);
  /// A word of another process, by its descriptor.
  static StreamWord open(os::Fd fd, std::optional<int> device);

  /// Descriptor for other processes, owned by this.
  const os::Fd& fd() const { return fd_; }

  /// Enqueues a write of `value` by the stream itself, after all that it did before.
  void write_on(CUstream stream, std::uint64_t value) const;
  /// The same by a kernel of one thread, for devices whose streams cannot.
  void store_on(CUstream stream, std::uint64_t value) const;
  /// Enqueues a wait: what comes after it in the stream starts at `value` or above.
  void wait_on(CUstream stream, std::uint64_t value) const;

  std::uint64_t load() const noexcept;
  void store(std::uint64_t value) const;
  void poison() const noexcept;
  /// Spins until the word is at `value` or above; the word then, nothing when time ran out.
  std::optional<std::uint64_t> wait(std::uint64_t value, const Deadline& deadline) const noexcept;

 private:
  StreamWord(os::Fd fd, std::optional<int> device);
  const HostRegistration& registered() const;
  std::atomic<std::uint64_t>& word() const noexcept;

  os::Fd fd_;
  os::Mapping mapping_;
  std::optional<HostRegistration> registration_;  // Ends before the mapping.
  int device_ = 0;
};

/// Launches the kernel of one thread that stores `value` at `address` for the whole system to see.
void launch_store(CUstream stream, CUdeviceptr address, std::uint64_t value);

}  // namespace flowtrain::cuda
