#include "transport/ucx/endpoint.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/deadline.hpp"

namespace flowtrain::transport::ucx {
namespace {

/// Larger payloads are announced. For others UCX decides, and may buffer them before they are
/// checked.
constexpr std::uint64_t kUnannouncedBytes = 128 << 10;

/// UCS_PTR_RAW_STATUS.
Status status_of(StatusPtr result) {
  return static_cast<Status>(reinterpret_cast<std::intptr_t>(result));
}

}  // namespace

Endpoint::~Endpoint() { close(); }

void Endpoint::open(const std::string& address, const std::string& what) {
  EpParams params{};
  params.field_mask = EpParams::kAddress | EpParams::kErrMode | EpParams::kErrHandler;
  params.address = address.data();
  params.err_mode = EpParams::kPeer;
  // Found by its handle: an error may still be told after the end of this object.
  params.err_handler.cb = [](void* arg, Ep* ep, Status status) {
    const auto& endpoints = static_cast<Engine*>(arg)->endpoints;
    const auto found = endpoints.find(ep);
    if (found != endpoints.end()) found->second->tell(Event::Kind::kFailed, {}, status);
  };
  params.err_handler.arg = &engine_;
  check(engine_.library(), engine_.calls().ep_create(worker_->get(), &params, &ep_),
        "ucp_ep_create", what);
  engine_.endpoints.emplace(ep_, this);
}

void Endpoint::close() noexcept {
  Ep* const ep = std::exchange(ep_, nullptr);
  if (ep == nullptr) return;
  engine_.endpoints.erase(ep);
  RequestParam param{};
  param.op_attr_mask = RequestParam::kFlags;
  param.flags = RequestParam::kForce;
  const StatusPtr result = engine_.calls().ep_close_nbx(ep, &param);
  if (is_request(result)) engine_.calls().request_free(result);
  // UCX closes its sockets and queue pairs in its next calls.
  for (int i = 0; i < 64 && worker_->progress(); ++i) {
  }
  // It cancels what the endpoint has under way, which takes no answer of the peer. To return before
  // would let it write into memory that is granted to others.
  const Deadline deadline = Deadline::in(10);
  while (idle_.size() < operations_.size()) {
    worker_->progress();
    if (deadline.passed()) {
      std::fprintf(stderr, "transport UCX: memory of a closed endpoint is still in use; ending\n");
      std::abort();
    }
  }
  worker_.reset();
}

void Endpoint::send(const Frame& frame, const std::byte* data, std::uint64_t bytes) {
  Operation& operation = begin(frame, false);
  RequestParam param{};
  param.op_attr_mask = RequestParam::kCallback | RequestParam::kUserData | RequestParam::kFlags;
  param.flags = RequestParam::kReply;
  if (bytes > kUnannouncedBytes) param.flags |= RequestParam::kRndv;
  if (frame.kind == FrameKind::kHello) param.flags |= RequestParam::kEager;
  param.cb.send = [](void* request, Status status, void* user_data) {
    Operation& ended = *static_cast<Operation*>(user_data);
    ended.of->engine_.calls().request_free(request);
    ended.of->end(ended, status);
  };
  param.user_data = &operation;
  param.memh = engine_.handle_of(data, bytes);
  if (param.memh != nullptr) param.op_attr_mask |= RequestParam::kMemh;
  end_at_once(operation, engine_.calls().am_send_nbx(ep_, kMessageId, &operation.frame,
                                                     sizeof(Frame), data, bytes, &param));
}

void Endpoint::receive(const Frame& frame, void* descriptor, std::byte* to, Mem* handle) {
  Operation& operation = begin(frame, true);
  RequestParam param{};
  param.op_attr_mask = RequestParam::kCallback | RequestParam::kUserData;
  param.cb.recv_am = [](void* request, Status status, std::size_t, void* user_data) {
    Operation& ended = *static_cast<Operation*>(user_data);
    ended.of->engine_.calls().request_free(request);
    ended.of->end(ended, status);
  };
  param.user_data = &operation;
  if (handle != nullptr) {
    param.memh = handle;
    param.op_attr_mask |= RequestParam::kMemh;
  }
  end_at_once(operation, engine_.calls().am_recv_data_nbx(worker_->get(), descriptor, to,
                                                          frame.bytes, &param));
}

Endpoint::Operation& Endpoint::begin(const Frame& frame, bool is_receive) {
  if (idle_.empty()) {
    operations_.push_back(std::make_unique<Operation>());
    idle_.reserve(operations_.capacity());
    idle_.push_back(operations_.back().get());
  }
  Operation& operation = *idle_.back();
  idle_.pop_back();
  operation = {this, frame, is_receive};
  if (is_receive) ++num_receives_;
  return operation;
}

void Endpoint::end_at_once(Operation& operation, StatusPtr result) {
  if (!is_request(result)) end(operation, status_of(result));
}

void Endpoint::end(Operation& operation, Status status) noexcept {
  idle_.push_back(&operation);  // Never allocates: reserved for all operations.
  if (operation.is_receive) --num_receives_;
  if (!is_open()) return;
  if (status != kOk) {
    tell(Event::Kind::kFailed, operation.frame, status);
  } else if (operation.is_receive) {
    received(operation.frame);
  } else {
    sent(operation.frame);
  }
}

void Endpoint::tell(Event::Kind kind, const Frame& frame, Status status) noexcept {
  engine_.events.push_back({shared_from_this(), kind, frame, status});
}

}  // namespace flowtrain::transport::ucx
