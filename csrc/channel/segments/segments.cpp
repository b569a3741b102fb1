#include "channel/segments/segments.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "os/folder.hpp"
#include "os/made_here.hpp"
#include "os/mapping.hpp"

namespace flowtrain::channel {

/// Under adding_mutex_.
void Segments::start_server(std::uint16_t lane) {
  if (server_) return;
  server_ =
      std::make_unique<os::FdServer>("pool '" + pool_ + "'", socket_of(folder_, lane), nonce_,
                                     [this](std::uint64_t segment) { return serve(segment); });
}

/// Hands out the memory of a segment, by the address of its first byte.
os::Exported Segments::serve(memory::Address segment) {
  const std::uint32_t index = memory::segment_of(segment) - 1U;
  if (index >= kMaxSegments) return {};
  const auto found = local_.find(index, memory::generation_of(segment));
  return found ? found->export_memory() : os::Exported();
}

void Segments::serve_orphans() noexcept {
  const std::unique_lock lock(adding_mutex_, std::try_to_lock);
  const std::optional<std::uint16_t> lane = local_.lane();
  if (!lock || closed_ || server_ || !lane) return;
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord word = table_.word(i);
    if (!has_memory(word) || !local_.is_mapped(i, word) || lanes_.is_alive(owner_of(word)))
      continue;
    try {
      start_server(*lane);
    } catch (const std::exception&) {
      // Out of descriptors or threads, or the pool was removed. The next call tries again.
    }
    return;
  }
}

/// Whether other handles can map a new segment: not once the pool is being removed.
bool Segments::admits_segments() const noexcept {
  // Pairs with the fence in Pool::close.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return control_.header().admission.load(std::memory_order_relaxed) != Admission::kClosing &&
         os::is_linked(folder_);
}

