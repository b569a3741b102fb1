#pragma once

#include <cstdint>

#include "base/relaxed.hpp"

namespace flowtrain::os {

/// With a pid, the identity of a process. In shared memory; zeros are of no process.
struct ProcessAge {
  Relaxed<std::uint64_t> started;  ///< In clock ticks after boot.
  Relaxed<std::uint64_t> space;    ///< The PID namespace that its pid counts in.
};

/// Of the calling process.
void write_own_age(ProcessAge& age) noexcept;

/// Whether a process has ended: all its threads, and so what it did on devices. A process in
/// another PID namespace counts as running, since its pid is not visible.
bool has_ended(std::int32_t pid, const ProcessAge& age) noexcept;

}  // namespace flowtrain::os
