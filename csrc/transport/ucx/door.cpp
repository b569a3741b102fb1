#include "transport/ucx/door.hpp"

#include <cstring>

#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport::ucx {
namespace {

/// Of the address that comes with a hello.
constexpr std::size_t kMaxAddressBytes = 8192;

/// Read by UCX for as long as it likes.
const Frame kRefusal = [] {
  Frame frame;
  frame.kind = FrameKind::kRefused;
  frame.reason = Reason::kUnknownSession;
  return frame;
}();

}  // namespace

void Door::on_message(Ep* from, const void* header, std::size_t header_bytes, const void* data,
                      std::size_t bytes, bool announced) noexcept {
  Frame frame;
  frame.magic = 0;
  if (header_bytes == sizeof(frame)) std::memcpy(&frame, header, sizeof(frame));
  const Reason reason = check(from, frame, data, bytes, announced);
  if (reason == Reason::kNone) return;
  refused.push_back(reason);
  answer(from);
}

Reason Door::check(Ep* from, const Frame& frame, const void* data, std::size_t bytes,
                   bool announced) {
  if (frame.magic != Frame::kMagic) return Reason::kNotAFrame;
  if (frame.kind != FrameKind::kHello || announced) return Reason::kUnknownSession;
  if (bytes > kMaxAddressBytes) return Reason::kNotAFrame;
  const Reason reason = grants_.open(frame.session, frame.header);
  if (reason != Reason::kNone) return reason;
  guests.push_back({frame.session, {static_cast<const char*>(data), bytes}, from});
  return reason;
}

void Door::answer(Ep* stranger) noexcept {
  // A stranger that reads none of its answers cannot use up the memory.
  if (answers_ == kMaxAnswers) return;
  RequestParam param{};
  param.op_attr_mask = RequestParam::kCallback | RequestParam::kUserData | RequestParam::kFlags;
  param.flags = RequestParam::kReply;
  param.cb.send = [](void* request, Status, void* user_data) {
    Door& self = *static_cast<Door*>(user_data);
    self.calls_.request_free(request);
    --self.answers_;
  };
  param.user_data = this;
  const StatusPtr result = calls_.am_send_nbx(stranger, Endpoint::kMessageId, &kRefusal,
                                              sizeof(kRefusal), nullptr, 0, &param);
  if (is_request(result)) ++answers_;
}

}  // namespace flowtrain::transport::ucx
