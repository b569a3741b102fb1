#include "cuda/stream_order.hpp"

#include <string>

#include "base/error.hpp"
#include "cuda/context.hpp"
#include "cuda/driver.hpp"

namespace flowtrain::cuda {
namespace {

using memory::StreamPage;

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

void StreamOrder::check(std::uint32_t slab) const {
  if (slab < page_.slabs()) return;
  throw BadArgument("slab " + std::to_string(slab) + ": the page has " +
                    std::to_string(page_.slabs()) + "; count from 0");
}

CUdeviceptr StreamOrder::address_of(const std::atomic<memory::StreamWord>& word) const {
  const auto* first = reinterpret_cast<const std::byte*>(&page_.words(0));
  return address_ + static_cast<CUdeviceptr>(reinterpret_cast<const std::byte*>(&word) - first);
}

void StreamOrder::publish_on(CUstream stream, std::uint32_t slab, std::uint32_t generation,
                             std::uint32_t lane) const {
  check(slab);
  if (!page_.begin_write(slab, generation, lane)) {
    throw refusal(page_, slab, generation,
                  "cannot be written: publish each lease once, and lease a slab only once its "
                  "generation before was read");
  }
  const ContextScope scope(device_);
  // The default flags put a system-wide fence before the write.
  FLOWTRAIN_CUDA(StreamWriteValue64, text(slab, generation), stream,
                 address_of(page_.words(slab).written), memory::stream_word(generation),
                 CU_STREAM_WRITE_VALUE_DEFAULT);
  page_.submitted_write(slab, generation, lane);
}

void StreamOrder::wait_written(CUstream stream, std::uint32_t slab,
                               std::uint32_t generation) const {
  check(slab);
  if (!page_.write_submitted(slab, generation)) {
    throw refusal(page_, slab, generation,
                  "no write of this generation was submitted, so that a stream would wait for "
                  "ever, or for other data; wait only for items that a consumer got");
  }
  const ContextScope scope(device_);
  FLOWTRAIN_CUDA(StreamWaitValue64, text(slab, generation), stream,
                 address_of(page_.words(slab).written), memory::stream_word(generation),
                 CU_STREAM_WAIT_VALUE_GEQ);
}

void StreamOrder::release_on(CUstream stream, std::uint32_t slab, std::uint32_t generation,
                             std::uint32_t lane) const {
  check(slab);
  if (!page_.begin_read(slab, generation, lane)) {
    throw refusal(page_, slab, generation, "cannot be released: release each item once");
  }
  const ContextScope scope(device_);
  FLOWTRAIN_CUDA(StreamWriteValue64, text(slab, generation), stream,
                 address_of(page_.words(slab).read), memory::stream_word(generation),
                 CU_STREAM_WRITE_VALUE_DEFAULT);
}

}  // namespace flowtrain::cuda
