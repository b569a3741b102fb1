#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace flowtrain {

/// Keeps freed blocks of a thread for its next allocations. malloc may give the pages of large ones
/// back to the operating system, and each call of a kernel would then fault them in again.
///
/// Memory:  blocks of 2^k bytes, at least kMinBytes; at most kMaxKeptBytes in all are kept, until
///          the thread ends. Anything else goes to operator new and delete.
/// Threads: one cache for each. A block may be freed by another thread, whose cache then keeps it.
/// Errors:  std::bad_alloc.
class BlockCache {
 public:
  static constexpr std::size_t kMinBytes = std::size_t{1} << 14;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{1} << 24;

  static BlockCache& of_thread() {
    thread_local BlockCache cache;
    return cache;
  }

  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache() {
    for (Block* first : kept_) {
      while (first != nullptr) ::operator delete(std::exchange(first, first->next));
    }
  }

  void* allocate(std::size_t bytes) {
    if (bytes < kMinBytes || bytes > kMaxKeptBytes) return ::operator new(bytes);
    const std::size_t size = std::bit_ceil(bytes);
    Block*& first = first_of(size);
    if (first == nullptr) return ::operator new(size);
    kept_bytes_ -= size;
    return std::exchange(first, first->next);
  }

  /// Args: `bytes` as they were given to `allocate`.
  void free(void* at, std::size_t bytes) noexcept {
    const std::size_t size = std::bit_ceil(bytes);
    if (bytes < kMinBytes || size > kMaxKeptBytes - kept_bytes_) return ::operator delete(at);
    kept_bytes_ += size;
    Block*& first = first_of(size);
    first = new (at) Block{first};
  }

  std::size_t kept_bytes() const { return kept_bytes_; }

 private:
  struct Block {
    Block* next;
  };

  Block*& first_of(std::size_t size) {
    return kept_[static_cast<std::size_t>(std::countr_zero(size))];
  }

  std::array<Block*, 64> kept_{};  ///< The first block of 2^k bytes.
  std::size_t kept_bytes_ = 0;
};

/// Allocator of containers whose memory the thread keeps for its next ones.
template <class T>
struct CachingAllocator {
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  using value_type = T;

  CachingAllocator() = default;
  template <class Other>
  CachingAllocator(const CachingAllocator<Other>&) {}

  T* allocate(std::size_t count) {
    if (count > PTRDIFF_MAX / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(BlockCache::of_thread().allocate(count * sizeof(T)));
  }
  void deallocate(T* at, std::size_t count) noexcept {
    BlockCache::of_thread().free(at, count * sizeof(T));
  }

  bool operator==(const CachingAllocator&) const = default;
};

}  // namespace flowtrain
