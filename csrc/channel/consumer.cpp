#include "channel/consumer.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/cpu.hpp"
#include "base/error.hpp"
#include "channel/cells/release.hpp"
#include "channel/layout/validate.hpp"

namespace flowtrain::channel {
namespace {

constexpr std::int64_t kAnswerPollNs = 1'000'000;  // Between polls for the answer of an owner.

/// Increments a counter that one thread at a time writes.
void count(std::atomic<std::uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

Consumer::Consumer(std::shared_ptr<Pool> pool, const std::string& ring, bool strict,
                   Recording recording)
    : pool_(std::move(pool)), strict_(strict) {
  pool_->check_open();
  ring_ = pool_->ring_number(ring);
  index_ring_ = pool_->control().ring(ring_);
  lane_ = pool_->join(LaneRole::kConsumer, ring_);
  recorder_ = {pool_->control().record(lane_->number()), lane_->number(), recording};
  pool_->segments().map_devices();
}

void Consumer::close() {
  closed_.store(true, std::memory_order_relaxed);
  if (!pool_->forked()) pool_->control().ring_header(ring_).filled.notify();
}

bool Consumer::closed() const { return closed_.load(std::memory_order_relaxed) || pool_->closed(); }

void Consumer::check_open() const {
  pool_->check_open();
  if (closed_.load(std::memory_order_relaxed)) {
    throw PoolClosed("consumer: it is closed; make another");
  }
}

std::int64_t Consumer::note_taken(std::uint32_t c, const Descriptor& item) const noexcept {
  const std::lock_guard lock(mutex_);
  count((**lane_).items_taken);
  return recorder_.taken(pool_->control().cell(c).published_ns, c, item);
}

void Consumer::note_released(std::uint32_t c, const Descriptor& item,
                             std::int64_t taken_ns) const noexcept {
  const std::lock_guard lock(mutex_);
  count((**lane_).items_released);
  recorder_.released(taken_ns, c, item);
}

void Consumer::note_lost() const noexcept {
  const std::lock_guard lock(mutex_);
  count((**lane_).items_lost);
}

/// Publishes the cell of an item that was not released again.
void Consumer::redeliver(std::uint32_t c, const Descriptor& item) noexcept {
  const std::lock_guard lock(mutex_);
  Cell& cell = pool_->control().cell(c);
  cell.attempt = cell.attempt + 1;
  count((**lane_).items_redelivered);
  recorder_.given_back(c, item);
  push({c, 1});
}

/// Under mutex_. Frees the cells if the ring is full: it has a slot for every cell, so only a
/// damaged one is.
void Consumer::push(const lockfree::Run& run) noexcept {
  const Control& control = pool_->control();
  if (index_ring_.push_run(run, lane_->number(), (**lane_).intent)) {
    control.ring_header(ring_).filled.notify();
    return;
  }
  for (std::uint32_t c = run.first; c < run.first + run.count; ++c) release_cell(control, c);
}

lockfree::Run Consumer::pop(std::size_t max_items) {
  const auto cells =
      static_cast<std::uint32_t>(std::min<std::size_t>(max_items, lockfree::kMaxRunCells));
  const std::lock_guard lock(mutex_);
  const lockfree::Run run = index_ring_.pop_run(cells, lane_->number(), (**lane_).intent);
  if (run != index_ring_.kDamaged) return run;
  throw PoolCorrupt(text() +
                    ": its slots and hints contradict each other, or name cells that do not exist; "
                    "the control file was damaged: make the pool anew");
}

std::string Consumer::text() const {
  return "pool '" + pool_->name() + "', ring '" + pool_->control().ring_name(ring_) + "'";
}

/// Publishes taken cells again, for any consumer.
void Consumer::put_back(const lockfree::Run& run) {
  if (run.count == 0) return;
  const std::lock_guard lock(mutex_);
  push(run);
}

/// Opens the item in the first cell of a taken run; null if its memory is gone, or awaited. If this
/// throws, the rest of the run is put back. The cell is released if its item is refused, and
/// otherwise put back too.
///
/// @param reported  Whether the caller passes an error on. If not, no item is refused: a later call
///                  finds it again.
std::shared_ptr<Item> Consumer::open_first(const lockfree::Run& run, bool reported,
                                           Deferred& deferred) {
  const Control& control = pool_->control();
  const Descriptor descriptor = copy_once(control.cell(run.first).descriptor);
  if (const auto fault = find_fault(control, descriptor, run.first)) {
    if (reported) {
      note_lost();
      release_cell(control, run.first);
    }
    put_back(reported ? lockfree::Run{run.first + 1, run.count - 1} : run);
    throw PoolCorrupt(text() + ": an item in cell " + std::to_string(run.first) + " is refused: " +
                      *fault + "; the control file was damaged: make the pool anew");
  }
  SlabView view;
  try {
    view = pool_->segments().resolve(descriptor.address, descriptor.bytes);
  } catch (...) {
    // This process cannot map it, but another may.
    put_back(run);
    throw;
  }
  if (view) {
    const std::int64_t now = note_taken(run.first, descriptor);
    return std::make_shared<Item>(shared_from_this(), run.first, descriptor, now, std::move(view));
  }
  if (view.awaited) {
    deferred.add(run.first);
    return nullptr;
  }
  // The owner of its memory died, and no living handle has mapped it.
  if (strict_ && !reported) {
    put_back(run);
    throw StaleAddress("");
  }
  note_lost();
  release_cell(control, run.first);
  if (!strict_) return nullptr;
  put_back({run.first + 1, run.count - 1});
  throw StaleAddress(
      text() + ": the memory of an item in cell " + std::to_string(run.first) +
      " died with its owner, and no other living process had mapped it; publish it " +
      "again, or give strict=False to skip such items");
}

std::shared_ptr<Item> Consumer::try_get() {
  bool awaited = false;
  return take(awaited);
}

std::vector<std::shared_ptr<Item>> Consumer::try_get_many(std::size_t max_items) {
  bool awaited = false;
  return take_many(max_items, awaited);
}

std::shared_ptr<Item> Consumer::take(bool& awaited) {
  check_open();
  Deferred deferred(*this);
  for (;;) {
    const lockfree::Run run = pop(1);
    if (run.count != 0) {
      if (auto item = open_first(run, true, deferred)) return item;
      continue;
    }
    awaited = !deferred.empty();
    return nullptr;
  }
}

std::vector<std::shared_ptr<Item>> Consumer::take_many(std::size_t max_items, bool& awaited) {
  check_open();
  Deferred deferred(*this);
  std::vector<std::shared_ptr<Item>> items;
  while (items.size() < max_items) {
    try {
      lockfree::Run run = pop(max_items - items.size());
      if (run.count == 0) break;
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        prefetch_to_read(&pool_->control().cell(c));
      }
      for (; run.count > 0; run = {run.first + 1, run.count - 1}) {
        auto item = open_first(run, items.empty(), deferred);
        if (item) items.push_back(std::move(item));
      }
    } catch (...) {
      // Returns the items before it. The next call meets it again, and throws.
      if (items.empty()) throw;
      break;
    }
  }
  awaited = !deferred.empty();
  return items;
}

bool Consumer::spin_until(const Deadline& deadline) const noexcept {
  auto ring = pool_->control().ring(ring_);  // Not index_ring_, which another thread may be using.
  while (ring.looks_empty()) {
    if (deadline.passed()) return false;
    pause_core();
  }
  return true;
}

bool Consumer::wait_for_some(bool awaited, const Deadline& deadline,
                             const Interrupted& interrupted) {
  if (awaited) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(deadline.left_ns(kAnswerPollNs)));
    return !(interrupted && interrupted());
  }
  auto ring = pool_->control().ring(ring_);  // Not index_ring_, which another thread may be using.
  RingHeader& header = pool_->control().ring_header(ring_);
  bool stop = false;
  const bool some = header.filled.wait(deadline, spin_, [&]() noexcept {
    return !ring.looks_empty() || closed() || (stop = interrupted && interrupted());
  });
  if (!some) throw_timeout(deadline);
  return !stop;
}

