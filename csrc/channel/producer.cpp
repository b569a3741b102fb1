#include "channel/producer.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/cpu.hpp"
#include "base/error.hpp"

namespace flowtrain::channel {
namespace {

constexpr double kAskAgainS = 0.005;  // Between looks for the answer of a segment's owner.
constexpr std::int64_t kMapAgainNs = 1'000'000;  // Between attempts to map a slab that is free.

}  // namespace

const Pool& Lease::pool() const { return producer_->pool(); }

memory::Address Lease::address() const {
  return producer_->pool().control().cell(grant_.cell).slab;
}

void Lease::publish(const Key& key) {
  producer_->pool().check_open();
  check_publishable("lease");
  const Producer::Parcel parcel{grant_, layout_, key};
  producer_->check_mine({&parcel, 1});
  producer_->publish({&parcel, 1});
  open_ = false;
}

void Lease::check_publishable(const std::string& what) const {
  if (!open_) {
    throw PoolClosed(what + " was published or aborted already; lease another slab");
  }
  check_not_written(what);
}

void Lease::check_not_written(const std::string& what) const {
  if (writers_.load(std::memory_order_acquire) == 0) return;  // sync: lease.writers
  throw ViewsAlive(what +
                   ": another thread is writing it; publish or abort it once its write has " +
                   "returned");
}

void Lease::abort() {
  if (!open_) return;
  check_not_written("lease");
  give_back();
}

void Lease::give_back() noexcept {
  if (!open_) return;
  open_ = false;
  // In a forked child the cell is still the parent's.
  if (!producer_->pool().forked()) producer_->abort(grant_, layout_.bytes);
}

Producer::Producer(std::shared_ptr<Pool> pool, const std::string& ring, const Tiers& tiers,
                   const Credits& credits, Recording recording)
    : pool_(std::move(pool)), tiers_(tiers.segments), credits_(credits) {
  pool_->check_open();
  ring_ = static_cast<std::uint16_t>(pool_->ring_number(ring));
  if (credits.max_bytes < 1 || credits.max_items < 1) {
    throw BadArgument("producer: max_bytes=" + std::to_string(credits.max_bytes) +
                      " and max_items=" + std::to_string(credits.max_items) +
                      " must be at least 1");
  }
  std::set<std::uint32_t> once;
  for (const std::uint32_t segment : tiers_) {
    if (segment < 1 || segment > kMaxSegments || !once.insert(segment).second) {
      throw BadArgument("producer: segment=" + std::to_string(segment) + " must be 1 to " +
                        std::to_string(kMaxSegments) + ", and named once");
    }
  }
  view_ = pool_->control().ring(ring_);
  lane_ = pool_->join(LaneRole::kProducer, ring_);
  recorder_ = {pool_->control().record(lane_->number()), lane_->number(), recording};
  before_ = spilled();
  slabs_.emplace(pool_->control(), pool_->cutter(), lane_->number(), pool_->lane());
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
  std::optional<Grant> grant = try_grant(layout.bytes, nullptr).grant;
  if (!grant && pool_->segments().has_unmapped()) {
    pool_->segments().refresh();
    grant = try_grant(layout.bytes, nullptr).grant;
  }
  return grant ? make_lease(*grant, layout) : nullptr;
}

std::shared_ptr<Lease> Producer::lease(const Layout& layout, const Deadline& deadline,
                                       const Interrupted& interrupted) {
  check_open();
  check_size(layout.bytes);
  Segments& segments = pool_->segments();
  if (segments.has_unmapped() && !segments.map_all(deadline.within(kOwnersAnswerS), interrupted)) {
    return nullptr;
  }
  Missing missing = Missing::kSlab;
  for (bool late = false; !late; late = deadline.passed()) {
    // A lease that waits for an owner's answer polls for it.
    const bool awaited = segments.has_unmapped() && !segments.refresh();
    std::optional<Grant> grant;
    bool failed = false, stop = false;
    const bool ready = pool_->control().header().space.wait(
        awaited ? deadline.within(kAskAgainS) : deadline, spin_, [&]() noexcept {
          const Attempt attempt = try_grant(layout.bytes, &deadline);
          grant = attempt.grant;
          missing = attempt.missing;
          return grant || closed() || (failed = fails_at_once(missing)) ||
                 largest_slab() < std::max<std::uint64_t>(layout.bytes, 1) ||
                 (stop = interrupted && interrupted());
        });
    if (grant) {
      if (auto lease = make_lease(*grant, layout)) return lease;
      // Another thread may be in the mapping hook, or an owner has to answer.
      std::this_thread::sleep_for(std::chrono::nanoseconds(deadline.left_ns(kMapAgainNs)));
      check_open();
      if (interrupted && interrupted()) return nullptr;
      continue;
    }
    check_open();
    if (stop) return nullptr;
    check_size(layout.bytes);  // The only segment may have been dropped, or lost its owner.
    if (failed || (!ready && !awaited)) break;
  }
  if (fails_at_once(missing)) throw_full(layout.bytes, missing);
  throw_timeout(layout.bytes, missing, deadline.waited_s());
}

std::shared_ptr<Lease> Producer::make_lease(const Grant& grant, const Layout& layout) {
  const Control& control = pool_->control();
  const auto damaged = [&](const std::string& how) {
    return PoolCorrupt("pool '" + pool_->name() + "': the slab of cell " +
                       std::to_string(grant.cell) + " is " + how +
                       "; the control file was damaged: make the pool anew");
  };
  try {
    const memory::Address slab = control.cell(grant.cell).slab;
    if (layout.bytes > control.cell(grant.cell).slab_bytes) {
      throw damaged("smaller than its class of " + std::to_string(layout.bytes) + " bytes or more");
    }
    SlabView view = pool_->segments().resolve(slab, layout.bytes);
    if (view) {
      return std::make_shared<Lease>(shared_from_this(), grant, layout, std::move(view));
    }
    const std::uint32_t index = memory::segment_of(slab) - 1U;
    const CellRange cells =
        index < kMaxSegments ? control.cells_of(control.segment(index)) : CellRange{0, 0};
    const bool its_own = cells.first <= grant.cell && grant.cell < cells.end;
    const bool mapped = its_own && (pool_->segments().mapped() >> index & 1) != 0;
    if (!its_own || (mapped && !view.awaited)) throw damaged("not in its segment");
  } catch (...) {
    abort(grant, layout.bytes);
    throw;
  }
  abort(grant, layout.bytes);
  return nullptr;
}

Producer::Attempt Producer::try_grant(std::uint64_t bytes, const Deadline* since) noexcept {
  const std::lock_guard lock(mutex_);
  if (!take_credit(bytes)) return {std::nullopt, Missing::kCredit};
  const std::uint32_t c = try_allocate(bytes);
  if (c == Slabs::kNone) {
    bytes_in_flight_ -= static_cast<std::int64_t>(bytes);
    return {std::nullopt, Missing::kSlab};
  }
  Cell& cell = pool_->control().cell(c);
  cell.attempt = 0;
  cell.producer = lane_->number();
  const auto word = pool_->control().word(c).load(std::memory_order_relaxed);
  in_flight_.push_back({c, lockfree::generation_of(word), static_cast<std::int64_t>(bytes)});
  return {Grant{c, word, recorder_.leased(since, c, bytes)}, Missing::kSlab};
}

bool Producer::has_credit(std::uint64_t bytes) const noexcept {
  return static_cast<std::int64_t>(in_flight_.size()) < credits_.max_items &&
         bytes_in_flight_ <= credits_.max_bytes - static_cast<std::int64_t>(bytes);
}

void Producer::forget_given_back() noexcept {
  std::erase_if(in_flight_, [this](const InFlight& item) {
    const auto word =
        pool_->control().word(item.cell).load(std::memory_order_acquire);  // sync: cell.word
    if (lockfree::generation_of(word) == item.generation) return false;
    bytes_in_flight_ -= item.bytes;
    return true;
  });
}

bool Producer::take_credit(std::uint64_t bytes) noexcept {
  // A producer without limits looks now and then, so that its list stays short.
  if (!has_credit(bytes) || in_flight_.size() >= 2 * pool_->control().geometry().max_cells) {
    forget_given_back();
  }
  if (!has_credit(bytes)) return false;
  bytes_in_flight_ += static_cast<std::int64_t>(bytes);
  return true;
}

/// Where the first tier has nothing, a strict producer waits for no other.
bool Producer::fails_at_once(Missing missing) const noexcept {
  if (credits_.when_full == WhenFull::kFail) return true;
  return credits_.strict && tiers_.size() > 1 && missing == Missing::kSlab;
}

std::uint32_t Producer::try_allocate(std::uint64_t bytes) noexcept {
  const std::uint64_t mapped = pool_->segments().mapped();
  if (tiers_.empty()) return slabs_->try_take(bytes, mapped);
  for (const std::uint32_t segment : tiers_) {
    const bool here = (mapped >> (segment - 1) & 1) != 0;
    const std::uint32_t cell = here ? slabs_->try_take_in(segment - 1, bytes) : Slabs::kNone;
    if (cell != Slabs::kNone && segment != tiers_.front()) {
      // Counters that this thread alone writes.
      Lane& mine = **lane_;
      mine.items_spilled.store(mine.items_spilled.load(std::memory_order_relaxed) + 1,
                               std::memory_order_relaxed);
      mine.bytes_spilled.store(mine.bytes_spilled.load(std::memory_order_relaxed) + bytes,
                               std::memory_order_relaxed);
    }
    if (cell != Slabs::kNone || credits_.strict) return cell;
  }
  return Slabs::kNone;
}

void Producer::abort(const Grant& grant, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  recorder_.aborted(grant.cell, bytes);
  if (is_mine(grant)) slabs_->give_back(grant.cell, bytes);
}

bool Producer::is_mine(const Grant& grant) const noexcept {
  return pool_->control().word(grant.cell).load(std::memory_order_relaxed) == grant.word;
}

void Producer::publish_many(std::span<const std::shared_ptr<Lease>> leases,
                            std::span<const Key> keys) {
  pool_->check_open();
  if (leases.size() != keys.size()) {
    throw BadArgument("publish_many: " + std::to_string(leases.size()) + " leases and " +
                      std::to_string(keys.size()) + " keys; give one key for each lease");
  }
  std::vector<Parcel> parcels;
  parcels.reserve(leases.size());
  try {
    for (std::size_t i = 0; i < leases.size(); ++i) {
      const std::shared_ptr<Lease>& lease = leases[i];
      const auto which = [&] {
        return "publish_many: lease " + std::to_string(i) + " of " + std::to_string(leases.size());
      };
      if (!lease || lease->producer_.get() != this) {
        throw BadArgument(which() + " is not of this producer; publish it by its own");
      }
      lease->check_publishable(which());
      parcels.push_back({lease->grant_, lease->layout_, keys[i]});
      // Also finds one that is named twice.
      lease->open_ = false;
    }
    check_mine(parcels);
  } catch (...) {
    for (std::size_t i = 0; i < parcels.size(); ++i) leases[i]->open_ = true;
    throw;
  }
  publish(parcels);
}

void Producer::check_mine(std::span<const Parcel> parcels) const {
  for (const Parcel& parcel : parcels) {
    if (is_mine(parcel.grant)) continue;
    throw PoolCorrupt("pool '" + pool_->name() + "': the slab of cell " +
                      std::to_string(parcel.grant.cell) +
                      " is no longer this producer's, who did " +
                      "not give it back; the control file was damaged: make the pool anew");
  }
}

void Producer::publish(std::span<const Parcel> parcels) {
  const std::lock_guard lock(mutex_);
  const Control& control = pool_->control();
  Lane& mine = **lane_;
  std::uint64_t sequence = mine.items_published.load(std::memory_order_relaxed);
  std::uint64_t bytes = mine.bytes_published.load(std::memory_order_relaxed);
  for (const Parcel& parcel : parcels) prefetch_to_write(&control.cell(parcel.grant.cell));
  for (const Parcel& parcel : parcels) describe(parcel, sequence++);
  for (std::size_t i = 0; i < parcels.size();) {
    lockfree::Run run{parcels[i].grant.cell, 0};
    for (; i < parcels.size() && parcels[i].grant.cell == run.first + run.count &&
           run.count < lockfree::kMaxRunCells;
         ++i) {
      ++run.count;
    }
    if (!view_.push_run(run, lane_->number(), mine.intent)) {
      throw PoolCorrupt("pool '" + pool_->name() + "': a ring is full, though it has a slot for " +
                        "every cell; the control file was damaged");
    }
  }
  for (const Parcel& parcel : parcels) bytes += parcel.layout.bytes;
  mine.items_published.store(sequence, std::memory_order_relaxed);
  mine.bytes_published.store(bytes, std::memory_order_relaxed);
  control.ring_header(ring_).filled.notify();
  for (const auto& [grant, layout, key] : parcels) {
    recorder_.published(grant.time_ns, grant.cell, key.low, layout.bytes);
  }
}

void Producer::describe(const Parcel& parcel, std::uint64_t sequence) noexcept {
  const auto& [grant, layout, key] = parcel;
  Cell& cell = pool_->control().cell(grant.cell);
  cell.descriptor = {
      cell.slab,       layout.bytes,
      key.low,         key.high,
      sequence,        {layout.shape[0], layout.shape[1], layout.shape[2], layout.shape[3]},
      lane_->number(), layout.dtype,
      layout.ndim,     0};
  cell.ring = ring_;
  cell.published_ns = recorder_.publishing(grant.time_ns, layout.bytes);
}

/// Bytes of the largest slab that this producer could ever lease; 0 where there is no memory.
std::uint64_t Producer::largest_slab() const noexcept {
  std::uint64_t largest = 0;
  const Control& control = pool_->control();
  for (std::uint32_t i = 0; i < control.num_segments(); ++i) {
    if (!tiers_.empty() && std::find(tiers_.begin(), tiers_.end(), i + 1) == tiers_.end()) continue;
    const SegmentEntry& entry = control.segment(i);
    const auto word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
    if (state_of(word) != SegmentState::kLive) continue;
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

namespace {

std::string text_of(std::int64_t limit) {
  return limit == INT64_MAX ? "None" : std::to_string(limit);
}

}  // namespace

/// What there is none of for a lease, and who has it.
Producer::Lack Producer::lack(Missing missing) const {
  const std::lock_guard lock(mutex_);
  const std::string held = "slabs are held by: " + pool_->holders() + pool_->segments().unmapped();
  if (missing == Missing::kSlab) return {"slab", held};
  return {"credit", std::to_string(in_flight_.size()) + " items of " +
                        std::to_string(bytes_in_flight_) +
                        " bytes are in flight, where max_items=" + text_of(credits_.max_items) +
                        " and max_bytes=" + text_of(credits_.max_bytes) + "; " + held};
}

std::string Producer::text() const {
  return "pool '" + pool_->name() + "', ring '" + pool_->control().ring_name(ring_) + "'";
}

void Producer::throw_full(std::uint64_t bytes, Missing missing) const {
  const auto [of, why] = lack(missing);
  if (credits_.when_full == WhenFull::kFail) {
    throw PoolFull(text() + ": no " + of + " for a lease of " + std::to_string(bytes) + " bytes; " +
                   why +
                   "; let a consumer release items, raise the limits, or wait: when_full='block'");
  }
  throw PoolFull(text() + ": segment " + std::to_string(tiers_.front()) + " has no slab for a " +
                 "lease of " + std::to_string(bytes) + " bytes, and strict=True forbids to spill " +
                 "into another; " + why + "; make the segment larger, or give strict=False");
}

void Producer::throw_timeout(std::uint64_t bytes, Missing missing, double waited_s) const {
  const auto [of, why] = lack(missing);
  throw PoolTimeout(text() + ": no " + of + " for a lease of " + std::to_string(bytes) +
                    " bytes came free within " + std::to_string(waited_s) + " s; " + why +
                    "; is a consumer running? otherwise raise timeout_s or the limits");
}

Producer::Spilled Producer::spilled() const noexcept {
  const Lane& mine = **lane_;
  return {mine.items_spilled.load(std::memory_order_relaxed),
          mine.bytes_spilled.load(std::memory_order_relaxed)};
}

Producer::Usage Producer::usage() {
  const std::lock_guard lock(mutex_);
  forget_given_back();
  const Spilled now = spilled();
  return {static_cast<std::int64_t>(in_flight_.size()),
          bytes_in_flight_,
          recorder_.written(),
          {now.items - before_.items, now.bytes - before_.bytes}};
}

}  // namespace flowtrain::channel
