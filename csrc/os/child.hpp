#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/error.hpp"

namespace flowtrain::os {

/// A forked child that runs `work` and ends; killed with its owner. Errors go to stderr.
///
/// The calling process must have one thread: of the others a child has the locks, and not them.
template <class Work>
class Child {
 public:
  explicit Child(Work&& work) {
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = 1;
    try {
      if (::getppid() == parent) {
        work();
        code = 0;
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(code);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  enum class End { kDone, kFailed, kKilled };
  /// Waits for its end.
  End wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return End::kKilled;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? End::kDone : End::kFailed;
  }

 private:
  pid_t pid_ = 0;
};

}  // namespace flowtrain::os
