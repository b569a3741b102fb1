#include "os/folder.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/deadline.hpp"
#include "base/error.hpp"
#include "os/available_memory.hpp"

namespace flowtrain::os {
namespace {

constexpr const char* kVariable = kPoolFolderVariable;

/// Makes a folder that only this user can enter, or accepts an existing one. Returns whether it was
/// made.
bool make_private(const std::string& path) {
  const bool made = ::mkdir(path.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    throw_errno(path + ": cannot be made; name a folder that you can write to in " + kVariable);
  }
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) throw_errno(path + ": lstat");
  const std::string refused = path + ": not a folder of this user alone: ";
  if (info.st_uid != ::geteuid()) {
    throw SystemCallError(refused + "it belongs to user " + std::to_string(info.st_uid) +
                          ", and only that user or root can remove it; in every process of the " +
                          "pool, set " + kVariable + " to another folder of yours on a tmpfs, " +
                          "such as /run/user/" + std::to_string(::geteuid()));
  }
  if (!S_ISDIR(info.st_mode)) throw SystemCallError(refused + "it is a file or link; remove it");
  if ((info.st_mode & 077) != 0) {
    throw SystemCallError(refused + "other users may enter it; chmod 700 it, or remove it");
  }
  return made;
}

std::mutex parent_mutex;
std::string chosen_parent;  // Under parent_mutex; empty if none was chosen.

/// Folder that contains `flowtrain-<uid>`.
std::string parent_path() {
  const std::lock_guard lock(parent_mutex);
  return chosen_parent.empty() ? "/dev/shm" : chosen_parent;
}

std::string runtime_path() { return parent_path() + "/flowtrain-" + std::to_string(::geteuid()); }

/// A chosen folder may lie on a disk, which would be written to for every item.
void check_in_memory(const std::string& path) {
  const std::string refused = std::string(kVariable) + "='" + path + "' ";
  struct statfs info{};
  if (::statfs(path.c_str(), &info) != 0) {
    throw BadArgument(refused + "cannot be used (" + std::generic_category().message(errno) +
                      "); choose a folder that exists");
  }
  if (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC) return;
  throw BadArgument(refused + "is not on a tmpfs; choose a folder in memory, such as one below " +
                    "/dev/shm");
}

/// Reserves the pages of a file. Returns 0 or the error number. On older kernels a signal ends the
/// call and undoes its work, hence the loop.
int reserve(const Fd& fd, std::uint64_t bytes) {
  for (;;) {
    const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    if (failed != EINTR) return failed;
  }
}

/// Free bytes of tmpfs. A tmpfs without a limit (size=0) reports 0 blocks.
std::uint64_t tmpfs_bytes() {
  struct statvfs info{};
  if (::statvfs(runtime_path().c_str(), &info) != 0 || info.f_blocks == 0) return UINT64_MAX;
  return info.f_bavail * info.f_frsize;
}

[[noreturn]] void throw_full(const std::string& path, std::uint64_t bytes) {
  throw PoolSpace(
      path + ": needs " + std::to_string(bytes) + " bytes and the tmpfs of " + runtime_path() +
      " has " + std::to_string(tmpfs_bytes()) + " left; lower " +
      "max_cells or max_lanes, make the tmpfs larger (containers: --shm-size), or choose another " +
      "by " + kVariable);
}

}  // namespace

void choose_runtime_parent(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!path.empty()) {
    if (path[0] != '/') {
      throw BadArgument(std::string(kVariable) + "='" + path + "' must be an absolute path, " +
                        "since all processes of a pool must name the same folder");
    }
    check_in_memory(path);
  }
  const std::lock_guard lock(parent_mutex);
  chosen_parent = std::move(path);
}

std::string runtime_folder() {
  const std::string path = runtime_path();
  make_private(path);
  return path;
}

FolderLock::~FolderLock() {
  if (folder_) ::flock(folder_.get(), LOCK_UN);
}

FolderLock lock_runtime_folder(const Interrupted& interrupted) {
  const std::string path = runtime_folder();
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder) throw_errno(path + ": cannot open");
  const Deadline deadline = Deadline::in(10.0);
  while (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    if (deadline.passed()) {
      throw PoolTimeout(path + ": another process has been making a pool for 10 s; is it stopped?");
    }
    if (interrupted && interrupted()) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return FolderLock(std::move(folder));
}

bool make_pool_folder(const std::string& name) {
  return make_private(runtime_folder() + "/" + name);
}

bool remove_pool_folder(const std::string& name) {
  const std::string path = runtime_folder() + "/" + name;
  std::error_code failed;
  const std::uintmax_t removed = std::filesystem::remove_all(path, failed);
  if (failed) {
    errno = failed.value();
    throw_errno(path + ": cannot remove");
  }
  return removed > 0;
}

Fd open_pool_folder(const std::string& name) {
  const std::string path = runtime_folder() + "/" + name;
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd && errno != ENOENT && errno != ENOTDIR && errno != ELOOP) {
    throw_errno(path + ": cannot open");
  }
  return fd;
}

std::string path_in(const Fd& folder, const std::string& file) {
  return "/proc/self/fd/" + std::to_string(folder.get()) + "/" + file;
}

void remove_pool_folder(const Fd& folder, const std::string& name) noexcept {
  std::error_code ignored;
  for (std::filesystem::directory_iterator file(path_in(folder, ""), ignored), end; file != end;
       file.increment(ignored)) {
    std::filesystem::remove(file->path(), ignored);
  }
  remove_empty_pool_folder(folder, name);
}

void remove_empty_pool_folder(const Fd& folder, const std::string& name) noexcept {
  // A newer folder of this name is not empty, or its maker tries again.
  ::unlinkat(folder.get(), ("../" + name).c_str(), AT_REMOVEDIR);
}

std::vector<std::string> pool_names() {
  const std::string path = runtime_folder();
  std::vector<std::string> names;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  if (failed) {
    errno = failed.value();
    throw_errno(path + ": cannot list");
  }
  std::sort(names.begin(), names.end());
  return names;
}

Fd create_file(const std::string& path, std::uint64_t bytes) {
  // Checked first: the reservation would use up all memory before it fails.
  if (bytes > tmpfs_bytes()) throw_full(path, bytes);
  if (const AvailableMemory memory = available_memory(); bytes > memory.bytes) {
    throw PoolSpace(path + ": needs " + std::to_string(bytes) + " bytes and " +
                    std::to_string(memory.bytes) + " are available (" + memory.limit +
                    "); lower max_cells or max_lanes, or free memory");
  }
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd && errno == ENOENT) return fd;
  if (!fd) throw_errno(path + ": cannot create");
  const int failed = reserve(fd, bytes);
  if (failed == ENOSPC) {
    ::unlink(path.c_str());
    throw_full(path, bytes);
  }
  if (failed != 0) {
    errno = failed;
    throw_errno(path + ": cannot reserve " + std::to_string(bytes) + " bytes");
  }
  return fd;
}

Fd open_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd && errno != ENOENT && errno != ENOTDIR) throw_errno(path + ": cannot open");
  return fd;
}

Fd reopen_file(const Fd& fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  Fd other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!other) throw_errno(path + ": cannot open again");
  return other;
}

bool is_linked(const Fd& fd) {
  struct stat info{};
  return ::fstat(fd.get(), &info) == 0 && info.st_nlink > 0;
}

std::uint64_t file_bytes(const Fd& fd) {
  struct stat info{};
  return ::fstat(fd.get(), &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
}

}  // namespace flowtrain::os
