#include "os/removal_on_signal.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/error.hpp"
#include "os/byte_lock.hpp"

namespace flowtrain::os {

struct RemovalOnSignal::Entry {
  std::atomic<pid_t> process{0};  ///< Whose folder it is; 0 if the entry is unused.
  int folder = -1;                ///< A duplicate, never closed: a handler may be using it.
  int control = -1;               ///< For locks; not a duplicate, which would hold them.
  std::uint64_t presence = 0;     ///< Byte that each process of the pool has a shared lock of.
  bool creator = false;
  char name[64]{};  ///< "../" and the name of the folder.
  Entry* next = nullptr;
};

namespace {

using Entry = RemovalOnSignal::Entry;

constexpr const char* kOrphanedFile = "orphaned";

std::atomic<Entry*> entries{nullptr};

void remove_files(int folder) noexcept {
  alignas(dirent64) char buffer[1024];
  ::lseek(folder, 0, SEEK_SET);
  // readdir may allocate memory, which a signal handler must not.
  for (long bytes; (bytes = ::syscall(SYS_getdents64, folder, buffer, sizeof(buffer))) > 0;) {
    for (long at = 0; at < bytes;) {
      const auto* file = reinterpret_cast<const dirent64*>(buffer + at);
      ::unlinkat(folder, file->d_name, 0);  // Fails for "." and "..".
      at += file->d_reclen;
    }
  }
}

void remove_folder(const Entry& entry) noexcept {
  // A second signal may run this in another thread, and both read the list by one descriptor.
  constexpr int kTries = 16;
  for (int tries = 0; tries < kTries; ++tries) {
    remove_files(entry.folder);
    if (::unlinkat(entry.folder, entry.name, AT_REMOVEDIR) == 0 || errno == ENOENT) return;
  }
}

void mark(const Entry& entry) noexcept {
  ::close(::openat(entry.folder, kOrphanedFile, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

/// Whether the folder is this process's to remove: of its own pool, or of one whose creator has
/// left it so, and no other process is left.
bool is_last(const Entry& entry) noexcept {
  return (entry.creator || ::faccessat(entry.folder, kOrphanedFile, F_OK, 0) == 0) &&
         !is_byte_locked(entry.control, entry.presence);
}

template <class Act>
void for_each_of(pid_t process, Act&& act) noexcept {
  Entry* entry = entries.load(std::memory_order_acquire);  // sync: signal.entry
  for (; entry != nullptr; entry = entry->next) {
    if (entry->process.load(std::memory_order_acquire) == process) {  // sync: signal.entry
      act(*entry);
    }
  }
}

void leave_and_end(int signal) {
  leave_pools();
  // Only now: a signal of default action would end the process in the middle.
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  ::raise(signal);  // Takes effect once this handler returns.
}

/// An entry with `process` set to a value that is no process.
Entry* claim() {
  constexpr pid_t kClaimed = -1;
  Entry* entry = entries.load(std::memory_order_acquire);  // sync: signal.entry
  for (; entry != nullptr; entry = entry->next) {
    pid_t none = 0;
    if (entry->process.compare_exchange_strong(none, kClaimed,
                                               std::memory_order_acq_rel)) {  // sync: signal.entry
      return entry;
    }
  }
  entry = new Entry;
  entry->process.store(kClaimed, std::memory_order_relaxed);
  entry->next = entries.load(std::memory_order_relaxed);
  while (!entries.compare_exchange_weak(entry->next, entry,
                                        std::memory_order_acq_rel)) {  // sync: signal.entry
  }
  return entry;
}

}  // namespace

void leave_pools() noexcept {
  // A forked child has its parent's entries.
  const pid_t self = ::getpid();
  for_each_of(self, [](const Entry& entry) {
    if (entry.creator) mark(entry);
    unlock_byte(entry.control, entry.presence);
  });
  // Each process that ends at the same time leaves before it looks: the last one finds no other.
  for_each_of(self, [](const Entry& entry) {
    if (is_last(entry)) remove_folder(entry);
  });
}

void remove_pools_on_signals() noexcept {
  // The kernel drops a signal of default action to the first process of a container.
  if (::getpid() == 1) return;
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0 ||
        action.sa_handler != SIG_DFL) {
      continue;
    }
    action = {};
    action.sa_handler = &leave_and_end;
    action.sa_flags = SA_ONSTACK;
    ::sigaction(signal, &action, nullptr);
  }
}

RemovalOnSignal::RemovalOnSignal(const Fd& folder, const Fd& control, std::uint64_t presence,
                                 const std::string& name, bool creator)
    : entry_(claim()) {
  int& own = entry_->folder;
  const int duplicate =
      own < 0 ? ::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0) : ::dup3(folder.get(), own, O_CLOEXEC);
  if (duplicate < 0) {
    entry_->process.store(0, std::memory_order_release);  // sync: signal.entry
    throw_errno("pool '" + name + "': its folder's descriptor cannot be duplicated");
  }
  own = duplicate;
  entry_->control = control.get();
  entry_->presence = presence;
  entry_->creator = creator;
  const std::string path = "../" + name;
  std::strncpy(entry_->name, path.c_str(), sizeof(entry_->name) - 1);
  share_byte(control, presence);  // A file that cannot be locked has no participants.
  entry_->process.store(::getpid(), std::memory_order_release);  // sync: signal.entry
}

bool RemovalOnSignal::leave() noexcept {
  unlock_byte(entry_->control, entry_->presence);
  return is_last(*entry_);
}

void RemovalOnSignal::abandon() noexcept {
  entry_->process.store(0, std::memory_order_release);  // sync: signal.entry
  entry_ = nullptr;
}

RemovalOnSignal::~RemovalOnSignal() {
  if (entry_ == nullptr) return;
  unlock_byte(entry_->control, entry_->presence);
  entry_->process.store(0, std::memory_order_release);  // sync: signal.entry
}

}  // namespace flowtrain::os
