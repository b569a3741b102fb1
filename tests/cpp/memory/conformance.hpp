#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "check.hpp"
#include "memory/resource.hpp"
#include "os/child.hpp"
#include "os/fd_socket.hpp"
#include "os/mapping.hpp"

/// What every kind of memory must do. The host can access all of them here, also those of a device:
/// the driver is a fake.
namespace flowtrain::memory::conformance {

struct Subject {
  const Resource& resource;
  Place place;
  /// Whether an importer still reads the memory, and hands it out, once its exporter has died.
  bool outlives_its_exporter;
  /// Number of calls of a driver so far.
  std::function<std::size_t()> calls = [] { return std::size_t{0}; };
};

inline constexpr std::uint64_t kBytes = 3 << 12;
inline constexpr std::byte kOurs{7}, kTheirs{9};

inline std::byte* bytes_of(const Memory& memory) {
  return reinterpret_cast<std::byte*>(memory.address());
}
inline std::unique_ptr<Memory> make(const Subject& s) {
  auto memory = s.resource.allocate(s.place.device, kBytes, "test.1");
  CHECK(memory->place() == s.place && memory->bytes() == kBytes);
  return memory;
}
inline std::unique_ptr<Memory> import(const Subject& s, Exported exported,
                                      std::uint64_t bytes = kBytes) {
  return s.resource.import(std::move(exported), s.place.device, bytes, "test.1");
}

/// Runs a check in a process of its own: what is forked from a process that uses a device cannot
/// use the device.
inline void apart(const std::function<void()>& check) {
  os::Child<std::function<void()>> child{std::function<void()>(check)};
  CHECK(child.wait() == decltype(child)::End::kDone);
}

/// One memory, served to other processes.
class Served {
 public:
  static std::string path() {
    return std::filesystem::temp_directory_path() / ("memory-" + std::to_string(::getpgrp()));
  }
  explicit Served(const Memory& memory)
      : server_("test", path(), 1, [&](std::uint64_t) { return memory.export_memory(); }) {}
  /// What another process serves.
  static Exported get() {
    for (const Deadline deadline = Deadline::in(30); !deadline.passed(); ::usleep(1000)) {
      auto found = os::receive_exported(path(), {1, 0});
      if (found && *found) return std::move(*found);
    }
    CHECK(false);
    return {};
  }

