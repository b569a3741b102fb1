#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "os/fd.hpp"

namespace flowtrain::os {

/// Environment variable with the folder that choose_runtime_parent gets.
inline constexpr const char* kPoolFolderVariable = "FLOWTRAIN_POOL_DIR";

/// Chooses the folder, on a tmpfs, that contains `flowtrain-<uid>`; /dev/shm if `path` is empty.
///
/// Threads: any. The environment is read by the caller, since std::getenv races with setenv.
/// Errors:  BadArgument if it is not absolute, does not exist, or is not on a tmpfs.
void choose_runtime_parent(std::string path);

/// Folder of this user's pools, `flowtrain-<uid>` in the chosen folder, made with mode 0700.
///
/// Errors: SystemCallError if it is a link, belongs to another user, or is open to other users.
std::string runtime_folder();

/// Lock of a folder. The destructor unlocks it explicitly: closing the descriptor would leave the
/// lock with any child forked meanwhile.
class FolderLock {
 public:
  FolderLock() = default;
  explicit FolderLock(Fd folder) : folder_(std::move(folder)) {}
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&&) = delete;
  ~FolderLock();

  explicit operator bool() const { return static_cast<bool>(folder_); }

 private:
  Fd folder_;
};

/// Excludes all other processes from making and removing pools while the result lives, or until its
/// holder dies. Empty only if `interrupted` ended the wait.
///
/// Errors: PoolTimeout after ten seconds.
FolderLock lock_runtime_folder(const Interrupted& interrupted = {});

/// Makes `runtime_folder()/name` with mode 0700. Returns false if it exists.
bool make_pool_folder(const std::string& name);

/// Removes a pool's folder and its contents, whichever pool has the name now. Returns false if
/// there was none. The caller holds the lock of the runtime folder.
bool remove_pool_folder(const std::string& name);

/// Opens a pool's folder; an empty Fd if there is none. The result refers to this folder even after
/// its name was removed and taken by another pool.
Fd open_pool_folder(const std::string& name);

/// Path of a file in an open folder.
std::string path_in(const Fd& folder, const std::string& file);

/// Removes the contents of a pool's folder, and its name unless another pool has taken it. Needs no
/// lock.
void remove_pool_folder(const Fd& folder, const std::string& name) noexcept;

/// Removes a pool's folder if it is empty. `folder` is open, and was made beside it or is it.
void remove_empty_pool_folder(const Fd& folder, const std::string& name) noexcept;

/// Names of all pools of this user.
std::vector<std::string> pool_names();

/// Another open file description of the same file. Byte locks belong to a description, and a
/// mapping keeps its description alive, also in forked children: lock and map different
/// descriptions.
Fd reopen_file(const Fd& fd);

/// Whether the file still has a name, that is, was not removed since it was opened.
bool is_linked(const Fd& fd);

/// Makes a file of fixed size with mode 0600, which must not exist. Reserves its pages, so that a
/// write to it never faults for lack of space. An empty Fd if its folder does not exist.
///
/// Errors: PoolSpace, naming both numbers, if tmpfs or memory has fewer bytes left.
Fd create_file(const std::string& path, std::uint64_t bytes);

/// Opens a file read-write without following links; an empty Fd if it does not exist.
Fd open_file(const std::string& path);

std::uint64_t file_bytes(const Fd& fd);

}  // namespace flowtrain::os
