// Answers of the descriptor server, and its behaviour under errors.

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
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

/// Retries on a timeout, which a busy machine may cause. A server that never answers hangs the
/// test.
os::Exported answer(const os::FdRequest& request) {
  for (;;) {
    if (auto found = os::receive_exported(socket_path(), request)) return std::move(*found);
  }
}

/// A server that is out of descriptors gives no answer, rather than the answer that it has none.
void a_server_that_could_not_answer_answers_the_next_request() {
  const os::Fd memory = os::sealed_memfd("served", 4096);
  std::atomic<bool> out_of_descriptors{true};
  const os::FdServer server("test", socket_path(), 1, [&](std::uint64_t) {
    if (out_of_descriptors) throw SystemCallError("out of descriptors");
    return os::Exported(os::duplicate(memory));
  });
  CHECK(!os::receive_exported(socket_path(), {1, 7}));
  out_of_descriptors = false;
  CHECK(os::is_sealed(answer({1, 7}).fds[0], 4096));
  CHECK(!answer({2, 7}));  // Of another server.
}

void a_closed_server_ends_without_a_sleep() {
  for (int i = 0; i < 20; ++i) {
    const os::FdServer server("test", socket_path(), 1,
                              [](std::uint64_t) { return os::Exported(); });
    CHECK(!answer({1, 7}));
  }
  CHECK(sleeps == 0);
}

/// Such as SIGCHLD, or the signal of a profiler.
void a_signal_does_not_end_the_wait_for_an_answer() {
  const os::FdServer server("test", socket_path(), 1, [](std::uint64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return os::Exported();
  });
  struct sigaction interrupt{};
  interrupt.sa_handler = [](int) {};
  CHECK(::sigaction(SIGALRM, &interrupt, nullptr) == 0);
  const itimerval often{{0, 5000}, {0, 5000}}, never{};
  CHECK(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  CHECK(!answer({1, 7}));
  CHECK(::setitimer(ITIMER_REAL, &never, nullptr) == 0);
}

void an_answer_has_all_descriptors_and_the_handle() {
  const os::FdServer server("test", socket_path(), 1, [](std::uint64_t id) {
    os::Exported out;
    for (std::uint64_t i = 0; i < id; ++i) out.fds[i] = os::sealed_memfd("served", 4096 << i);
    if (id != 1) out.handle.emplace().fill(std::byte{7});
    return out;
  });
  for (std::uint64_t fds = 0; fds <= os::Exported::kMaxFds; ++fds) {
    const os::Exported found = answer({1, fds});
    CHECK(found && found.handle.has_value() == (fds != 1));
    if (found.handle) CHECK(found.handle->front() == std::byte{7});
    if (found.handle) CHECK(found.handle->back() == std::byte{7});
    for (std::uint64_t i = 0; i < os::Exported::kMaxFds; ++i) {
      CHECK(static_cast<bool>(found.fds[i]) == (i < fds));
      if (i < fds) CHECK(os::is_sealed(found.fds[i], 4096 << i));
    }
  }
}

bool is_served() { return os::is_sealed(answer({1, 7}).fds[0], 4096); }

std::optional<os::FdServer> serving(const os::Fd& memory) {
  return std::optional<os::FdServer>(std::in_place, "test", socket_path(), 1, [&](std::uint64_t) {
    return os::Exported(os::duplicate(memory));
  });
}

void a_forked_child_leaves_the_server_to_its_parent() {
  const os::Fd memory = os::sealed_memfd("served", 4096);
  auto server = serving(memory);
  const pid_t child = ::fork();
  if (child == 0) {
    server.reset();
    ::_exit(0);
  }
  int status = 1;
  CHECK(::waitpid(child, &status, 0) == child && status == 0);
  CHECK(is_served());
  server.reset();
  CHECK(!std::filesystem::exists(socket_path()));
}

/// Two servers at one path: the later one takes over, and the end of the earlier one removes
/// nothing of it.
void the_end_of_a_server_leaves_the_path_to_its_successor() {
  const os::Fd memory = os::sealed_memfd("served", 4096);
  auto first = serving(memory);
  auto second = serving(memory);
  first.reset();
  CHECK(is_served());
  second.reset();
  CHECK(!std::filesystem::exists(socket_path()));
}

void a_file_at_the_path_is_not_removed() {
  std::ofstream(socket_path()) << "a user's file";
  CHECK_THROWS(os::FdServer("test", socket_path(), 1, [](std::uint64_t) { return os::Exported(); }),
               SystemCallError);
  CHECK(std::filesystem::remove(socket_path()));
}

/// A process that inherited the socket can shut it down.
void a_server_whose_socket_was_shut_down_does_not_spin() {
  const os::FdServer server("test", socket_path(), 1, [](std::uint64_t) { return os::Exported(); });
  int fd = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int number = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (::getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens == 1) {
      fd = number;
    }
  }
  CHECK(fd >= 0 && ::shutdown(fd, SHUT_RDWR) == 0);
  sleeps = 0;
  for (int i = 0; i < 3000 && sleeps == 0; ++i) ::poll(nullptr, 0, 10);  // Not counted as a sleep.
  CHECK(sleeps > 0);
}

}  // namespace

int main() {
  an_answer_has_all_descriptors_and_the_handle();
  a_forked_child_leaves_the_server_to_its_parent();
  the_end_of_a_server_leaves_the_path_to_its_successor();
  a_file_at_the_path_is_not_removed();
  a_server_whose_socket_was_shut_down_does_not_spin();
  a_signal_does_not_end_the_wait_for_an_answer();
  sleeps = 0;
  a_closed_server_ends_without_a_sleep();
  a_server_that_could_not_answer_answers_the_next_request();
}
