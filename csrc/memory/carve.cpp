#include "memory/carve.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.hpp"
#include "base/math.hpp"
#include "memory/address.hpp"

namespace flowtrain::memory {

Carving carve(std::vector<SlabClass> classes) {
  if (classes.empty()) throw BadArgument("classes: empty; give at least one (slab_bytes, count)");
  std::sort(classes.begin(), classes.end(),
            [](const SlabClass& a, const SlabClass& b) { return a.slab_bytes < b.slab_bytes; });
  Carving carving;
  for (const SlabClass& wanted : classes) {
    if (wanted.slab_bytes == 0 || wanted.count == 0) {
      throw BadArgument("classes: (" + std::to_string(wanted.slab_bytes) + ", " +
                        std::to_string(wanted.count) + "): both must be at least 1");
    }
    const std::uint64_t unit = wanted.slab_bytes >= kPageBytes ? kPageBytes : kCacheLine;
    // One byte more than the limit suffices to refuse it, and does not overflow.
    const std::uint64_t slab_bytes =
        round_up(std::min(wanted.slab_bytes, kMaxSegmentBytes + 1), unit);
    carving.bytes = round_up(carving.bytes, kPageBytes);
    if (slab_bytes > kMaxSegmentBytes ||
        wanted.count > (kMaxSegmentBytes - carving.bytes) / slab_bytes) {
      throw BadArgument("classes: " + std::to_string(wanted.count) + " slabs of " +
                        std::to_string(wanted.slab_bytes) + " bytes exceed a segment's limit of " +
                        std::to_string(kMaxSegmentBytes) + " bytes; add several segments");
    }
    if (wanted.count > UINT32_MAX - carving.slabs) {
      throw BadArgument("classes: " + std::to_string(carving.slabs) + " and " +
                        std::to_string(wanted.count) + " slabs exceed a segment's limit of " +
                        std::to_string(UINT32_MAX) + "; make fewer and larger slabs");
    }
    carving.classes.push_back({slab_bytes, carving.bytes, carving.slabs, wanted.count});
    carving.bytes += slab_bytes * wanted.count;
    carving.slabs += wanted.count;
  }
  carving.bytes = round_up(carving.bytes, kPageBytes);
  return carving;
}

Carving carve_on_demand(std::uint64_t bytes, std::uint32_t max_slabs) {
  if (bytes < kPageBytes || bytes > kMaxSegmentBytes) {
    throw BadArgument("bytes=" + std::to_string(bytes) + ": a segment takes " +
                      std::to_string(kPageBytes) + " to " + std::to_string(kMaxSegmentBytes));
  }
  const std::uint64_t pages = bytes / kPageBytes;
  const auto slabs = static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, max_slabs));
  return {{}, pages * kPageBytes, slabs};
}

std::uint64_t slab_bytes_for(std::uint64_t bytes) {
  const std::uint64_t step = std::max(std::bit_floor(bytes) / 8, kPageBytes);
  return std::max(round_up(bytes, step), kPageBytes);
}

}  // namespace flowtrain::memory
