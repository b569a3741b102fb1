#pragma once

#include <dlfcn.h>

#include <atomic>
#include <list>
#include <mutex>
#include <thread>

#include "transport/address.hpp"
#include "transport/host.hpp"
#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport::conformance {

class RawUcxPeer;

/// A client of UCX without any of our classes, whose endpoints send what they like. A thread of its
/// own lets it progress.
class RawUcx {
 public:
  static constexpr std::uint64_t kAm = 1 << 6, kRma = 1 << 1;

  RawUcx(const ucx::Library& library, std::uint64_t features) : calls_(library.calls) {
    ucx::Config* config = nullptr;
    CHECK(calls_.config_read(nullptr, nullptr, &config) == ucx::kOk);
    CHECK(calls_.config_modify(config, "TLS", "tcp") == ucx::kOk);
    CHECK(calls_.config_modify(config, "NET_DEVICES", "lo") == ucx::kOk);
    const ucx::Params params{ucx::Params::kFeatures, features};
    CHECK(calls_.init_version(1, 13, &params, config, &context) == ucx::kOk);
    calls_.config_release(config);
    const ucx::WorkerParams of_worker{ucx::WorkerParams::kThreadMode, 1};  // Serialized.
    CHECK(calls_.worker_create(context, &of_worker, &worker_) == ucx::kOk);
    ucx::AmHandlerParam handler{};
    handler.field_mask = ucx::AmHandlerParam::kId | ucx::AmHandlerParam::kCallback;
    handler.id = ucx::Endpoint::kMessageId;
    handler.cb = [](void*, const void*, std::size_t, void*, std::size_t, const ucx::AmRecvParam*) {
      return ucx::Status{ucx::kOk};  // Answers of the owner.
    };
    CHECK(calls_.worker_set_am_recv_handler(worker_, &handler) == ucx::kOk);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        locked([this] {
          calls_.worker_progress(worker_);
          for (RawUcxPeer* const peer : peers) send_next(*peer);
        });
        ::usleep(20);
      }
    });
  }
  ~RawUcx() {
    thread_.request_stop();
    thread_.join();
    calls_.worker_destroy(worker_);
    calls_.cleanup(context);
  }

  template <class Function>
  void locked(Function&& function) {
    const std::lock_guard lock(mutex_);
    function();
  }
  const ucx::Calls& calls() const { return calls_; }
  ucx::Worker* worker() const { return worker_; }

  ucx::Context* context = nullptr;
  std::list<RawUcxPeer*> peers;  // Guarded by the lock.

 private:
  static void send_next(RawUcxPeer& peer);

  const ucx::Calls& calls_;
  ucx::Worker* worker_ = nullptr;
  std::mutex mutex_;
  std::jthread thread_;
};

/// Sends one message after the other, since an older UCX lets them overtake each other.
class RawUcxPeer final : public Raw {
 public:
  /// @param flag  RequestParam::kEager or kRndv, of the payloads.
  RawUcxPeer(RawUcx& raw, const std::string& address, unsigned flag) : raw_(raw), flag_(flag) {
    const Address at = parse_address(address);
    ucx::EpParams params{};
    params.field_mask = ucx::EpParams::kFlags | ucx::EpParams::kSockAddr | ucx::EpParams::kErrMode |
                        ucx::EpParams::kErrHandler;
    params.flags = ucx::EpParams::kClientServer;
    params.sockaddr = {at.get(), at.size};
    params.err_mode = ucx::EpParams::kPeer;
    params.err_handler.arg = &is_closed_;
    params.err_handler.cb = [](void* closed, ucx::Ep*, ucx::Status) {
      *static_cast<std::atomic<bool>*>(closed) = true;
    };
    raw_.locked([&] {
      CHECK(raw_.calls().ep_create(raw_.worker(), &params, &ep_) == ucx::kOk);
      raw_.peers.push_back(this);
    });
  }
  ~RawUcxPeer() override {
    raw_.locked([&] {
      raw_.peers.remove(this);
      ucx::RequestParam param{};
      param.op_attr_mask = ucx::RequestParam::kFlags;
      param.flags = ucx::RequestParam::kForce;
      raw_.calls().ep_close_nbx(ep_, &param);
      while (is_sending_) raw_.calls().worker_progress(raw_.worker());
    });
  }

  void send(const Frame& frame, const Bytes& payload) override {
    Bytes header(sizeof(frame));
    std::memcpy(header.data(), &frame, sizeof(frame));
    put(header, payload, flag_ | ucx::RequestParam::kReply);
  }
  void put(const Bytes& header, const Bytes& payload, unsigned flags) {
    // A frame alone cannot be announced.
    if (payload.empty()) flags &= ~ucx::RequestParam::kRndv;
    raw_.locked([&] { messages_.push_back({header, payload, flags}); });
  }
  bool is_closed() const { return is_closed_; }
  ucx::Ep* ep() const { return ep_; }

 private:
  friend class RawUcx;
  struct Message {
    Bytes header;
    Bytes payload;
    unsigned flags;
  };

  void send_next() {
    if (is_sending_ || messages_.empty()) return;
    sending_ = std::move(messages_.front());
    messages_.pop_front();
    ucx::RequestParam param{};
    param.op_attr_mask =
        ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kFlags;
    param.flags = sending_.flags;
    param.cb.send = [](void* request, ucx::Status, void* peer) {
      auto& self = *static_cast<RawUcxPeer*>(peer);
      self.is_sending_ = false;
      self.raw_.calls().request_free(request);
    };
    param.user_data = this;
    const auto result = reinterpret_cast<std::intptr_t>(raw_.calls().am_send_nbx(
        ep_, ucx::Endpoint::kMessageId, sending_.header.data(), sending_.header.size(),
        sending_.payload.data(), sending_.payload.size(), &param));
    is_sending_ = result > 0;
  }

  RawUcx& raw_;
  unsigned flag_;
  ucx::Ep* ep_ = nullptr;
  std::atomic<bool> is_closed_ = false;
  // Guarded by the lock of raw_.
  std::list<Message> messages_;
  Message sending_;
  bool is_sending_ = false;
};

inline void RawUcx::send_next(RawUcxPeer& peer) { peer.send_next(); }

}  // namespace flowtrain::transport::conformance
