#include "transport/ucx/worker.hpp"

#include <sys/epoll.h>

#include <charconv>

#include "base/error.hpp"
#include "transport/ucx/endpoint.hpp"

namespace flowtrain::transport::ucx {

Worker::Worker(const Library& library, Context* context, Handler handler, void* arg,
               const std::string& what)
    : calls_(library.calls) {
  const WorkerParams params{WorkerParams::kThreadMode, WorkerParams::kSerialized};
  check(library, calls_.worker_create(context, &params, &worker_), "ucp_worker_create", what);
  try {
    start(library, handler, arg, what);
  } catch (...) {
    calls_.worker_destroy(worker_);
    throw;
  }
}

Worker::~Worker() {
  // That UCX closes the descriptor ends its events only if no forked child has it.
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, event_fd_, nullptr);
  calls_.worker_destroy(worker_);
}

void Worker::watch_in(int epoll, const std::string& what) {
  epoll_event event{EPOLLIN, {.fd = event_fd_}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, event_fd_, &event) != 0) throw_errno(what);
  epoll_ = epoll;
}

void Worker::start(const Library& library, Handler handler, void* arg, const std::string& what) {
  check(library, calls_.worker_get_efd(worker_, &event_fd_), "ucp_worker_get_efd", what);
  AmHandlerParam param{};
  param.field_mask = AmHandlerParam::kId | AmHandlerParam::kCallback | AmHandlerParam::kArg;
  param.id = Endpoint::kMessageId;
  param.cb = handler;
  param.arg = arg;
  check(library, calls_.worker_set_am_recv_handler(worker_, &param),
        "ucp_worker_set_am_recv_handler", what);
  WorkerAddress* address = nullptr;
  std::size_t bytes = 0;
  check(library, calls_.worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address",
        what);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  calls_.worker_release_address(worker_, address);
}

std::string peer_text(const std::string& host, const std::string& worker) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = host + "#";
  for (const char each : worker) {
    const auto byte = static_cast<unsigned char>(each);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

PeerAddress parse_peer(const std::string& text) {
  const std::size_t end = text.find('#');
  PeerAddress found{text.substr(0, end), {}};
  const char* at = end == std::string::npos ? nullptr : text.data() + end + 1;
  const char* const last = text.data() + text.size();
  while (at != nullptr && last - at >= 2) {
    unsigned byte = 0;
    if (std::from_chars(at, at + 2, byte, 16).ptr != at + 2) break;
    found.worker += static_cast<char>(byte);
    at += 2;
  }
  if (at != last || found.worker.empty()) {
    throw BadArgument("address '" + text + "': none of a transport over UCX");
  }
  return found;
}

}  // namespace flowtrain::transport::ucx
