// Which descriptors of a peer count as sealed memory, and memory that cannot be touched.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.hpp"
#include "check.hpp"
#include "os/folder.hpp"
#include "os/mapping.hpp"

using namespace flowtrain;

namespace {

int error_of_madvise = 0;

}  // namespace

/// Replaces the C library's: fails as on a machine without memory, or with an older kernel.
extern "C" int madvise(void* address, std::size_t bytes, int advice) noexcept {
  if (error_of_madvise != 0) return errno = error_of_madvise, -1;
  return static_cast<int>(::syscall(SYS_madvise, address, bytes, advice));
}

namespace {

void only_a_memfd_with_all_seals_is_sealed() {
  CHECK(os::is_sealed(os::sealed_memfd("sealed", 4096), 4096));
  CHECK(!os::is_sealed(os::sealed_memfd("sealed", 4096), 8192));
  const os::Fd open(::memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(::ftruncate(open.get(), 4096) == 0 && !os::is_sealed(open, 4096));
  CHECK(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_GROW) == 0 && !os::is_sealed(open, 4096));
}

/// With vm.memfd_noexec=2 the kernel makes no other memfds.
void memory_is_never_executed_where_the_kernel_can_forbid_it() {
  constexpr int kExec = 0x20;                       // F_SEAL_EXEC
  const os::Fd probe(::memfd_create("probe", 8U));  // MFD_NOEXEC_SEAL
  const int seals = ::fcntl(os::sealed_memfd("sealed", 4096).get(), F_GET_SEALS);
  CHECK(((seals & kExec) != 0) == static_cast<bool>(probe));
}

void a_file_that_cannot_be_sealed_is_not() {
  const os::Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  CHECK(!os::is_sealed(file, os::file_bytes(file)));
  int ends[2];
  CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  const os::Fd reader(ends[0]), writer(ends[1]);
  CHECK(!os::is_sealed(reader, 0));
}

/// Otherwise the first write to it would end the process.
void memory_that_cannot_be_touched_is_an_error() {
  const os::Fd fd = os::sealed_memfd("touched", 4096);
  const os::Mapping mapping(fd, 4096, "touched");
  error_of_madvise = ENOMEM;
  CHECK_THROWS(os::prefault(mapping.data(), 4096, "touched"), SystemCallError);
  error_of_madvise = EINVAL;
  os::prefault(mapping.data(), 4096, "touched");
  error_of_madvise = 0;
  os::prefault(mapping.data(), 4096, "touched");
}

void a_prefault_that_is_interrupted_touches_no_more() {
  constexpr std::size_t kBytes = 100 << 20;  // Few enough for one thread.
  const os::Fd fd = os::sealed_memfd("touched", kBytes);
  const os::Mapping mapping(fd, kBytes, "touched");
  int calls = 0;
  CHECK(!os::prefault(mapping.data(), kBytes, "touched", [&] { return ++calls == 2; }));
  struct stat info{};
  CHECK(::fstat(fd.get(), &info) == 0 && calls == 2 &&
        info.st_blocks * 512 < static_cast<long>(kBytes) / 2);
  CHECK(os::prefault(mapping.data(), kBytes, "touched", [] { return false; }));
  CHECK(::fstat(fd.get(), &info) == 0 && info.st_blocks * 512 >= static_cast<long>(kBytes));
}

}  // namespace

int main() {
  a_prefault_that_is_interrupted_touches_no_more();
  memory_that_cannot_be_touched_is_an_error();
  only_a_memfd_with_all_seals_is_sealed();
  memory_is_never_executed_where_the_kernel_can_forbid_it();
  a_file_that_cannot_be_sealed_is_not();
}
