#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/ucx/engine.hpp"
#include "transport/ucx/worker.hpp"

namespace flowtrain::transport::ucx {

/// One end of a connection of UCX.
///
/// Memory:   an operation for each send and receive that UCX works on. Each refers to this object,
///           so `close` waits for them.
/// Threads:  that of the engine.
/// Progress: `close` waits for work of this process alone, never for the peer.
/// Ordering: frames without a payload arrive in order. Others may overtake each other.
/// Errors:   told by an event.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  static constexpr unsigned kMessageId = 1;

  virtual ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Within UCX: a frame, with its payload or (if `announced`) a descriptor of it.
  virtual Status on_message(const void* header, std::size_t header_bytes, void* data,
                            std::size_t bytes, bool announced) noexcept = 0;
  /// Outside of UCX.
  virtual void handle(const Event& event) = 0;

  bool is_open() const { return ep_ != nullptr; }
  /// Ends the connection, without a word to the peer. Afterwards UCX neither reads nor writes
  /// memory for it. Not to be called within UCX.
  void close() noexcept;

 protected:
  struct Operation {
    Endpoint* of;
    Frame frame;  // Read by UCX until the operation ends.
    bool is_receive;
  };

  /// @param worker  Ends with the endpoint, unless others have it, too.
  Endpoint(Engine& engine, std::shared_ptr<Worker> worker)
      : engine_(engine), worker_(std::move(worker)) {}

  /// Connects it to a worker. If that worker has connected to this one before, UCX takes the
  /// endpoint that it has made for its answers.
  void open(const std::string& address, const std::string& what);
  const Ep* ep() const { return ep_; }
  void send(const Frame& frame, const std::byte* data, std::uint64_t bytes);
  /// Lets UCX move an announced payload into memory.
  void receive(const Frame& frame, void* descriptor, std::byte* to, Mem* handle);
  void tell(Event::Kind kind, const Frame& frame, Status status = kOk) noexcept;

  /// Payloads that UCX may still write.
  std::size_t num_receives() const { return num_receives_; }
  /// UCX does not read the payload of this frame any more. Within UCX, or within `send`.
  virtual void sent(const Frame&) {}
  /// The payload of this frame lies in place. Within UCX.
  virtual void received(const Frame&) {}

  Engine& engine_;
  std::shared_ptr<Worker> worker_;  // While it is open.

 private:
  Operation& begin(const Frame& frame, bool is_receive);
  void end(Operation& operation, Status status) noexcept;
  /// Ends an operation that is over already, or has failed to start.
  void end_at_once(Operation& operation, StatusPtr result);

  Ep* ep_ = nullptr;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> idle_;
  std::size_t num_receives_ = 0;
};

}  // namespace flowtrain::transport::ucx
