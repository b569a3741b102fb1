#include "channel/producer.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/cpu.hpp"
#include "base/error.hpp"

namespace flowtrain::channel {
namespace {

constexpr double kAnswerPollS = 0.005;           // Between polls for the answer of an owner.
constexpr double kStreamPollS = 0.0005;          // Between polls for the words of streams.
constexpr std::int64_t kMapRetryNs = 1'000'000;  // Between attempts to map a free slab.

}  // namespace

Producer::Producer(std::shared_ptr<Pool> pool, const std::string& ring, const Tiers& tiers,
                   const Credits& credits, Recording recording)
    : pool_(std::move(pool)),
      tiers_(tiers.segments),
      credits_(credits),
      in_flight_(pool_->control(), credits.max_items, credits.max_bytes) {
  pool_->check_open();
  ring_ = pool_->ring_number(ring);
  if (credits.max_bytes < 1 || credits.max_items < 1) {
    throw BadArgument("producer: max_bytes=" + std::to_string(credits.max_bytes) +
                      " and max_items=" + std::to_string(credits.max_items) +
                      " must be at least 1");
  }
  std::set<std::uint32_t> unique;
  for (const std::uint32_t segment : tiers_) {
    if (segment < 1 || segment > kMaxSegments || !unique.insert(segment).second) {
      throw BadArgument("producer: segment=" + std::to_string(segment) + " must be 1 to " +
                        std::to_string(kMaxSegments) + ", and named once");
    }
  }
  index_ring_ = pool_->control().ring(ring_);
  lane_ = pool_->join(LaneRole::kProducer, ring_, &mutex_);
  recorder_ = {pool_->control().record(lane_->number()), lane_->number(), recording};
  spilled_before_ = spilled();
  slabs_.emplace(pool_->control(), pool_->lanes(), lane_->number(), pool_->lane());
  if (!tiers_.empty()) pool_->segments().map_devices();
}

void Producer::close() {
  closed_.store(true, std::memory_order_relaxed);
  if (!pool_->forked()) pool_->control().header().space.notify();
}

bool Producer::closed() const { return closed_.load(std::memory_order_relaxed) || pool_->closed(); }

void Producer::check_open() const {
  pool_->check_open();
  if (closed_.load(std::memory_order_relaxed)) {
    throw PoolClosed("producer: it is closed; make another");
  }
}

std::shared_ptr<Lease> Producer::try_lease(const Layout& layout) {
  check_open();
  check_size(layout.bytes);
  std::optional<LeasedCell> leased = try_lease_cell(layout.bytes, nullptr).leased;
  if (!leased && pool_->segments().has_unmapped()) {
    pool_->segments().refresh();
    leased = try_lease_cell(layout.bytes, nullptr).leased;
  }
  return leased ? make_lease(*leased, layout) : nullptr;
}

std::shared_ptr<Lease> Producer::lease(const Layout& layout, const Deadline& deadline,
                                       const Interrupted& interrupted) {
  check_open();
  check_size(layout.bytes);
  Segments& segments = pool_->segments();
  if (segments.has_unmapped() && !segments.map_all(deadline.within(kOwnerResponseS), interrupted)) {
    return nullptr;
  }
  Missing missing = Missing::kSlab;
  for (bool late = false; !late; late = deadline.passed()) {
    const bool streams = leases_from_devices();
    const bool awaited = (segments.has_unmapped() && !segments.refresh()) || streams;
    std::optional<LeasedCell> leased;
    bool failed = false, stop = false;
    const bool ready = pool_->control().header().space.wait(
        awaited ? deadline.within(streams ? kStreamPollS : kAnswerPollS) : deadline, spin_,
        [&]() noexcept {
          const Attempt attempt = try_lease_cell(layout.bytes, &deadline);
          leased = attempt.leased;
          missing = attempt.missing;
          return leased || closed() || (failed = fails_at_once(missing)) ||
                 largest_slab() < std::max<std::uint64_t>(layout.bytes, 1) ||
                 (stop = interrupted && interrupted());
        });
    if (leased) {
      if (auto lease = make_lease(*leased, layout)) return lease;
      // Another thread may be in the mapping hook, or an owner may still have to answer.
      std::this_thread::sleep_for(std::chrono::nanoseconds(deadline.left_ns(kMapRetryNs)));
      check_open();
      if (interrupted && interrupted()) return nullptr;
      continue;
    }
    check_open();
    if (stop) return nullptr;
    check_size(layout.bytes);  // The only segment may have been dropped, or its owner may be gone.
    if (failed || (!ready && !awaited)) break;
  }
  if (fails_at_once(missing)) throw_full(layout.bytes, missing);
  throw_timeout(layout.bytes, missing, deadline.waited_s());
}

std::shared_ptr<Lease> Producer::make_lease(const LeasedCell& leased, const Layout& layout) {
  const Control& control = pool_->control();
  const auto damaged = [&](const std::string& how) {
    return PoolCorrupt("pool '" + pool_->name() + "': the slab of cell " +
                       std::to_string(leased.cell) + " is " + how +
                       "; the control file was damaged: make the pool anew");
  };
  try {
    const memory::Address slab = control.cell(leased.cell).slab;
    if (layout.bytes > control.cell(leased.cell).slab_bytes) {
      throw damaged("smaller than " + std::to_string(layout.bytes) + " bytes");
    }
    SlabView view = pool_->segments().resolve(slab, layout.bytes);
    if (view) {
      return std::make_shared<Lease>(shared_from_this(), leased, layout, std::move(view));
    }
    const std::uint32_t index = memory::segment_of(slab) - 1U;
    const CellRange cells =
        index < kMaxSegments ? control.cells_of(control.segment(index)) : CellRange{0, 0};
    const bool in_segment = cells.first <= leased.cell && leased.cell < cells.end;
    const bool mapped = in_segment && (pool_->segments().mapped() >> index & 1) != 0;
    if (!in_segment || (mapped && !view.awaited)) throw damaged("not in its segment");
  } catch (...) {
    abort(leased, layout.bytes);
    throw;
  }
  abort(leased, layout.bytes);
  return nullptr;
}

Producer::Attempt Producer::try_lease_cell(std::uint64_t bytes, const Deadline* since) noexcept {
  const std::lock_guard lock(mutex_);
  if (!in_flight_.try_reserve(bytes)) return {std::nullopt, Missing::kCredit};
  const std::uint32_t c = try_allocate(bytes);
  if (c == SlabAllocator::kNone) {
    in_flight_.cancel(bytes);
    return {std::nullopt, Missing::kSlab};
  }
  Cell& cell = pool_->control().cell(c);
  cell.item_bytes = bytes;
  cell.attempt = 0;
  cell.producer = lane_->number();
  const auto word = pool_->control().word(c).load(std::memory_order_relaxed);
  in_flight_.add(c, word, bytes);
  return {LeasedCell{c, word, recorder_.leased(since, c, bytes)}, Missing::kSlab};
}

/// Without a slab of the first tier, a strict producer neither waits nor spills.
bool Producer::fails_at_once(Missing missing) const noexcept {
  if (credits_.when_full == WhenFull::kFail) return true;
  return credits_.strict && tiers_.size() > 1 && missing == Missing::kSlab;
}

std::uint32_t Producer::try_allocate(std::uint64_t bytes) noexcept {
  const std::uint64_t mapped = pool_->segments().mapped();
  if (tiers_.empty()) return slabs_->try_lease(bytes, mapped);
  for (const std::uint32_t segment : tiers_) {
    const bool here = (mapped >> (segment - 1) & 1) != 0;
    const std::uint32_t cell =
        here ? slabs_->try_lease_in(segment - 1, bytes) : SlabAllocator::kNone;
    if (cell != SlabAllocator::kNone && segment != tiers_.front()) {
      // No other lane writes these counters.
      Lane& lane = **lane_;
      lane.items_spilled.store(lane.items_spilled.load(std::memory_order_relaxed) + 1,
                               std::memory_order_relaxed);
      lane.bytes_spilled.store(lane.bytes_spilled.load(std::memory_order_relaxed) + bytes,
                               std::memory_order_relaxed);
    }
    if (cell != SlabAllocator::kNone || credits_.strict) return cell;
  }
  return SlabAllocator::kNone;
}

void Producer::shrink(const LeasedCell& leased, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  pool_->check_open();
  check_mine(leased);
  pool_->control().cell(leased.cell).item_bytes = bytes;
  in_flight_.shrink(leased.cell, bytes);
  slabs_->shrink(leased.cell, bytes);
  pool_->control().header().space.notify();
}

void Producer::abort(const LeasedCell& leased, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  recorder_.aborted(leased.cell, bytes);
  if (is_mine(leased)) slabs_->release(leased.cell, bytes);
}

bool Producer::is_mine(const LeasedCell& leased) const noexcept {
  return pool_->control().word(leased.cell).load(std::memory_order_relaxed) == leased.word;
}

void Producer::publish_many(std::span<const std::shared_ptr<Lease>> leases,
                            std::span<const Key> keys, std::optional<memory::StreamHandle> stream) {
  pool_->check_open();
  if (leases.size() != keys.size()) {
    throw BadArgument("publish_many: " + std::to_string(leases.size()) + " leases and " +
                      std::to_string(keys.size()) + " keys; give one key for each lease");
  }
  std::vector<Publication> publications;
  publications.reserve(leases.size());
  try {
    for (std::size_t i = 0; i < leases.size(); ++i) {
      const std::shared_ptr<Lease>& lease = leases[i];
      const auto which = [&] { return "publish_many: leases[" + std::to_string(i) + "]"; };
      if (!lease || lease->producer_.get() != this) {
        throw BadArgument(which() + " is of another producer; publish it there");
      }
      const auto first = std::find(leases.begin(), leases.end(), lease) - leases.begin();
      if (!lease->open_ && first < static_cast<std::ptrdiff_t>(i)) {
        throw BadArgument(which() + " is leases[" + std::to_string(first) + "]; give each once");
      }
      lease->check_unused(which(), "publish");
      publications.push_back({lease->leased_, lease->layout_, keys[i], lease->generation_});
      lease->open_ = false;
    }
    for (const auto& lease : leases) {
      if (lease->slab_.streams || stream) lease->finish_write(stream);
    }
    publish(publications);
  } catch (...) {
    for (std::size_t i = 0; i < publications.size(); ++i) leases[i]->open_ = true;
    throw;
  }
}

void Producer::check_mine(const LeasedCell& leased) const {
  if (is_mine(leased)) return;
  throw PoolCorrupt("pool '" + pool_->name() + "': the slab of cell " +
                    std::to_string(leased.cell) +
                    " was reused before this producer published it; the control file was " +
                    "damaged: make the pool anew");
}

void Producer::publish(std::span<const Publication> publications) {
  const std::lock_guard lock(mutex_);
  pool_->check_open();  // Under the mutex: a close waits for this publication.
  for (const Publication& publication : publications) check_mine(publication.leased);
  const Control& control = pool_->control();
  Lane& lane = **lane_;
  std::uint64_t sequence = lane.items_published.load(std::memory_order_relaxed);
  std::uint64_t bytes = lane.bytes_published.load(std::memory_order_relaxed);
  for (const Publication& publication : publications)
    prefetch_to_write(&control.cell(publication.leased.cell));
  for (const Publication& publication : publications) {
    describe(publication, sequence++);
    bytes += publication.layout.bytes;
  }
  // Before the push, so that whoever has taken an item sees it counted.
  lane.items_published.store(sequence, std::memory_order_relaxed);
  lane.bytes_published.store(bytes, std::memory_order_relaxed);
  for (std::size_t i = 0; i < publications.size();) {
    lockfree::Run run{publications[i].leased.cell, 0};
    for (; i < publications.size() && publications[i].leased.cell == run.first + run.count &&
           run.count < lockfree::kMaxRunCells;
         ++i) {
      ++run.count;
    }
    if (!index_ring_.push_run(run, lane_->number(), lane.intent)) {
      throw PoolCorrupt("pool '" + pool_->name() + "': a ring is full, though it has a slot for " +
                        "every cell; the control file was damaged");
    }
  }
  control.ring_header(ring_).filled.notify();
  for (const auto& [leased, layout, key, generation] : publications) {
    recorder_.published(leased.time_ns, leased.cell, key.low, layout.bytes);
  }
}

void Producer::describe(const Publication& publication, std::uint64_t sequence) noexcept {
  const auto& [leased, layout, key, generation] = publication;
  Cell& cell = pool_->control().cell(leased.cell);
  cell.descriptor = {
      cell.slab,       layout.bytes,
      key.low,         key.high,
      sequence,        {layout.shape[0], layout.shape[1], layout.shape[2], layout.shape[3]},
      lane_->number(), layout.dtype,
      layout.ndim,     generation};
  cell.ring = ring_;
  cell.published_ns = recorder_.publishing(leased.time_ns, layout.bytes);
}

/// Whether leases may come from a segment, by its index: one of the tiers, or the first if strict.
bool Producer::leases_from(std::uint32_t segment) const noexcept {
  if (credits_.strict && !tiers_.empty()) return segment + 1 == tiers_.front();
  return tiers_.empty() || std::find(tiers_.begin(), tiers_.end(), segment + 1) != tiers_.end();
}

/// Whether a lease may wait for a stream of a device, which wakes nobody.
bool Producer::leases_from_devices() const noexcept {
  const Control& control = pool_->control();
  for (std::uint32_t i = 0; i < control.num_segments(); ++i) {
    if (leases_from(i) && control.segment(i).kind != memory::Kind::kMemfd) return true;
  }
  return false;
}

/// Bytes of the largest slab that this producer can lease, now or once memory that is being made is
/// there; 0 if there is no memory.
std::uint64_t Producer::largest_slab() const noexcept {
  std::uint64_t largest = 0;
  const Control& control = pool_->control();
  for (std::uint32_t i = 0; i < control.num_segments(); ++i) {
    if (!leases_from(i)) continue;
    const SegmentEntry& entry = control.segment(i);
    const auto word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
    const SegmentState state = state_of(word);
    if (state != SegmentState::kLive && state != SegmentState::kMaking) continue;
    const std::uint32_t classes = std::min<std::uint32_t>(entry.num_classes, kMaxClasses);
    const std::uint64_t here = classes > 0 ? entry.classes[classes - 1].slab_bytes : entry.bytes;
    largest = std::max(largest, here);
  }
  return largest;
}

void Producer::check_size(std::uint64_t bytes) const {
  const std::uint64_t largest = largest_slab();
  std::string where = "pool '" + pool_->name() + "'";
  for (const std::uint32_t segment : tiers_) where += ", segment " + std::to_string(segment);
  where += ": ";
  if (largest == 0) {
    throw PoolSpace(where + "there is no memory to lease; its owner is gone, or none was added: " +
                    "give Pool.create bytes, or call add_segment");
  }
  if (bytes > largest) {
    throw BadArgument(where + "a lease of " + std::to_string(bytes) +
                      " bytes exceeds the largest slab of " + std::to_string(largest) +
                      " bytes; make the pool larger, or give classes with such slabs");
  }
  if (static_cast<std::int64_t>(bytes) > credits_.max_bytes) {
    throw BadArgument("producer: a lease of " + std::to_string(bytes) +
                      " bytes exceeds max_bytes=" + std::to_string(credits_.max_bytes) +
                      "; raise max_bytes");
  }
}

Producer::Spilled Producer::spilled() const noexcept {
  const Lane& lane = **lane_;
  return {lane.items_spilled.load(std::memory_order_relaxed),
          lane.bytes_spilled.load(std::memory_order_relaxed)};
}

bool Producer::drain(const Deadline& deadline, const Interrupted& interrupted) {
  check_open();
  os::Spin spin;
  Usage now{};
  bool stop = false;
  pool_->control().header().space.wait(deadline, spin, [&]() noexcept {
    now = usage();
    return now.items_in_flight == 0 || closed() || (stop = interrupted && interrupted());
  });
  if (now.items_in_flight == 0) return true;
  check_open();
  if (stop) return false;
  throw PoolTimeout(text() + ": within " + std::to_string(deadline.waited_s()) + " s " +
                    std::to_string(now.items_in_flight) + " of its items (" +
                    std::to_string(now.bytes_in_flight) + " bytes) were not released; slabs are " +
                    "held by: " + pool_->holders() + "; is a consumer running? otherwise raise " +
                    "timeout_s");
}

Producer::Usage Producer::usage() {
  const std::lock_guard lock(mutex_);
  in_flight_.drop_released();
  const Spilled now = spilled();
  return {in_flight_.items(),
          in_flight_.bytes(),
          recorder_.written(),
          {now.items - spilled_before_.items, now.bytes - spilled_before_.bytes}};
}

}  // namespace flowtrain::channel
