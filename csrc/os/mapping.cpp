#include "os/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/math.hpp"
#include "os/available_memory.hpp"
#include "os/cores.hpp"
#include "os/made_here.hpp"
#include "os/thread.hpp"

namespace flowtrain::os {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// A memfd that can be sealed and never executed, which kernels with vm.memfd_noexec=2 demand and
/// kernels before 6.3 do not know.
Fd make_memfd(const std::string& name) {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, which older headers lack.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd fd(::memfd_create(name.c_str(), kFlags | kNoExecSeal));
  if (!fd && errno == EINVAL) fd = Fd(::memfd_create(name.c_str(), kFlags));
  if (!fd) throw_errno("segment '" + name + "': memfd_create");
  return fd;
}

}  // namespace

Mapping::Mapping(const Fd& fd, std::size_t bytes, const std::string& what) : bytes_(bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) throw_errno(what + ": cannot map " + std::to_string(bytes) + " bytes");
  data_ = static_cast<std::byte*>(at);
}

Mapping::~Mapping() {
  if (data_ != nullptr && !keep_) ::munmap(data_, bytes_);
}

bool prefault(std::byte* data, std::size_t bytes, const std::string& what,
              const Interrupted& interrupted) {
  constexpr std::size_t kShare = std::size_t{64} << 20;
  // A multiple of any page size, since the kernel refuses an unaligned start.
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  const std::size_t workers = std::clamp<std::size_t>(bytes / kShare, 1, cores().size());
  std::atomic<std::size_t> next = 0;
  std::atomic<int> failed = 0;
  const auto end = [&] { next.store(bytes, std::memory_order_relaxed); };
  const auto touch = [&](const Interrupted& ended) {
    for (std::size_t from; (from = next.fetch_add(kPiece, std::memory_order_relaxed)) < bytes;) {
      if (ended && ended()) return end(), false;
      const bool done =
          ::madvise(data + from, std::min(kPiece, bytes - from), MADV_POPULATE_WRITE) == 0;
      // EINVAL: older kernels lack this advice; pages are then touched at first use.
      if (!done && errno != EINVAL) {
        failed.store(errno, std::memory_order_relaxed);
        end();
      }
    }
    return true;
  };
  bool is_whole = false;
  const MadeHere here;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 1; i < workers; ++i) {
      threads.push_back(start_thread(what, "touches pages, which prefault=False omits",
                                     [&touch](const std::stop_token&) { touch({}); }));
    }
    is_whole = touch(interrupted);
    // Leaked in a child that `interrupted` forked: it has none of these threads to wait for.
    if (!here) static_cast<void>(new auto(std::move(threads)));
  }
  if (!is_whole || failed == 0) return is_whole;
  errno = failed;
  throw_errno(what + ": cannot touch all of its " + std::to_string(bytes) + " bytes");
}

Fd sealed_memfd(const std::string& name, std::size_t bytes) {
  const AvailableMemory available = available_memory();
  if (bytes > available.bytes) {
    throw PoolSpace("segment '" + name + "': " + std::to_string(bytes) + " bytes of shared " +
                    "memory are wanted and " + std::to_string(available.bytes) +
                    " are available (" + available.limit +
                    "); make the pool smaller, free memory, or raise that limit");
  }
  Fd fd = make_memfd(name);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throw_errno("segment '" + name + "': cannot size or seal " + std::to_string(bytes) + " bytes");
  }
  return fd;
}

bool is_sealed(const Fd& fd, std::size_t bytes) {
  struct stat info{};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);  // -1 where a file cannot have any.
  return seals >= 0 && (seals & kSeals) == kSeals && ::fstat(fd.get(), &info) == 0 &&
         static_cast<std::size_t>(info.st_size) == bytes;
}

}  // namespace flowtrain::os
