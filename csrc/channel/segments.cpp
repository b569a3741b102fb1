#include "channel/segments.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"

namespace flowtrain::channel {
namespace {

using lockfree::CellState;

constexpr double kOwnerAnswersS = 5.0;

SegmentWord load(const SegmentEntry& entry) noexcept {
  return entry.word.load(std::memory_order_acquire);  // sync: segment.word
}

bool replace(SegmentEntry& entry, SegmentWord from, SegmentWord to) noexcept {
  // In one order with allocations, see Slabs::try_own.
  return entry.word.compare_exchange_strong(from, to,
                                            std::memory_order_seq_cst);  // sync: segment.word
}

bool has_memory(SegmentWord word) noexcept {
  return state_of(word) == SegmentState::kLive || state_of(word) == SegmentState::kDraining;
}

}  // namespace

std::string Segments::socket_of(std::uint16_t owner) const {
  return folder_ + "/" + std::to_string(owner) + ".sock";
}

std::uint32_t Segments::add(const memory::Carving& carving, bool prefault, std::uint16_t owner) {
  if (carving.classes.size() > kMaxClasses) {
    throw BadArgument("pool '" + pool_ + "': " + std::to_string(carving.classes.size()) +
                      " classes, at most " + std::to_string(kMaxClasses));
  }
  const std::lock_guard lock(adding_);
  if (!server_) {
    server_ = std::make_unique<os::FdServer>(socket_of(owner), [this](std::uint32_t index) {
      const std::lock_guard slots_lock(slots_mutex_);
      return index < kMaxSegments ? slots_[index].fd.get() : -1;
    });
  }
  const std::uint32_t index = reserve(carving.slabs, owner);
  SegmentEntry& entry = control_.segment(index);
  const SegmentWord making = load(entry);
  try {
    os::Fd fd = os::sealed_memfd(pool_ + "." + std::to_string(index + 1), carving.bytes);
    auto mapping = std::make_shared<os::Mapping>(fd, carving.bytes, text(index));
    if (prefault) mapping->prefault();
    call_hook(*mapping, index);
    fill(index, carving);
    const std::lock_guard slots_lock(slots_mutex_);
    slots_[index] = {std::move(mapping), generation_of(making), std::move(fd)};
  } catch (...) {
    replace(entry, making, moved(making, SegmentState::kDead));
    throw;
  }
  replace(entry, making, moved(making, SegmentState::kLive));
  control_.header().segments_version.fetch_add(
      1, std::memory_order_release);  // sync: control.segments
  control_.header().space.notify();
  return index + 1;
}

std::uint32_t Segments::reserve(std::uint32_t cells, std::uint16_t owner) {
  const auto take = [&](SegmentEntry& entry, SegmentWord word) {
    const auto generation = static_cast<std::uint8_t>(generation_of(word) + 1);
    return replace(entry, word, segment_word(SegmentState::kMaking, generation, owner));
  };
  // A process started again finds the entry of its dead self, cut just as it needs.
  for (const bool exactly : {true, false}) {
    for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
      SegmentEntry& entry = control_.segment(i);
      const SegmentWord word = load(entry);
      if (state_of(word) != SegmentState::kDead) continue;
      if (entry.capacity < cells || (exactly && entry.capacity != cells)) continue;
      if (take(entry, word)) return i;
    }
    if (!exactly) break;
    for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
      SegmentEntry& entry = control_.segment(i);
      const SegmentWord word = load(entry);
      if (state_of(word) != SegmentState::kEmpty || !take(entry, word)) continue;
      if (reserve_cells(entry, cells)) {
        std::atomic<std::uint32_t>& used = control_.header().num_segments;
        std::uint32_t seen = used.load(std::memory_order_relaxed);
        while (seen < i + 1 && !used.compare_exchange_weak(
                                   seen, i + 1,
                                   std::memory_order_release)) {  // sync: control.num_segments
        }
        return i;
      }
      entry.word.store(word, std::memory_order_release);  // sync: segment.word
      break;
    }
  }
  throw PoolSpace("pool '" + pool_ + "': no room for a segment of " + std::to_string(cells) +
                  " slabs: " + std::to_string(control_.num_segments()) + " of " +
                  std::to_string(kMaxSegments) + " segments and " +
                  std::to_string(control_.num_cells()) +
                  " of max_cells=" + std::to_string(control_.geometry().max_cells) +
                  " cells are taken; raise max_cells, or make fewer and larger slabs");
}

