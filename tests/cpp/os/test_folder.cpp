// Files of a pool's folder.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "check.hpp"
#include "os/folder.hpp"

using namespace flowtrain;

namespace {

int interruptions = 0;

}  // namespace

/// In place of the C library's: signals come while it runs, as kernels that let them end it see.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (interruptions > 0) return --interruptions, EINTR;
  return ::ftruncate(fd, offset + bytes) == 0 ? 0 : errno;
}

namespace {

void a_file_is_reserved_though_signals_interrupt() {
  constexpr std::uint64_t kBytes = (std::uint64_t{9} << 20) + 1;
  const std::string path = os::runtime_folder() + "/cpp-signals-" + std::to_string(::getpid());
  interruptions = 3;
  const os::Fd file = os::create_file(path, kBytes);
  CHECK(::unlink(path.c_str()) == 0);
  CHECK(os::file_bytes(file) == kBytes && interruptions == 0);
}

}  // namespace

int main() { a_file_is_reserved_though_signals_interrupt(); }
