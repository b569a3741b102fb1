#pragma once

#include "gateway/host.hpp"

/// A peer that was admitted and sends what it may not. It is told by name, its links end, and
/// nothing of it is left.
namespace flowtrain::gateway::conformance {

class Peculiar : public transport::Receiver {
 public:
  explicit Peculiar(const Subject& s) : host(s, "c", {"here", "there"}), transport(s.open(*this)) {
    const Peer peer{"odd", transport->address(), 1, 2, 16, session_of(1), session_of(2)};
    transport->admit(session_of(1));
    host.gateway->admit(peer);
    host.gateway->route("odd", {"there"});
    link = transport->connect(host.gateway->address(), session_of(2));
    host.gateway->connect("odd");
  }

  template <class Message>
  void send(const Message& message) {
    CHECK(link->send(header_of(message)));
  }
  template <class Done>
  void run(Done&& done) {
    const Deadline deadline = Deadline::in(60);
    while (!done()) {
      CHECK(!deadline.passed());
      transport->progress();
      host.gateway->progress();
      for (auto& end : host.gateway->wait(Deadline::in(0))) host.ended.push_back(std::move(end));
    }
  }
  /// Its links end with this reason, and its slabs are free.
  void is_refused(const std::string& why) {
    run([&] { return !host.ended.empty() && host.slabs_in_use() == 0; });
    CHECK(host.ended.size() == 1 && host.ended[0].peer == "odd");
    if (host.ended[0].why.find(why) == std::string::npos) {
      std::fprintf(stderr, "expected '%s', got '%s'\\n", why.c_str(), host.ended[0].why.c_str());
      std::abort();
    }
    CHECK(!host.gateway->traffic()[0].is_connected);
  }
  /// A grant for an item.
  Granted granted(const Name& item, std::uint64_t bytes = 100) {
    send(Want{.ring = 0, .source = kSource, .item = item, .bytes = bytes});
    const std::size_t before = messages.size();
    run([&] { return messages.size() > before; });
    const auto found = message_of<Granted>(messages.back());
    CHECK(found.kind == Kind::kGrant && found.item == item);
    return found;
  }
  void announce() {
    send(SourcePart{.source = kSource,
                    .part = 0,
                    .num_parts = 1,
                    .slab_bytes = 128,
                    .count = 4,
                    .bytes = 4096});
  }
  void place(const Granted& grant, const ItemHeader& header, std::uint64_t bytes) {
    CHECK(link->place({2, grant.slot, grant.generation, grant.region, grant.offset, grant.bytes},
                      header_of(header), payload.data(), bytes));
  }

  void on_placed(const transport::Placement&) override {}
  void on_message(std::uint64_t, const transport::Header& header) override {
    messages.push_back(header);
  }
  void on_refused(const transport::Refusal&) override {}
  void on_acknowledged(std::uint64_t, std::uint64_t) override {}
  void on_closed(std::uint64_t, const std::string&) override {}

