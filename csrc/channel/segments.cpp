#include "channel/segments.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {
namespace {

using lockfree::CellState;

static_assert(kMaxSegments <= 64, "Segments::mapped has one bit for each");

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

/// Address of a segment's first byte: it tells one use of an entry from another.
memory::Address address_of(std::uint32_t index, SegmentWord word, std::uint64_t offset = 0) {
  return memory::make_address(generation_of(word), static_cast<std::uint8_t>(index + 1), offset);
}

}  // namespace

std::string Segments::socket_of(std::uint16_t owner) const {
  return os::path_in(folder_, std::to_string(owner) + ".sock");
}

/// The memory of a segment made here, for another handle.
os::Fd Segments::serve(memory::Address segment) {
  const std::uint32_t index = memory::segment_of(segment) - 1U;
  const std::lock_guard lock(slots_mutex_);
  if (index >= kMaxSegments) return {};
  const Slot& slot = slots_[index];
  const bool found = slot.fd && slot.generation == memory::generation_of(segment);
  return found ? os::duplicate(slot.fd) : os::Fd();
}

std::uint32_t Segments::add(const memory::Carving& carving, bool prefault, std::uint16_t owner,
                            const Interrupted& interrupted) {
  if (carving.classes.size() > kMaxClasses) {
    throw BadArgument("pool '" + pool_ + "': " + std::to_string(carving.classes.size()) +
                      " classes, at most " + std::to_string(kMaxClasses));
  }
  const std::lock_guard lock(adding_);
  check_open();
  if (!os::is_linked(folder_)) {
    throw PoolNotFound("pool '" + pool_ + "': it was removed, by the close of the handle that " +
                       "made it or by Pool.unlink, so that no other handle could have the " +
                       "memory of a new segment; create the pool anew");
  }
  if (!server_) {
    server_ = std::make_unique<os::FdServer>(
        socket_of(owner), nonce_, [this](std::uint64_t segment) { return serve(segment); });
  }
  const std::optional<std::uint32_t> reserved = reserve(carving.slabs, owner, interrupted);
  if (!reserved) return 0;
  const std::uint32_t index = *reserved;
  SegmentEntry& entry = control_.segment(index);
  const SegmentWord making = load(entry);
  try {
    os::Fd fd = os::sealed_memfd(pool_ + "." + std::to_string(index + 1), carving.bytes);
    auto mapping = unmapper_->share(os::Mapping(fd, carving.bytes, text(index)));
    if (prefault) mapping->prefault();
    call_hook(*mapping, index);
    fill(index, carving);
    fill_slot(index, {std::move(mapping), generation_of(making), std::move(fd)});
    if (!replace(entry, making, moved(making, SegmentState::kLive))) {
      throw PoolCorrupt(text(index) + ": its entry was changed while it was made; the control " +
                        "file was damaged: make the pool anew");
    }
  } catch (...) {
    // Nobody saw this generation: the next attempt has it.
    const auto before = static_cast<std::uint16_t>(generation_of(making) - 1);
    replace(entry, making, segment_word(SegmentState::kDead, before, owner));
    throw;
  }
  control_.header().segments_version.fetch_add(
      1, std::memory_order_release);  // sync: control.segments
  control_.header().space.notify();
  return index + 1;
}

