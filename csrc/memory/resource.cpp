#include "memory/resource.hpp"

#include <algorithm>
#include <new>

#include "base/error.hpp"

namespace flowtrain::memory {

Memory::~Memory() {
  if (!made_here_) {
    // Leaked, not destroyed.
    for (auto& [key, object] : attached_) {
      static_cast<void>(new (std::nothrow) std::shared_ptr<void>(std::move(object)));
    }
    return;
  }
  while (!attached_.empty()) attached_.pop_back();
}

void Memory::attach(const std::string& key, std::shared_ptr<void> object) const {
  const std::lock_guard lock(mutex_);
  if (is_attached(key)) {
    throw BadArgument("memory of " + std::to_string(bytes_) + " bytes: it has '" + key +
                      "' attached already; attach one object for each key");
  }
  attached_.emplace_back(key, std::move(object));
}

bool Memory::has_attached(std::string_view key) const noexcept {
  const std::lock_guard lock(mutex_);
  return is_attached(key);
}

bool Memory::is_attached(std::string_view key) const noexcept {
  return std::any_of(attached_.begin(), attached_.end(),
                     [&](const auto& each) { return each.first == key; });
}

bool Memory::ends_at_once() const noexcept {
  const std::lock_guard lock(mutex_);
  return attached_.empty() && place_.kind == Kind::kMemfd;
}

}  // namespace flowtrain::memory
