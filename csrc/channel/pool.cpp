#include "channel/pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "channel/monitor.hpp"
#include "channel/registry.hpp"
#include "os/byte_lock.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {
namespace {

using lockfree::CellState;

void check_name(const std::string& what, const std::string& name, std::size_t longest) {
  const bool ok = !name.empty() && name.size() <= longest &&
                  std::all_of(name.begin(), name.end(), [](char c) {
                    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                           c == '-';
                  });
  if (!ok || name.front() == '.') {
    throw BadArgument(what + " '" + name + "': give 1 to " + std::to_string(longest) +
                      " letters, digits, '.', '_' or '-', not starting with '.'");
  }
}

void put_label(char* where, const std::string& label) {
  std::memset(where, 0, kLabelBytes);
  std::memcpy(where, label.data(), std::min<std::size_t>(label.size(), kLabelBytes - 1));
}

/// Whether anybody holds a lane, judged by byte locks alone.
bool anyone_alive(const os::Fd& file, std::uint32_t max_lanes) {
  for (std::uint32_t i = 0; i < max_lanes; ++i) {
    if (os::is_byte_locked(file, i)) return true;
  }
  return false;
}

std::string folder_of(const std::string& name) { return os::runtime_folder() + "/" + name; }

}  // namespace

LaneHold::~LaneHold() { pool_->leave(lane_); }
Lane& LaneHold::operator*() const { return pool_->control().lane(lane_); }

Pool::Pool(std::string name, std::string label)
    : name_(std::move(name)), label_(std::move(label)) {}

std::shared_ptr<Pool> Pool::create(const PoolOptions& options) {
  check_name("pool", options.name, 48);
  for (const std::string& ring : options.rings) check_name("ring", ring, kLabelBytes - 1);
  if (options.rings.empty() || options.rings.size() > UINT16_MAX) {
    throw BadArgument("pool '" + options.name + "': rings must be 1 to 65535 names");
  }
  if (options.max_lanes < 2 || options.max_lanes > UINT16_MAX || options.max_cells < 1 ||
      options.max_cells > (1U << 24)) {
    throw BadArgument("pool '" + options.name + "': max_lanes=" +
                      std::to_string(options.max_lanes) + " must be 2 to 65535 and max_cells=" +
                      std::to_string(options.max_cells) + " 1 to 16777216");
  }
  if (!os::make_pool_folder(options.name)) {
    for (const PoolEntry& entry : list_pools()) {
      if (entry.name == options.name && entry.alive) {
        throw PoolExists("pool '" + options.name + "': it exists, made by pid " +
                         std::to_string(entry.creator_pid) +
                         ", and is in use; open it or choose another name");
      }
    }
    os::remove_pool_folder(options.name);  // Left by a run of which nobody lives.
    os::make_pool_folder(options.name);
  }
  const Geometry geometry{options.max_lanes, options.max_cells,
                          static_cast<std::uint32_t>(options.rings.size()),
                          std::bit_ceil(options.max_cells)};
  std::shared_ptr<Pool> pool(new Pool(options.name, options.label));
  pool->creator_ = true;
  pool->folder_ = folder_of(options.name);
  const std::string path = pool->folder_ + "/control";
  try {
    pool->file_ = os::create_file(path, Control::file_bytes(geometry));
  } catch (...) {
    os::remove_pool_folder(options.name);
    throw;
  }
  pool->control_ = Control(pool->file_, path, &geometry);
  Header& header = pool->control_.header();
  header.creator_pid = ::getpid();
  header.nonce = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
  for (std::uint32_t i = 0; i < geometry.num_rings; ++i) {
    put_label(pool->control_.ring_header(i).name, options.rings[i]);
  }
  header.ready.store(1, std::memory_order_release);  // sync: control.ready
  pool->start();
  return pool;
}