  static constexpr SourceId kSource = 0x0101;
  Host host;
  std::vector<std::byte> payload{1000};
  std::vector<transport::Header> messages;
  std::unique_ptr<transport::Transport> transport;
  std::shared_ptr<transport::Link> link;
};

inline ItemHeader header_for(const Name& item, std::uint32_t bytes) {
  return {.dtype = 8, .ndim = 1, .item = item, .key_low = 0, .key_high = 0, .shape = {bytes}};
}

/// One message that is refused.
template <class Message>
void is_a_breach(const Subject& s, const Message& message, const std::string& why) {
  Peculiar peer(s);
  peer.announce();
  peer.granted({3, 1});  // Is not left behind.
  peer.send(message);
  peer.is_refused(why);
}

inline void check_breaches(const Subject& s) {
  const SourceId other = 0x0202;
  is_a_breach(s, Told{.kind = static_cast<Kind>(0), .item = {}}, "kind 0");
  is_a_breach(s, header_for({3, 1}, 8), "kind 7");
  is_a_breach(
      s,
      SourcePart{
          .source = other, .part = 1, .num_parts = 1, .slab_bytes = 1, .count = 1, .bytes = 1},
      "part 1 of 1");
  is_a_breach(
      s,
      SourcePart{
          .source = other, .part = 0, .num_parts = 65, .slab_bytes = 1, .count = 1, .bytes = 1},
      "part 0 of 65");
  is_a_breach(s,
              SourcePart{.source = Peculiar::kSource,
                         .part = 0,
                         .num_parts = 1,
                         .slab_bytes = 128,
                         .count = 5,
                         .bytes = 4096},
              "described before otherwise");
  is_a_breach(
      s,
      SourcePart{
          .source = other, .part = 0, .num_parts = 1, .slab_bytes = 64, .count = 0, .bytes = 4096},
      "segment 514");
  is_a_breach(s,
              SourcePart{.source = other,
                         .part = 0,
                         .num_parts = 1,
                         .slab_bytes = 1UL << 41,
                         .count = 1,
                         .bytes = 1UL << 41},
              "segment 514");
  is_a_breach(s, Gone{.source = Peculiar::kSource}, "items on the way");
  is_a_breach(s, Want{.ring = 2, .source = 257, .item = {0, 1}, .bytes = 8}, "no reader here");
  is_a_breach(s, Want{.ring = 1, .source = 257, .item = {0, 1}, .bytes = 8}, "no reader here");
  is_a_breach(s, Want{.ring = 0, .source = 257, .item = {16, 1}, .bytes = 8}, "of 16 cells");
  is_a_breach(s, Want{.ring = 0, .source = 257, .item = {0, 1}, .bytes = 129}, "129 bytes");
  is_a_breach(s, Want{.ring = 0, .source = 257, .item = {3, 2}, .bytes = 8},
              "while the peer wants");
  {
    Peculiar peer(s);
    peer.announce();
    const Granted first = peer.granted({1, 1});
    peer.granted({2, 1});
    peer.place(first, header_for({2, 1}, 100), 100);
    peer.is_refused("not for it");
  }
  {
    Peculiar peer(s);
    peer.announce();
    peer.place(peer.granted({1, 1}), header_for({1, 1}, 99), 100);
    peer.is_refused("do not make");
  }
  {
    Peculiar peer(s);
    peer.announce();
    ItemHeader header = header_for({1, 1}, 100);
    header.dtype = 200;
    peer.place(peer.granted({1, 1}), header, 100);
    peer.is_refused("do not make");
  }
  {
    Peculiar peer(s);  // The item is larger than the slab that it asked for.
    peer.announce();
    Granted grant = peer.granted({1, 1}, 128);
    grant.bytes = 129;
    peer.place(grant, header_for({1, 1}, 129), 129);
    peer.is_refused("outside of the grant");
  }
  {
    Peculiar peer(s);
    const std::uint32_t segment = peer.host.others->add_segment(memory::carve({{128, 1}}), false);
    const auto producer = std::make_shared<channel::Producer>(peer.host.others, "there", segment,
                                                              channel::Producer::Credits{});
    producer->try_lease(bytes_of(100))->publish({1, 1});
    peer.run(
        [&] { return !peer.messages.empty() && kind_of(peer.messages.back()) == Kind::kWant; });
    const auto want = message_of<Want>(peer.messages.back());
    peer.send(Granted{
        .slot = 0, .item = want.item, .generation = 1, .region = 0, .offset = 0, .bytes = 99});
    peer.run([&] { return !peer.host.ended.empty(); });
    CHECK(peer.host.ended[0].why.find("a grant of 99 bytes") != std::string::npos);
    // The item is still there, for the next link.
    CHECK(peer.host.slabs_in_use() == 1);
    peer.host.gateway->forget("odd");
    const auto item = std::make_shared<channel::Consumer>(peer.host.others, "there")->try_get();
    CHECK(item && item->descriptor().bytes == 100 && item->attempt() == 1);
    item->release();
  }
}

}  // namespace flowtrain::gateway::conformance
