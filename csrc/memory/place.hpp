#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace flowtrain::memory {

/// Kinds of memory that a segment can have. Stored in control files.
///
/// kMemfd: of the host. kVmm: of a CUDA device, exported as a descriptor. kIpc: of a CUDA device,
/// exported by a legacy handle. kFake: of the host, and treated as that of a device; for tests.
enum class Kind : std::uint8_t { kMemfd, kVmm, kIpc, kFake };

inline constexpr std::array kKindNames = {"memfd", "vmm", "ipc", "fake"};
inline constexpr std::size_t kNumKinds = kKindNames.size();

/// Name of the tier that memory of a valid kind is in.
constexpr const char* tier_of(Kind kind) {
  if (kind == Kind::kMemfd) return "host";
  return kind == Kind::kFake ? "fake" : "device";
}

/// UUID of a device, the same in every process; zeros for the host.
struct DeviceId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const DeviceId&) const = default;
};

/// Where memory is.
struct Place {
  Kind kind = Kind::kMemfd;
  DeviceId device;
  bool operator==(const Place&) const = default;
};

/// Whether a place read from a control file can exist: a known kind, with a device unless it is
/// the host's.
constexpr bool is_valid(const Place& place) {
  return static_cast<std::size_t>(place.kind) < kNumKinds &&
         (place.kind == Kind::kMemfd) == (place.device == DeviceId{});
}

/// As CUDA writes it, without `GPU-`.
std::string text(const DeviceId& device);
/// For messages, e.g. `'vmm' on device 5a3f...`; also of a place that is not valid.
std::string text(const Place& place);

}  // namespace flowtrain::memory
