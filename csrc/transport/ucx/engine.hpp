#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/frame.hpp"
#include "transport/ucx/door.hpp"
#include "transport/ucx/ucx.hpp"
#include "transport/ucx/worker.hpp"

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

/// Context of UCX with the memory that it knows, and the worker that peers connect to.
///
/// Memory:   of UCX. Regions are the caller's and must outlive it.
/// Threads:  one. UCX has another one, which never calls ours.
/// Progress: callbacks of UCX only validate, copy and queue, since they may not call it back; the
///           queue is emptied outside of it.
/// Ordering: events are in the order in which UCX told them.
/// Errors:   UcxError.
class Engine {
 public:
  Engine(const Library& library, const std::string& host, const UcxOptions& options,
         GrantTable& grants);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Library& library() const { return library_; }
  const Calls& calls() const { return library_.calls; }
  const std::string& host() const { return host_; }
  const std::string& devices() const { return devices_; }
  Door& door() { return door_; }
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  /// A worker for one endpoint to a peer. UCX counts the connections between two workers, and pairs
  /// those of equal number. So a worker that has had an endpoint before could meet another one.
  std::shared_ptr<Worker> make_worker();

  /// Whether the network card reads memory of CUDA devices.
  bool reads_devices() const { return reads_devices_; }
  /// Registers memory.
  void add_region(std::byte* data, std::uint64_t bytes, int memory_type = kHostMemory);
  /// Ends the registration of a region, by its first byte.
  void remove_region(const std::byte* data) noexcept;
  std::size_t num_regions() const { return regions_.size(); }
  /// Handle of the region that holds these bytes; null if there is none.
  Mem* handle_of(const std::byte* data, std::uint64_t bytes) const;

  std::deque<Event> events;
  std::unordered_map<const Ep*, Endpoint*> endpoints;  ///< Those that are open.

 private:
  struct Region {
    const std::byte* data;
    std::uint64_t bytes;
    Mem* handle;
  };
  void start(const UcxOptions& options);
  void check_gpu_direct() const;
  void stop() noexcept;
  template <bool kIsOpen>
  static Status on_message(void* engine, const void* header, std::size_t header_bytes, void* data,
                           std::size_t bytes, const AmRecvParam* param);

  const Library& library_;
  std::string host_;
  std::string devices_;
  Door door_;
  Context* context_ = nullptr;
  std::shared_ptr<Worker> worker_;
  std::vector<Region> regions_;
  bool reads_devices_;
};

}  // namespace flowtrain::transport::ucx
