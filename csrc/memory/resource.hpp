#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memory/place.hpp"
#include "memory/staging.hpp"
#include "memory/stream_page.hpp"
#include "memory/stream_steps.hpp"
#include "os/exported.hpp"
#include "os/made_here.hpp"

namespace flowtrain::memory {

using os::Exported;
/// Told of an end, on any thread.
using OnDone = std::function<void()>;

/// A mapping of one kind of memory. Its destructor unmaps, does nothing in a forked child that a
/// device could notice, and never throws.
class Backing {
 public:
  Backing() = default;
  virtual ~Backing() = default;
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  /// Descriptors and bytes with which another process imports the memory; empty if this process
  /// cannot export it.
  ///
  /// Errors: throws, e.g. for lack of descriptors.
  virtual Exported export_memory() const = 0;
};

/// Memory of one segment in this process. Whoever holds it owns it.
///
/// Memory:   its destructor ends what is attached, the last first, and then unmaps. In a forked
///           child what is attached stays with the parent.
/// Threads:  any. Attaching is serialized; the destructor runs in one thread.
/// Progress: ending registrations, and memory of a device, can take seconds.
/// Ordering: none.
/// Errors:   the destructor never throws; attach refuses a second object with one key.
class Memory {
 public:
  /// @param ordinal  Number of the device in this process, as in DLPack.
  /// @param address  In the address space of the place.
  /// @param host     Where the host can access it; otherwise null.
  Memory(const Place& place, int ordinal, std::uint64_t address, std::byte* host,
         std::uint64_t bytes, std::unique_ptr<const Backing> backing)
      : place_(place),
        ordinal_(ordinal),
        address_(address),
        host_(host),
        bytes_(bytes),
        backing_(std::move(backing)) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const Place& place() const { return place_; }
  int ordinal() const { return ordinal_; }
  std::uint64_t address() const { return address_; }
  std::byte* host() const { return host_; }
  std::uint64_t bytes() const { return bytes_; }
  /// As Backing.
  Exported export_memory() const { return backing_->export_memory(); }

  /// Keeps an object that depends on this memory, such as a device's registration, and destroys it
  /// before the memory is unmapped.
  ///
  /// Errors: BadArgument if there is an object with this key.
  void attach(const std::string& key, std::shared_ptr<void> object) const;
  bool has_attached(std::string_view key) const noexcept;
  /// Whether the destructor only unmaps pages of the host.
  bool ends_at_once() const noexcept;

 private:
  bool is_attached(std::string_view key) const noexcept;

  Place place_;
  int ordinal_;
  std::uint64_t address_;
  std::byte* host_;
  std::uint64_t bytes_;
  std::unique_ptr<const Backing> backing_;
  os::MadeHere made_here_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::string, std::shared_ptr<void>>> attached_;
};

/// Makes memory of one kind, and maps that of other processes.
///
/// Memory:   none of its own; lives as long as the process.
/// Threads:  any.
/// Progress: allocating and importing may take long. The first use of a device opens its driver.
/// Ordering: none.
/// Errors:   allocate and import throw before anything is made. What is imported comes from another
///           process, and is checked.
class Resource {
 public:
  Resource() = default;
  virtual ~Resource() = default;
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;

  /// @param name  Of the segment, for errors, as in `pool.1`.
  virtual std::unique_ptr<Memory> allocate(const DeviceId& device, std::uint64_t bytes,
                                           const std::string& name) const = 0;
  /// Null if `exported` is not memory of this kind and size. Throws if it cannot be mapped.
  virtual std::unique_ptr<Memory> import(Exported exported, const DeviceId& device,
                                         std::uint64_t bytes, const std::string& name) const = 0;
  /// Why this process cannot use a device's memory, and what to do; empty if it can.
  virtual std::string why_not(const DeviceId& device) const = 0;
  /// Enqueues the steps of a page on streams of the device; null for memory without streams, in
  /// which hosts write and read.
  ///
  /// @param what  Names the page in errors.
  virtual std::shared_ptr<const StreamSteps> steps(const StreamPage&, const DeviceId&,
                                                   const std::string&) const {
    return nullptr;
  }
  /// A staging of a segment; null for memory that the host can access.
  ///
  /// @param on_done  Called after each copy, by a thread that may not use the device.
  /// @param name     Of the segment, for errors.
  virtual std::unique_ptr<Staging> staging(std::shared_ptr<const Memory> /*segment*/, Copies,
                                           OnDone /*on_done*/, const std::string& /*name*/) const {
    return nullptr;
  }
};

}  // namespace flowtrain::memory
