#pragma once

#include <atomic>
#include <random>
#include <thread>

#include "gateway/host.hpp"

/// What gateways do over any transport.
namespace flowtrain::gateway::conformance {

/// Both directions at once, from segments with and without classes, in more items than there are
/// slabs.
inline void items_cross_intact_and_once(const Subject& s) {
  Pair pair(s);
  const std::uint32_t on_demand =
      pair.b.others->add_segment(memory::carve_on_demand(1 << 20, 32), false);
  Flow there(pair.a, pair.b, "at-b", add_classes(pair.a), size_in_classes, 100);
  Flow more(pair.a, pair.b, "at-b", add_classes(pair.a), [](auto) { return 8; }, 0);
  Flow back(pair.b, pair.a, "at-a", on_demand, [](auto key) { return key * 7919 % 300001; }, 60);
  pair.run([&] {
    there.step();
    back.step();
    return there.is_done() && back.is_done();
  });
  CHECK(there.repeated() == 0 && back.repeated() == 0);
  pair.run([&] { return pair.a.slabs_in_use() == 0 && pair.b.slabs_in_use() == 0; });
  CHECK(pair.a.ended.empty() && pair.b.ended.empty());
}

/// A slab is the producer's again when the reader has released its copy, and not before.
inline void space_returns_with_the_release_of_the_reader(const Subject& s) {
  Pair pair(s);
  const std::uint32_t segment = pair.a.others->add_segment(memory::carve({{4096, 4}}), false);
  const auto producer = std::make_shared<channel::Producer>(pair.a.others, "at-b", segment,
                                                            channel::Producer::Credits{});
  const auto consumer = std::make_shared<channel::Consumer>(pair.b.others, "at-b");
  for (std::uint64_t i = 0; i < 4; ++i) producer->try_lease(bytes_of(100))->publish({i, 0});
  std::vector<std::shared_ptr<channel::Item>> items;
  pair.run([&] {
    if (auto item = consumer->try_get()) items.push_back(std::move(item));
    return items.size() == 4;
  });
  pair.settle();
  CHECK(!producer->try_lease(bytes_of(100)));
  CHECK(pair.a.slabs_in_use() == 4 && pair.b.slabs_in_use() == 4);
  items[2]->release();
  std::shared_ptr<channel::Lease> lease;
  pair.run([&] { return (lease = producer->try_lease(bytes_of(100))) != nullptr; });
  CHECK(!producer->try_lease(bytes_of(100)) && pair.b.slabs_in_use() == 3);
}

/// Waits sleep until there is something to do, and then do it, although only one of the two
/// gateways is called.
inline void a_wait_is_ended_by_what_happens(const Subject& s) {
  Pair pair(s);
  Flow flow(pair.a, pair.b, "at-b", add_classes(pair.a), [](auto) { return 8; }, 1);
  pair.run([&] {
    CHECK(pair.a.gateway->wait(Deadline::in(0.01)).empty());
    return !pair.a.gateway->progress();
  });
  flow.step();
  std::jthread b([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) pair.b.gateway->wait(Deadline::in(0.02));
  });
  const Deadline deadline = Deadline::in(60);
  while (!flow.is_done() || pair.a.slabs_in_use() > 0) {
    CHECK(!deadline.passed());
    pair.a.gateway->wait(deadline);
    flow.step();
  }
}

/// Mirrors end with their source, but not before their items.
inline void a_mirror_ends_with_its_source(const Subject& s) {
  Pair pair(s);
  const auto leaving = channel::Pool::open(pair.a.others->name(), "leaves", Deadline::in(5));
  const std::uint32_t segment = leaving->add_segment(memory::carve({{4096, 4}}), false);
  const auto consumer = std::make_shared<channel::Consumer>(pair.b.others, "at-b");
  {
    const auto producer =
        std::make_shared<channel::Producer>(leaving, "at-b", segment, channel::Producer::Credits{});
    producer->try_lease(bytes_of(100))->publish({1, 0});
    std::shared_ptr<channel::Item> item;
    pair.run([&] { return (item = consumer->try_get()) != nullptr; });
    leaving->drop_segment(segment);
    pair.settle();
    CHECK(pair.b.gateway->traffic()[0].in.mirrors == 1);
    item->release();
  }
  pair.run([&] { return pair.b.gateway->traffic()[0].in.mirrors == 0; });
  leaving->close();
}

