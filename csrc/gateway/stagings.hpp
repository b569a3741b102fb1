#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "channel/item.hpp"
#include "channel/pool.hpp"
#include "gateway/message.hpp"
#include "memory/resource.hpp"
#include "transport/transport.hpp"

namespace flowtrain::gateway {

/// The staging of one segment, registered with the transport; without copies if the transport reads
/// the segment itself. As memory::Staging.
class SegmentStaging {
 public:
  SegmentStaging(const memory::Resource& resource, std::shared_ptr<const memory::Memory> segment,
                 transport::Transport& transport, memory::OnDone on_done, const std::string& name);
  ~SegmentStaging();
  SegmentStaging(const SegmentStaging&) = delete;
  SegmentStaging& operator=(const SegmentStaging&) = delete;

  bool copies() const noexcept { return !reads_device_; }
  /// Fetches an item once the stream of its producer has written it.
  ///
  /// @returns Number of the fetch, from 1.
  std::uint64_t fetch(channel::Item& item);
  bool is_done(std::uint64_t number) const noexcept { return staging_->done() >= number; }
  /// Of an item whose fetch is done.
  const std::byte* data_of(const channel::Item& item) const noexcept;
  void check() const { staging_->check(); }

 private:
  transport::Transport& transport_;
  bool reads_device_;
  std::uint32_t region_;
  std::unique_ptr<memory::Staging> staging_;
  std::uint64_t fetches_ = 0;
};

/// Stagings of the segments whose items go to other hosts and whose memory the host cannot access,
/// one for each segment and all peers.
///
/// Memory:   as many bytes of the host as the segments have that are copied.
/// Threads:  one.
/// Progress, ordering, errors: as memory::Staging.
class Stagings {
 public:
  /// @param on_done  As in memory::Resource.
  Stagings(channel::Pool& pool, transport::Transport& transport, memory::OnDone on_done)
      : pool_(pool), transport_(transport), on_done_(std::move(on_done)) {}
  Stagings(const Stagings&) = delete;
  Stagings& operator=(const Stagings&) = delete;

  /// That of an item's segment; null if the host can read the item.
  std::shared_ptr<SegmentStaging> of(const channel::Item& item);
  /// Frees those of segments that have ended, and checks that no device has failed.
  void sweep();

 private:
  channel::Pool& pool_;
  transport::Transport& transport_;
  memory::OnDone on_done_;
  std::map<SourceId, std::shared_ptr<SegmentStaging>> by_source_;
};

}  // namespace flowtrain::gateway
