#include "os/fd_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "os/thread.hpp"

namespace flowtrain::os {
namespace {

constexpr int kPollMs = 100;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    throw BadArgument("socket path " + path + ": " + std::to_string(path.size()) +
                      " characters, at most " + std::to_string(sizeof(address.sun_path) - 1) +
                      "; choose a shorter path");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

void remove_socket(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
}

/// A socket that listens at `path`, in place of one that another server left, or still has, there.
Fd listen_at(const std::string& what, const std::string& path) {
  const sockaddr_un address = address_of(path);
  const std::string failed = what + ": cannot listen on " + path;
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno(failed);
  remove_socket(path);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(socket.get(), 64) != 0) {
    throw_errno(failed);
  }
  return socket;
}

void limit_waits(int socket) {
  const timeval second{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

/// Fixed part of an answer; the descriptors come beside it.
struct Answer {
  std::uint8_t num_fds;
  std::uint8_t has_handle;
  Exported::Handle handle;
};
static_assert(sizeof(Answer) == 66);

/// A message of an Answer with room for its descriptors.
struct Message {
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  Answer answer{};
  iovec part{&answer, sizeof(answer)};
  alignas(cmsghdr) char control[CMSG_SPACE(Exported::kMaxFds * sizeof(int))] = {};
  msghdr header{};
};

/// Every descriptor of a message: a descriptor that is not taken would stay open.
std::vector<Fd> take_fds(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

/// Socket for the answer of a server of this user; empty if there is none.
Fd ask(const std::string& what, const std::string& path, const FdRequest& request, int flags) {
  const sockaddr_un address = address_of(path);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket) throw_errno(what + ": cannot make a socket to ask on " + path);
  limit_waits(socket.get());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      !same_user(socket.get()) ||
      ::send(socket.get(), &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request)) {
    return {};
  }
  return socket;
}

std::optional<Exported> answer_on(const Fd& socket) {
  if (!socket) return std::nullopt;
  Message in;
  const ssize_t length = ::recvmsg(socket.get(), &in.header, MSG_CMSG_CLOEXEC);
  if (length < 0) return std::nullopt;
  std::vector<Fd> fds = take_fds(in.header);
  if (length != sizeof(Answer) || (in.header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      fds.size() > Exported::kMaxFds || fds.size() != in.answer.num_fds ||
      in.answer.has_handle > 1) {
    return std::nullopt;
  }
  Exported out;
  std::move(fds.begin(), fds.end(), out.fds.begin());
  if (in.answer.has_handle != 0) out.handle = in.answer.handle;
  return out;
}

}  // namespace

FdServer::FdServer(const std::string& what, const std::string& path, std::uint64_t nonce, Find find)
    : path_(path),
      pid_(::getpid()),
      nonce_(nonce),
      find_(std::move(find)),
      socket_(listen_at(what, path)),
      file_(file_at(path)) {
  try {
    thread_ = start_thread(what, "hands out memory",
                           [this](const std::stop_token& stop) { serve(stop); });
  } catch (...) {
    remove_file();
    throw;
  }
}

FdServer::File FdServer::file_at(const std::string& path) noexcept {
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0 ? File{info.st_dev, info.st_ino} : File{};
}

void FdServer::remove_file() const noexcept {
  // No other file has this inode number while the socket is open.
  if (file_at(path_) == file_) ::unlink(path_.c_str());
}

FdServer::~FdServer() {
  if (::getpid() != pid_) abandon();
  if (!thread_.joinable()) return;
  thread_.request_stop();
  ::shutdown(socket_.get(), SHUT_RDWR);  // Wakes the thread from its poll.
  thread_.join();
  remove_file();
}

void FdServer::abandon() noexcept {
  if (thread_.joinable()) thread_.detach();
  socket_.reset();
}

void FdServer::serve(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kPollMs) <= 0) continue;
    const Fd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) {
      // After any other error, such as a lack of descriptors, or the shutdown of the socket by a
      // process that inherited it, poll would return at once: a busy loop.
      const bool gone = errno == ECONNABORTED || errno == EINTR || stop.stop_requested();
      if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(kPollMs));
      continue;
    }
    if (!same_user(client.get())) continue;
    try {
      answer(client.get());
    } catch (const Error&) {
      // For example out of descriptors. The connection closes, and the client asks again.
    }
  }
}

void FdServer::answer(int client) {
  limit_waits(client);
  FdRequest request{};
  // MSG_TRUNC: returns the length of the message even if it exceeds the buffer.
  if (::recv(client, &request, sizeof(request), MSG_TRUNC) != sizeof(request)) return;
  const Exported found = request.nonce == nonce_ ? find_(request.id) : Exported();
  Message out;
  std::array<int, Exported::kMaxFds> fds{};
  for (const Fd& fd : found.fds) {
    if (fd) fds[out.answer.num_fds++] = fd.get();
  }
  out.answer.has_handle = found.handle ? 1 : 0;
  out.answer.handle = found.handle.value_or(Exported::Handle{});
  const std::size_t bytes = out.answer.num_fds * sizeof(int);
  out.header.msg_controllen = bytes > 0 ? CMSG_SPACE(bytes) : 0;
  if (cmsghdr* header = CMSG_FIRSTHDR(&out.header)) {
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), fds.data(), bytes);
  }
  ::sendmsg(client, &out.header, MSG_NOSIGNAL);
}

PendingAnswer::PendingAnswer(const std::string& what, const std::string& path,
                             const FdRequest& request)
    : socket_(ask(what, path, request, SOCK_NONBLOCK)) {}

bool PendingAnswer::waiting() const noexcept {
  pollfd waiting{socket_.get(), POLLIN, 0};
  return socket_ && ::poll(&waiting, 1, 0) == 0;
}

std::optional<Exported> PendingAnswer::answer() const { return answer_on(socket_); }

std::optional<Exported> receive_exported(const std::string& path, const FdRequest& request) {
  const Fd socket = ask(path, path, request, 0);
  const Deadline deadline = Deadline::in(1.0);
  pollfd waiting{socket.get(), POLLIN, 0};
  // Polls, since a signal would end a blocking receive without an answer.
  while (socket && ::poll(&waiting, 1, kPollMs) <= 0) {
    if (deadline.passed()) return std::nullopt;
  }
  return answer_on(socket);
}

}  // namespace flowtrain::os