std::optional<Segments::Claim> Segments::claim(const memory::Carving& carving, std::uint16_t owner,
                                               const Interrupted& interrupted,
                                               const memory::Place& place) {
  if (carving.classes.size() > kMaxClasses) {
    throw BadArgument("pool '" + pool_ + "': " + std::to_string(carving.classes.size()) +
                      " classes, at most " + std::to_string(kMaxClasses));
  }
  const Deadline deadline = Deadline::in(kLockTimeoutS);
  for (;;) {
    {
      const std::lock_guard lock(adding_mutex_);
      check_open();
      check_admitted();
      start_server(owner);
      if (const auto index = table_.try_claim(carving, owner, place))
        return Claim{*index, table_.word(*index), place};
    }
    if (deadline.passed()) {
      throw PoolTimeout("pool '" + pool_ + "': no segment could be added within " +
                        std::to_string(static_cast<int>(kLockTimeoutS)) + " s, because another " +
                        "handle is adding slabs or segments all the time, perhaps in a process " +
                        "that was stopped; continue that process, or end it");
    }
    // Without the mutex: what runs in a signal handler may close this handle.
    if (interrupted && interrupted()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::uint32_t Segments::make(const Claim& claim, const memory::Carving& carving, bool prefault,
                             const Interrupted& interrupted) {
  const auto& [index, word, place] = claim;
  const os::MadeHere here;
  const auto cancel = [&] {
    if (here) table_.cancel(index, word);  // A child that `interrupted` forked leaves it alone.
  };
  std::unique_lock lock(adding_mutex_);
  try {
    check_open();
    auto made = unmapper_->share(
        usable_resource(index, place).allocate(place.device, carving.bytes, table_.name(index)));
    if (prefault && made->host() != nullptr) {
      // Without the mutex: what runs in a signal handler may close this handle, or fork.
      lock.unlock();
      if (!os::prefault(made->host(), made->bytes(), table_.text(index), interrupted)) {
        cancel();
        return 0;
      }
      lock.lock();
      check_open();
    }
    call_hooks(*made, index);
    table_.fill(index, carving);
    local_.store(index, std::move(made), generation_of(word));
    table_.make_live(index, word);
  } catch (...) {
    cancel();
    throw;
  }
  if (!admits_segments()) {
    table_.drain(index + 1, owner_of(word));
    check_admitted();
  }
  return index + 1;
}

/// Resource for the memory of a segment.
const memory::Resource& Segments::usable_resource(std::uint32_t index,
                                                  const memory::Place& place) const {
  if (!is_valid(place)) {
    throw PoolCorrupt(table_.text(index) + ": its entry names memory of kind " + text(place) +
                      ", which is not valid; the control file was damaged: make the pool anew");
  }
  if (const std::string reason = why_not(resources_, place); !reason.empty()) {
    throw MemoryUnreachable(table_.text(index) + ": this process cannot map its memory, of kind " +
                            text(place) + ": " + reason + "; otherwise read its items in another " +
                            "process, or have them put into memory of the host");
  }
  return *resource_of(resources_, place.kind);
}

Segments::MapResult Segments::map(std::uint32_t index, When when) {
  const std::unique_lock lock(mapping_mutex_, std::try_to_lock);
  if (!lock) return MapResult::kAwaited;  // Another thread maps, and may be in the hook.
  check_open();
  local_.drop_stale(index);
  const SegmentWord word = table_.word(index);
  std::optional<MemoryRequest>& request = (*requests_)[index];
  if (!has_memory(word)) {
    request.reset();
    return MapResult::kGone;
  }
  if (local_.find(index, generation_of(word))) return MapResult::kMapped;
  const bool on_device = control_.segment(index).kind != memory::Kind::kMemfd;
  const bool asked = request && request->generation() == generation_of(word);
  if (when == When::kEarly && on_device && !asked && !local_.maps_devices()) {
    local_.skip(index, word, LocalSegments::Skip::kUntilUse);
    return MapResult::kGone;
  }
  if (!asked) {
    request.emplace(control_, lanes_, folder_, table_.text(index), index, word);
  }
  try {
    return map(index, word, *request);
  } catch (const MemoryUnreachable& error) {
    request->set_failure(error.what());
    local_.skip(index, word, LocalSegments::Skip::kUnreachable);
    throw;
  } catch (const Error& error) {
    request->set_failure(error.what());
    throw;
  }
}

Segments::MapResult Segments::map(std::uint32_t index, SegmentWord word, MemoryRequest& request) {
  const SegmentEntry& entry = control_.segment(index);
  const memory::Place place = entry.place();
  const memory::Resource& resource = usable_resource(index, place);
  const auto is_current = [&] {
    const SegmentWord now = table_.word(index);
    return generation_of(now) == generation_of(word) && has_memory(now);
  };
  if (request.is_answered()) {
    std::optional<os::Exported> answer = request.take();
    const std::uint64_t bytes = entry.bytes;
    if (!is_current()) return MapResult::kGone;
    std::unique_ptr<memory::Memory> imported;
    if (answer && *answer) {
      imported = resource.import(std::move(*answer), place.device, bytes, table_.name(index));
    }
    if (imported) {
      auto shared = unmapper_->share(std::move(imported));
      call_hooks(*shared, index);
      if (!local_.store(index, std::move(shared), generation_of(word))) return MapResult::kGone;
      control_.header().space.notify();  // Waiting leases use only mapped segments.
      return MapResult::kMapped;
    }
    if (answer) request.refuse();
  }
  return request.ask_on() ? MapResult::kAwaited : MapResult::kGone;
}

SlabView Segments::resolve(memory::Address address, std::uint64_t bytes) {
  const std::uint32_t index = memory::segment_of(address) - 1U;
  if (index >= kMaxSegments) return {};
  for (const bool retry : {true, false}) {
    if (auto memory = local_.find(index, memory::generation_of(address))) {
      const std::uint64_t offset = memory::offset_of(address);
      if (offset > memory->bytes() || bytes > memory->bytes() - offset) return {};
      std::byte* const host = memory->host();
      const bool streams = memory->place().kind != memory::Kind::kMemfd;
      return {memory->address() + offset, host == nullptr ? host : host + offset, std::move(memory),
              false, streams};
    }
    if (!retry || generation_of(table_.word(index)) != memory::generation_of(address)) break;
    const MapResult result = map(index, When::kAtUse);
    if (result == MapResult::kAwaited) return SlabView{0, nullptr, nullptr, true, false};
    if (result == MapResult::kGone) break;
  }
  return {};
}

bool Segments::refresh() noexcept {
  bool done = true;
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    try {
      done &= map(i, When::kEarly) != MapResult::kAwaited;
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

/// Whether another thread is mapping, or an owner got its request only recently.
bool Segments::may_answer() const {
  const std::unique_lock lock(mapping_mutex_, std::try_to_lock);
  return !lock || std::any_of(requests_->begin(), requests_->end(), [](const auto& request) {
    return request && !request->deadline().passed();
  });
}

std::vector<int> Segments::pending_sockets() {
  std::vector<int> sockets;
  const std::unique_lock lock(mapping_mutex_, std::try_to_lock);
  if (!lock) return sockets;
  for (const std::optional<MemoryRequest>& request : *requests_) {
    if (request && request->socket() >= 0) sockets.push_back(request->socket());
  }
  return sockets;
}

bool Segments::has_unmapped() const noexcept {
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord word = table_.word(i);
    if (has_memory(word) && !local_.is_mapped(i, word) && !local_.is_skipped(i, word)) return true;
  }
  return false;
}

std::string Segments::unmapped() const {
  const std::unique_lock lock(mapping_mutex_, std::try_to_lock);
  std::string all;
  for (std::uint32_t i = 0; i < control_.num_segments(); ++i) {
    const SegmentWord word = table_.word(i);
    const bool making = state_of(word) == SegmentState::kMaking;
    if (!(making || has_memory(word)) || local_.is_mapped(i, word)) continue;
    const MemoryRequest* const request = lock && (*requests_)[i] ? &*(*requests_)[i] : nullptr;
    const bool owned = lanes_.is_alive(owner_of(word));
    const std::uint16_t lane = !owned && request ? request->holder() : owner_of(word);
    if (!lanes_.is_alive(lane)) continue;
    const std::string who = (owned ? "its owner " : "") + control_.name_of(lane);
    all += "; " + table_.text(i);
    if (making) {
      all += " is still being made by " + who;
    } else if (request && !request->failure().empty()) {
      all += " is not mapped here, because that failed: " + request->failure();
    } else if (local_.is_skipped(i, word)) {
      all += " is of a device, and mapped here only for a producer of that segment";
    } else {
      all += " is not mapped here, because " + who + " has not answered";
    }
  }
  return all;
}

void Segments::check_open() const {
  if (closed_) throw PoolClosed("pool '" + pool_ + "': this handle is closed; open it again");
}

void Segments::check_admitted() const {
  if (admits_segments()) return;
  // The creator's is the first lane.
  const bool creator_closed =
      control_.header().admission.load(std::memory_order_relaxed) == Admission::kClosing ||
      !lanes_.is_alive(0) || lanes_.info(0).generation != 1;
  throw PoolNotFound("pool '" + pool_ + "': it was removed, " +
                     (creator_closed
                          ? "because the handle that created it was closed"
                          : "though the handle that created it is open: by Pool.unlink, or by "
                            "systemd at the user's logout (see flowtrain doctor)") +
                     ", so no other handle could map a new segment; create the pool anew");
}

void Segments::call_hooks(const memory::Memory& memory, std::uint32_t index) const {
  for (const auto& [key, hook] : hooks_) {
    if (memory.has_attached(key)) continue;
    if (auto object = hook(memory, table_.text(index))) memory.attach(key, std::move(object));
  }
}

std::uint64_t Segments::attach(const std::string& key, MemoryHook hook) {
  const std::scoped_lock lock(adding_mutex_, mapping_mutex_);
  const bool known = std::any_of(hooks_.begin(), hooks_.end(),
                                 [&](const auto& each) { return each.first == key; });
  if (!known) hooks_.emplace_back(key, std::move(hook));
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const auto present = local_.find(i);
    if (!present) continue;
    try {
      call_hooks(*present, i);
    } catch (...) {
      // Future segments are mapped without it.
      if (!known) hooks_.pop_back();
      throw;
    }
    bytes += present->bytes();
  }
  return bytes;
}

void Segments::close(bool keep_devices) {
  {
    std::array<LocalSegments::Shared, kMaxSegments> dropped;  // Unmapped after the locks.
    const std::scoped_lock lock(adding_mutex_, mapping_mutex_);
    closed_ = true;  // No segment is made after this, so the drain that follows finds all.
    server_.reset();
    hooks_.clear();
    for (std::optional<MemoryRequest>& request : *requests_) request.reset();
    dropped = local_.take_all();
    for (LocalSegments::Shared& memory : dropped) {
      if (!keep_devices || !memory || memory->host() != nullptr) continue;
      static_cast<void>(new auto(std::move(memory)));  // Leaked.
    }
  }
  unmapper_->wait();
}

void Segments::abandon() noexcept {
  // Leaked, not destroyed: a thread that does not exist here may have been changing them.
  static_cast<void>(new std::shared_ptr<Unmapper>(unmapper_));
  static_cast<void>(requests_.release());
  unmapper_->abandon();
  if (server_) server_->abandon();
  static_cast<void>(server_.release());
}

}  // namespace flowtrain::channel
