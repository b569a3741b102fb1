#include "channel/slabs.hpp"

#include <algorithm>

#include "memory/carve.hpp"

namespace flowtrain::channel {

using lockfree::FreeMap;

namespace {

/// Shares of a class at which the producers' searches begin, in 2^-32: 0, 1/2, 1/4, 3/4, 1/8, ...
/// (van der Corput), so that they work on cache lines of their own as far as there is room.
std::uint32_t start_of(const Control& control, std::uint16_t lane) noexcept {
  std::uint32_t before = 0;
  for (std::uint32_t i = 0; i < lane; ++i) {
    const Lane& other = control.lane(i);
    before += other.role == LaneRole::kProducer &&
              other.state.load(std::memory_order_relaxed) == LaneState::kAlive;
  }
  std::uint32_t start = 0;
  for (std::uint32_t half = std::uint32_t{1} << 31; before != 0; before >>= 1, half >>= 1) {
    if (before % 2 != 0) start |= half;
  }
  return start;
}

}  // namespace

Slabs::Slabs(const Control& control, Cutter& cutter, std::uint16_t lane,
             std::uint16_t home) noexcept
    : control_(control),
      cutter_(cutter),
      lane_(lane),
      home_(home),
      start_(start_of(control, lane)) {}

std::uint32_t Slabs::try_take(std::uint64_t bytes, std::uint64_t among) noexcept {
  for (const Look look : {Look::kHinted, Look::kAll}) {
    const std::uint32_t cell = try_all(look, bytes, among);
    if (cell != kNone) return cell;
  }
  return kNone;
}

std::uint32_t Slabs::try_take_in(std::uint32_t segment, std::uint64_t bytes) noexcept {
  for (const Look look : {Look::kHinted, Look::kAll}) {
    const std::uint32_t cell = try_segment(look, segment, bytes);
    if (cell != kNone) return cell;
  }
  return kNone;
}

void Slabs::give_back(std::uint32_t cell, std::uint64_t bytes) noexcept {
  magazine_.push(bytes, cell);
  control_.release_cell(cell);
}

std::uint32_t Slabs::try_all(Look look, std::uint64_t bytes, std::uint64_t among) noexcept {
  const std::uint32_t segments = control_.num_segments();
  for (const bool own : {true, false}) {
    for (std::uint32_t i = 0; i < segments; ++i) {
      const auto word =
          control_.segment(i).word.load(std::memory_order_acquire);  // sync: segment.word
      if ((owner_of(word) == home_) != own || (among >> i & 1) == 0) continue;
      const std::uint32_t cell = try_segment(look, i, bytes);
      if (cell != kNone) return cell;
    }
  }
  return kNone;
}

std::uint32_t Slabs::try_segment(Look look, std::uint32_t segment, std::uint64_t bytes) noexcept {
  const SegmentEntry& entry = control_.segment(segment);
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (state_of(word) != SegmentState::kLive) return kNone;
  if (entry.num_classes > 0) return try_classes(look, entry, word, bytes);
  const std::uint64_t all = entry.bytes;
  if (bytes > all) return kNone;
  const std::uint64_t wanted = std::min(memory::slab_bytes_for(bytes), all);
  const std::uint32_t cell = try_cuts(look, entry, word, wanted, wanted);
  if (cell != kNone) return cell;
  cutter_.cut(segment, bytes, wanted);
  return try_cuts(look, entry, word, bytes, UINT64_MAX);
}

std::uint32_t Slabs::try_classes(Look look, const SegmentEntry& entry, SegmentWord word,
                                 std::uint64_t bytes) noexcept {
  const auto take = [&](std::uint32_t c) { return try_own(entry, word, 0, c); };
  const CellRange cells = control_.cells_of(entry);
  const std::uint32_t classes = std::min<std::uint32_t>(entry.num_classes, kMaxClasses);
  std::uint32_t smallest = 0;  // Counted to the end: no branch depends on the size.
  for (std::uint32_t k = 0; k < classes; ++k) smallest += entry.classes[k].slab_bytes < bytes;
  for (std::uint32_t k = smallest; k < classes; ++k) {
    const ClassEntry& size = entry.classes[k];
    // An entry that is made anew meanwhile may say anything, and name cells that another segment
    // has: try_own gives them back.
    const std::uint32_t first = std::max<std::uint32_t>(size.first, cells.first);
    const std::uint32_t end = std::min(first + size.count, cells.end);
    if (first >= end) continue;
    for (std::uint32_t c; (c = magazine_.pop(bytes)) != kNone;) {
      if (first <= c && c < end && take(c)) return c;
    }
    const std::uint32_t cell = search(look, first, end, take);
    if (cell != kNone) return cell;
  }
  return kNone;
}

std::uint32_t Slabs::try_cuts(Look look, const SegmentEntry& entry, SegmentWord word,
                              std::uint64_t least, std::uint64_t most) const noexcept {
  const std::uint32_t epoch =
      entry.cut_epoch.load(std::memory_order_acquire);  // sync: segment.epoch
  if (epoch % 2 != 0) return kNone;
  const CellRange cells = control_.cells_of(entry);
  const std::uint32_t cut = entry.num_cut.load(std::memory_order_acquire);  // sync: segment.cut
  const std::uint32_t first = cells.first, end = first + std::min(cut, cells.end - first);
  if (first >= end) return kNone;
  for (;;) {  // Again after a slab that another producer was faster to take.
    std::uint32_t best = kNone;
    std::uint64_t best_bytes = 0;
    const auto take = [&](std::uint32_t c) {
      const std::uint64_t size = control_.cell(c).slab_bytes;
      if (size == least) return try_own(entry, word, epoch, c);
      if (size > least && size <= most && (best == kNone || size < best_bytes)) {
        best = c;
        best_bytes = size;
      }
      return false;
    };
    const std::uint32_t cell = search(look, first, end, take);
    if (cell != kNone) return cell;
    if (best == kNone || try_own(entry, word, epoch, best)) return best;
    if (entry.word.load(std::memory_order_acquire) != word ||        // sync: segment.word
        entry.cut_epoch.load(std::memory_order_acquire) != epoch) {  // sync: segment.epoch
      return kNone;
    }
  }
}

template <class Take>
std::uint32_t Slabs::search(Look look, std::uint32_t first, std::uint32_t end,
                            Take&& take) const noexcept {
  const FreeMap map = control_.free_map();
  return look == Look::kHinted ? map.find(first, end, start_in(first, end), take)
                               : map.scan(first, end, take);
}

std::uint32_t Slabs::start_in(std::uint32_t first, std::uint32_t end) const noexcept {
  // Always the same place: what is given back there, warm in caches, is taken again.
  const std::uint64_t groups = (end - first) / FreeMap::kCellsInGroup;
  const auto group = static_cast<std::uint32_t>(groups * start_ >> 32);
  const std::uint32_t cell = first + group * FreeMap::kCellsInGroup;
  return std::max(first, cell - cell % FreeMap::kCellsInGroup);
}

bool Slabs::try_own(const SegmentEntry& entry, SegmentWord word, std::uint32_t epoch,
                    std::uint32_t c) const noexcept {
  if (!lockfree::try_lease(control_.word(c), lane_)) return false;
  // Who ends a drained segment, or undoes its cuts, does so after it found every cell free. In
  // the one order of these accesses, either it saw this cell in use, or this look sees that. The
  // fence pairs with the one in Segments::reserve: what was read of an entry made anew comes with
  // its word. A cell that another segment has by now was free, and is so again at once: meanwhile
  // only the end of that segment, or of its cuts, is put off; if this process dies, it is reaped.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.word.load(std::memory_order_seq_cst) == word &&        // sync: segment.word
      entry.cut_epoch.load(std::memory_order_seq_cst) == epoch) {  // sync: segment.epoch
    return true;
  }
  control_.release_cell(c);
  return false;
}

}  // namespace flowtrain::channel