bool Segments::reserve_cells(SegmentEntry& entry, std::uint32_t cells) {
  std::atomic<std::uint32_t>& used = control_.header().num_cells;
  std::uint32_t first = used.load(std::memory_order_relaxed);
  do {
    if (cells > control_.geometry().max_cells - std::min(first, control_.geometry().max_cells)) {
      return false;
    }
  } while (!used.compare_exchange_weak(first, first + cells,
                                       std::memory_order_release));  // sync: control.num_cells
  entry.first_cell = first;
  entry.capacity = cells;
  return true;
}

void Segments::fill(std::uint32_t index, const memory::Carving& carving) {
  SegmentEntry& entry = control_.segment(index);
  entry.num_cells = carving.slabs;
  entry.num_classes = static_cast<std::uint32_t>(carving.classes.size());
  entry.bytes = carving.bytes;
  entry.num_cut.store(0, std::memory_order_relaxed);
  entry.cut_epoch.store(0, std::memory_order_relaxed);
  const CellRange cells = control_.cells_of(entry);
  if (cells.end - cells.first != carving.slabs) {
    throw PoolCorrupt(text(index) + ": " + std::to_string(carving.slabs) + " cells were reserved " +
                      "for it and are not there; the control file was damaged: make the pool anew");
  }
  for (std::size_t k = 0; k < carving.classes.size(); ++k) {
    const memory::CarvedClass& c = carving.classes[k];
    const std::uint32_t first = cells.first + c.first;
    ClassEntry& size = entry.classes[k];
    size.slab_bytes = c.slab_bytes;
    size.first = first;
    size.count = c.count;
    for (std::uint32_t i = 0; i < c.count; ++i) {
      Cell& cell = control_.cell(first + i);
      cell.slab =
          memory::make_address(generation_of(load(entry)), static_cast<std::uint16_t>(index + 1),
                               c.offset + c.slab_bytes * i);
      cell.slab_bytes = c.slab_bytes;
    }
  }
}

bool Segments::map(std::uint32_t index, bool patiently) {
  const std::lock_guard lock(mapping_);
  const SegmentEntry& entry = control_.segment(index);
  const SegmentWord word = load(entry);
  if (!has_memory(word)) return false;
  {
    const std::lock_guard slots_lock(slots_mutex_);
    const Slot& slot = slots_[index];
    if (slot.mapping && slot.generation == generation_of(word)) return true;
  }
  const Deadline deadline = Deadline::in(patiently ? kOwnerAnswersS : 0.0);
  for (;;) {
    const std::optional<os::Fd> fd = os::receive_fd(socket_of(owner_of(word)), index);
    const bool same = generation_of(load(entry)) == generation_of(word) && has_memory(load(entry));
    const std::uint64_t bytes = entry.bytes;
    if (fd && *fd && same && os::is_sealed(*fd, bytes)) {
      auto mapping = std::make_shared<os::Mapping>(*fd, bytes, text(index));
      call_hook(*mapping, index);
      const std::lock_guard slots_lock(slots_mutex_);
      slots_[index].mapping = std::move(mapping);
      slots_[index].generation = generation_of(word);
      return true;
    }
    // A living owner that is busy gets time; who answered, is this handle, or is dead, says no
    // more.
    if (fd || !same || deadline.passed() || lanes_.holds(owner_of(word)) ||
        !lanes_.is_alive(owner_of(word))) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

SlabView Segments::resolve(memory::Address address, std::uint64_t bytes) {
  const std::uint32_t index = memory::segment_of(address) - 1U;
  if (index >= kMaxSegments) return {};
  for (const bool retry : {true, false}) {
    {
      const std::lock_guard lock(slots_mutex_);
      const Slot& slot = slots_[index];
      if (slot.mapping && slot.generation == memory::generation_of(address)) {
        const std::uint64_t offset = memory::offset_of(address);
        const std::uint64_t size = slot.mapping->bytes();
        if (offset > size || bytes > size - offset) return {};
        return {slot.mapping->data() + offset, slot.mapping};
      }
    }
    if (!retry || !map(index, true)) break;
  }
  return {};
}

bool Segments::refresh() noexcept {
  bool done = true;
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord word = load(control_.segment(i));
    try {
      if (has_memory(word)) {
        done &= map(i, false) || !lanes_.is_alive(owner_of(word));
        continue;
      }
    } catch (const Error&) {
      // Out of address space or descriptors: whoever needs the segment will say so.
      continue;
    }
    Slot gone;  // Unmapped after the lock is given back, which can take long.
    const std::lock_guard lock(slots_mutex_);
    if (state_of(word) == SegmentState::kDead && slots_[i].generation == generation_of(word)) {
      std::swap(gone, slots_[i]);
    }
  }
  return done;
}

void Segments::drain(std::uint32_t number, std::uint16_t owner) {
  const bool known = number >= 1 && number <= control_.num_segments();
  const SegmentWord word = known ? load(control_.segment(number - 1)) : SegmentWord{};
  if (!known || owner_of(word) != owner || state_of(word) != SegmentState::kLive) {
    throw BadArgument("pool '" + pool_ + "': segment " + std::to_string(number) +
                      " is not one that this handle added and still has; stats() lists them");
  }
  replace(control_.segment(number - 1), word, moved(word, SegmentState::kDraining));
  sweep();
  control_.header().space.notify();  // Who waits for a slab of it has nothing to wait for.
}

void Segments::drain(std::uint16_t owner) noexcept {
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    SegmentEntry& entry = control_.segment(i);
    const SegmentWord word = load(entry);
    if (owner_of(word) != owner) continue;
    if (state_of(word) == SegmentState::kLive) {
      replace(entry, word, moved(word, SegmentState::kDraining));
    } else if (state_of(word) == SegmentState::kMaking) {
      replace(entry, word, moved(word, SegmentState::kDead));
    }
  }
  sweep();
}

