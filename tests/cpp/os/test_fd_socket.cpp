// What a server of descriptors answers, and that it lives on.

#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "base/error.hpp"
#include "check.hpp"
#include "os/fd_socket.hpp"
#include "os/mapping.hpp"

using namespace flowtrain;

namespace {

std::string path_of_socket() {
  return std::filesystem::temp_directory_path() / ("fd-socket-" + std::to_string(::getpid()));
}

/// A server that is out of descriptors has no answer, which is not the answer that it has none.
void a_server_that_cannot_answer_is_asked_again() {
  const os::Fd memory = os::sealed_memfd("served", 4096);
  std::atomic<bool> out_of_descriptors{true};
  const os::FdServer server(path_of_socket(), 1, [&](std::uint64_t) {
    if (out_of_descriptors) throw SystemCallError("out of descriptors");
    return os::duplicate(memory);
  });
  CHECK(!os::receive_fd(path_of_socket(), {1, 7}));
  out_of_descriptors = false;
  const auto fd = os::receive_fd(path_of_socket(), {1, 7});
  CHECK(fd && os::is_sealed(*fd, 4096));
  const auto none = os::receive_fd(path_of_socket(), {2, 7});  // Of another server.
  CHECK(none && !*none);
}

}  // namespace

int main() { a_server_that_cannot_answer_is_asked_again(); }
