#include "os/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "os/fd.hpp"

namespace flowtrain::os {
namespace {

/// When a process started, in clock ticks after boot; 0 if it cannot be read.
///
/// @param stat  Its file of that name in /proc.
std::uint64_t start_in(const char* stat) noexcept {
  const Fd file(::open(stat, O_RDONLY | O_CLOEXEC));
  char text[1024];  // Enough for 22 fields.
  const ssize_t bytes = ::read(file.get(), text, sizeof(text));
  if (bytes <= 0) return 0;
  // The second field is the name in parentheses, which may have any characters; the start is field
  // 22.
  std::string_view fields(text, static_cast<std::size_t>(bytes));
  fields.remove_prefix(fields.rfind(')') + 1);
  for (int i = 3; i <= 22; ++i) fields.remove_prefix(fields.find(' ') + 1);
  std::uint64_t start = 0;
  std::from_chars(fields.data(), fields.data() + fields.size(), start);
  return start;
}

std::uint64_t own_space() noexcept {
  struct stat found{};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

}  // namespace

void write_own_age(ProcessAge& age) noexcept {
  age.started = start_in("/proc/self/stat");
  age.space = own_space();
}

bool has_ended(std::int32_t pid, const ProcessAge& age) noexcept {
  const std::uint64_t space = age.space;
  if (space == 0 || space != own_space()) return false;
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  // Out of descriptors: a later call tells.
  if (!fd) return errno == ESRCH;
  // Opened first: what is read here is of the process that `fd` names, or of a later one.
  char stat[32];
  std::snprintf(stat, sizeof(stat), "/proc/%d/stat", pid);
  const std::uint64_t started = start_in(stat);
  if (started != 0 && started != age.started) return true;
  pollfd waiting{fd.get(), POLLIN, 0};
  return ::poll(&waiting, 1, 0) == 1;
}

}  // namespace flowtrain::os
