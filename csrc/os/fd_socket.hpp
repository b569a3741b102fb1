#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "os/exported.hpp"
#include "os/fd.hpp"

namespace flowtrain::os {

/// Request for exported memory. The nonce names the server: another server may have taken over the
/// path.
struct FdRequest {
  std::uint64_t nonce;
  std::uint64_t id;
};

/// Serves exported memory to other processes of the same user over a Unix socket.
///
/// Memory:   nothing shared. The socket's file is removed at the end, unless another server has
///           taken over the path. In a forked child, to which the thread does not belong, the end
///           of the copy touches neither file nor socket of the parent.
/// Threads:  one thread of its own, which calls `find`.
/// Progress: a client that sends nothing is dropped after a second.
/// Ordering: a request is an FdRequest; the answer has a fixed size and up to two descriptors.
/// Errors:   a peer of another user (SO_PEERCRED) gets no answer; a request with another nonce gets
///           an empty one. If `find` throws, the client gets no answer. The constructor throws,
///           also if the path is a file that is not a socket.
class FdServer {
 public:
  using Find = std::function<Exported(std::uint64_t id)>;

  /// @param what  Names the owner of the memory in errors.
  /// @param find  Exports the memory of an id; empty if there is none. Called from another thread.
  FdServer(const std::string& what, const std::string& path, std::uint64_t nonce, Find find);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

  /// In a forked child: closes the child's descriptor of the socket now, not at the end.
  void abandon() noexcept;

 private:
  /// Identity of a file; of none, zeros.
  struct File {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const File&) const = default;
  };
  static File file_at(const std::string& path) noexcept;
  void remove_file() const noexcept;
  void serve(const std::stop_token& stop);
  void answer(int client);

  std::string path_;
  pid_t pid_;
  std::uint64_t nonce_;
  Find find_;
  Fd socket_;
  File file_;  // The socket's.
  std::jthread thread_;
};

/// An answer that may not have arrived yet.
class PendingAnswer {
 public:
  /// @param what  Names the object in errors.
  PendingAnswer(const std::string& what, const std::string& path, const FdRequest& request);

  /// Whether the answer is still to come.
  bool waiting() const noexcept;
  /// As receive_exported. Call it once, when `waiting` is false.
  std::optional<Exported> answer() const;
  /// Readable once the answer has arrived; -1 if no server took the request.
  int socket() const { return socket_.get(); }

 private:
  Fd socket_;
};

/// Requests memory from the server at `path`. Empty if the server has none; nothing if no server of
/// this user gives a valid answer within a second.
std::optional<Exported> receive_exported(const std::string& path, const FdRequest& request);

}  // namespace flowtrain::os
