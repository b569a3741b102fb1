#include "memory/carve.hpp"

#include <algorithm>
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
    const std::uint64_t slab_bytes = round_up(wanted.slab_bytes, unit);
    carving.bytes = round_up(carving.bytes, kPageBytes);
    if (slab_bytes > kMaxSegmentBytes ||
        wanted.count > (kMaxSegmentBytes - carving.bytes) / slab_bytes) {
      throw BadArgument("classes: " + std::to_string(wanted.count) + " slabs of " +
                        std::to_string(slab_bytes) + " bytes exceed a segment's limit of " +
                        std::to_string(kMaxSegmentBytes) + " bytes; add several segments");
    }
    carving.classes.push_back({slab_bytes, carving.bytes, carving.slabs, wanted.count});
    carving.bytes += slab_bytes * wanted.count;
    carving.slabs += wanted.count;
  }
  carving.bytes = round_up(carving.bytes, kPageBytes);
  return carving;
}

std::vector<SlabClass> default_classes(std::uint64_t bytes) {
  constexpr std::uint64_t kSmallest = 64 << 10;
  if (bytes < kPageBytes) {
    throw BadArgument("bytes=" + std::to_string(bytes) + ": a segment takes at least " +
                      std::to_string(kPageBytes));
  }
  const std::uint64_t largest = std::max(bytes / 8 / kPageBytes * kPageBytes, kPageBytes);
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = largest; size >= std::min(kSmallest, largest);
       size = std::min(size - kPageBytes, size * 4 / 5 / kPageBytes * kPageBytes)) {
    sizes.push_back(size);
    if (size <= kPageBytes) break;
  }
  // Largest first, so that what rounding leaves over goes to ever smaller slabs.
  std::vector<SlabClass> classes;
  std::uint64_t left = bytes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::uint64_t share = left / (sizes.size() - i);
    const std::uint64_t least = i == 0 ? 1 : 0;
    const std::uint64_t count = std::min(std::max(share / sizes[i], least), left / sizes[i]);
    if (count == 0) continue;
    classes.push_back({sizes[i], static_cast<std::uint32_t>(count)});
    left -= count * sizes[i];
  }
  return classes;
}

}  // namespace flowtrain::memory
