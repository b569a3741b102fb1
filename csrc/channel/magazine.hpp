#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace flowtrain::channel {

/// Cells that one lane gave back lately, by what had been asked for, the last one first: they are
/// warm, and need not be searched for. Hints only: somebody else may have taken them since.
///
/// Memory:   fixed, of the lane's process. Sizes may share a stack, and near ones always do; where
///           it is full, the new cell takes the place of the last one.
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

  /// Removes and returns a cell, which may also have a slab of another size; kNone if there is
  /// none.
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
    // The four leading bits: as near as sizes to cut are to each other.
    const auto shift = static_cast<std::uint32_t>(std::bit_width(bytes | 8)) - 4;
    const std::uint32_t size = shift << 3 | (static_cast<std::uint32_t>(bytes >> shift) & 7);
    return stacks_[size * 0x9E3779B9U >> (32 - kStackBits)];  // Fibonacci hashing.
  }

  std::array<Stack, 1 << kStackBits> stacks_{};
};

}  // namespace flowtrain::channel
