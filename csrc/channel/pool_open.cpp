// How a handle of a pool comes to be: a new pool is created, or an existing one opened.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.hpp"
#include "channel/layout/names.hpp"
#include "channel/liveness/monitor.hpp"
#include "channel/liveness/registry.hpp"
#include "channel/pool.hpp"
#include "channel/pool_names.hpp"
#include "os/folder.hpp"

namespace flowtrain::channel {
namespace {

void check_options(const PoolOptions& options) {
  check_name("pool", options.name);
  check_label(options.label);
  const std::string what = "pool '" + options.name + "': ";
  std::vector<std::string> rings = options.rings;
  for (const std::string& ring : rings) check_name("ring", ring);
  std::sort(rings.begin(), rings.end());
  if (rings.empty() || rings.size() > UINT16_MAX ||
      std::adjacent_find(rings.begin(), rings.end()) != rings.end()) {
    throw BadArgument(what + "rings must be 1 to 65535 different names");
  }
  if (options.max_lanes < 2 || options.max_lanes > UINT16_MAX) {
    throw BadArgument(what + "max_lanes=" + std::to_string(options.max_lanes) +
                      " must be 2 to 65535");
  }
  if (options.max_cells < 1 || options.max_cells > (1U << 24)) {
    throw BadArgument(what + "max_cells=" + std::to_string(options.max_cells) +
                      " must be 1 to 16777216");
  }
}

std::string folder_of(const std::string& name) { return os::runtime_folder() + "/" + name; }

}  // namespace

std::shared_ptr<Pool> Pool::create(const PoolOptions& options,
                                   const std::optional<SegmentOptions>& first,
                                   const Interrupted& interrupted, Deleter deleter) {
  check_options(options);
  std::optional<Segments::Claim> claim;
  const std::shared_ptr<Pool> pool = create_unfilled(options, first, claim, interrupted, deleter);
  if (claim && pool->segments_->make(*claim, first->carving, first->prefault, interrupted) == 0) {
    return nullptr;
  }
  return pool;
}

/// Claims the first segment before others can open the pool, so that they find a segment to wait
/// for, and makes no memory, since it holds the lock of all pools.
std::shared_ptr<Pool> Pool::create_unfilled(const PoolOptions& options,
                                            const std::optional<SegmentOptions>& first,
                                            std::optional<Segments::Claim>& claim,
                                            const Interrupted& interrupted, Deleter deleter) {
  const os::FolderLock alone = claim_pool_name(options.name, interrupted);
  if (!alone) return nullptr;
  try {
    const Geometry geometry{options.max_lanes, options.max_cells,
                            static_cast<std::uint32_t>(options.rings.size()),
                            std::bit_ceil(options.max_cells)};
    const std::string path = folder_of(options.name) + "/control";
    os::Fd file;
    // A closing handle of a former pool may remove the folder while it is empty.
    while (!file) {
      os::make_pool_folder(options.name);
      file = os::create_file(path, Control::file_bytes(geometry));
    }
    Control control = Control::make(file, path, geometry);
    Header& header = control.header();
    header.creator_pid = ::getpid();
    header.nonce = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
    for (std::uint32_t i = 0; i < geometry.num_rings; ++i) {
      control.ring_header(i).name = options.rings[i];
    }
    std::shared_ptr<Pool> pool;
    {
      NoFork no_fork;
      pool.reset(new Pool(options, os::open_pool_folder(options.name), os::open_file(path),
                          std::move(control)),
                 deleter);
      no_fork.register_pool(pool.get());
    }
    pool->creator_ = true;
    pool->remove_on_signal();
    pool->start();
    // It never waits: the lock that it needs is this pool's.
    if (first) claim = pool->segments_->claim(first->carving, pool->lane_, {}, first->place);
    header.admission.store(Admission::kOpen, std::memory_order_release);  // sync: control.admission
    return pool;
  } catch (...) {
    os::remove_pool_folder(options.name);
    throw;
  }
}

std::shared_ptr<Pool> Pool::open(const std::string& name, const std::string& label,
                                 const Deadline& deadline, const Interrupted& interrupted,
                                 Deleter deleter, const memory::Resources& resources) {
  check_name("pool", name);
  check_label(label);
  const std::string path = folder_of(name) + "/control";
  for (;;) {
    std::shared_ptr<Pool> pool;
    PoolState state = PoolState::kNone;
    std::int32_t creator_pid = 0;
    {
      NoFork no_fork;
      os::Fd folder = os::open_pool_folder(name);
      os::Fd file = folder ? os::open_file(os::path_in(folder, "control")) : os::Fd();
      std::optional<Control> control = file ? Control::find(file, path) : std::nullopt;
      if (control) {
        state = pool_state(*control, file);
        creator_pid = control->header().creator_pid;
      }
      if (state == PoolState::kOpen) {
        const PoolOptions options{name, label, {}, 0, 0, resources};
        pool.reset(new Pool(options, std::move(folder), std::move(file), std::move(*control)),
                   deleter);
        no_fork.register_pool(pool.get());
      }
    }
    if (pool) {
      pool->remove_on_signal();
      pool->start();
      // Pairs with the fence in close: either this sees that the pool is being closed, or its
      // creator waits for this handle.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!os::is_linked(pool->file_) || !admits_handles(pool->control_)) continue;
      // A mapped segment outlives its owner, so map early. The monitor retries slow owners.
      if (!pool->segments_->map_all(Deadline::in(kOwnerResponseS), interrupted)) return nullptr;
      return pool;
    }
    if (deadline.passed()) {
      throw PoolNotFound("pool '" + name + "': " + why_not_open(state, creator_pid) +
                         "; create it first, or raise timeout_s to wait for it");
    }
    if (interrupted && interrupted()) return nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Pool::remove_on_signal() {
  removal_.emplace(folder_, file_, lanes_->shared_byte(), name_, creator_);
}

void Pool::start() {
  lane_ = lanes_->join(LaneRole::kPool, 0, label_, name_);
  joined_ = true;
  segments_->announce_in(lane_);
  segments_->refresh();
  monitor_ = std::make_unique<Monitor>(*this);
}

}  // namespace flowtrain::channel
