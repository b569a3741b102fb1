#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace flowtrain::os {

/// Owner of anonymous zeroed memory that forked children share. Pages are allocated at first touch.
///
/// Errors: SystemCallError if it cannot be mapped; `what` names it.
class SharedZeros {
 public:
  SharedZeros(std::size_t bytes, const std::string& what) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw_errno(what + ": cannot map " + std::to_string(bytes) + " bytes");
    data_ = static_cast<std::byte*>(at);
  }
  ~SharedZeros() { ::munmap(data_, bytes_); }
  SharedZeros(const SharedZeros&) = delete;
  SharedZeros& operator=(const SharedZeros&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

}  // namespace flowtrain::os
