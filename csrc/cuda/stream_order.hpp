#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "cuda/registration.hpp"
#include "memory/stream_page.hpp"
#include "memory/stream_steps.hpp"

namespace flowtrain::cuda {

/// memory::StreamSteps on streams of one device.
///
/// Memory:   the page's, registered with the device while this lives.
class StreamOrder final : public memory::StreamSteps {
 public:
  /// The page must be whole pages of the host's memory. Orders of one page on several devices
  /// share its registration.
  ///
  /// Errors: CudaError; MemoryUnreachable if streams of the device cannot write words.
  StreamOrder(const memory::StreamPage& page, int device, const std::string& what);

  /// Of the page on the device.
  CUdeviceptr address() const { return registration_->device_address(); }

  void publish_on(memory::StreamHandle stream, std::uint32_t slab, std::uint32_t generation,
                  std::uint32_t lane) const override;
  void wait_written(memory::StreamHandle stream, std::uint32_t slab,
                    std::uint32_t generation) const override;
  void release_on(memory::StreamHandle stream, std::uint32_t slab, std::uint32_t generation,
                  std::uint32_t lane) const override;
  void synchronize(memory::StreamHandle stream) const override;

 private:
  void check(std::uint32_t slab) const;
  CUdeviceptr address_of(const std::atomic<memory::StreamWord>& word) const;

  memory::StreamPage page_;
  int device_;
  std::shared_ptr<const HostRegistration> registration_;
};

}  // namespace flowtrain::cuda
