#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "channel/consumer.hpp"
#include "channel/producer.hpp"
#include "channel/telemetry/inspect.hpp"
#include "check.hpp"
#include "gateway/gateway.hpp"
#include "memory/carve.hpp"

namespace flowtrain::gateway::conformance {

using channel::Layout;

struct Subject {
  std::function<std::unique_ptr<transport::Transport>(transport::Receiver&)> open;
  memory::Resources resources = memory::host_resources();
  memory::Place place{};  ///< Of the segments with classes.
};

inline Layout bytes_of(std::uint64_t bytes) {
  return {8, 1, {static_cast<std::uint32_t>(bytes), 0, 0, 0}, bytes};
}

inline std::byte content(std::uint64_t key, std::uint64_t at) {
  return static_cast<std::byte>((key * 131 + at * 7 + (at >> 8)) % 251);
}

/// A host: its pool, its gateway, and another handle of the pool for its producers and readers.
class Host {
 public:
  Host(const Subject& subject, const std::string& what, std::vector<std::string> rings)
      : subject_(subject), name_("cpp-" + what + "-" + std::to_string(::getpid())) {
    pool_ = channel::Pool::create({name_, "gateway", std::move(rings), 256, 64, subject.resources});
    others = open("others");
    start();
  }
  ~Host() {
    gateway.reset();
    others->close();
    pool_->close();
  }

  /// A new process of the gateway, with a handle of its own.
  void replace() {
    gateway.reset();
    if (handle_) handle_->close();
    handle_ = open("gateway");
    start();
  }

  std::uint32_t slabs_in_use() const {
    std::uint32_t found = 0;
    for (const auto& segment : channel::segment_infos(others->control())) {
      found += segment.slabs_in_use;
    }
    return found;
  }

  const Subject& subject() const { return subject_; }

  std::shared_ptr<channel::Pool> others;
  std::unique_ptr<Gateway> gateway;
  std::vector<Gateway::Ended> ended;

 private:
  std::shared_ptr<channel::Pool> open(const std::string& label) const {
    return channel::Pool::open(name_, label, Deadline::in(5), {}, &channel::Pool::destroy,
                               subject_.resources);
  }
  void start() { gateway = std::make_unique<Gateway>(handle_ ? handle_ : pool_, subject_.open); }

  const Subject& subject_;
  std::string name_;
  std::shared_ptr<channel::Pool> pool_;
  std::shared_ptr<channel::Pool> handle_;
};

inline transport::Session session_of(std::uint64_t id) {
  transport::Session session{id, {}};
  session.ticket.fill(static_cast<std::byte>(id * 7));
  return session;
}

/// How `to` looks for another host, `from`.
inline Peer peer_of(Host& to, const std::string& name, const std::string& from,
                    std::uint64_t to_peer, std::uint64_t from_peer) {
  const channel::Control& control = to.gateway->pool().control();
  return {name,
          to.gateway->address(),
          control.header().nonce,
          to.gateway->process(from),
          control.geometry().max_cells,
          session_of(to_peer),
          session_of(from_peer)};
}

/// Two hosts: the readers of ring "at-b" are at b, those of "at-a" at a.
struct Pair {
  explicit Pair(const Subject& subject)
      : a(subject, "a", {"at-a", "at-b", "both"}), b(subject, "b", {"at-a", "at-b", "both"}) {
    connect();
  }
  /// A new session of both.
  void connect() {
    admit();
    CHECK(a.gateway->connect("b") && b.gateway->connect("a"));
  }
  /// Lets both connect.
  void admit() {
    const std::uint64_t there = ++sessions, back = ++sessions;
    a.gateway->admit(peer_of(b, "b", "a", there, back));
    b.gateway->admit(peer_of(a, "a", "b", back, there));
    a.gateway->route("b", {"at-b"});
    b.gateway->route("a", {"at-a"});
  }
  bool progress() {
    did = false;
    for (Host* const host : {&a, &b}) {
      did |= host->gateway->progress();
      for (auto& end : host->gateway->wait(Deadline::in(0))) host->ended.push_back(std::move(end));
    }
    return did;
  }
  template <class Done>
  void run(Done&& done) {
    const Deadline deadline = Deadline::in(60);
    while (!done()) {
      CHECK(!deadline.passed());
      progress();
    }
  }
  /// So long that what was going to happen has happened.
  void settle() {
    for (const Deadline deadline = Deadline::in(0.05); !deadline.passed();) progress();
  }

  std::uint64_t sessions = 0;
  bool did = false;  // The last progress.
  Host a, b;
};

/// Items from one host to readers of another: as many at a time as there are slabs.
class Flow {
 public:
  Flow(Host& from, Host& to, const std::string& ring, std::uint32_t segment,
       std::function<std::uint64_t(std::uint64_t)> size, std::uint64_t count)
      : size_(std::move(size)),
        count_(count),
        producer_(std::make_shared<channel::Producer>(from.others, ring, segment,
                                                      channel::Producer::Credits{})),
        consumer_(std::make_shared<channel::Consumer>(to.others, ring)) {}

  /// Publishes while there is a slab, and reads what has come.
  void step(std::size_t reads = 1000) {
    while (sent_ < count_) {
      const auto lease = producer_->try_lease(bytes_of(size_(sent_)));
      if (!lease) break;
      // The memory of a fake device is the host's.
      auto* const data = reinterpret_cast<std::byte*>(lease->slab().address);
      for (std::uint64_t i = 0; i < lease->layout().bytes; ++i) data[i] = content(sent_, i);
      lease->publish({sent_, ~sent_});
      ++sent_;
    }
    for (; reads > 0; --reads) {
      const auto item = consumer_->try_get();
      if (!item) break;
      const channel::Descriptor& found = item->descriptor();
      CHECK(found.key_low < sent_ && found.key_high == ~found.key_low);
      CHECK(found.bytes == size_(found.key_low) && found.shape[0] == found.bytes);
      for (std::uint64_t i = 0; i < found.bytes; ++i) {
        CHECK(item->data()[i] == content(found.key_low, i));
      }
      ++times_[found.key_low];
      item->release();
    }
  }
  bool is_done() const { return times_.size() == count_; }
  std::uint64_t sent() const { return sent_; }
  /// Items that came more than once.
  std::uint64_t repeated() const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(times_, [](const auto& each) { return each.second > 1; }));
  }

 private:
  std::function<std::uint64_t(std::uint64_t)> size_;
  std::uint64_t count_;
  std::shared_ptr<channel::Producer> producer_;
  std::shared_ptr<channel::Consumer> consumer_;
  std::uint64_t sent_ = 0;
  std::map<std::uint64_t, std::uint64_t> times_;
};

inline std::uint32_t add_classes(Host& host) {
  return host.others->add_segment(memory::carve({{64, 3}, {4096, 4}, {70000, 2}}), false, {},
                                  host.subject().place);
}
inline std::uint64_t size_in_classes(std::uint64_t key) { return key * 7919 % 70001; }

}  // namespace flowtrain::gateway::conformance
