#include "memory/fake.hpp"

#include "base/error.hpp"
#include "memory/memfd.hpp"

namespace flowtrain::memory {
namespace {

constexpr std::uint64_t kFakes = 0x66616b6500000000;  // "fake"

class FakeResource final : public Resource {
 public:
  std::unique_ptr<Memory> allocate(const DeviceId& device, std::uint64_t bytes,
                                   const std::string& name) const override {
    return make_memfd({Kind::kFake, device}, ordinal_of(device), bytes, name);
  }
  std::unique_ptr<Memory> import(Exported exported, const DeviceId& device, std::uint64_t bytes,
                                 const std::string& name) const override {
    return import_memfd(std::move(exported), {Kind::kFake, device}, ordinal_of(device), bytes,
                        name);
  }
  std::string why_not(const DeviceId& device) const override {
    return device.high == kFakes ? "" : "there is no such fake device; see fake_device";
  }

 private:
  int ordinal_of(const DeviceId& device) const {
    if (const std::string reason = why_not(device); !reason.empty()) {
      throw BadArgument("device " + text(device) + ": " + reason);
    }
    return static_cast<int>(device.low);
  }
};

}  // namespace

const Resource& fake() {
  static const auto* const resource = new FakeResource;
  return *resource;
}

DeviceId fake_device(std::uint32_t number) { return {kFakes, number}; }

}  // namespace flowtrain::memory
