#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace flowtrain::os {

/// A forked child that runs `work` and exits. The destructor kills it. Errors go to stderr.
///
/// The calling process must have one thread: a child inherits the locks of other threads, but not
/// the threads.
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
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)), end_(other.end_) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    send(SIGKILL);
    wait();
  }

  void send(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }
  /// Stops the child until SIGCONT. Returns false if it has ended.
  bool stop() {
    int status = 0;
    send(SIGSTOP);
    wait_for(status, WUNTRACED);
    if (WIFSTOPPED(status)) return true;
    ended(status);
    return false;
  }

  enum class End { kDone, kFailed, kKilled };
  /// Waits until the child ends.
  End wait() { return *wait_with(0); }
  /// How the child ended; nothing while it runs.
  std::optional<End> poll() { return wait_with(WNOHANG); }

 private:
  std::optional<End> wait_with(int options) {
    if (pid_ == 0) return end_;
    int status = 0;
    if (!wait_for(status, options)) return std::nullopt;
    ended(status);
    return end_;
  }
  /// Sets the child's status; false if WNOHANG is given and there is none yet.
  bool wait_for(int& status, int options) const {
    pid_t found = 0;
    do {
      found = ::waitpid(pid_, &status, options);
    } while (found < 0 && errno == EINTR);
    if (found < 0) status = 1 << 8;  // Another caller has waited for it; counts as failed.
    return found != 0;
  }
  void ended(int status) {
    pid_ = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      end_ = End::kKilled;
    } else {
      end_ = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? End::kDone : End::kFailed;
    }
  }

  pid_t pid_ = 0;
  End end_ = End::kFailed;
};

}  // namespace flowtrain::os
