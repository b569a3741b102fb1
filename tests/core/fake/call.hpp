#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <string>

/// A driver of one device whose memory is the host's, and whose streams run on threads. It shows
/// what the core asks of the real one, in which order, what the core does with refusals, and
/// whether work on streams is ordered. Variables of the environment control it:
///
///   FAKE_CUDA_LOG       file to which the names of calls are written
///   FAKE_CUDA_REFUSE    call that fails with CUDA_ERROR_NOT_SUPPORTED, once
///   FAKE_CUDA_GATE      file for which a registration waits; it fails if nobody makes the file
///   FAKE_CUDA_END_GATE  the same for the end of a registration
///   FAKE_CUDA_QUEUES    number of hardware queues, see stream.cpp
///   FAKE_CUDA_DELAY_US  maximum delay before an operation on a stream, and within a copy
///   FAKE_CUDA_SEED      seed of the delays
namespace fake {

/// Functions of the driver by name.
using Calls = std::map<std::string, void*>;
Calls device_calls();
Calls memory_calls();
Calls stream_calls();

template <class Function>
void* pointer(Function* function) {
  return reinterpret_cast<void*>(function);
}

inline void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

/// Contexts that are current in the calling thread.
extern thread_local int contexts;

/// Logs a call. Returns an error if the test has the call refused, or if this process was forked
/// from one that uses the driver.
CUresult start(std::string name);

/// Whether all of this host memory is registered.
bool is_registered(const void* data, std::size_t bytes);

}  // namespace fake

#define CALL(name) \
  if (const CUresult started = fake::start(#name); started != CUDA_SUCCESS) return started;
/// A call that a real driver refuses where no context is current.
#define CALL_IN_CONTEXT(name) \
  CALL(name)                  \
  if (fake::contexts == 0) return CUDA_ERROR_INVALID_CONTEXT;
