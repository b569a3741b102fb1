// Which descriptors of a peer count as sealed memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.hpp"
#include "os/folder.hpp"
#include "os/mapping.hpp"

using namespace flowtrain;

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

}  // namespace

int main() {
  only_a_memfd_with_all_seals_is_sealed();
  memory_is_never_executed_where_the_kernel_can_forbid_it();
  a_file_that_cannot_be_sealed_is_not();
}
