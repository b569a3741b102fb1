// Both ends of the descriptor socket, against a peer that sends arbitrary messages.
//
// Input: the end under test, then the messages of the client, or the answer of the server.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>
#include <vector>

#include "fuzz/input.hpp"
#include "os/fd_socket.hpp"
#include "os/mapping.hpp"

using namespace flowtrain;

namespace {

constexpr std::size_t kMaxFds = 4;

std::string path_of(const char* what) {
  return std::filesystem::temp_directory_path() /
         ("flowtrain-fuzz-" + std::string(what) + "-" + std::to_string(::getpid()));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

os::Fd new_socket() { return os::Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

/// One message: some bytes, and control data that is arbitrary except for its descriptors.
void send_message(int to, fuzz::Input& input, int fd) {
  char payload[96] = {};  // An answer has 66 bytes, a request 16.
  iovec part{payload, input.number(1) % sizeof(payload)};
  payload[0] = static_cast<char>(input.number(1));
  payload[1] = static_cast<char>(input.number(1));
  const std::uint64_t fds = input.number(1) % (kMaxFds + 1);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_len = CMSG_LEN(fds * sizeof(int));
  header->cmsg_level = input.number(1) % 4 == 0 ? static_cast<int>(input.number(1)) : SOL_SOCKET;
  header->cmsg_type = input.number(1) % 4 == 0 ? static_cast<int>(input.number(1)) : SCM_RIGHTS;
  for (std::uint64_t i = 0; i < fds; ++i) {
    std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
  }
  if (fds == 0) message.msg_controllen = 0;
  ::sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// Retries on a timeout, which a busy machine may cause. A server that never answers hangs the
/// test.
os::Exported answer(const std::string& path, const os::FdRequest& request) {
  for (;;) {
    if (auto found = os::receive_exported(path, request)) return std::move(*found);
  }
}

/// The server still works, whatever a client sends.
void fuzz_server(fuzz::Input& input) {
  static const os::Fd memory = os::sealed_memfd("fuzz", 4096);
  static const std::string path = path_of("served");
  static const os::FdServer server("fuzz", path, 0, [](std::uint64_t id) {
    return id == 5 ? os::Exported(os::duplicate(memory)) : os::Exported();
  });
  {
    const os::Fd client = new_socket();
    const sockaddr_un address = address_of(path);
    CHECK(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
          0);
    do {
      send_message(client.get(), input, 0);
    } while (!input.empty());
  }
  CHECK(!answer(path, {0, 4}));
  CHECK(!answer(path, {1, 5}));
  CHECK(os::is_sealed(answer(path, {0, 5}).fds[0], 4096));
}

/// Whatever a server answers, the client leaks no descriptor.
void fuzz_client(fuzz::Input& input) {
  static const std::string path = path_of("asked");
  static const os::Fd listener = [] {
    os::Fd socket = new_socket();
    const sockaddr_un address = address_of(path);
    CHECK(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    CHECK(::listen(socket.get(), 4) == 0);
    return socket;
  }();
  std::array<int, 2> pipe;
  CHECK(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  const os::Fd reader(pipe[0]);
  os::Fd writer(pipe[1]);
  std::jthread peer([&] {
    const os::Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    os::FdRequest request{};
    CHECK(::recv(client.get(), &request, sizeof(request), 0) == sizeof(request));
    CHECK(request.nonce == 2 && request.id == 3);
    send_message(client.get(), input, writer.get());
    writer.reset();
  });
  {
    const auto got = os::receive_exported(path, {2, 3});
    peer.join();
    for (std::size_t i = 0; got && i < os::Exported::kMaxFds; ++i) {
      if (got->fds[i]) CHECK(::fcntl(got->fds[i].get(), F_GETFD) == FD_CLOEXEC);
    }
  }
  // End of file: no descriptor for writing is open any more.
  char byte;
  CHECK(::read(reader.get(), &byte, 1) == 0);
}

struct Cleaner {
  ~Cleaner() {
    ::unlink(path_of("served").c_str());
    ::unlink(path_of("asked").c_str());
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Cleaner cleaner;
  fuzz::Input input(data, size);
  if (input.number(1) % 2 == 0) {
    fuzz_server(input);
  } else {
    fuzz_client(input);
  }
  return 0;
}
