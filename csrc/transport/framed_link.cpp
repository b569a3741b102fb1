#include "transport/framed_link.hpp"

#include <algorithm>
#include <sstream>

#include "base/clock.hpp"

namespace flowtrain::transport {

Frame FramedLink::frame_of(FrameKind kind, const Header& header) const {
  Frame frame;
  frame.kind = kind;
  frame.session = session_;
  frame.header = header;
  return frame;
}

Frame FramedLink::hello(const Ticket& ticket) const {
  Frame frame = frame_of(FrameKind::kHello, {});
  std::copy(ticket.begin(), ticket.end(), frame.header.begin());
  return frame;
}

std::optional<std::uint64_t> FramedLink::place(const Grant& grant, const Header& header,
                                               const std::byte* data, std::uint64_t bytes) {
  if (!can_take()) return std::nullopt;
  Frame frame = frame_of(FrameKind::kPlace, header);
  frame.number = ++numbered_;
  frame.slot = grant.slot;
  frame.generation = grant.generation;
  frame.region = grant.region;
  frame.offset = grant.offset;
  frame.bytes = bytes;
  pending_.add();
  put(frame, data, bytes);
  return frame.number;
}

bool FramedLink::send(const Header& header) {
  if (!can_take()) return false;
  pending_.add();
  put(frame_of(FrameKind::kMessage, header), nullptr, 0);
  return true;
}

void FramedLink::acknowledge(std::uint64_t number) {
  pending_.remove(1);
  receiver_.on_acknowledged(session_, number);
}

void FramedLink::acknowledge_to(std::uint64_t number, std::uint64_t sent) {
  if (number > sent || number <= acknowledged_) {
    return fail("the peer acknowledged placement " + std::to_string(number) + " of " +
                std::to_string(sent) + " sent and " + std::to_string(acknowledged_) +
                " acknowledged");
  }
  // The receiver may end the link.
  while (error_.empty() && acknowledged_ < number) acknowledge(++acknowledged_);
}

void FramedLink::abort() {
  if (error_.empty()) end("the link to " + peer_ + " was aborted", true);
}

void FramedLink::fail(const std::string& why) {
  end("link to " + peer_ + " over " + path_ + ", with " + std::to_string(pending_.count()) +
          " pending: " + why,
      false);
  receiver_.on_closed(session_, error_);
}

void FramedLink::expire(std::int64_t ns) {
  if (!is_connecting() || now_ns() - begun_ns_ <= ns) return;
  std::ostringstream why;
  why << "no connection within " << static_cast<double>(ns) / 1e9
      << " s; its process may have ended, or a firewall between the hosts drops what goes there";
  fail(why.str());
}

void FramedLink::end(const std::string& error, bool aborts) {
  error_ = error;
  pending_.clear();
  drop(aborts);
}

}  // namespace flowtrain::transport
