#include "os/process.hpp"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>

#include "os/fd.hpp"

namespace flowtrain::os {
namespace {

/// When a process started, in clock ticks after boot; 0 if it cannot be read.
std::uint64_t start_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  // The second field is the name in parentheses, which may have any characters; the start is field
  // 22.
  const auto end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return fields ? std::stoull(field) : 0;
}

std::uint64_t own_space() {
  struct stat found{};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

}  // namespace

void write_own_age(ProcessAge& age) {
  age.started = start_of("self");
  age.space = own_space();
}

bool has_ended(std::int32_t pid, const ProcessAge& age) noexcept {
  try {
    const std::uint64_t space = age.space;
    if (space == 0 || space != own_space()) return false;
    const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!fd) return errno == ESRCH;
    // Opened first: what is read here is of the process that `fd` names, or of a later one.
    const std::uint64_t started = start_of(std::to_string(pid));
    if (started != 0 && started != age.started) return true;
    pollfd waiting{fd.get(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) == 1;
  } catch (const std::exception&) {
    return false;  // Out of memory or descriptors: a later call tells.
  }
}

}  // namespace flowtrain::os
