// Where UCX is looked for, each in a process of its own, since a process opens one copy. Skipped
// without FLOWTRAIN_TEST_UCX, the path of a copy.

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "base/error.hpp"
#include "check.hpp"
#include "os/child.hpp"
#include "transport/address.hpp"
#include "transport/ucx/devices.hpp"
#include "transport/ucx/library.hpp"

using namespace flowtrain;
using transport::ucx::open_library;

namespace {

std::string g_copy;

std::string error_of(const transport::ucx::Search& search) {
  try {
    open_library(search);
  } catch (const UcxError& error) {
    return error.what();
  }
  return "";
}

bool is_copy(const std::string& path) { return std::filesystem::equivalent(path, g_copy); }

void a_path_is_the_only_place() {
  const std::string error = error_of({"/nowhere/libucp.so.0", {g_copy}});
  CHECK(error.find("/nowhere/libucp.so.0") != std::string::npos);
  const auto& found = open_library({g_copy, {}});
  CHECK(is_copy(found.path) && found.found == "the copy that was named");
  CHECK(&open_library({}) == &found);
  CHECK(error_of({"/nowhere/libucp.so.0", {}}).find("two copies") != std::string::npos);
}

void a_copy_that_is_mapped_comes_before_others() {
  CHECK(::dlopen(g_copy.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  CHECK(error_of({"/nowhere/libucp.so.0", {}}).find("two copies") != std::string::npos);
  const auto& found = open_library({"", {"/nowhere/libucp.so.0"}});
  CHECK(is_copy(found.path) && found.found == "the copy that the process has opened");
}

void others_come_last() {
  // Not a system that has UCX: its copy comes first.
  if (::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) != nullptr) return;
  const std::string error = error_of({"", {"/nowhere/libucp.so.0"}});
  CHECK(error.find("the system's copy") < error.find("/nowhere/libucp.so.0: "));
  CHECK(is_copy(open_library({"", {"/nowhere/libucp.so.0", g_copy}}).path));
}

void a_library_that_is_not_ucx_is_named_with_what_it_lacks() {
  CHECK(error_of({"libm.so.6", {}}).find("it lacks ucp_get_version") != std::string::npos);
}

void devices_are_those_of_the_address() {
  const auto devices = [](const char* host) {
    return transport::ucx::devices_of(transport::address_of(host, "0").storage);
  };
  CHECK(devices("127.0.0.1") == "lo");
  CHECK(devices("203.0.113.9") == "all");  // Of documents; no interface has it.
}

}  // namespace

int main() {
  devices_are_those_of_the_address();
  const char* const path = std::getenv("FLOWTRAIN_TEST_UCX");
  if (path == nullptr) {
    std::fputs("skipped: FLOWTRAIN_TEST_UCX names no copy of UCX\n", stderr);
    return 77;
  }
  g_copy = path;
  for (void (*const test)() :
       {a_path_is_the_only_place, a_copy_that_is_mapped_comes_before_others, others_come_last,
        a_library_that_is_not_ucx_is_named_with_what_it_lacks}) {
    os::Child<std::function<void()>> child{test};
    CHECK(child.wait() == os::Child<std::function<void()>>::End::kDone);
  }
}
