#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "os/fd.hpp"

namespace flowtrain::os {

/// What a client asks for. The nonce is of the server that is meant: a path may have passed to
/// another one.
struct FdRequest {
  std::uint64_t nonce;
  std::uint64_t id;
};

/// Serves file descriptors to other processes of the same user over a Unix socket.
///
/// Memory:   nothing shared.
/// Threads:  one thread of its own, which calls `find`.
/// Progress: a client that says nothing is dropped after a second.
/// Ordering: a request is an FdRequest, the answer one byte and perhaps a descriptor.
/// Errors:   a peer of another user (SO_PEERCRED) gets nothing, nor does a request with another
///           nonce; where `find` throws, the client is left without an answer. The constructor
///           throws.
class FdServer {
 public:
  using Find = std::function<Fd(std::uint64_t id)>;

  /// @param find  A descriptor of its own for what is asked, or an empty one; must be safe to call
  ///              from another thread.
  FdServer(const std::string& path, std::uint64_t nonce, Find find);
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
  std::uint64_t nonce_;
  Find find_;
  Fd socket_;
  std::jthread thread_;
};

/// A descriptor that was asked for and may not have come yet.
class PendingFd {
 public:
  PendingFd(const std::string& path, const FdRequest& request);

  /// Whether there is nothing to be had yet.
  bool waiting() const noexcept;
  /// As receive_fd; to be asked for once, when the wait is over.
  std::optional<Fd> answer() const;
  /// Readable once the wait is over; -1 if no server took the request.
  int socket() const { return socket_.get(); }

 private:
  Fd socket_;
};

/// Asks the server at `path` for a descriptor: an empty Fd if it has none, nothing if no server of
/// this user answers as one does within a second.
std::optional<Fd> receive_fd(const std::string& path, const FdRequest& request);

}  // namespace flowtrain::os
