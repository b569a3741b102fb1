// Lower bound for waking a sleeper: one process wakes another by a futex on a shared word, and the
// other measures the time since the write. Prints the times in nanoseconds, one per line.
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

struct Shared {
  std::atomic<std::uint32_t> round;
  std::int64_t sent_ns;
};

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: raw_futex ROUNDS PAUSE_US CORE CORE_OF_THE_SLEEPER\n");
    return 2;
  }
  const auto rounds = static_cast<std::uint32_t>(std::atoi(argv[1]));
  const auto pause_us = static_cast<useconds_t>(std::atoi(argv[2]));
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) return 1;
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(std::atoi(argv[4]));
    for (std::uint32_t i = 1; i <= rounds; ++i) {
      std::uint32_t seen = shared->round.load(std::memory_order_acquire);
      while (seen < i) {
        syscall(SYS_futex, &shared->round, FUTEX_WAIT, seen, nullptr, nullptr, 0);
        seen = shared->round.load(std::memory_order_acquire);
      }
      std::printf("%lld\n", static_cast<long long>(now_ns() - shared->sent_ns));
    }
    std::fflush(stdout);
    _exit(0);
  }
  pin(std::atoi(argv[3]));
  for (std::uint32_t i = 1; i <= rounds; ++i) {
    usleep(pause_us);
    shared->sent_ns = now_ns();
    shared->round.store(i, std::memory_order_release);
    syscall(SYS_futex, &shared->round, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  wait(nullptr);
}
