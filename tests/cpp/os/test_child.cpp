// Waits for a child in spite of signals.

#include <dlfcn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "check.hpp"
#include "os/child.hpp"

using namespace flowtrain;

namespace {

int interruptions = 0;

}  // namespace

/// Replaces the C library's function: fails with EINTR, as if a handled signal had arrived.
extern "C" pid_t waitpid(pid_t pid, int* status, int options) {
  if (interruptions > 0) return --interruptions, errno = EINTR, -1;
  static const auto real = reinterpret_cast<decltype(&waitpid)>(::dlsym(RTLD_NEXT, "waitpid"));
  return real(pid, status, options);
}

int main() {
  os::Child child([] { ::pause(); });
  interruptions = 3;
  CHECK(child.stop() && interruptions == 0);
  interruptions = 3;
  child.send(SIGKILL);
  CHECK(child.wait() == decltype(child)::End::kKilled && interruptions == 0);
}
