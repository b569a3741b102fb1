// The kinds of memory of a CUDA device, on the fake driver.

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cuda/ipc.hpp"
#include "cuda/vmm.hpp"
#include "memory/conformance.hpp"

using namespace flowtrain::memory;

namespace {

/// Of the fake driver's device.
constexpr DeviceId kDevice{0xf0f1f2f3f4f5f6f7, 0xf8f9fafbfcfdfeff};

}  // namespace

int main() {
  const std::string log = conformance::Served::path() + ".log";
  ::setenv("FAKE_CUDA_LOG", log.c_str(), 1);
  const auto calls = [&] {
    std::ifstream file(log);
    return static_cast<std::size_t>(
        std::count(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>(), '\n'));
  };
  conformance::check({flowtrain::cuda::vmm(), {Kind::kVmm, kDevice}, true, calls});
  conformance::check({flowtrain::cuda::ipc(), {Kind::kIpc, kDevice}, false, calls});
  ::unlink(log.c_str());
}
