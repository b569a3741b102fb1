// Answers of the descriptor server, and its behaviour under errors.

#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error.hpp"
#include "check.hpp"
#include "os/fd_socket.hpp"
#include "os/mapping.hpp"

using namespace flowtrain;

namespace {

std::atomic<int> sleeps{0};

}  // namespace

/// Replaces the C library's function to count sleeps of the server's thread.
extern "C" int nanosleep(const timespec* time, timespec* left) {
  ++sleeps;
  return static_cast<int>(::syscall(SYS_nanosleep, time, left));
}

namespace {

std::string socket_path() {
  return std::filesystem::temp_directory_path() / ("fd-socket-" + std::to_string(::getpid()));
}

/// A server that is out of descriptors gives no answer, rather than the answer that it has none.
void a_server_that_could_not_answer_answers_the_next_request() {
  const os::Fd memory = os::sealed_memfd("served", 4096);
  std::atomic<bool> out_of_descriptors{true};
  const os::FdServer server(socket_path(), 1, [&](std::uint64_t) {
    if (out_of_descriptors) throw SystemCallError("out of descriptors");
    return os::duplicate(memory);
  });
  CHECK(!os::receive_fd(socket_path(), {1, 7}));
  out_of_descriptors = false;
  const auto fd = os::receive_fd(socket_path(), {1, 7});
  CHECK(fd && os::is_sealed(*fd, 4096));
  const auto none = os::receive_fd(socket_path(), {2, 7});  // Of another server.
  CHECK(none && !*none);
}

void a_closed_server_ends_without_a_sleep() {
  for (int i = 0; i < 20; ++i) {
    const os::FdServer server(socket_path(), 1, [](std::uint64_t) { return os::Fd(); });
    CHECK(os::receive_fd(socket_path(), {1, 7}));
  }
  CHECK(sleeps == 0);
}

/// Such as SIGCHLD, or the signal of a profiler.
void a_signal_does_not_end_the_wait_for_an_answer() {
  const os::FdServer server(socket_path(), 1, [](std::uint64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return os::Fd();
  });
  struct sigaction interrupt{};
  interrupt.sa_handler = [](int) {};
  CHECK(::sigaction(SIGALRM, &interrupt, nullptr) == 0);
  const itimerval often{{0, 5000}, {0, 5000}}, never{};
  CHECK(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  const auto none = os::receive_fd(socket_path(), {1, 7});
  CHECK(::setitimer(ITIMER_REAL, &never, nullptr) == 0);
  CHECK(none && !*none);
}

}  // namespace

int main() {
  a_signal_does_not_end_the_wait_for_an_answer();
  sleeps = 0;
  a_closed_server_ends_without_a_sleep();
  a_server_that_could_not_answer_answers_the_next_request();
}
