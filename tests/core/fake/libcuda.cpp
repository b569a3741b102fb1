#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "call.hpp"

namespace fake {

thread_local int contexts = 0;

CUresult start(std::string name) {
  static std::mutex mutex;
  static const pid_t user = ::getpid();
  // The header gives some functions the name of their newest version.
  if (const auto version = name.find("_v"); version != std::string::npos) name.erase(version);
  const std::lock_guard lock(mutex);
  static std::string refuse =
      std::getenv("FAKE_CUDA_REFUSE") ? std::getenv("FAKE_CUDA_REFUSE") : "";
  if (const char* path = std::getenv("FAKE_CUDA_LOG")) {
    if (FILE* log = std::fopen(path, "a")) {
      std::fprintf(log, "%s\n", name.c_str());
      std::fclose(log);
    }
  }
  if (::getpid() != user) return CUDA_ERROR_NOT_INITIALIZED;
  if (refuse != name) return CUDA_SUCCESS;
  refuse.clear();
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace fake

#undef cuGetProcAddress
extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  static const auto* calls = [] {
    auto* all = new fake::Calls(fake::device_calls());
    all->merge(fake::memory_calls());
    all->merge(fake::stream_calls());
    return all;
  }();
  const auto found = calls->find(name);
  *out = found == calls->end() ? nullptr : found->second;
  *status = *out == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