std::shared_ptr<Pool> Pool::open(const std::string& name, const std::string& label,
                                 double timeout_s) {
  check_name("pool", name, 48);
  const Deadline deadline = Deadline::in(timeout_s);
  const std::string path = folder_of(name) + "/control";
  for (;;) {
    os::Fd file = os::open_file(path);
    // A creator in the middle of making it gets time, too.
    if (file && os::file_bytes(file) >= sizeof(Header)) {
      std::shared_ptr<Pool> pool(new Pool(name, label));
      pool->folder_ = folder_of(name);
      try {
        pool->control_ = Control(file, path, nullptr);
        pool->file_ = std::move(file);
        pool->start();
        return pool;
      } catch (const PoolCorrupt&) {
        if (deadline.passed()) throw;
      }
    }
    if (deadline.passed()) {
      throw PoolNotFound("pool '" + name + "': there is none in " + os::runtime_folder() +
                         " after " + std::to_string(timeout_s) +
                         " s; create it first, or raise timeout_s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Pool::start() {
  held_.assign(control_.geometry().max_lanes, false);
  register_pool(this);
  own_lane_ = take_lane(LaneRole::kPool);
  server_ = std::make_unique<os::FdServer>(
      folder_ + "/" + std::to_string(own_lane_) + ".sock", [this](std::uint32_t index) {
        const std::lock_guard lock(segments_mutex_);
        return index < kMaxSegments ? fds_[index].get() : -1;
      });
  map_segments();
  monitor_ = std::make_unique<Monitor>(*this);
}

Pool::~Pool() {
  close();
  forget_pool(this);
}

void Pool::close() {
  if (closed_.exchange(true) || forked_) return;
  monitor_.reset();
  server_.reset();
  retire_segments(own_lane_);
  leave(own_lane_);
  if (creator_) os::remove_pool_folder(name_);
  dead_changed_.notify_all();
}

void Pool::abandon() noexcept {
  forked_ = true;
  file_.reset();
  for (os::Fd& fd : fds_) fd.reset();
  if (monitor_) monitor_->forget_thread();
  if (server_) server_->forget_thread();
  static_cast<void>(monitor_.release());
  static_cast<void>(server_.release());
}

void Pool::check_open() const {
  if (forked_) {
    throw PoolClosed("pool '" + name_ + "': this handle belongs to the parent process; open the " +
                     "pool again after the fork");
  }
  if (closed()) throw PoolClosed("pool '" + name_ + "': this handle is closed; open it again");
}

std::uint16_t Pool::lane() const { return own_lane_; }

bool Pool::is_reusable(std::uint32_t i) const {
  const LaneState state = control_.lane(i).state.load(std::memory_order_acquire);  // sync: lane.state
  if (state == LaneState::kFree) return true;
  if (state == LaneState::kAlive) return false;
  // Readers still give credits back to the lane of an item's producer.
  for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
    const auto word = control_.word(c).load(std::memory_order_acquire);  // sync: cell.word
    if (lockfree::state_of(word) != CellState::kFree && control_.cell(c).credit_lane == i) {
      return false;
    }
  }
  return true;
}

std::unique_ptr<LaneHold> Pool::join(LaneRole role) {
  check_open();
  return std::make_unique<LaneHold>(shared_from_this(), take_lane(role));
}

std::uint16_t Pool::take_lane(LaneRole role) {
  const std::uint32_t lanes = control_.geometry().max_lanes;
  const std::lock_guard lock(lanes_mutex_);
  for (const bool fresh : {true, false}) {
    for (std::uint32_t i = 0; i < lanes; ++i) {
      Lane& lane = control_.lane(i);
      const bool is_free =
          lane.state.load(std::memory_order_acquire) == LaneState::kFree;  // sync: lane.state
      // Lanes that were never used come first, so that the story of the others stays readable.
      if (held_[i] || is_free != fresh || !os::try_lock_byte(file_, i)) continue;
      if (!is_reusable(i)) {
        os::unlock_byte(file_, i);
        continue;
      }
      held_[i] = true;
      lane.role = role;
      lane.pid = ::getpid();
      ++lane.generation;
      put_label(lane.label, label_);
      lane.inflight_bytes.store(0, std::memory_order_relaxed);
      lane.inflight_items.store(0, std::memory_order_relaxed);
      lane.state.store(LaneState::kAlive, std::memory_order_release);  // sync: lane.state
      control_.header().lanes_version.fetch_add(1, std::memory_order_release);
      return static_cast<std::uint16_t>(i);
    }
  }
  throw PoolSpace("pool '" + name_ + "': all " + std::to_string(lanes) +
                  " lanes are taken; raise max_lanes, or close handles that are not used");
}

void Pool::leave(std::uint16_t lane) noexcept {
  if (forked_) return;
  const std::lock_guard lock(lanes_mutex_);
  control_.lane(lane).state.store(LaneState::kLeft, std::memory_order_release);  // sync: lane.state
  held_[lane] = false;
  os::unlock_byte(file_, lane);
  control_.header().lanes_version.fetch_add(1, std::memory_order_release);
}

bool Pool::holds(std::uint16_t lane) const {
  const std::lock_guard lock(lanes_mutex_);
  return held_[lane];
}

std::uint32_t Pool::add_segment(const memory::Carving& carving, bool prefault) {
  check_open();
  if (carving.classes.size() > kMaxClasses) {
    throw BadArgument("pool '" + name_ + "': " + std::to_string(carving.classes.size()) +
                      " classes, at most " + std::to_string(kMaxClasses));
  }
  Header& header = control_.header();
  std::uint32_t index = 0;
  for (;; ++index) {
    if (index == kMaxSegments) {
      throw PoolSpace("pool '" + name_ + "': all " + std::to_string(kMaxSegments) +
                      " segments are taken; make fewer and larger ones");
    }
    SegmentState empty = SegmentState::kEmpty;
    if (control_.segment(index).state.compare_exchange_strong(empty, SegmentState::kMaking)) break;
  }
  SegmentEntry& entry = control_.segment(index);
  std::uint32_t first = header.next_cell.load(std::memory_order_relaxed);
  do {
    if (carving.slabs > control_.geometry().max_cells - first) {
      entry.state.store(SegmentState::kEmpty, std::memory_order_release);  // sync: segment.state
      throw PoolSpace("pool '" + name_ + "': a segment of " + std::to_string(carving.slabs) +
                      " slabs, where " + std::to_string(control_.geometry().max_cells - first) +
                      " of max_cells=" + std::to_string(control_.geometry().max_cells) +
                      " cells are left; raise max_cells, or make slabs larger");
    }
  } while (!header.next_cell.compare_exchange_weak(first, first + carving.slabs));
  const std::string what = name_ + "." + std::to_string(index + 1);
  try {
    os::Fd fd = os::sealed_memfd(what, carving.bytes);
    os::Mapping mapping(fd, carving.bytes, "segment '" + what + "'");
    if (prefault) mapping.prefault();
    const std::lock_guard lock(segments_mutex_);
    mappings_[index] = std::move(mapping);
    fds_[index] = std::move(fd);
    bases_[index].store(mappings_[index].data(), std::memory_order_release);  // sync: pool.base
  } catch (...) {
    entry.state.store(SegmentState::kDead, std::memory_order_release);  // sync: segment.state
    throw;
  }
  entry.generation = 1;
  entry.owner = own_lane_;
  entry.first_cell = first;
  entry.num_cells = carving.slabs;
  entry.num_classes = static_cast<std::uint32_t>(carving.classes.size());
  entry.bytes = carving.bytes;
  for (std::size_t k = 0; k < carving.classes.size(); ++k) {
    const memory::CarvedClass& c = carving.classes[k];
    entry.classes[k] = {c.slab_bytes, c.offset, first + c.first, c.count};
    for (std::uint32_t i = 0; i < c.count; ++i) {
      Cell& cell = control_.cell(first + c.first + i);
      cell.slab = memory::make_address(entry.generation, static_cast<std::uint16_t>(index + 1),
                                       c.offset + c.slab_bytes * i);
      cell.slab_bytes = c.slab_bytes;
      cell.credit_lane = kNoLane;
    }
  }
  entry.state.store(SegmentState::kLive, std::memory_order_release);  // sync: segment.state
  header.segments_version.fetch_add(1, std::memory_order_release);
  header.space.notify();
  return index + 1;
}

bool Pool::map_segment(std::uint32_t index) {
  const std::lock_guard lock(segments_mutex_);
  if (bases_[index].load(std::memory_order_relaxed) != nullptr) return true;
  SegmentEntry& entry = control_.segment(index);
  const SegmentState state = entry.state.load(std::memory_order_acquire);  // sync: segment.state
  if (state != SegmentState::kLive) return false;
  const os::Fd fd = os::receive_fd(folder_ + "/" + std::to_string(entry.owner) + ".sock", index);
  if (!fd || !os::is_sealed(fd, entry.bytes)) return false;
  mappings_[index] = os::Mapping(fd, entry.bytes, name_ + "." + std::to_string(index + 1));
  bases_[index].store(mappings_[index].data(), std::memory_order_release);  // sync: pool.base
  return true;
}

void Pool::map_segments() noexcept {
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const SegmentState state =
        control_.segment(i).state.load(std::memory_order_acquire);  // sync: segment.state
    if (state == SegmentState::kEmpty) break;
    if (state != SegmentState::kLive) continue;
    try {
      map_segment(i);
    } catch (const Error&) {
      // Out of address space or descriptors: whoever needs the segment will say so.
    }
  }
}

std::byte* Pool::resolve(memory::Address address, std::uint64_t bytes) {
  const std::uint32_t number = memory::segment_of(address);
  if (number == 0 || number > kMaxSegments) return nullptr;
  const std::uint32_t index = number - 1;
  const SegmentEntry& entry = control_.segment(index);
  const std::uint64_t offset = memory::offset_of(address);
  std::byte* base = bases_[index].load(std::memory_order_acquire);  // sync: pool.base
  if (base == nullptr) {
    if (!map_segment(index)) return nullptr;
    base = bases_[index].load(std::memory_order_relaxed);
  }
  const bool inside = offset <= entry.bytes && bytes <= entry.bytes - offset;
  return inside && entry.generation == memory::generation_of(address) ? base + offset : nullptr;
}

std::uint32_t Pool::ring_number(const std::string& name) const {
  for (std::uint32_t i = 0; i < control_.geometry().num_rings; ++i) {
    if (name == control_.ring_header(i).name) return i;
  }
  std::string known;
  for (const std::string& ring : ring_names()) {
    if (!known.empty()) known += ", ";
    known += ring;
  }
  throw BadArgument("pool '" + name_ + "': there is no ring '" + name + "'; it has " + known);
}

std::vector<std::string> Pool::ring_names() const {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < control_.geometry().num_rings; ++i) {
    names.emplace_back(control_.ring_header(i).name);
  }
  return names;
}

