#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

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
        attached_(std::move(other.attached_)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(attached_, other.attached_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  /// Touches every page, on all cores that the caller may use: the first touch of a page costs more
  /// than any copy.
  ///
  /// Errors: SystemCallError, naming `what`, if the kernel has no memory for a page.
  void prefault(const std::string& what) const;

  /// Keeps an object that depends on this memory, such as a device's registration, and destroys it
  /// before the memory is unmapped. Not thread-safe.
  void attach(std::shared_ptr<void> what) const { attached_ = std::move(what); }
  bool has_attached() const { return attached_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  mutable std::shared_ptr<void> attached_;
};

/// A memfd of fixed size: sealed against shrinking and growing, so that no peer can make an
/// access fault by truncating it.
///
/// Errors: PoolSpace, naming both numbers, if the machine or a cgroup of this process has less
///         memory left.
Fd sealed_memfd(const std::string& name, std::size_t bytes);

/// Whether a descriptor from a peer is sealed and has the given size.
bool is_sealed(const Fd& fd, std::size_t bytes);

}  // namespace flowtrain::os
