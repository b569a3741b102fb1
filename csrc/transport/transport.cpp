#include "transport/transport.hpp"

#include <poll.h>

namespace flowtrain::transport {

bool Transport::wait(const Deadline& deadline) {
  constexpr std::int64_t kMaxNs = 100'000'000;  // Between looks at the deadline.
  if (progress()) return true;
  while (!deadline.passed()) {
    pollfd ready{progress_fd(), POLLIN, 0};
    // Rounded up: a wait of 0 ms would poll until the deadline.
    if (arm()) ::poll(&ready, 1, static_cast<int>(deadline.left_ns(kMaxNs) / 1'000'000) + 1);
    if (progress()) return true;
  }
  return false;
}

}  // namespace flowtrain::transport
