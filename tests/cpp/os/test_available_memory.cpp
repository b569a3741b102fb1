// Which limit bounds new memory, read from a fake /proc and /sys.

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "os/available_memory.hpp"

using flowtrain::os::available_memory;

namespace {

/// A fake root folder of a machine with 1,000,000 KiB available.
class Root {
 public:
  Root()
      : path_(std::filesystem::temp_directory_path() /
              ("available-" + std::to_string(::getpid()))) {
    write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 1000000 kB\n");
  }
  ~Root() { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// A cgroup of version 2, or of version 1.
  void v2(const std::string& folder, const std::string& max, int current, int inactive) const {
    write(folder + "/memory.max", max + "\n");
    write(folder + "/memory.current", std::to_string(current) + "\n");
    write(folder + "/memory.stat",
          "anon 1\ninactive_file " + std::to_string(inactive) + "\nactive_file 7\n");
  }
  void v1(const std::string& folder, const std::string& limit, int usage, int inactive) const {
    write(folder + "/memory.limit_in_bytes", limit + "\n");
    write(folder + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(folder + "/memory.stat",
          "inactive_file 1\ntotal_inactive_file " + std::to_string(inactive) + "\n");
  }
  void expect(std::uint64_t bytes, const std::string& limit) const {
    const auto available = available_memory(path_);
    if (available.bytes != bytes || available.limit != limit) {
      std::fprintf(stderr, "%lu by %s\n", available.bytes, available.limit.c_str());
    }
    CHECK(available.bytes == bytes && available.limit == limit);
  }

 private:
  std::string path_;
};

constexpr std::uint64_t kMachine = 1'024'000'000;
const std::string kMachineLimit = "MemAvailable of /proc/meminfo";
const std::string kV2Mount =
    "24 1 0:2 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

void without_cgroups_the_machine_is_the_limit() {
  const Root root;
  root.expect(kMachine, kMachineLimit);
  root.write("/proc/self/cgroup", "0::/a\n");
  root.write("/proc/self/mountinfo", kV2Mount);
  root.expect(kMachine, kMachineLimit);
  root.v2("/sys/fs/cgroup/a", "max", 500, 0);
  root.expect(kMachine, kMachineLimit);
}

void every_cgroup_up_to_the_root_is_a_limit() {
  const Root root;
  root.write("/proc/self/cgroup", "0::/pod/run\n");
  root.write("/proc/self/mountinfo", kV2Mount);
  root.v2("/sys/fs/cgroup/pod/run", "9000", 4000, 1000);
  root.expect(6000, "/sys/fs/cgroup/pod/run/memory.max");
  root.v2("/sys/fs/cgroup/pod", "20000", 15000, 500);
  root.expect(5500, "/sys/fs/cgroup/pod/memory.max");
  root.v2("/sys/fs/cgroup/pod/run", "9000", 9001, 0);
  root.expect(0, "/sys/fs/cgroup/pod/run/memory.max");
}

void a_container_sees_its_own_cgroup_at_the_mount() {
  const Root root;
  root.v2("/sys/fs/cgroup", "8000", 3000, 0);
  root.write("/proc/self/mountinfo", kV2Mount);
  root.write("/proc/self/cgroup", "0::/\n");  // With a cgroup namespace.
  root.expect(5000, "/sys/fs/cgroup/memory.max");
  root.write("/proc/self/cgroup", "0::/docker/1\n");  // Without.
  root.write("/proc/self/mountinfo", "24 1 0:2 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  root.expect(5000, "/sys/fs/cgroup/memory.max");
  for (const char* other : {"0::/docker/12\n", "0::/../12\n"}) {
    root.write("/proc/self/cgroup", other);  // Another cgroup than the mounted one.
    root.expect(kMachine, kMachineLimit);
  }
}

void version_1_and_version_2_are_both_read() {
  const Root root;
  root.write("/proc/self/cgroup", "9:cpu,cpuacct:/c\n4:memory:/m/n\n0::/\n");
  root.write("/proc/self/mountinfo",
             "31 1 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
             "32 1 0:2 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "33 1 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  root.v1("/sys/fs/cgroup/memory/m/n", "9223372036854771712", 100, 0);  // No limit.
  root.expect(kMachine, kMachineLimit);
  root.v1("/sys/fs/cgroup/memory/m", "7000", 6000, 2000);
  root.expect(3000, "/sys/fs/cgroup/memory/m/memory.limit_in_bytes");
}

}  // namespace

int main() {
  without_cgroups_the_machine_is_the_limit();
  every_cgroup_up_to_the_root_is_a_limit();
  a_container_sees_its_own_cgroup_at_the_mount();
  version_1_and_version_2_are_both_read();
}
