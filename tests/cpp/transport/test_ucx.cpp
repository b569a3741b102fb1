// UCX over TCP: what every transport must do, with eager and with announced payloads, and what UCX
// alone could do. Skipped if there is no UCX; FLOWTRAIN_TEST_UCX names a copy.

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <list>

#include "transport/conformance.hpp"
#include "transport/deaths.hpp"
#include "transport/raw_ucx.hpp"
#include "transport/refusals.hpp"
#include "transport/sockets/endpoint.hpp"
#include "transport/ucx/endpoint.hpp"
#include "transport/ucx/ucx.hpp"

using namespace flowtrain;
using namespace flowtrain::transport;
using namespace flowtrain::transport::conformance;

namespace {

constexpr int kSkipped = 77;

UcxOptions options() {
  UcxOptions found;
  const char* const path = std::getenv("FLOWTRAIN_TEST_UCX");
  if (path != nullptr) found.search.path = path;
  found.settings["TLS"] = "tcp";
  return found;
}

const ucx::Library& library() { return ucx::open_library(options().search); }

RawUcx& raw() {
  static RawUcx found(library(), RawUcx::kAm);
  return found;
}

Subject subject_with(unsigned flag) {
  return {[](Receiver& receiver) { return open_ucx("127.0.0.1", receiver, options()); },
          [flag](const std::string& address) {
            return std::make_unique<RawUcxPeer>(raw(), address, flag);
          }};
}

const Subject kEager = subject_with(ucx::RequestParam::kEager);
const Subject kAnnounced = subject_with(ucx::RequestParam::kRndv);

/// What somebody else has sent does not keep others from their session.
void another_session_works_beside(Attacked& attacked) {
  const auto peer = kEager.connect_raw(attacked.host.transport->address());
  peer->send(attacked.hello(), {});
  peer->send(attacked.place(), pattern(3, kGranted));
  run({&attacked.host}, [&] { return attacked.host.placed.size() == 1; });
}

/// Functions of one-sided transfers, which the transport does not use.
struct Puts {
  explicit Puts(const ucx::Library& library) {
    void* const handle = ::dlopen(library.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    CHECK(handle != nullptr);
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      CHECK(function != nullptr);
    };
    find(rkey_pack, "ucp_rkey_pack");
    find(rkey_unpack, "ucp_ep_rkey_unpack");
    find(rkey_destroy, "ucp_rkey_destroy");
    find(put, "ucp_put_nbx");
  }
  ucx::Status (*rkey_pack)(ucx::Context*, ucx::Mem*, void**, std::size_t*);
  ucx::Status (*rkey_unpack)(ucx::Ep*, const void*, void**);
  void (*rkey_destroy)(void*);
  ucx::StatusPtr (*put)(ucx::Ep*, const void*, std::size_t, std::uint64_t, void*,
                        const ucx::RequestParam*);
};

/// Keys of UCX over TCP hold nothing that the owner's UCX would check, so a peer can make them.
void a_put_writes_nothing() {
  const Puts puts(library());
  RawUcx peer(library(), RawUcx::kAm | RawUcx::kRma);
  Attacked attacked(kEager);
  const Bytes payload(kGranted);
  ucx::Mem* memory = nullptr;
  const ucx::MemMapParams params{ucx::MemMapParams::kAddress | ucx::MemMapParams::kLength,
                                 const_cast<std::byte*>(payload.data()),
                                 payload.size(),
                                 0,
                                 0,
                                 ucx::kHostMemory};
  CHECK(peer.calls().mem_map(peer.context, &params, &memory) == ucx::kOk);
  void* packed = nullptr;
  std::size_t bytes = 0;
  CHECK(puts.rkey_pack(peer.context, memory, &packed, &bytes) == ucx::kOk);
  {
    RawUcxPeer putting(peer, attacked.host.transport->address(), ucx::RequestParam::kEager);
    putting.send(attacked.hello(), {});
    settle({&attacked.host});
    void* key = nullptr;
    peer.locked([&] { CHECK(puts.rkey_unpack(putting.ep(), packed, &key) == ucx::kOk); });
    const auto to = reinterpret_cast<std::uint64_t>(attacked.host.memory.data() + kGranted);
    const ucx::RequestParam none{};
    for (const std::size_t size : {std::size_t{8}, payload.size()}) {
      peer.locked([&] { puts.put(putting.ep(), payload.data(), size, to, key, &none); });
    }
    settle({&attacked.host});
    settle({&attacked.host});
    peer.locked([&] { puts.rkey_destroy(key); });
  }
  CHECK(attacked.host.is_untouched() && attacked.host.placed.empty());
  ::free(packed);
  CHECK(peer.calls().mem_unmap(peer.context, memory) == ucx::kOk);
}

/// Frames of another size, with a payload where there is none, and without an endpoint to answer
/// to.
void malformed_messages_are_refused() {
  const Bytes payload(100);
  for (const std::size_t size : {0, 127, 129}) {
    Attacked attacked(kEager);
    attacked.raw->send(attacked.hello(), {});
    static_cast<RawUcxPeer*>(attacked.raw.get())
        ->put(Bytes(size), payload, ucx::RequestParam::kReply);
    attacked.check_refused(Reason::kNotAFrame);
  }
  Attacked attacked(kEager);
  Frame message = attacked.hello();
  message.kind = FrameKind::kMessage;
  attacked.raw->send(attacked.hello(), {});
  attacked.raw->send(message, payload);
  attacked.check_refused(Reason::kNotAFrame);

  Attacked unnamed(kEager);
  const Frame hello = unnamed.hello();
  Bytes header(sizeof(hello));
  std::memcpy(header.data(), &hello, sizeof(hello));
  static_cast<RawUcxPeer*>(unnamed.raw.get())->put(header, {}, 0);
  settle({&unnamed.host});
  CHECK(unnamed.host.refused.empty());
  another_session_works_beside(unnamed);
}

/// A region is registered once, and what is moved to and from it not again.
void regions_are_registered_once() {
  Pair pair(kEager, 1 << 20);
  pair.a.memory = pattern(1, pair.a.memory.size());
  for (int i = 0; i < 100; ++i) {
    CHECK(pair.link->place(pair.b.grant(7, 0, 1 << 16), {}, pair.a.memory.data(), 1 << 16));
  }
  run({&pair.a, &pair.b}, [&] { return pair.link->pending() == 0; });
  CHECK(pair.a.transport->registrations() == 1 && pair.b.transport->registrations() == 1);
}

/// A peer that is told why it was refused and goes on is hung up on.
void a_refused_peer_that_lingers_is_closed() {
  Attacked attacked(kEager);
  attacked.raw->send(attacked.hello(), {});
  Frame frame = attacked.place();
  frame.slot += 1;
  attacked.raw->send(frame, {});
  for (const Deadline deadline = Deadline::in(30);
       !static_cast<RawUcxPeer*>(attacked.raw.get())->is_closed();) {
    CHECK(!deadline.passed());
    attacked.host.transport->wait(Deadline::in(0.1));
  }
}

/// An owner acknowledges what waits for its welcome, and so was not sent to it.
void an_acknowledgement_without_a_welcome_ends_the_link() {
  Host host(kEager);
  RawUcx owner(library(), RawUcx::kAm);
  const auto acknowledge = [](void* calls, const void*, std::size_t, void*, std::size_t,
                              const ucx::AmRecvParam* hello) -> ucx::Status {
    static const Frame answer = [] {
      Frame frame;
      frame.kind = FrameKind::kAck;
      frame.number = 1;
      return frame;
    }();
    ucx::RequestParam param{};
    param.op_attr_mask = ucx::RequestParam::kFlags;
    param.flags = ucx::RequestParam::kReply;
    static_cast<const ucx::Calls*>(calls)->am_send_nbx(hello->reply_ep, ucx::Endpoint::kMessageId,
                                                       &answer, sizeof(answer), nullptr, 0, &param);
    return ucx::kOk;
  };
  ucx::Worker worker(library(), owner.context, acknowledge, const_cast<ucx::Calls*>(&owner.calls()),
                     "raw owner");
  const auto link =
      host.transport->connect(ucx::peer_text("127.0.0.1", worker.address()), session_of(7));
  const Bytes payload = pattern(1, 100);
  CHECK(link->place({7, 0, 1, 0, 0, 100}, {}, payload.data(), payload.size()));
  run({&host}, [&] {
    worker.progress();
    return !link->error().empty() || !host.acknowledged.empty();
  });
  CHECK(host.acknowledged.empty());
}

/// Its process is there, or another one at its old port, and says nothing.
void a_peer_that_does_not_welcome_is_an_error_of_the_link() {
  Host host(kEager);
  host.transport->limit_connect(500'000'000);
  RawUcx owner(library(), RawUcx::kAm);
  const auto ignore = [](void*, const void*, std::size_t, void*, std::size_t,
                         const ucx::AmRecvParam*) -> ucx::Status { return ucx::kOk; };
  ucx::Worker worker(library(), owner.context, ignore, nullptr, "raw owner");
  const auto link =
      host.transport->connect(ucx::peer_text("127.0.0.1", worker.address()), session_of(7));
  const Deadline deadline = Deadline::in(30);
  while (link->error().empty() && !deadline.passed()) {
    worker.progress();
    host.transport->wait(Deadline::in(0.01));
  }
  CHECK(link->error().find("within 0.5 s") != std::string::npos);
}

/// Addresses that this process listens on.
std::vector<std::string> listening() {
  std::vector<std::string> found;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) {
      const std::string address = local_address(fd);
      if (address.find(':') != std::string::npos) found.push_back(address);
    }
  }
  return found;
}

