#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace flowtrain::channel {

/// Stacks of cells that one producer freed recently by aborting leases, by requested size. Such a
/// cell is warm in caches and needs no search. The cells are hints: another lane may have leased
/// one since.
///
/// Memory:   fixed, in the lane's process. Different sizes may share a stack, and close ones always
///           do. In a full stack the new cell replaces the newest one.
/// Threads:  one at a time.
/// Progress: wait-free.
/// Ordering: none.
/// Errors:   never throws.
class Magazine {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kMaxStackCells = 7;

  void push(std::uint64_t bytes, std::uint32_t cell) noexcept {
    Stack& stack = stack_of(bytes);
    stack.count = std::min(stack.count + 1, kMaxStackCells);
    stack.cells[stack.count - 1] = cell;
  }

  /// Removes and returns the newest cell, or kNone. Its slab may have another size.
  std::uint32_t pop(std::uint64_t bytes) noexcept {
    Stack& stack = stack_of(bytes);
    return stack.count == 0 ? kNone : stack.cells[--stack.count];
  }

 private:
  struct Stack {
    std::uint32_t count = 0;
    std::array<std::uint32_t, kMaxStackCells> cells;
  };
  static constexpr int kStackBits = 5;

  Stack& stack_of(std::uint64_t bytes) noexcept {
    // The four leading bits: the resolution of memory::slab_bytes_for.
    const auto shift = static_cast<std::uint32_t>(std::bit_width(bytes | 8)) - 4;
    const std::uint32_t size = shift << 3 | (static_cast<std::uint32_t>(bytes >> shift) & 7);
    return stacks_[size * 0x9E3779B9U >> (32 - kStackBits)];  // Fibonacci hashing.
  }

  std::array<Stack, 1 << kStackBits> stacks_{};
};

}  // namespace flowtrain::channel
