// A pool with a damaged control file: words are changed before it is opened, after that, and while
// items are held. Every call must end, with a result or an error.
//
// Input: a byte that selects the calls, then changes: phase and table, width, place, value.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "channel/liveness/recovery.hpp"
#include "channel/pool_names.hpp"
#include "channel/producer.hpp"
#include "channel/telemetry/inspect.hpp"
#include "fuzz/input.hpp"
#include "memory/carve.hpp"
#include "os/byte_lock.hpp"
#include "os/folder.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;
using fuzz::attempt;

namespace {

constexpr std::uint64_t kSegmentBytes = 32 << 10;

Layout bytes_of(std::uint32_t bytes) { return {8, 1, {bytes, 0, 0, 0}, bytes}; }

struct Table {
  std::uint64_t start;
  std::uint64_t bytes;
};

/// Control file of a small pool in use: a segment with classes and one cut on demand; items leased,
/// queued in two rings, and held. By its lock the creator is alive, and it serves its segments; the
/// other participants are dead.
class Subject {
 public:
  Subject() : name_("fuzz-" + std::to_string(::getpid())), folder_(folder()) {
    snapshot();
    CHECK(os::make_pool_folder(name_));
    file_ = os::create_file(path(), image_.size());
    mapping_ = os::Mapping(os::reopen_file(file_), image_.size(), "control");
    CHECK(os::try_lock_byte(file_, 0) == os::Locked::kYes);
    for (os::Fd& fd : memory_) fd = os::sealed_memfd("fuzz", kSegmentBytes);
    server_ =
        std::make_unique<os::FdServer>("fuzz", folder_ + "/0.sock", nonce_, [this](auto segment) {
          const std::uint32_t index = memory::segment_of(segment) - 1U;
          return index < memory_.size() ? os::Exported(os::duplicate(memory_[index]))
                                        : os::Exported();
        });
  }
  ~Subject() { os::remove_pool_folder(name_); }

  const std::string& name() const { return name_; }
  std::string path() const { return folder_ + "/control"; }

  void restore() {
    CHECK(::ftruncate(file_.get(), static_cast<off_t>(image_.size())) == 0);
    std::memcpy(mapping_.data(), image_.data(), image_.size());
  }
  void truncate(std::uint64_t bytes) {
    CHECK(::ftruncate(file_.get(), static_cast<off_t>(bytes % image_.size())) == 0);
  }
  void change(std::uint64_t table, std::uint64_t width, std::uint64_t place, std::uint64_t value) {
    const Table& in = tables_[table % tables_.size()];
    std::memcpy(mapping_.data() + in.start + place * width % in.bytes, &value, width);
  }

 private:
  std::string folder() const { return os::runtime_folder() + "/" + name_; }

  void snapshot() {
    const auto maker = Pool::create({name_, "maker", {"a", "b"}, 12, 8});
    maker->add_segment(memory::carve({{4096, 4}, {8192, 2}}), false);
    const auto other = Pool::open(name_, "other", Deadline::in(5));
    other->add_segment(memory::carve_on_demand(kSegmentBytes, 6), false);
    const auto in_a = std::make_shared<Producer>(maker, "a", 1, Producer::Credits{});
    const auto in_b = std::make_shared<Producer>(other, "b", 2, Producer::Credits{});
    const auto lease = [](const auto& producer, std::uint32_t bytes) {
      return producer->lease(bytes_of(bytes), Deadline::in(5));
    };
    lease(in_a, 100)->publish({1, 0});
    lease(in_a, 8000)->publish({2, 0});
    const std::array together{lease(in_b, 4096), lease(in_b, 4096), lease(in_b, 9000)};
    in_b->publish_many(together, std::array<Key, 3>{{{3, 0}, {4, 0}, {5, 0}}});
    const auto held = std::make_shared<Consumer>(other, "a")->get(Deadline::in(5));
    const auto leased = lease(in_a, 10);
    const Control& control = maker->control();
    nonce_ = control.header().nonce;
    note_tables(control);
    const auto* bytes = reinterpret_cast<const std::byte*>(&control.header());
    image_.assign(bytes, bytes + Control::file_bytes(control.geometry()));
    other->close();
    maker->close();
  }

  void note_tables(const Control& control) {
    const Geometry& size = control.geometry();
    auto add = [&, n = 0](const auto& first, std::uint64_t count) mutable {
      const auto start = reinterpret_cast<const std::byte*>(&first) -
                         reinterpret_cast<const std::byte*>(&control.header());
      tables_[n++] = {static_cast<std::uint64_t>(start), sizeof(first) * count};
    };
    add(control.header(), 1);
    add(control.lane(0), size.max_lanes);
    add(control.record(0), size.max_lanes);
    add(control.segment(0), 3);
    add(control.word(0), size.max_cells);
    add(control.cell(0), size.max_cells);
    add(control.ring_header(0), size.num_rings);
    const Table& rings = tables_[6];
    tables_[7] = {rings.start + rings.bytes, 8ULL * size.num_rings * size.ring_capacity};
  }