LaneInfo Pool::lane_info(std::uint32_t i) const {
  const Lane& lane = control_.lane(i);
  return {i, lane.label, lane.role, lane.pid,
          lane.state.load(std::memory_order_acquire)};  // sync: lane.state
}

std::vector<LaneInfo> Pool::lanes() const {
  std::vector<LaneInfo> infos;
  for (std::uint32_t i = 0; i < control_.geometry().max_lanes; ++i) {
    LaneInfo info = lane_info(i);
    if (info.state != LaneState::kFree) infos.push_back(std::move(info));
  }
  return infos;
}

std::vector<SegmentInfo> Pool::segments() const {
  std::vector<SegmentInfo> infos;
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    const SegmentEntry& entry = control_.segment(i);
    if (entry.state.load(std::memory_order_acquire) != SegmentState::kLive) continue;  // sync: segment.state
    SegmentInfo info{i + 1, control_.lane(entry.owner).label, entry.bytes, entry.num_cells, 0, 0};
    for (std::uint32_t c = entry.first_cell; c < entry.first_cell + entry.num_cells; ++c) {
      const auto word = control_.word(c).load(std::memory_order_relaxed);
      if (lockfree::state_of(word) == CellState::kFree) continue;
      ++info.slabs_in_use;
      info.bytes_in_use += control_.cell(c).slab_bytes;
    }
    infos.push_back(std::move(info));
  }
  return infos;
}

