#include "transport/ucx/devices.hpp"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace flowtrain::transport::ucx {
namespace {

bool is_same(const sockaddr* one, const sockaddr_storage& other) {
  if (one == nullptr || one->sa_family != other.ss_family) return false;
  if (one->sa_family == AF_INET) {
    const auto& left = *reinterpret_cast<const sockaddr_in*>(one);
    const auto& right = reinterpret_cast<const sockaddr_in&>(other);
    return left.sin_addr.s_addr == right.sin_addr.s_addr;
  }
  if (one->sa_family != AF_INET6) return false;
  const auto& left = *reinterpret_cast<const sockaddr_in6*>(one);
  const auto& right = reinterpret_cast<const sockaddr_in6&>(other);
  return std::memcmp(&left.sin6_addr, &right.sin6_addr, sizeof(left.sin6_addr)) == 0;
}

}  // namespace

std::string devices_of(const sockaddr_storage& address) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "all";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, &::freeifaddrs);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (!is_same(each->ifa_addr, address)) continue;
    std::string names = each->ifa_name;
    std::error_code none;  // Without RDMA there is no such folder.
    const auto folder = std::filesystem::path("/sys/class/net") / names / "device/infiniband";
    for (const auto& device : std::filesystem::directory_iterator(folder, none)) {
      names.append(",").append(device.path().filename().string()).append(":1");
    }
    return names;
  }
  return "all";
}

}  // namespace flowtrain::transport::ucx