/// Reserves an entry and cells for a new segment. Returns nothing if `interrupted` ended the wait
/// for the lock.
std::optional<std::uint32_t> Segments::reserve(std::uint32_t cells, std::uint16_t owner,
                                               const Interrupted& interrupted) {
  sweep();  // Slabs released a moment ago count as free.
  const Deadline deadline = Deadline::in(kCarveSeconds);
  while (!lanes_.try_take(Lanes::Right::kCarve)) {
    if (deadline.passed()) {
      throw PoolTimeout("pool '" + pool_ + "': no segment could be added within " +
                        std::to_string(static_cast<int>(kCarveSeconds)) + " s, since another " +
                        "handle is cutting slabs or adding one all the time, perhaps in a " +
                        "process that was stopped; let that go on, or end it");
    }
    if (interrupted && interrupted()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const FreeRoom room = FreeRoom::find(control_, cells);
  if (room.fits()) take(room, cells, owner);
  lanes_.give_back(Lanes::Right::kCarve);
  control_.header().space.notify();  // For those who could not cut meanwhile.
  if (!room.fits()) {
    throw PoolSpace("pool '" + pool_ + "': no room for a segment of " + std::to_string(cells) +
                    " slabs: " + room.shortage(control_, cells));
  }
  return room.entry;
}

/// With the right to do so. Until its word says kMaking the entry has no cells, whatever else it
/// says, so a death before that changes nothing; after it, drain ends the segment.
void Segments::take(const FreeRoom& room, std::uint32_t cells, std::uint16_t owner) noexcept {
  SegmentEntry& entry = control_.segment(*room.entry);
  const SegmentWord word = load(entry);
  // Nobody who sees what follows may still take the entry for what it was: see Slabs::try_own.
  std::atomic_thread_fence(std::memory_order_release);
  entry.first_cell = *room.first_cell;
  entry.num_cells = cells;
  // Only the holder of the right raises them.
  Header& header = control_.header();
  header.num_cells.store(std::max(control_.num_cells(), *room.first_cell + cells),
                         std::memory_order_release);  // sync: control.num_cells
  header.num_segments.store(std::max(control_.num_segments(), *room.entry + 1),
                            std::memory_order_release);  // sync: control.num_segments
  const auto generation = static_cast<std::uint16_t>(generation_of(word) + 1);
  entry.word.store(segment_word(SegmentState::kMaking, generation, owner),
                   std::memory_order_release);  // sync: segment.word
}

void Segments::fill(std::uint32_t index, const memory::Carving& carving) {
  SegmentEntry& entry = control_.segment(index);
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
      cell.slab = address_of(index, load(entry), c.offset + c.slab_bytes * i);
      cell.slab_bytes = c.slab_bytes;
    }
  }
}

Segments::Found Segments::map(std::uint32_t index) {
  const std::unique_lock lock(mapping_, std::try_to_lock);
  if (!lock) return Found::kAwaited;  // Another thread is at it, perhaps in the hook.
  check_open();
  drop_stale(index);
  const SegmentEntry& entry = control_.segment(index);
  const SegmentWord word = load(entry);
  std::optional<Question>& question = questions_[index];
  if (!has_memory(word)) {
    question.reset();
    return Found::kGone;
  }
  {
    const std::lock_guard slots_lock(slots_mutex_);
    const Slot& slot = slots_[index];
    if (slot.mapping && slot.generation == generation_of(word)) return Found::kMapped;
  }
  if (!question || question->generation != generation_of(word)) {
    question.emplace(generation_of(word), Deadline::in(kOwnersAnswerS), std::nullopt, "");
  }
  try {
    return map(index, word, *question);
  } catch (const Error& error) {
    question->failure = error.what();
    throw;
  }
}

Segments::Found Segments::map(std::uint32_t index, SegmentWord word, Question& question) {
  const SegmentEntry& entry = control_.segment(index);
  std::optional<os::PendingFd>& request = question.request;
  if (!request) {
    request.emplace(socket_of(owner_of(word)), os::FdRequest{nonce_, address_of(index, word)});
  }
  if (!request->waiting()) {
    const std::optional<os::Fd> fd = request->answer();
    request.reset();
    const auto same = [&] {
      return generation_of(load(entry)) == generation_of(word) && has_memory(load(entry));
    };
    const std::uint64_t bytes = entry.bytes;
    if (fd && *fd && same() && os::is_sealed(*fd, bytes)) {
      auto mapping = unmapper_->share(os::Mapping(*fd, bytes, text(index)));
      call_hook(*mapping, index);
      if (!fill_slot(index, {std::move(mapping), generation_of(word), {}})) return Found::kGone;
      control_.header().space.notify();  // Waiting leases use mapped segments only.
      return Found::kMapped;
    }
    if (fd || !same()) return Found::kGone;
  }
  // A living owner gets time, if it was asked or can still be; who is this handle, or is dead,
  // says no more.
  const bool hears = !lanes_.holds(owner_of(word)) && lanes_.is_alive(owner_of(word)) &&
                     (request || os::is_linked(folder_));
  return hears ? Found::kAwaited : Found::kGone;
}

// An entry's word that is read under the lock is no older than its slot.

/// Keeps a segment, unless its entry is in use again already; whether it is kept.
bool Segments::fill_slot(std::uint32_t index, Slot slot) noexcept {
  const std::lock_guard lock(slots_mutex_);
  const bool current = generation_of(load(control_.segment(index))) == slot.generation;
  if (current) exchange(index, slot);
  return current;
}