/// A socket that listens where another did, and has no room for connections. The kernel drops what
/// asks for one, as a firewall may.
class Full {
 public:
  explicit Full(const std::string& address)
      : listening_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
    const sockaddr_in at{AF_INET, ::htons(port), {::htonl(INADDR_LOOPBACK)}, {}};
    const int reuse = 1;
    CHECK(::setsockopt(listening_.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) == 0);
    CHECK(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0);
    CHECK(::listen(listening_.get(), 0) == 0);
    for (int i = 0; i < 4; ++i) waiting_.push_back(connect_to("127.0.0.1:" + std::to_string(port)));
  }

 private:
  os::Fd listening_;
  std::vector<os::Fd> waiting_;
};

void a_connection_that_nobody_answers_does_not_block() {
  std::string peer;
  std::vector<std::string> addresses;
  {
    const auto before = listening();
    RawUcx owner(library(), RawUcx::kAm);
    const auto ignore = [](void*, const void*, std::size_t, void*, std::size_t,
                           const ucx::AmRecvParam*) -> ucx::Status { return ucx::kOk; };
    const ucx::Worker worker(library(), owner.context, ignore, nullptr, "raw owner");
    peer = ucx::peer_text("127.0.0.1", worker.address());
    addresses = listening();
    std::erase_if(addresses, [&](const auto& each) { return std::ranges::count(before, each); });
  }
  CHECK(!addresses.empty());
  std::list<Full> full;
  for (const std::string& address : addresses) full.emplace_back(address);
  Host host(kEager);
  host.transport->limit_connect(500'000'000);
  const auto link = host.transport->connect(peer, session_of(7));
  const Deadline deadline = Deadline::in(30);
  while (link->error().empty() && !deadline.passed()) host.transport->wait(Deadline::in(0.01));
  CHECK(link->error().find("within 0.5 s") != std::string::npos);
}

