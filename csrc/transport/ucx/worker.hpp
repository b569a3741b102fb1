#pragma once

#include <string>

#include "transport/ucx/library.hpp"

namespace flowtrain::transport::ucx {

/// A worker of UCX, which moves the data of its endpoints.
class Worker {
 public:
  using Handler = decltype(AmHandlerParam::cb);
  /// @param handler  Gets the messages of all endpoints, within `progress`.
  /// @param what     Whose it is, for errors.
  Worker(const Library& library, Context* context, Handler handler, void* arg,
         const std::string& what);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  WorkerHandle* get() const { return worker_; }
  /// Lets events come in an epoll set, which outlives it.
  void watch_in(int epoll, const std::string& what);
  /// For the endpoints of others.
  const std::string& address() const { return address_; }
  /// Lets UCX work. False if there was nothing to do.
  bool progress() { return calls_.worker_progress(worker_) != 0; }
  /// Prepares a wait for events. False if there is something to do at once.
  bool arm() { return calls_.worker_arm(worker_) != kErrBusy; }

 private:
  void start(const Library& library, Handler handler, void* arg, const std::string& what);

  const Calls& calls_;
  WorkerHandle* worker_ = nullptr;
  int event_fd_ = -1;  // UCX closes it.
  int epoll_ = -1;
  std::string address_;
};

/// Text for the address of a worker: "10.0.0.1#0a1b...", with the host for people.
std::string peer_text(const std::string& host, const std::string& worker);

struct PeerAddress {
  std::string host;
  std::string worker;
};
/// The reverse of `peer_text`.
///
/// Errors: BadArgument for another text.
PeerAddress parse_peer(const std::string& text);

}  // namespace flowtrain::transport::ucx
