#pragma once

#include <dlfcn.h>

#include <atomic>
#include <list>
#include <mutex>
#include <thread>

#include "transport/host.hpp"
#include "transport/ucx/endpoint.hpp"
#include "transport/ucx/worker.hpp"

namespace flowtrain::transport::conformance {

class RawUcxPeer;

/// A context of UCX whose endpoints send what they like. A thread of its own lets them progress.
class RawUcx {
 public:
  static constexpr std::uint64_t kAm = 1 << 6, kRma = 1 << 1;

  RawUcx(const ucx::Library& opened, std::uint64_t features)
      : library(opened), calls_(opened.calls) {
    ucx::Config* config = nullptr;
    CHECK(calls_.config_read(nullptr, nullptr, &config) == ucx::kOk);
    CHECK(calls_.config_modify(config, "TLS", "tcp") == ucx::kOk);
    CHECK(calls_.config_modify(config, "NET_DEVICES", "lo") == ucx::kOk);
    // So that it soon asks whether the owner still has its endpoint.
    CHECK(calls_.config_modify(config, "KEEPALIVE_INTERVAL", "200ms") == ucx::kOk);
    const ucx::Params params{ucx::Params::kFeatures, features | ucx::Params::kWakeup};
    CHECK(calls_.init_version(ucx::kMajor, ucx::kMinor, &params, config, &context) == ucx::kOk);
    calls_.config_release(config);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        locked([this] {
          for (RawUcxPeer* const peer : peers) progress(*peer);
        });
        ::usleep(20);
      }
    });
  }
  ~RawUcx() {
    thread_.request_stop();
    thread_.join();
    calls_.cleanup(context);
  }

  template <class Function>
  void locked(Function&& function) {
    const std::lock_guard lock(mutex_);
    function();
  }
  const ucx::Calls& calls() const { return calls_; }

  const ucx::Library& library;
  ucx::Context* context = nullptr;
  std::list<RawUcxPeer*> peers;  // Guarded by the lock.

 private:
  static void progress(RawUcxPeer& peer);

  const ucx::Calls& calls_;
  std::mutex mutex_;
  std::jthread thread_;
};

/// Sends one message after the other, since an older UCX lets them overtake each other, and nothing
/// before the answer to a hello.
class RawUcxPeer final : public Raw {
 public:
  /// @param flag  RequestParam::kEager or kRndv, of the payloads.
  RawUcxPeer(RawUcx& raw, const std::string& address, unsigned flag)
      : raw_(raw),
        flag_(flag),
        worker_(raw.library, raw.context, &RawUcxPeer::on_message, this, "raw peer") {
    const std::string at = ucx::parse_peer(address).worker;
    ucx::EpParams params{};
    params.field_mask =
        ucx::EpParams::kAddress | ucx::EpParams::kErrMode | ucx::EpParams::kErrHandler;
    params.address = at.data();
    params.err_mode = ucx::EpParams::kPeer;
    params.err_handler.arg = &is_closed_;
    params.err_handler.cb = [](void* closed, ucx::Ep*, ucx::Status) {
      *static_cast<std::atomic<bool>*>(closed) = true;
    };
    raw_.locked([&] {
      CHECK(raw_.calls().ep_create(worker_.get(), &params, &ep_) == ucx::kOk);
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
      while (is_sending_) worker_.progress();
    });
  }

  void send(const Frame& frame, const Bytes& payload) override {
    Bytes header(sizeof(frame));
    std::memcpy(header.data(), &frame, sizeof(frame));
    const bool is_hello = frame.kind == FrameKind::kHello && payload.empty();
    const std::string own = ucx::peer_text("raw", worker_.address());
    const auto* const from = reinterpret_cast<const std::byte*>(own.data());
    put(header, is_hello ? Bytes(from, from + own.size()) : payload,
        (is_hello ? ucx::RequestParam::kEager : flag_) | ucx::RequestParam::kReply, is_hello);
  }
  void put(const Bytes& header, const Bytes& payload, unsigned flags, bool awaits = false) {
    // A frame alone cannot be announced.
    if (payload.empty()) flags &= ~ucx::RequestParam::kRndv;
    raw_.locked([&] { messages_.push_back({header, payload, flags, awaits}); });
  }
  bool is_closed() const { return is_closed_; }
  ucx::Ep* ep() const { return ep_; }

 private:
  friend class RawUcx;
  struct Message {
    Bytes header;
    Bytes payload;
    unsigned flags;
    bool awaits;
  };

  static ucx::Status on_message(void* self, const void*, std::size_t, void*, std::size_t,
                                const ucx::AmRecvParam*) {
    static_cast<RawUcxPeer*>(self)->sending_.awaits = false;
    return ucx::kOk;
  }

  void progress() {
    worker_.progress();
    if (is_sending_ || sending_.awaits || messages_.empty()) return;
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
  ucx::Worker worker_;
  ucx::Ep* ep_ = nullptr;
  std::atomic<bool> is_closed_ = false;
  // Guarded by the lock of raw_.
  std::list<Message> messages_;
  Message sending_{};
  bool is_sending_ = false;
};

inline void RawUcx::progress(RawUcxPeer& peer) { peer.progress(); }

}  // namespace flowtrain::transport::conformance