/// The ports of UCX are open to anything that speaks TCP.
void bytes_that_are_not_of_ucx_do_no_harm() {
  Attacked attacked(kEager);
  const auto addresses = listening();
  CHECK(!addresses.empty());
  for (const std::string& address : addresses) {
    for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"),
                                    std::string(5000, '\xff'), std::string(5000, '\0')}) {
      const os::Fd socket = connect_to(address);
      settle({&attacked.host});
      static_cast<void>(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL));
      settle({&attacked.host});
    }
  }
  CHECK(attacked.host.refused.empty() && attacked.host.is_untouched());
  another_session_works_beside(attacked);
}

/// A forked child keeps the descriptors of its parent, and with them what UCX has signaled.
void a_link_that_a_child_inherited_has_no_events_after_its_end() {
  Pair pair(kEager);
  os::Child<std::function<void()>> child([] { ::pause(); });
  settle({&pair.b});
  pair.link->abort();
  settle({&pair.a});
  pollfd ready{pair.a.transport->progress_fd(), POLLIN, 0};
  CHECK(pair.a.transport->arm() && ::poll(&ready, 1, 50) == 0);
}

void what_cannot_be_opened_says_why() {
  Host host(kEager);
  UcxOptions wrong = options();
  wrong.settings["TLS"] = "pigeons";
  CHECK_THROWS(open_ucx("127.0.0.1", host, wrong), UcxError);
  wrong.search.path = "/nowhere/libucp.so.0";
  CHECK_THROWS(open_ucx("127.0.0.1", host, wrong), UcxError);
  CHECK_THROWS(open_ucx("nowhere", host, options()), BadArgument);
  UcxOptions loopback = options();
  loopback.gpu_direct = true;
  CHECK_THROWS(open_ucx("127.0.0.1", host, loopback), UcxError);
}

}  // namespace

int main(int count, char** arguments) {
  ::setenv("UCX_LOG_LEVEL", "fatal", 1);  // It tells of each thing that it refuses.
  try {
    library();
  } catch (const UcxError& error) {
    std::fprintf(stderr, "skipped: %s\n", error.what());
    return kSkipped;
  }
  if (count > 1) return receive(kEager, arguments[1]);
  check(kEager);
  check_refusals(kEager);
  check_refusals(kAnnounced);
  check_deaths(kEager);
  a_put_writes_nothing();
  malformed_messages_are_refused();
  regions_are_registered_once();
  a_refused_peer_that_lingers_is_closed();
  a_link_that_a_child_inherited_has_no_events_after_its_end();
  an_acknowledgement_without_a_welcome_ends_the_link();
  a_peer_that_does_not_welcome_is_an_error_of_the_link();
  a_connection_that_nobody_answers_does_not_block();
  // A UCX that is built with assertions, such as Debian's, ends the process instead.
  if (std::getenv("FLOWTRAIN_TEST_UCX") != nullptr) bytes_that_are_not_of_ucx_do_no_harm();
  what_cannot_be_opened_says_why();
}