 private:
  os::FdServer server_;
};

inline void both_processes_see_each_others_bytes(const Subject& s) {
  os::Child importer(std::function<void()>([&] {
    const auto theirs = import(s, Served::get());
    CHECK(theirs && theirs->place() == s.place);
    CHECK(bytes_of(*theirs)[0] == kOurs && bytes_of(*theirs)[kBytes - 1] == kOurs);
    std::memset(bytes_of(*theirs), static_cast<int>(kTheirs), kBytes);
  }));
  const auto memory = make(s);
  std::memset(bytes_of(*memory), static_cast<int>(kOurs), kBytes);
  const Served served(*memory);
  CHECK(importer.wait() == decltype(importer)::End::kDone);
  CHECK(bytes_of(*memory)[0] == kTheirs && bytes_of(*memory)[kBytes - 1] == kTheirs);
}

inline void memory_survives_the_death_of_its_exporter(const Subject& s) {
  os::Child exporter(std::function<void()>([&] {
    const auto memory = make(s);
    std::memset(bytes_of(*memory), static_cast<int>(kOurs), kBytes);
    const Served served(*memory);
    for (;;) ::usleep(1000);
  }));
  const auto theirs = import(s, Served::get());
  exporter.send(SIGKILL);
  CHECK(exporter.wait() == decltype(exporter)::End::kKilled);
  ::unlink(Served::path().c_str());
  const Exported again = theirs->export_memory();
  CHECK(static_cast<bool>(again) == s.outlives_its_exporter);
  if (!again) return;
  CHECK(bytes_of(*theirs)[kBytes - 1] == kOurs);
  const auto more = import(s, theirs->export_memory());
  CHECK(bytes_of(*more)[kBytes - 1] == kOurs);
}

/// Null and an error both refuse.
inline bool refuses(const Subject& s, Exported exported, std::uint64_t bytes = kBytes) {
  try {
    return import(s, std::move(exported), bytes) == nullptr;
  } catch (const Error&) {
    return true;
  }
}

inline void what_is_not_this_memory_is_refused(const Subject& s) {
  const auto memory = make(s);
  CHECK(refuses(s, {}));
  CHECK(refuses(s, memory->export_memory(), std::uint64_t{64} << 20));
  for (const std::size_t extra : {0U, 1U}) {
    Exported more = memory->export_memory();
    if (more.fds[extra]) continue;
    more.fds[extra] = os::sealed_memfd("more", kBytes);
    CHECK(refuses(s, std::move(more)));
  }
  Exported other_handle = memory->export_memory();
  other_handle.handle.emplace().fill(std::byte{0x5a});
  CHECK(refuses(s, std::move(other_handle)));
  if (s.place.kind != Kind::kMemfd && s.place.kind != Kind::kFake) {
    CHECK(refuses(s, Exported(os::sealed_memfd("host", kBytes))));
  } else {
    CHECK(refuses(s, memory->export_memory(), kBytes + 1));
  }
  CHECK(import(s, memory->export_memory()));
}

inline void what_is_attached_ends_before_the_memory(const Subject& s) {
  std::string ended;
  {
    const auto memory = make(s);
    std::byte* const first = bytes_of(*memory);
    for (const char* key : {"a", "b"}) {
      memory->attach(key, std::shared_ptr<void>(first, [&ended, key](void* data) {
                       // Faults if the memory is unmapped already.
                       static_cast<void>(*static_cast<volatile char*>(data));
                       ended += key;
                     }));
    }
    CHECK_THROWS(memory->attach("a", nullptr), BadArgument);
  }
  CHECK(ended == "ba");
}

inline void a_forked_child_leaves_everything_to_its_parent(const Subject& s) {
  auto memory = make(s);
  bool ended = false;
  memory->attach("a",
                 std::shared_ptr<void>(&ended, [](void* at) { *static_cast<bool*>(at) = true; }));
  const std::size_t calls = s.calls();
  os::Child child(std::function<void()>([&] {
    memory.reset();
    CHECK(!ended);
  }));
  CHECK(child.wait() == decltype(child)::End::kDone);
  CHECK(s.calls() == calls);
  bytes_of(*memory)[0] = kOurs;
  memory.reset();
  CHECK(ended);
}

inline void each_import_ends_alone(const Subject& s) {
  auto memory = make(s);
  auto second = import(s, memory->export_memory());
  auto third = import(s, memory->export_memory());
  bytes_of(*second)[0] = kOurs;
  second.reset();
  CHECK(bytes_of(*third)[0] == kOurs);
  memory.reset();
  CHECK(bytes_of(*third)[0] == kOurs);
}

inline void an_unknown_device_is_refused(const Subject& s) {
  CHECK(s.resource.why_not(s.place.device).empty());
  if (s.place.device == DeviceId{}) return;
  const DeviceId unknown{1, 2};
  CHECK(!s.resource.why_not(unknown).empty());
  bool refused = false;
  try {
    s.resource.allocate(unknown, kBytes, "test.1");
  } catch (const std::exception&) {
    refused = true;
  }
  CHECK(refused);
}

inline void memory_that_cannot_be_had_is_an_error(const Subject& s) {
  bool refused = false;
  try {
    s.resource.allocate(s.place.device, std::uint64_t{1} << 50, "test.1");
  } catch (const std::exception& error) {
    refused = std::string(error.what()).find("segment 'test.1'") != std::string::npos;
  }
  CHECK(refused);
}

inline void check(const Subject& s) {
  for (const auto each :
       {both_processes_see_each_others_bytes, memory_survives_the_death_of_its_exporter,
        what_is_not_this_memory_is_refused, what_is_attached_ends_before_the_memory,
        a_forked_child_leaves_everything_to_its_parent, each_import_ends_alone,
        an_unknown_device_is_refused, memory_that_cannot_be_had_is_an_error}) {
    apart([&] { each(s); });
  }
}

}  // namespace flowtrain::memory::conformance
