// Files of a pool's folder.

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "check.hpp"
#include "os/folder.hpp"

using namespace flowtrain;

namespace {

int interruptions = 0;
struct statvfs file_system{};

}  // namespace

/// Replaces the C library's function: fails with EINTR, as on kernels where a signal ends the call.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (interruptions > 0) return --interruptions, EINTR;
  return ::ftruncate(fd, offset + bytes) == 0 ? 0 : errno;
}

extern "C" int statvfs(const char*, struct statvfs* info) noexcept {
  *info = file_system;
  return 0;
}

namespace {

void a_file_is_reserved_despite_signals() {
  constexpr std::uint64_t kBytes = (std::uint64_t{9} << 20) + 1;
  const std::string path = os::runtime_folder() + "/cpp-signals-" + std::to_string(::getpid());
  interruptions = 3;
  file_system.f_frsize = 1;
  file_system.f_blocks = file_system.f_bavail = kBytes;
  const os::Fd file = os::create_file(path, kBytes);
  CHECK(::unlink(path.c_str()) == 0);
  CHECK(os::file_bytes(file) == kBytes && interruptions == 0);
}

/// A tmpfs mounted with size=0 reports 0 blocks, and 0 free ones.
void a_tmpfs_without_a_limit_accepts_a_file() {
  const std::string path = os::runtime_folder() + "/cpp-unlimited-" + std::to_string(::getpid());
  file_system = {};
  file_system.f_frsize = 4096;
  const os::Fd file = os::create_file(path, 4096);
  CHECK(::unlink(path.c_str()) == 0);
}

}  // namespace

int main() {
  a_file_is_reserved_despite_signals();
  a_tmpfs_without_a_limit_accepts_a_file();
}