std::string Pool::holders() const {
  struct Count {
    std::uint32_t written = 0, waiting = 0, read = 0;
  };
  std::map<std::string, Count> counts;
  for (std::uint32_t c = 0; c < control_.num_cells(); ++c) {
    const auto word = control_.word(c).load(std::memory_order_relaxed);
    const std::string label = control_.lane(lockfree::owner_of(word)).label;
    switch (lockfree::state_of(word)) {
      case CellState::kFree: break;
      case CellState::kOwned: ++counts[label].written; break;
      case CellState::kInRing: ++counts[label].waiting; break;
      case CellState::kHeld: ++counts[label].read; break;
    }
  }
  std::string text;
  for (const auto& [label, count] : counts) {
    text += (text.empty() ? "" : "; ") + ("'" + label + "'") + " writes " +
            std::to_string(count.written) + ", published " + std::to_string(count.waiting) +
            ", reads " + std::to_string(count.read);
  }
  return text.empty() ? "nobody" : text;
}

void Pool::report_dead(const LaneInfo& lane) {
  const std::lock_guard lock(dead_mutex_);
  dead_.push_back(lane);
  dead_changed_.notify_all();
}

std::optional<LaneInfo> Pool::wait_dead(const Deadline& deadline) {
  check_open();
  std::unique_lock lock(dead_mutex_);
  while (dead_.empty() && !deadline.passed() && !closed()) {
    dead_changed_.wait_for(lock, std::chrono::nanoseconds(deadline.left_ns(100'000'000)));
  }
  if (dead_.empty()) return std::nullopt;
  LaneInfo lane = dead_.front();
  dead_.pop_front();
  return lane;
}

