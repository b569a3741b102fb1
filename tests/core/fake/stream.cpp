// Streams. A handle that was not seen before is a new stream, with a hardware queue of its own. If
// FAKE_CUDA_QUEUES is set, stream number n uses queue n modulo this number, as on a device whose
// queues are fewer than its streams: a wait then blocks unrelated streams, too.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "call.hpp"
#include "queue.hpp"

namespace fake {
namespace {

Queue& queue_of(CUstream stream) {
  // Never destroyed, as its threads use it until the end of the process.
  static auto* mutex = new std::mutex;
  static auto* queues = new std::map<std::uint64_t, Queue*>;
  const char* limit = std::getenv("FAKE_CUDA_QUEUES");
  auto number = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stream));
  if (limit != nullptr) number %= std::strtoull(limit, nullptr, 10);
  const std::lock_guard lock(*mutex);
  Queue*& queue = (*queues)[number];
  if (queue == nullptr) queue = new Queue(number);
  return *queue;
}

/// Copies in parts, with delays between them: a copy that runs beside another one of the same
/// memory gives a mixture.
void copy(Queue& queue, void* target, const void* source, std::size_t bytes) {
  constexpr std::size_t kParts = 4;
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::size_t first = bytes * i / kParts;
    const std::size_t end = bytes * (i + 1) / kParts;
    std::memcpy(static_cast<char*>(target) + first, static_cast<const char*>(source) + first,
                end - first);
    if (i + 1 < kParts) queue.delay();
  }
}

std::atomic<cuuint64_t>& word_at(CUdeviceptr address) {
  return *static_cast<std::atomic<cuuint64_t>*>(at(address));
}

CUresult create(CUstream* stream, unsigned flags) {
  CALL_IN_CONTEXT(cuStreamCreate)
  // Tests choose small numbers for theirs.
  static std::atomic<std::uintptr_t> last{1 << 20};
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(++last);
  return CUDA_SUCCESS;
}

CUresult destroy(CUstream stream) {
  CALL_IN_CONTEXT(cuStreamDestroy)
  return queue_of(stream).is_idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult query(CUstream stream) {
  CALL_IN_CONTEXT(cuStreamQuery)
  return queue_of(stream).is_idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult launch(CUstream stream, CUhostFn function, void* data) {
  CALL_IN_CONTEXT(cuLaunchHostFunc)
  queue_of(stream).push([=] { function(data); });
  return CUDA_SUCCESS;
}

CUresult synchronize(CUstream stream) {
  CALL_IN_CONTEXT(cuStreamSynchronize)
  queue_of(stream).wait_for_all();
  return CUDA_SUCCESS;
}

CUresult write_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CALL_IN_CONTEXT(cuStreamWriteValue64)
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % sizeof(value) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  queue_of(stream).push([=] { word_at(address).store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CALL_IN_CONTEXT(cuStreamWaitValue64)
  if (flags != CU_STREAM_WAIT_VALUE_GEQ || address % sizeof(value) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  queue_of(stream).push([=] {
    // By the sign of the difference, as documented.
    for (int polls = 0;
         static_cast<std::int64_t>(word_at(address).load(std::memory_order_acquire) - value) < 0;
         ++polls) {
      std::this_thread::sleep_for(std::chrono::microseconds(polls < 50 ? 20 : 200));
    }
  });
  return CUDA_SUCCESS;
}

CUresult to_device(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) {
  CALL_IN_CONTEXT(cuMemcpyHtoDAsync)
  Queue& queue = queue_of(stream);
  if (is_registered(source, bytes)) {
    queue.push([=, &queue] { copy(queue, at(target), source, bytes); });
    return CUDA_SUCCESS;
  }
  // The driver stages memory that is not registered, before the call returns.
  const auto* data = static_cast<const char*>(source);
  queue.push([=, &queue, staged = std::vector<char>(data, data + bytes)] {
    copy(queue, at(target), staged.data(), bytes);
  });
  return CUDA_SUCCESS;
}

CUresult to_host(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  CALL_IN_CONTEXT(cuMemcpyDtoHAsync)
  Queue& queue = queue_of(stream);
  const std::uint64_t position =
      queue.push([=, &queue] { copy(queue, target, at(source), bytes); });
  if (!is_registered(target, bytes)) queue.wait_for(position);
  return CUDA_SUCCESS;
}

CUresult on_device(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  CALL_IN_CONTEXT(cuMemcpyDtoDAsync)
  Queue& queue = queue_of(stream);
  queue.push([=, &queue] { copy(queue, at(target), at(source), bytes); });
  return CUDA_SUCCESS;
}

}  // namespace

Calls stream_calls() {
  return {
      {"cuStreamCreate", pointer(create)},
      {"cuStreamDestroy", pointer(destroy)},
      {"cuStreamQuery", pointer(query)},
      {"cuLaunchHostFunc", pointer(launch)},
      {"cuStreamSynchronize", pointer(synchronize)},
      {"cuStreamWriteValue64", pointer(write_value)},
      {"cuStreamWaitValue64", pointer(wait_value)},
      {"cuMemcpyHtoDAsync", pointer(to_device)},
      {"cuMemcpyDtoHAsync", pointer(to_host)},
      {"cuMemcpyDtoDAsync", pointer(on_device)},
  };
}

}  // namespace fake