void Consumer::throw_timeout(const Deadline& deadline) const {
  throw PoolTimeout(text() + ": nothing arrived within " + std::to_string(deadline.waited_s()) +
                    " s; slabs are held by: " + pool_->holders() + pool_->segments().unmapped() +
                    "; is a producer running? otherwise raise timeout_s");
}

// In a damaged ring looks_empty may be false although nothing can be taken: so get and get_many try
// only once after the deadline.

std::shared_ptr<Item> Consumer::get(const Deadline& deadline, const Interrupted& interrupted) {
  for (bool late = false;; late = deadline.passed()) {
    bool awaited = false;
    if (auto item = take(awaited)) return item;
    if (late) throw_timeout(deadline);
    if (!wait_for_some(awaited, deadline, interrupted)) return nullptr;
  }
}

std::vector<std::shared_ptr<Item>> Consumer::get_many(std::size_t max_items,
                                                      const Deadline& deadline,
                                                      const Interrupted& interrupted) {
  for (bool late = false;; late = deadline.passed()) {
    bool awaited = false;
    auto items = take_many(max_items, awaited);
    if (!items.empty() || max_items == 0) return items;
    if (late) throw_timeout(deadline);
    if (!wait_for_some(awaited, deadline, interrupted)) return items;
  }
}

}  // namespace flowtrain::channel
