#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gateway/source.hpp"
#include "transport/frame.hpp"

namespace flowtrain::gateway {

/// Messages between two gateways, each one header of the transport. They may arrive in any order,
/// so each can be understood by itself. Numbers in them are input: they are checked before use.
enum class Kind : std::uint8_t { kSource = 1, kGone, kWant, kGrant, kHeld, kReleased, kItem };

/// An item, by the cell of its pool and the generation of the cell, which ends with the item.
struct Name {
  std::uint32_t cell;
  std::uint32_t generation;
  bool operator==(const Name&) const = default;
};

/// One class of slabs of a segment, or a segment without classes.
struct SourcePart {
  Kind kind = Kind::kSource;
  std::uint8_t unused[3]{};
  SourceId source;
  std::uint32_t part;
  std::uint32_t num_parts;
  std::uint64_t slab_bytes;  ///< 0 without classes.
  std::uint32_t count;       ///< Of slabs.
  std::uint32_t unused2 = 0;
  std::uint64_t bytes;  ///< Of the segment.
  std::uint64_t unused3[3]{};
};

/// The segment has ended.
struct Gone {
  Kind kind = Kind::kGone;
  std::uint8_t unused[3]{};
  SourceId source;
  std::uint64_t unused2[7]{};
};

/// Asks for room for an item.
struct Want {
  Kind kind = Kind::kWant;
  std::uint8_t unused = 0;
  std::uint16_t ring;  ///< Its number in the receiver's pool.
  SourceId source;
  Name item;
  std::uint64_t bytes;  ///< Of its slab; without classes, of the item.
  std::uint64_t unused2[5]{};
};

/// Answers a Want: the item may be placed.
struct Granted {
  Kind kind = Kind::kGrant;
  std::uint8_t unused[3]{};
  std::uint32_t slot;
  Name item;
  std::uint32_t generation;
  std::uint32_t region;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t unused2[3]{};
};

/// Answers a Want: the item is here already (kHeld), or a reader has released it (kReleased).
struct Told {
  Kind kind;
  std::uint8_t unused[7]{};
  Name item;
  std::uint64_t unused2[6]{};
};

/// Comes with the payload.
struct ItemHeader {
  Kind kind = Kind::kItem;
  std::uint8_t dtype;
  std::uint8_t ndim;
  std::uint8_t unused[5]{};
  Name item;
  std::uint64_t key_low;
  std::uint64_t key_high;
  std::uint32_t shape[channel::kMaxDims];
  std::uint64_t unused2[2]{};
};

template <class Message>
transport::Header header_of(const Message& message) {
  static_assert(sizeof(Message) == sizeof(transport::Header) &&
                std::has_unique_object_representations_v<Message>);
  return std::bit_cast<transport::Header>(message);
}

template <class Message>
Message message_of(const transport::Header& header) {
  static_assert(sizeof(Message) == sizeof(transport::Header) &&
                std::is_trivially_copyable_v<Message>);
  return std::bit_cast<Message>(header);
}

inline Kind kind_of(const transport::Header& header) { return static_cast<Kind>(header[0]); }

}  // namespace flowtrain::gateway
