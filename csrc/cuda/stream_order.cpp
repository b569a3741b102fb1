#include "cuda/stream_order.hpp"

#include <map>
#include <mutex>
#include <string>

#include "base/error.hpp"
#include "base/math.hpp"
#include "cuda/context.hpp"
#include "cuda/copy.hpp"
#include "cuda/device.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

using memory::StreamHandle;
using memory::StreamPage;

CUstream stream_of(StreamHandle stream) { return reinterpret_cast<CUstream>(stream); }

/// Registration of a page. It is valid for every device, and memory can be registered only once.
std::shared_ptr<const HostRegistration> registration_of(const StreamPage& page, int device,
                                                        const std::string& what) {
  static auto* const mutex = new std::mutex;
  static auto* const made = new std::map<const void*, std::weak_ptr<const HostRegistration>>;
  memory::SlabWords* const first = &page.words(0);
  const std::lock_guard lock(*mutex);
  std::weak_ptr<const HostRegistration>& known = (*made)[first];
  if (auto found = known.lock()) return found;
  const std::size_t bytes = round_up(StreamPage::bytes_for(page.slabs()), kPageBytes);
  const auto registration = std::make_shared<const HostRegistration>(first, bytes, device, what);
  known = registration;
  return registration;
}

std::string text(std::uint32_t slab, std::uint32_t generation) {
  return "slab " + std::to_string(slab) + ", generation " + std::to_string(generation);
}

/// A step out of order, and what the words of the slab say.
StaleAddress refusal(const StreamPage& page, std::uint32_t slab, std::uint32_t generation,
                     const char* why) {
  const memory::SlabWords& words = page.words(slab);
  const auto at = [](const std::atomic<memory::StreamWord>& word) {
    const auto value = word.load(std::memory_order_relaxed);
    return std::to_string(memory::generation_of_word(value)) +
           ((value & memory::kPoison) != 0 ? " (poisoned)" : "");
  };
  return StaleAddress(text(slab, generation) + ": " + why + "; the slab is written to generation " +
                      at(words.written) + " and read to " + at(words.read));
}

}  // namespace

StreamOrder::StreamOrder(const StreamPage& page, int device, const std::string& what)
    : page_(page), device_(device) {
  const DeviceFacts facts = device_facts(device);
  if (!facts.stream_words) {
    throw MemoryUnreachable(what + ": " + device_text(device) + " (" + facts.name +
                            ") has no streams that write words; wait for a stream on the host, " +
                            "as by cuda.synchronize, and give stream=-1");
  }
  registration_ = registration_of(page, device, what);
}

void StreamOrder::check(std::uint32_t slab) const {
  if (slab < page_.slabs()) return;
  throw BadArgument("slab " + std::to_string(slab) + ": the page has " +
                    std::to_string(page_.slabs()) + "; count from 0");
}

CUdeviceptr StreamOrder::address_of(const std::atomic<memory::StreamWord>& word) const {
  const auto* first = reinterpret_cast<const std::byte*>(&page_.words(0));
  return address() + static_cast<CUdeviceptr>(reinterpret_cast<const std::byte*>(&word) - first);
}

void StreamOrder::publish_on(StreamHandle stream, std::uint32_t slab, std::uint32_t generation,
                             std::uint32_t lane) const {
  check(slab);
  const ContextScope scope(device_);
  if (!page_.begin_write(slab, generation, lane)) {
    throw refusal(page_, slab, generation,
                  "cannot be written: publish each lease once, and lease a slab only once its "
                  "generation before was read");
  }
  try {
    // The default flags put a system-wide fence before the write.
    FLOWTRAIN_CUDA(StreamWriteValue64, text(slab, generation), stream_of(stream),
                   address_of(page_.words(slab).written), memory::stream_word(generation),
                   CU_STREAM_WRITE_VALUE_DEFAULT);
  } catch (...) {
    page_.cancel_write(slab, generation);
    throw;
  }
  page_.submitted_write(slab, generation, lane);
}

void StreamOrder::wait_written(StreamHandle stream, std::uint32_t slab,
                               std::uint32_t generation) const {
  check(slab);
  if (!page_.write_submitted(slab, generation)) {
    throw refusal(page_, slab, generation,
                  "no write of this generation was submitted, so that a stream would wait for "
                  "ever, or for other data; wait only for items that a consumer got");
  }
  const ContextScope scope(device_);
  FLOWTRAIN_CUDA(StreamWaitValue64, text(slab, generation), stream_of(stream),
                 address_of(page_.words(slab).written), memory::stream_word(generation),
                 CU_STREAM_WAIT_VALUE_GEQ);
}

void StreamOrder::release_on(StreamHandle stream, std::uint32_t slab, std::uint32_t generation,
                             std::uint32_t lane) const {
  check(slab);
  const ContextScope scope(device_);
  if (!page_.begin_read(slab, generation, lane)) {
    throw refusal(page_, slab, generation, "cannot be released: release each item once");
  }
  try {
    FLOWTRAIN_CUDA(StreamWriteValue64, text(slab, generation), stream_of(stream),
                   address_of(page_.words(slab).read), memory::stream_word(generation),
                   CU_STREAM_WRITE_VALUE_DEFAULT);
  } catch (...) {
    page_.cancel_read(slab, generation);
    throw;
  }
}

void StreamOrder::synchronize(StreamHandle stream) const {
  cuda::synchronize(device_, stream_of(stream));
}

}  // namespace flowtrain::cuda
