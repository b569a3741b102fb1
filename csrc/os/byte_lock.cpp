#include "os/byte_lock.hpp"

#include <fcntl.h>

#include <cerrno>

namespace flowtrain::os {
namespace {

struct flock one_byte(short type, std::uint64_t byte) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

}  // namespace

Locked try_lock_byte(const Fd& file, std::uint64_t byte) noexcept {
  struct flock lock = one_byte(F_WRLCK, byte);
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) == 0) return Locked::kYes;
  return errno == EAGAIN || errno == EACCES ? Locked::kHeld : Locked::kFailed;
}

bool share_byte(const Fd& file, std::uint64_t byte) noexcept {
  struct flock lock = one_byte(F_RDLCK, byte);
  return ::fcntl(file.get(), F_OFD_SETLK, &lock) == 0;
}

void unlock_byte(const Fd& file, std::uint64_t byte) noexcept { unlock_byte(file.get(), byte); }

void unlock_byte(int file, std::uint64_t byte) noexcept {
  struct flock lock = one_byte(F_UNLCK, byte);
  ::fcntl(file, F_OFD_SETLK, &lock);
}

bool is_byte_locked(const Fd& file, std::uint64_t byte) noexcept {
  return is_byte_locked(file.get(), byte);
}

bool is_byte_locked(int file, std::uint64_t byte) noexcept {
  struct flock lock = one_byte(F_WRLCK, byte);
  // A failed query must not declare a live process dead.
  return ::fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool is_any_byte_locked(const Fd& file) noexcept {
  struct flock lock = one_byte(F_WRLCK, 0);
  lock.l_len = 0;  // 0: up to the end of the file.
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace flowtrain::os
