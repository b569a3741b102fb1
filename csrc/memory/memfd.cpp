#include "memory/memfd.hpp"

#include "os/mapping.hpp"

namespace flowtrain::memory {
namespace {

class Memfd final : public Backing {
 public:
  Memfd(os::Fd fd, std::uint64_t bytes, const std::string& what)
      : fd_(std::move(fd)), mapping_(fd_, bytes, what) {}

  std::byte* data() const { return mapping_.data(); }
  Exported export_memory() const override { return Exported(os::duplicate(fd_)); }

 private:
  os::Fd fd_;
  os::Mapping mapping_;
};

std::unique_ptr<Memory> map(os::Fd fd, const Place& place, int ordinal, std::uint64_t bytes,
                            const std::string& name) {
  auto memfd = std::make_unique<const Memfd>(std::move(fd), bytes, "segment '" + name + "'");
  std::byte* const data = memfd->data();
  return std::make_unique<Memory>(place, ordinal, reinterpret_cast<std::uintptr_t>(data), data,
                                  bytes, std::move(memfd));
}

class MemfdResource final : public Resource {
 public:
  std::unique_ptr<Memory> allocate(const DeviceId&, std::uint64_t bytes,
                                   const std::string& name) const override {
    return make_memfd({}, -1, bytes, name);
  }
  std::unique_ptr<Memory> import(Exported exported, const DeviceId&, std::uint64_t bytes,
                                 const std::string& name) const override {
    return import_memfd(std::move(exported), {}, -1, bytes, name);
  }
  std::string why_not(const DeviceId&) const override { return ""; }
};

}  // namespace

std::unique_ptr<Memory> make_memfd(const Place& place, int ordinal, std::uint64_t bytes,
                                   const std::string& name) {
  return map(os::sealed_memfd(name, bytes), place, ordinal, bytes, name);
}

std::unique_ptr<Memory> import_memfd(Exported exported, const Place& place, int ordinal,
                                     std::uint64_t bytes, const std::string& name) {
  auto& [fd, other] = exported.fds;
  if (!fd || other || exported.handle || !os::is_sealed(fd, bytes)) return nullptr;
  return map(std::move(fd), place, ordinal, bytes, name);
}

const Resource& memfd() {
  static const auto* const resource = new MemfdResource;
  return *resource;
}

}  // namespace flowtrain::memory
