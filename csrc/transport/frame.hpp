#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace flowtrain::transport {

/// Sent with a placement or alone, and handed to the receiver as it is: room for one descriptor.
using Header = std::array<std::byte, 64>;
/// Secret that opens the link of a session, once.
using Ticket = std::array<std::byte, 32>;

/// Why a receiver refuses a peer.
enum class Reason : std::uint8_t {
  kNone,
  kNotAFrame,
  kUnknownSession,
  kUsedSession,
  kUnknownGrant,
  kUsedGrant,
  kDeadGeneration,
  kForeignGrant,
  kOutOfBounds,
  kWrongLength,
};

/// A reason in words, also for a value that a peer made up.
const char* text(Reason reason) noexcept;

enum class FrameKind : std::uint8_t { kHello = 1, kPlace, kMessage, kAck, kRefused };

/// Header of each message on the wire, before the bytes of a payload. A new layout has a new magic.
struct Frame {
  static constexpr std::uint32_t kMagic = 0x31505446;  // "FTP1"

  std::uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kHello;
  Reason reason = Reason::kNone;
  std::uint16_t unused = 0;
  std::uint64_t session = 0;
  std::uint64_t number = 0;  ///< Of the placement, counted from 1 on each link.
  std::uint32_t slot = 0;
  std::uint32_t generation = 0;
  std::uint32_t region = 0;
  std::uint32_t unused2 = 0;
  std::uint64_t offset = 0;  ///< In the region.
  std::uint64_t bytes = 0;   ///< Of the payload.
  std::uint64_t unused3 = 0;
  Header header{};  ///< Of a hello: the ticket, then zeros.
};
static_assert(sizeof(Frame) == 128 && std::is_trivially_copyable_v<Frame>);
static_assert(offsetof(Frame, session) == 8 && offsetof(Frame, slot) == 24 &&
              offsetof(Frame, offset) == 40 && offsetof(Frame, header) == 64);
static_assert(std::endian::native == std::endian::little, "frames are little-endian");

}  // namespace flowtrain::transport
