#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "channel/pool.hpp"
#include "channel/producer.hpp"
#include "gateway/message.hpp"
#include "gateway/segment_maker.hpp"
#include "transport/transport.hpp"

namespace flowtrain::gateway {

/// The twin of a segment of another host's pool: a segment of this pool, of equal classes and
/// counts, into which that host's items are placed.
///
/// An item keeps its slab at its source until its copy here was released. So the items in the
/// mirror are a subset of those in the source, and a class has a free slab for each that is
/// missing: producers and readers wait for space exactly where they would wait on one host.
///
/// Memory:   a segment; without classes, slabs are made on demand, and may have other gaps between
///           them than at the source.
/// Threads:  one.
/// Progress: never waits. A thread of the gateway makes the memory; until then there is no slab.
/// Ordering: as Producer.
/// Errors:   throws as SegmentMaker, Pool::add_segment and Producer.
class Mirror {
 public:
  /// @param parts  All parts of the source, by their number.
  Mirror(channel::Pool& pool, transport::Transport& transport, SegmentMaker& maker,
         const std::vector<SourcePart>& parts);
  /// Readers keep the items that are published.
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// Whether its memory is there, and another handle has mapped it, so that the end of this process
  /// loses no item in it.
  bool is_ready();
  /// Once it is ready: a slab for an item that goes to a ring; null if none is free.
  std::shared_ptr<channel::Lease> try_lease(std::uint16_t ring, std::uint64_t bytes);
  /// Lets a session write once into a lease. Nothing unless the transport can grant.
  std::optional<transport::Grant> grant(std::uint64_t session, const channel::Lease& lease);

 private:
  channel::Pool& pool_;
  transport::Transport& transport_;
  std::shared_ptr<NewSegment> made_;
  std::uint32_t segment_ = 0;
  std::shared_ptr<const memory::Memory> memory_;  // Null until it is made.
  std::uint32_t region_ = 0;
  bool is_safe_ = false;
  std::map<std::uint16_t, std::shared_ptr<channel::Producer>> producers_;  // By ring.
};

}  // namespace flowtrain::gateway