void Pool::retire_segments(std::uint16_t owner) noexcept {
  for (std::uint32_t i = 0; i < kMaxSegments; ++i) {
    SegmentEntry& entry = control_.segment(i);
    SegmentState live = SegmentState::kLive;
    if (entry.owner == owner) entry.state.compare_exchange_strong(live, SegmentState::kDead);
  }
}

void Pool::free_cell(std::uint32_t index) noexcept {
  Cell& cell = control_.cell(index);
  if (cell.credit_lane != kNoLane) {
    // Before the cell is free: while it is in use, its producer's lane is not taken over.
    Lane& producer = control_.lane(cell.credit_lane);
    producer.inflight_bytes.fetch_sub(static_cast<std::int64_t>(cell.credit_bytes),
                                      std::memory_order_relaxed);
    producer.inflight_items.fetch_sub(1, std::memory_order_relaxed);
    cell.credit_lane = kNoLane;
  }
  lockfree::AtomicCell& word = control_.word(index);
  word.store(lockfree::freed(word.load(std::memory_order_relaxed)),
             std::memory_order_release);  // sync: cell.word
  control_.header().space.notify();
}

std::vector<PoolEntry> list_pools() {
  std::vector<PoolEntry> entries;
  for (const std::string& name : os::pool_names()) {
    PoolEntry entry{name, 0, false};
    try {
      const std::string path = folder_of(name) + "/control";
      const os::Fd file = os::open_file(path);
      if (file) {
        const Control control(file, path, nullptr);
        entry.creator_pid = control.header().creator_pid;
        entry.alive = anyone_alive(file, control.geometry().max_lanes);
      }
    } catch (const Error&) {
      // Cut short, unfinished or of another version: there, and not alive.
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace flowtrain::channel
