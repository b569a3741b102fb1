#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Descriptors and plain bytes with which another process maps memory of this one.
struct Exported {
  static constexpr std::size_t kMaxFds = 2;
  using Handle = std::array<std::byte, 64>;

  std::array<Fd, kMaxFds> fds;  ///< The first ones are set.
  std::optional<Handle> handle;

  Exported() = default;
  explicit Exported(Fd fd) { fds[0] = std::move(fd); }
  /// Whether there is anything.
  explicit operator bool() const { return fds[0] || handle; }
};

}  // namespace flowtrain::os
