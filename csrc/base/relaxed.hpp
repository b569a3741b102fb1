#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/utf8.hpp"

namespace flowtrain {

/// A field of shared memory that may be read while it is rewritten. Reads are never torn and impose
/// no order: a value read is valid only once another word confirms it.
template <class T>
class Relaxed {
 public:
  operator T() const noexcept { return value_.load(std::memory_order_relaxed); }
  Relaxed& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }

 private:
  std::atomic<T> value_;
};

/// A copy of memory that another process may write at any time. The compiler cannot read the
/// original again, so checks of the copy stay true.
template <class T>
T copy_once(const T& shared) noexcept {
  T copy = shared;
  asm volatile("" : : "r"(&copy) : "memory");
  return copy;
}

/// A short text of Relaxed words, truncated to kMaxBytes. Reads return valid UTF-8, whatever was
/// written.
class RelaxedText {
 public:
  static constexpr std::size_t kMaxBytes = 47;

  operator std::string() const {
    std::array<std::uint64_t, 6> words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i];
    std::array<char, sizeof(words)> bytes{};
    std::memcpy(bytes.data(), words.data(), kMaxBytes);
    std::string text = bytes.data();
    if (!is_utf8(text)) {
      std::replace_if(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; }, '?');
    }
    return text;
  }
  RelaxedText& operator=(std::string_view text) noexcept {
    std::array<std::uint64_t, 6> words{};
    std::memcpy(words.data(), text.data(), std::min(text.size(), kMaxBytes));
    for (std::size_t i = 0; i < words.size(); ++i) words_[i] = words[i];
    return *this;
  }

 private:
  std::array<Relaxed<std::uint64_t>, 6> words_;
};

}  // namespace flowtrain
