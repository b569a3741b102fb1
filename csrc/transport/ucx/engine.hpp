#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/frame.hpp"
#include "transport/ucx/ucx.hpp"

namespace flowtrain::transport::ucx {

class Endpoint;

/// Something that UCX has told, and that is handled once UCX has returned.
struct Event {
  enum class Kind : std::uint8_t { kFrame, kPlaced, kRefused, kFailed };
  std::shared_ptr<Endpoint> at;
  Kind kind;
  Frame frame{};        ///< Its reason says why a peer is refused.
  Status status = kOk;  ///< Of a failure.
};

/// Context, worker and listener of UCX, and the memory that they know.
///
/// Memory:   of UCX. Regions are the caller's and must outlive it.
/// Threads:  one. UCX has another one, which never calls ours.
/// Progress: callbacks of UCX only validate, copy and queue, since they may not call it back; the
///           queue is emptied outside of it.
/// Ordering: events are in the order in which UCX told them.
/// Errors:   UcxError.
class Engine {
 public:
  Engine(const Library& library, const std::string& host, const UcxOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Library& library() const { return library_; }
  const Calls& calls() const { return library_.calls; }
  Worker* worker() const { return worker_; }
  Listener* listener() const { return listener_; }
  const std::string& address() const { return address_; }
  const std::string& devices() const { return devices_; }
  int event_fd() const { return event_fd_; }

  /// Registers memory.
  void add_region(std::byte* data, std::uint64_t bytes);
  /// Ends the registration of a region, by its first byte.
  void remove_region(const std::byte* data) noexcept;
  std::size_t num_regions() const { return regions_.size(); }
  /// Handle of the region that holds these bytes; null if there is none.
  Mem* handle_of(const std::byte* data, std::uint64_t bytes) const;

  /// Lets UCX work. False if there was nothing to do.
  bool progress() { return calls().worker_progress(worker_) != 0; }
  /// Prepares a wait for event_fd. False if there is something to do at once.
  bool arm() { return calls().worker_arm(worker_) != kErrBusy; }

  std::deque<Event> events;
  std::vector<ConnRequest*> requests;                  ///< Of peers that want to connect.
  std::unordered_map<const Ep*, Endpoint*> endpoints;  ///< Those that are open.

 private:
  struct Region {
    const std::byte* data;
    std::uint64_t bytes;
    Mem* handle;
  };
  void start(const std::string& host, const UcxOptions& options);
  void stop() noexcept;

  const Library& library_;
  Context* context_ = nullptr;
  Worker* worker_ = nullptr;
  Listener* listener_ = nullptr;
  int event_fd_ = -1;  // UCX closes it.
  std::string address_;
  std::string devices_;
  std::vector<Region> regions_;
};

}  // namespace flowtrain::transport::ucx