/// Everything else goes on while the memory of a mirror is being made, and the end of the gateway
/// leaves none of it.
inline void a_mirror_in_the_making_holds_up_nothing(const Subject& s) {
  std::atomic<int> making = 0, made = 0;
  const auto make = [&](const auto&...) -> std::shared_ptr<void> {
    const int number = ++making;
    for (const Deadline deadline = Deadline::in(30); made < number;) {
      CHECK(!deadline.passed());
      std::this_thread::yield();
    }
    return nullptr;
  };
  Pair pair(s);
  pair.a.gateway->route("b", {"both"});
  const std::uint32_t segment = add_classes(pair.a);
  Flow first(pair.a, pair.b, "at-b", segment, size_in_classes, 1);
  pair.run([&] { return first.step(), first.is_done(); });
  made = 1;  // For the mirror that is there.
  pair.b.gateway->pool().segments().attach("slow", make);
  Flow waits(pair.a, pair.b, "both", add_classes(pair.a), size_in_classes, 1);
  waits.step();
  pair.run([&] { return making == 2; });
  Flow goes_on(pair.a, pair.b, "at-b", segment, size_in_classes, 30);
  pair.run([&] { return goes_on.step(), goes_on.is_done(); });
  waits.step();
  CHECK(!waits.is_done());
  made = 2;
  pair.run([&] { return waits.step(), waits.is_done(); });
  Flow last(pair.a, pair.b, "both", add_classes(pair.a), size_in_classes, 1);
  last.step();
  pair.run([&] { return making == 3; });
  const std::jthread ends([&] { made = 3; });
  pair.b.gateway.reset();
  CHECK(channel::segment_infos(pair.b.others->control()).empty());
}

/// A link that ends at any moment, at either end, loses nothing and repeats nothing.
inline void a_new_link_goes_on_where_the_last_one_ended(const Subject& s, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Pair pair(s);
  Flow there(pair.a, pair.b, "at-b", add_classes(pair.a), size_in_classes, 60);
  Flow back(pair.b, pair.a, "at-a", add_classes(pair.b), size_in_classes, 60);
  pair.run([&] {
    there.step(random() % 3);
    back.step(random() % 3);
    if (pair.did && random() % 30 == 0) {
      const auto which = random() % 3;
      if (which != 0) pair.a.gateway->detach("b");
      if (which != 1) pair.b.gateway->detach("a");
      for (auto left = random() % 4; left > 0; --left) pair.progress();
      there.step(random() % 3);
      pair.connect();
    }
    return there.is_done() && back.is_done();
  });
  CHECK(there.repeated() == 0 && back.repeated() == 0);
  pair.run([&] { return pair.a.slabs_in_use() == 0 && pair.b.slabs_in_use() == 0; });
}

/// Gateways are replaced at any moment: nothing is lost. An item comes again only if the gateway
/// that had published it was replaced before the other one knew.
inline void a_replaced_gateway_goes_on(const Subject& s, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Pair pair(s);
  Flow there(pair.a, pair.b, "at-b", add_classes(pair.a), size_in_classes, 60);
  const bool replaces_sender = seed % 2 == 0;
  std::uint64_t published = 0;  // By gateways that were replaced.
  pair.run([&] {
    there.step(random() % 3);
    if (pair.did && random() % 30 == 0) {
      if (!replaces_sender) published += pair.b.gateway->traffic()[0].in.items;
      (replaces_sender ? pair.a : pair.b).replace();
      for (auto left = random() % 4; left > 0; --left) pair.progress();
      pair.connect();
    }
    return there.is_done();
  });
  pair.run([&] {
    there.step();
    return pair.a.slabs_in_use() == 0 && pair.b.slabs_in_use() == 0;
  });
  published += pair.b.gateway->traffic()[0].in.items;
  const std::uint64_t acknowledged = pair.a.gateway->traffic()[0].out.items;
  CHECK(there.repeated() <= (replaces_sender ? 0 : published - acknowledged));
}

/// A host that was forgotten comes again: what it knows to have arrived does not come twice.
inline void a_forgotten_host_repeats_nothing(const Subject& s) {
  Pair pair(s);
  Flow flow(pair.a, pair.b, "at-b", add_classes(pair.a), [](auto) { return 8; }, 3);
  flow.step(0);
  pair.run([&] { return pair.a.gateway->traffic()[0].out.items == 3; });
  pair.a.gateway->detach("b");
  pair.b.gateway->forget("a");
  pair.connect();
  pair.run([&] {
    flow.step();
    return pair.a.slabs_in_use() == 0 && pair.b.slabs_in_use() == 0;
  });
  CHECK(flow.is_done() && flow.repeated() == 0);
}

/// The link of a peer may end before this side has connected.
inline void a_link_that_ended_is_not_answered(const Subject& s) {
  Pair pair(s);
  do {
    pair.admit();
    pair.b.gateway->connect("a");
    pair.settle();
    pair.b.gateway->detach("a");
    pair.settle();
  } while (pair.a.ended.empty());  // Its session was not opened yet.
  CHECK(!pair.a.gateway->connect("b"));
}

inline void check(const Subject& s) {
  for (const auto each : {items_cross_intact_and_once, space_returns_with_the_release_of_the_reader,
                          a_wait_is_ended_by_what_happens, a_mirror_ends_with_its_source,
                          a_mirror_in_the_making_holds_up_nothing, a_forgotten_host_repeats_nothing,
                          a_link_that_ended_is_not_answered}) {
    each(s);
  }
}

}  // namespace flowtrain::gateway::conformance