/// Lets go of a segment that is dead, also where its entry is in use again.
void Segments::drop_stale(std::uint32_t index) noexcept {
  Slot gone;
  const std::lock_guard lock(slots_mutex_);
  const SegmentWord word = load(control_.segment(index));
  if (state_of(word) == SegmentState::kDead || generation_of(word) != slots_[index].generation) {
    exchange(index, gone);
  }
}

void Segments::exchange(std::uint32_t index, Slot& slot) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << index;
  std::swap(slots_[index], slot);
  const std::uint64_t others = mapped_.load(std::memory_order_relaxed) & ~bit;
  mapped_.store(slots_[index].mapping ? others | bit : others, std::memory_order_relaxed);
  generations_[index].store(slots_[index].generation, std::memory_order_relaxed);
}

/// Whether the segment that an entry has by now is mapped, and not only a former one.
bool Segments::is_mapped(std::uint32_t index, SegmentWord word) const noexcept {
  return (mapped() >> index & 1) != 0 &&
         generations_[index].load(std::memory_order_relaxed) == generation_of(word);
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
    if (!retry || generation_of(load(control_.segment(index))) != memory::generation_of(address)) {
      break;
    }
    const Found found = map(index);
    if (found == Found::kAwaited) return {nullptr, nullptr, true};
    if (found == Found::kGone) break;
  }
  return {};
}

bool Segments::refresh() noexcept {
  bool done = true;
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    try {
      done &= map(i) != Found::kAwaited;
    } catch (const Error&) {
      // Out of address space or descriptors. A reader of the segment tries again and throws; a
      // lease that times out names the error, see unmapped.
    }
  }
  return done;
}

bool Segments::map_all(const Deadline& deadline, const Interrupted& interrupted) {
  while (!refresh() && may_answer() && !deadline.passed()) {
    if (interrupted && interrupted()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Whether there is an owner who was asked only now, or another thread is at it.
bool Segments::may_answer() const {
  const std::unique_lock lock(mapping_, std::try_to_lock);
  return !lock || std::any_of(questions_.begin(), questions_.end(), [](const auto& question) {
    return question && !question->patience.passed();
  });
}

std::vector<int> Segments::asked() {
  std::vector<int> sockets;
  const std::unique_lock lock(mapping_, std::try_to_lock);
  if (!lock) return sockets;
  for (const std::optional<Question>& question : questions_) {
    if (!question || !question->request) continue;
    if (const int socket = question->request->socket(); socket >= 0) sockets.push_back(socket);
  }
  return sockets;
}

bool Segments::has_unmapped() const noexcept {
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord word = load(control_.segment(i));
    if (has_memory(word) && !is_mapped(i, word)) return true;
  }
  return false;
}

std::string Segments::unmapped() const {
  const std::unique_lock lock(mapping_, std::try_to_lock);
  std::string all;
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord word = load(control_.segment(i));
    if (!has_memory(word) || is_mapped(i, word)) continue;
    const std::uint16_t owner = owner_of(word);
    if (!lanes_.is_alive(owner)) continue;
    all += "; " + text(i) + " is not mapped here, since ";
    const std::optional<Question>& question = questions_[i];
    if (lock && question && !question->failure.empty()) {
      all += "that failed: " + question->failure;
    } else {
      all += "its owner '" + control_.label_of(owner) + "' (pid " +
             std::to_string(control_.lane(owner).pid) + ") has not answered";
    }
  }
  return all;
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

void Segments::check_open() const {
  if (closed_) throw PoolClosed("pool '" + pool_ + "': this handle is closed; open it again");
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
  {
    std::array<Slot, kMaxSegments> gone;  // Unmapped once the locks are given back.
    const std::scoped_lock lock(adding_, mapping_);
    closed_ = true;  // The drain that follows is to find every segment.
    server_.reset();
    hook_ = nullptr;
    questions_ = {};
    const std::lock_guard slots_lock(slots_mutex_);
    for (std::uint32_t i = 0; i < kMaxSegments; ++i) exchange(i, gone[i]);
  }
  unmapper_->wait();
}

void Segments::abandon() noexcept {
  unmapper_->abandon();
  questions_ = {};
  for (Slot& slot : slots_) slot.fd.reset();
  if (server_) server_->abandon();
  static_cast<void>(server_.release());
}

}  // namespace flowtrain::channel
