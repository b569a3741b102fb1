#include "os/available_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace flowtrain::os {
namespace {

/// Files of a memory cgroup, by the version of the interface.
struct Files {
  const char* limit;
  const char* used;
  const char* inactive;  ///< Key in memory.stat.
};
constexpr Files kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Files kV2{"memory.max", "memory.current", "inactive_file"};

using Words = std::vector<std::string>;

std::vector<Words> read_lines(const std::string& path) {
  std::vector<Words> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    Words& words = lines.emplace_back();
    for (std::string word; text >> word;) words.push_back(word);
  }
  return lines;
}

/// Not by a stream: in a process with two C++ runtimes, streams may fail to parse numbers.
std::optional<std::uint64_t> to_number(const std::string& text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  return result.ec == std::errc() && result.ptr == end ? std::optional(number) : std::nullopt;
}

/// The number in a file of one word, or after `key` in a file of several lines.
std::optional<std::uint64_t> read_number(const std::string& path, const std::string& key = "") {
  for (const Words& words : read_lines(path)) {
    if (key.empty() && words.size() == 1) return to_number(words[0]);
    if (words.size() >= 2 && words[0] == key) return to_number(words[1]);
  }
  return std::nullopt;
}

/// Whether a comma-separated list contains a word.
bool contains(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// Path of this process in the memory hierarchy; `/` if it is unknown.
std::string cgroup_of_self(const std::string& root, const Files& files) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool found = &files == &kV2 ? line.starts_with("0::") : contains(controllers, "memory");
    if (found) return line.substr(second + 1);
  }
  return "/";
}

/// Memory left below the limit of one cgroup; nothing if it has no limit.
std::optional<std::uint64_t> left_in(const std::string& folder, const Files& files) {
  const auto limit = read_number(folder + "/" + files.limit);  // "max" is not a number: no limit.
  const auto used = read_number(folder + "/" + files.used);
  if (!limit || !used) return std::nullopt;
  const std::uint64_t inactive = read_number(folder + "/memory.stat", files.inactive).value_or(0);
  const std::uint64_t kept = *used - std::min(*used, inactive);
  return *limit - std::min(*limit, kept);
}

/// Lowers `available` to the memory left in the cgroups of this process in one mounted hierarchy.
///
/// @param top  Cgroup mounted at `mount`; in a container it may be the container's own.
void limit_by(AvailableMemory& available, const std::string& root, const std::string& mount,
              const std::string& top, const Files& files) {
  const std::string path = cgroup_of_self(root, files);
  const std::string prefix = top == "/" ? "" : top;
  // The mount may show another part of the hierarchy, which does not contain this process.
  if (path != top && !path.starts_with(prefix + "/")) return;
  if (path.starts_with("/..")) return;  // Outside of the cgroup namespace.
  std::string below = path.substr(prefix.size());
  if (below == "/") below.clear();
  for (;; below.resize(below.rfind('/'))) {
    const std::optional<std::uint64_t> left = left_in(root + mount + below, files);
    if (left && *left < available.bytes) {
      available = {*left, mount + below + "/" + files.limit};
    }
    if (below.empty()) return;
  }
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  // If MemAvailable is unknown, all memory of the machine is the limit.
  const auto all = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                   static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto kib = read_number(root + "/proc/meminfo", "MemAvailable:");
  AvailableMemory available{kib ? *kib * 1024 : all, "MemAvailable of /proc/meminfo"};
  for (const Words& mount : read_lines(root + "/proc/self/mountinfo")) {
    // id parent device root mount-point options [more options] - type source super-options
    const auto dash = std::find(mount.begin(), mount.end(), "-");
    if (mount.size() < 6 || mount.end() - dash < 4) continue;
    if (dash[1] == "cgroup2") {
      limit_by(available, root, mount[4], mount[3], kV2);
    } else if (dash[1] == "cgroup" && contains(dash[3], "memory")) {
      limit_by(available, root, mount[4], mount[3], kV1);
    }
  }
  return available;
}

}  // namespace flowtrain::os
