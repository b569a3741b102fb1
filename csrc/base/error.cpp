#include "base/error.hpp"

#include <cerrno>
#include <cstring>

namespace flowtrain {

void throw_errno(const std::string& what) {
  const int code = errno;
  throw SystemCallError(what + ": " + std::strerror(code) + " (errno " + std::to_string(code) +
                        ")");
}

}  // namespace flowtrain