  std::string name_;
  std::string folder_;
  std::uint64_t nonce_ = 0;
  std::vector<std::byte> image_;
  std::array<Table, 8> tables_;
  os::Fd file_;
  os::Mapping mapping_;
  std::array<os::Fd, 2> memory_;
  std::unique_ptr<os::FdServer> server_;
};

/// Changes, by phase.
class Changes {
 public:
  Changes(Subject& subject, fuzz::Input& input) : subject_(subject) {
    while (!input.empty()) {
      const std::uint64_t kind = input.number(1);
      const std::uint64_t width = std::uint64_t{1} << input.number(1) % 4;
      const std::uint64_t place = input.number(2);
      phases_[kind / 8 % 3].push_back({kind % 8, width, place, input.number(width)});
    }
  }
  void make(std::size_t phase) {
    for (const Change& c : phases_[phase]) subject_.change(c.table, c.width, c.place, c.value);
  }

 private:
  struct Change {
    std::uint64_t table, width, place, value;
  };
  Subject& subject_;
  std::array<std::vector<Change>, 3> phases_;
};

void observe(const std::string& name) {
  attempt([&] {
    const Observer seen(name);
    segment_infos(seen.control());
    ring_infos(seen.control());
    for (const LaneInfo& lane : seen.lanes().all()) {
      seen.control().record(lane.index).flight.for_each([](const Event&) {});
      seen.control().ring_name(lane.ring);
      static_cast<void>(seen.lanes().has_died(lane.index));
    }
  });
  attempt([&] { pool_exists(name); });
}

/// Reclaims as the monitor of another handle: the lock of this handle's monitor is its own.
void reclaim(const Subject& subject, Pool& pool) {
  const os::Fd file = os::open_file(subject.path());
  const auto control = Control::find(file, subject.path());
  if (!control) return;
  Lanes lanes(*control, file);
  Recovery<>(*control, lanes, pool.lane()).reclaim_dead([&](std::uint16_t lane) {
    pool.segments().drain_all(lane);
  });
}

void consume(const std::shared_ptr<Pool>& pool, const std::string& ring, Changes& changes) {
  const auto consumer = std::make_shared<Consumer>(pool, ring);
  for (int i = 0; i < 4; ++i) {
    attempt([&] {
      std::vector<std::shared_ptr<Item>> items = consumer->get_many(3, Deadline::in(0));
      for (const auto& item : items) fuzz::check_valid(*item);
      changes.make(2);
      for (const auto& item : items) item->release();
    });
  }
}

void produce(const std::shared_ptr<Pool>& pool, const std::string& ring, Changes& changes) {
  const auto producer =
      std::make_shared<Producer>(pool, ring, std::nullopt, Producer::Credits{1 << 20, 8});
  for (const std::uint32_t bytes : {10U, 5000U, 20000U}) {
    attempt([&] {
      const std::array leases{producer->lease(bytes_of(bytes), Deadline::in(0)),
                              producer->lease(bytes_of(bytes), Deadline::in(0))};
      for (const auto& lease : leases) std::memset(lease->data(), 1, bytes);
      changes.make(2);
      leases[0]->shrink(bytes_of(bytes / 2));
      if (bytes > 5000) return;
      producer->publish_many(leases, std::array<Key, 2>{{{1, 0}, {2, 0}}});
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Subject subject;
  fuzz::Input input(data, size);
  subject.restore();
  const std::uint64_t selected = input.number(1);
  if (selected == 1) {
    subject.truncate(input.number(4));
    observe(subject.name());
    attempt([] { Pool::open(subject.name(), "fuzz", Deadline::in(0)); });
    return 0;
  }
  Changes changes(subject, input);
  changes.make(0);
  observe(subject.name());
  attempt([&] {
    const auto pool = Pool::open(subject.name(), "fuzz", Deadline::in(0));
    changes.make(1);
    attempt([&] { reclaim(subject, *pool); });
    for (const std::string ring : {"a", "b"}) {
      attempt([&] { consume(pool, ring, changes); });
      attempt([&] { produce(pool, ring, changes); });
    }
    attempt([&] { pool->holders(); });
    if (selected == 2) {
      attempt([&] { pool->add_segment(memory::carve({{4096, 2}}), false); });
      attempt(
          [&] { pool->drop_segment(pool->add_segment(memory::carve_on_demand(8192, 2), false)); });
      attempt([&] { consume(pool, "a", changes); });
    }
    pool->segments().refresh();
    pool->segments().sweep();
    // The subject looks alive and maps nothing, so that a close would wait for it.
    attempt([&] { pool->close([] { return true; }); });
  });
  return 0;
}