void Segments::sweep() noexcept {
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    SegmentEntry& entry = control_.segment(i);
    const SegmentWord word = load(entry);
    if (state_of(word) != SegmentState::kDraining || in_use(entry)) continue;
    if (replace(entry, word, moved(word, SegmentState::kDead))) {
      control_.header().segments_version.fetch_add(
          1,
          std::memory_order_release);  // sync: control.segments
    }
  }
}

bool Segments::in_use(const SegmentEntry& entry) const noexcept {
  const CellRange cells = control_.cells_of(entry);
  for (std::uint32_t c = cells.first; c < cells.end; ++c) {
    // In one order with allocations, see Slabs::try_own.
    const auto word = control_.word(c).load(std::memory_order_seq_cst);  // sync: cell.word
    if (lockfree::state_of(word) != CellState::kFree) return true;
  }
  return false;
}

std::string Segments::text(std::uint32_t index) const {
  return "segment '" + pool_ + "." + std::to_string(index + 1) + "'";
}

void Segments::call_hook(const os::Mapping& mapping, std::uint32_t index) const {
  if (hook_ && !mapping.has_attached()) mapping.attach(hook_(mapping, text(index)));
}

std::uint64_t Segments::attach(MappingHook hook) {
  const std::scoped_lock lock(adding_, mapping_);
  const bool first = !hook_;
  if (first) hook_ = std::move(hook);
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    std::shared_ptr<const os::Mapping> mapping;
    {
      const std::lock_guard slots_lock(slots_mutex_);
      mapping = slots_[i].mapping;
    }
    if (!mapping) continue;
    try {
      call_hook(*mapping, i);
    } catch (...) {
      // Refused as a whole: segments to come are mapped without it.
      if (first) hook_ = nullptr;
      throw;
    }
    bytes += mapping->bytes();
  }
  return bytes;
}

Segments::Held Segments::held(std::uint32_t number) const {
  const std::lock_guard lock(slots_mutex_);
  const auto& mapping = slots_[number - 1].mapping;
  return {mapping != nullptr, mapping && mapping->has_attached()};
}

void Segments::close() {
  server_.reset();
  const std::scoped_lock lock(adding_, mapping_);
  hook_ = nullptr;
  const std::lock_guard slots_lock(slots_mutex_);
  for (Slot& slot : slots_) {
    if (slot.mapping.use_count() == 1) slot.mapping->attach(nullptr);
  }
}

void Segments::abandon() noexcept {
  for (Slot& slot : slots_) slot.fd.reset();
  if (server_) server_->abandon();
  static_cast<void>(server_.release());
}

}  // namespace flowtrain::channel
