#include "os/thread.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace flowtrain::os {
namespace {

/// Blocks signals in this thread, and so in the threads that it starts; not those that a faulting
/// instruction raises, for which a program may have a handler.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
      ::sigdelset(&all, fault);
    }
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

std::string limits() {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return "; this user may have " + (limited ? std::to_string(limit.rlim_cur) : "any number of") +
         " processes and threads (ulimit -u), a container perhaps fewer (pids.max), and each " +
         "thread needs address space for its stack; raise the limit, or end other threads";
}

}  // namespace

std::jthread start_thread(const std::string& what, const std::string& purpose,
                          std::function<void(const std::stop_token&)> work) {
  const SignalsBlocked blocked;
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    throw SystemCallError(what + ": cannot start the thread that " + purpose + ": " +
                          error.code().message() + " (errno " +
                          std::to_string(error.code().value()) + ")" + limits());
  }
}

}  // namespace flowtrain::os
