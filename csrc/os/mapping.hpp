#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/deadline.hpp"
#include "os/fd.hpp"

namespace flowtrain::os {

/// Owner of a shared mapping of a file; unmaps it in its destructor.
class Mapping {
 public:
  Mapping() = default;
  /// Maps `bytes` of a file read-write and shared; `what` names it in errors.
  Mapping(const Fd& fd, std::size_t bytes, const std::string& what);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        keep_(other.keep_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(keep_, other.keep_);
    return *this;
  }
  ~Mapping();
  /// Leaves the memory mapped until the process ends.
  void keep() { keep_ = true; }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool keep_ = false;
};

/// Touches every page of mapped memory, on all cores that the caller may use: the first touch of a
/// page costs more than any copy. It does so in pieces, between which other threads can map memory.
///
/// @param interrupted  Called between the pieces, by the calling thread. May fork; in the child it
///                     then returns true.
/// @returns False if `interrupted` ended it.
///
/// Errors: SystemCallError, naming `what`, if the kernel has no memory for a page.
bool prefault(std::byte* data, std::size_t bytes, const std::string& what,
              const Interrupted& interrupted = {});

/// A memfd of fixed size: sealed against shrinking and growing, so that no peer can make an
/// access fault by truncating it.
///
/// Errors: PoolSpace, naming both numbers, if the machine or a cgroup of this process has less
///         memory left.
Fd sealed_memfd(const std::string& name, std::size_t bytes);

/// Whether a descriptor from a peer is sealed and has the given size.
bool is_sealed(const Fd& fd, std::size_t bytes);

}  // namespace flowtrain::os
