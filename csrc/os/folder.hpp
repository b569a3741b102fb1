#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "os/fd.hpp"

namespace flowtrain::os {

/// Folder of this user's pools on tmpfs, `/dev/shm/flowtrain-<uid>`, made with mode 0700.
///
/// Errors: SystemCallError if it is a link, or belongs to somebody else, or others may enter it.
std::string runtime_folder();

/// The lock of a folder, given back in its destructor: a child forked meanwhile shares the lock,
/// and would keep it where the parent only closed its descriptor.
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

/// Excludes every other maker and remover of pools while the result lives, or until its holder
/// dies. Empty only where `interrupted` ended the wait.
///
/// Errors: PoolTimeout after ten seconds.
FolderLock lock_runtime_folder(const Interrupted& interrupted = {});

/// Makes `runtime_folder()/name` with mode 0700; false if it is there already.
bool make_pool_folder(const std::string& name);

/// Removes a pool's folder with everything in it, whose ever it is; false if there was none. For
/// who has the runtime folder locked.
bool remove_pool_folder(const std::string& name);

/// Opens a pool's folder; an empty Fd if there is none. What is reached through the result is in
/// this very folder, also after its name was removed and given to another.
Fd open_pool_folder(const std::string& name);

/// Path of a file in a folder that is open.
std::string path_in(const Fd& folder, const std::string& file);

/// Removes all that is in a pool's folder, and the name if it is still the folder's. Needs no lock.
void remove_pool_folder(const Fd& folder, const std::string& name) noexcept;

/// Removes a pool's folder if nothing is in it.
void remove_empty_pool_folder(const std::string& name) noexcept;

/// Names of all pools of this user.
std::vector<std::string> pool_names();

/// Another open file description of the same file. Byte locks belong to a description, and a
/// mapping keeps one alive, also in forked children: what is mapped must not be what is locked.
Fd reopen_file(const Fd& fd);

/// Whether the file still has a name: a file removed since it was opened has not.
bool is_linked(const Fd& fd);

/// Makes a file of fixed size, mode 0600, that must not exist; its pages are reserved, so that
/// writing to it can never fault for lack of space. An empty Fd if its folder is not there.
///
/// Errors: PoolSpace where tmpfs or memory has not so many bytes left, naming both numbers.
Fd create_file(const std::string& path, std::uint64_t bytes);

/// Opens a file read-write without following links; an empty Fd if it is not there.
Fd open_file(const std::string& path);

std::uint64_t file_bytes(const Fd& fd);

}  // namespace flowtrain::os
