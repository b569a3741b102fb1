#include "base/error.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace flowtrain {
namespace {

/// The limit behind an error that does not name it.
std::string limit_of(int code) {
  rlimit limit{};
  if (code != EMFILE || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return "; this process may have " + std::to_string(limit.rlim_cur) +
         " descriptors open (ulimit -n); raise the limit, or close files";
}

}  // namespace

void throw_errno(const std::string& what) {
  const int code = errno;
  throw SystemCallError(what + ": " + std::strerror(code) + " (errno " + std::to_string(code) +
                        ")" + limit_of(code));
}

}  // namespace flowtrain
