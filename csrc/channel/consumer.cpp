#include "channel/consumer.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/cpu.hpp"
#include "base/error.hpp"
#include "channel/dtype.hpp"

namespace flowtrain::channel {
namespace {

constexpr std::int64_t kAskAgainNs = 1'000'000;  // Between looks for the answer of an owner.

/// For a counter that one thread at a time writes.
void count(std::atomic<std::uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

Item::Item(std::shared_ptr<Consumer> consumer, std::uint32_t cell, const Descriptor& descriptor,
           std::int64_t taken_ns, SlabView view)
    : consumer_(std::move(consumer)),
      cell_(cell),
      taken_ns_(taken_ns),
      descriptor_(descriptor),
      view_(std::move(view)) {
  const Control& control = consumer_->pool().control();
  word_ = control.word(cell).load(std::memory_order_relaxed);
  attempt_ = control.cell(cell).attempt;
  producer_ = control.label_of(descriptor_.producer);
}

Item::~Item() {
  if (open_) give_back();
}

const Pool& Item::pool() const { return consumer_->pool(); }

bool Item::has_views() const {
  return views_.load(std::memory_order_acquire) > 0;  // sync: item.views
}

void Item::release() {
  pool().check_not_forked();
  if (!open_) throw PoolClosed("item: it was released already; get another");
  const int views = views_.load(std::memory_order_acquire);  // sync: item.views
  if (views > 0) {
    throw ViewsAlive(
        "item: " + std::to_string(views) + (views == 1 ? " view of it is" : " views of it are") +
        " alive (tensor, array or memoryview over its slab); delete or copy before " + "release");
  }
  const bool mine = is_mine();
  give_back();
  if (!mine) {
    throw PoolCorrupt("item: the slab of cell " + std::to_string(cell_) + " is no longer this " +
                      "consumer's, who did not give it back; the control file was damaged: make " +
                      "the pool anew");
  }
}

bool Item::is_mine() const noexcept {
  return consumer_->pool().control().word(cell_).load(std::memory_order_relaxed) == word_;
}

void Item::give_back() noexcept {
  open_ = false;
  Pool& pool = consumer_->pool();
  // In a forked child the cell is still the parent's.
  if (pool.forked()) return;
  if (!is_mine()) return;
  consumer_->note_released(cell_, descriptor_, taken_ns_);
  pool.control().release_cell(cell_);
}

Consumer::Consumer(std::shared_ptr<Pool> pool, const std::string& ring, bool strict,
                   Recording recording)
    : pool_(std::move(pool)), strict_(strict) {
  pool_->check_open();
  ring_ = pool_->ring_number(ring);
  view_ = pool_->control().ring(ring_);
  lane_ = pool_->join(LaneRole::kConsumer, static_cast<std::uint16_t>(ring_));
  recorder_ = {pool_->control().record(lane_->number()), lane_->number(), recording};
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

lockfree::Run Consumer::pop(std::size_t most) {
  const auto cells =
      static_cast<std::uint32_t>(std::min<std::size_t>(most, lockfree::kMaxRunCells));
  const std::lock_guard lock(mutex_);
  const lockfree::Run run = view_.pop_run(cells, lane_->number(), (**lane_).intent);
  if (run != view_.kDamaged) return run;
  throw PoolCorrupt(text() + ": what it says to hold is not there; the control file was damaged: " +
                    "make the pool anew");
}

std::string Consumer::text() const {
  return "pool '" + pool_->name() + "', ring '" + pool_->control().ring_name(ring_) + "'";
}

/// What is wrong with an item that was taken; nothing where all of it may be used.
std::optional<std::string> Consumer::fault(const Descriptor& item, std::uint32_t c) const {
  const Control& control = pool_->control();
  const Cell& cell = control.cell(c);
  if (item.dtype >= kDtypes.size()) return "there is no dtype " + std::to_string(item.dtype);
  if (item.ndim > kMaxDims) return "it has " + std::to_string(item.ndim) + " dimensions";
  if (array_bytes(item.dtype, {item.shape, item.ndim}) != item.bytes) {
    return "its shape is not one of " + std::to_string(item.bytes) + " bytes";
  }
  const std::uint64_t slab_bytes = cell.slab_bytes;
  if (item.address != cell.slab || item.bytes > slab_bytes) {
    return std::to_string(item.bytes) + " bytes at address " + std::to_string(item.address) +
           " are not in its slab of " + std::to_string(slab_bytes) + " bytes at " +
           std::to_string(static_cast<std::uint64_t>(cell.slab));
  }
  if (item.producer != cell.producer || item.producer >= control.geometry().max_lanes) {
    return "lane " + std::to_string(item.producer) + " did not lease its slab";
  }
  // A segment stays while a cell of it is in use.
  const std::uint32_t segment = memory::segment_of(item.address);
  const auto name = [segment] { return "segment " + std::to_string(segment); };
  if (segment < 1 || segment > kMaxSegments) return "there is no " + name();
  const SegmentEntry& entry = control.segment(segment - 1);
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (state_of(word) != SegmentState::kLive && state_of(word) != SegmentState::kDraining) {
    return "there is no " + name();
  }
  if (generation_of(word) != memory::generation_of(item.address)) {
    return name() + " is in generation " + std::to_string(generation_of(word)) +
           ", its address in " + std::to_string(memory::generation_of(item.address));
  }
  const std::uint64_t all = entry.bytes, offset = memory::offset_of(item.address);
  if (offset > all || item.bytes > all - offset) {
    return "it reaches beyond " + name() + " of " + std::to_string(all) + " bytes";
  }
  return std::nullopt;
}

/// Delivers cells that were taken to whoever comes next.
void Consumer::put_back(const lockfree::Run& run) {
  if (run.count == 0) return;
  const std::lock_guard lock(mutex_);
  view_.push_run(run, lane_->number(), (**lane_).intent);
  pool_->control().ring_header(ring_).filled.notify();
}

/// The item in the first cell of a run that was taken; null if its memory is gone, or awaited. What
/// came with a cell that throws is put back, and, where nobody hears of the error, so is the cell.
std::shared_ptr<Item> Consumer::open_first(const lockfree::Run& run, bool heard,
                                           PassedOver& passed_over) {
  const Control& control = pool_->control();
  const Descriptor descriptor = copy_once(control.cell(run.first).descriptor);
  if (const auto wrong = fault(descriptor, run.first)) {
    if (heard) {
      note_lost();
      control.release_cell(run.first);
    }
    put_back(heard ? lockfree::Run{run.first + 1, run.count - 1} : run);
    throw PoolCorrupt(text() + ": an item in cell " + std::to_string(run.first) + " is refused: " +
                      *wrong + "; the control file was damaged: make the pool anew");
  }
  SlabView view;
  try {
    view = pool_->segments().resolve(descriptor.address, descriptor.bytes);
  } catch (...) {
    // This process cannot map it; another may.
    put_back(run);
    throw;
  }
  if (view) {
    const std::int64_t now = note_taken(run.first, descriptor);
    return std::make_shared<Item>(shared_from_this(), run.first, descriptor, now, std::move(view));
  }
  if (view.awaited) {
    passed_over.add(run.first);
    return nullptr;
  }
  // The holder of its memory died before this process had mapped it: counted, never hidden.
  if (strict_ && !heard) {
    put_back(run);
    throw StaleAddress("");
  }
  note_lost();
  control.release_cell(run.first);
  if (!strict_) return nullptr;
  put_back({run.first + 1, run.count - 1});
  throw StaleAddress(text() + ": the memory of an item in cell " + std::to_string(run.first) +
                     " died with its owner before this process had mapped it; publish it again, " +
                     "or give strict=False to pass over such items");
}

std::shared_ptr<Item> Consumer::try_get() {
  bool awaited = false;
  return take(awaited);
}

std::vector<std::shared_ptr<Item>> Consumer::try_get_many(std::size_t most) {
  bool awaited = false;
  return take_many(most, awaited);
}

std::shared_ptr<Item> Consumer::take(bool& awaited) {
  check_open();
  PassedOver passed_over(*this);
  for (;;) {
    const lockfree::Run run = pop(1);
    if (run.count != 0) {
      if (auto item = open_first(run, true, passed_over)) return item;
      continue;
    }
    awaited = !passed_over.empty();
    return nullptr;
  }
}

std::vector<std::shared_ptr<Item>> Consumer::take_many(std::size_t most, bool& awaited) {
  check_open();
  PassedOver passed_over(*this);
  std::vector<std::shared_ptr<Item>> items;
  while (items.size() < most) {
    try {
      lockfree::Run run = pop(most - items.size());
      if (run.count == 0) break;
      for (std::uint32_t c = run.first; c < run.first + run.count; ++c) {
        prefetch_to_read(&pool_->control().cell(c));
      }
      for (; run.count > 0; run = {run.first + 1, run.count - 1}) {
        auto item = open_first(run, items.empty(), passed_over);
        if (item) items.push_back(std::move(item));
      }
    } catch (...) {
      // The next call meets it again; what came before it is given out.
      if (items.empty()) throw;
      break;
    }
  }
  awaited = !passed_over.empty();
  return items;
}

bool Consumer::spin_until(const Deadline& deadline) const noexcept {
  auto ring = pool_->control().ring(ring_);  // Not the lane's, which a thread may be using.
  while (ring.looks_empty()) {
    if (deadline.passed()) return false;
    pause_core();
  }
  return true;
}

bool Consumer::wait_for_some(bool awaited, const Deadline& deadline,
                             const Interrupted& interrupted) {
  if (awaited) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(deadline.left_ns(kAskAgainNs)));
    return !(interrupted && interrupted());
  }
  auto ring = pool_->control().ring(ring_);  // Not the lane's, which a thread may be using.
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

// Of a ring that was damaged one look may say that there is something, and another take nothing:
// past its deadline nobody tries twice.

std::shared_ptr<Item> Consumer::get(const Deadline& deadline, const Interrupted& interrupted) {
  for (bool late = false;; late = deadline.passed()) {
    bool awaited = false;
    if (auto item = take(awaited)) return item;
    if (late) throw_timeout(deadline);
    if (!wait_for_some(awaited, deadline, interrupted)) return nullptr;
  }
}

std::vector<std::shared_ptr<Item>> Consumer::get_many(std::size_t most, const Deadline& deadline,
                                                      const Interrupted& interrupted) {
  for (bool late = false;; late = deadline.passed()) {
    bool awaited = false;
    auto items = take_many(most, awaited);
    if (!items.empty() || most == 0) return items;
    if (late) throw_timeout(deadline);
    if (!wait_for_some(awaited, deadline, interrupted)) return items;
  }
}

}  // namespace flowtrain::channel
