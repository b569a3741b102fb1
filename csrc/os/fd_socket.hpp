#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "os/fd.hpp"

namespace flowtrain::os {

/// Serves file descriptors to other processes of the same user over a Unix socket.
///
/// Memory:   nothing shared.
/// Threads:  one thread of its own, which calls `find`.
/// Progress: a client that says nothing is dropped after a second.
/// Ordering: a request is a 32-bit number, the answer one byte and perhaps a descriptor.
/// Errors:   a peer of another user (SO_PEERCRED) gets nothing; the constructor throws.
class FdServer {
 public:
  /// @param find  Descriptor of a number, or -1; must be safe to call from another thread.
  FdServer(const std::string& path, std::function<int(std::uint32_t)> find);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

  /// In a forked child, where the thread does not exist: forget it instead of joining it, and
  /// leave the socket to the parent.
  void abandon() noexcept;

 private:
  void serve(const std::stop_token& stop);
  void answer(int client);

  std::string path_;
  std::function<int(std::uint32_t)> find_;
  Fd socket_;
  std::jthread thread_;
};

/// The same question as receive_fd's, put without waiting for the answer.
class FdRequest {
 public:
  FdRequest(const std::string& path, std::uint32_t number);

  /// Whether there is nothing to be had yet.
  bool waiting() const noexcept;
  /// As receive_fd; to be asked for once, when the wait is over.
  std::optional<Fd> answer() const;
  /// Readable once the wait is over; -1 if no server took the question.
  int socket() const { return socket_.get(); }

 private:
  Fd socket_;
};

/// Asks the server at `path` for descriptor `number`: an empty Fd if it has none, nothing if no
/// server of this user answers as one does within a second.
std::optional<Fd> receive_fd(const std::string& path, std::uint32_t number);

}  // namespace flowtrain::os
