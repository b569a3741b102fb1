#include "base/error.hpp"
#include "base/math.hpp"
#include "check.hpp"
#include "memory/address.hpp"
#include "memory/carve.hpp"

using namespace flowtrain;
using namespace flowtrain::memory;

namespace {

void classes_are_sorted_aligned_and_apart() {
  const Carving carving = carve({{10000, 2}, {100, 3}, {4096, 1}});
  CHECK(carving.slabs == 6 && carving.classes.size() == 3);
  std::uint64_t end = 0;
  std::uint32_t slabs = 0;
  for (const CarvedClass& c : carving.classes) {
    CHECK(c.offset >= end && c.first == slabs && c.offset % kPageBytes == 0);
    CHECK(c.slab_bytes % (c.slab_bytes < kPageBytes ? kCacheLine : kPageBytes) == 0);
    end = c.offset + c.slab_bytes * c.count;
    slabs += c.count;
  }
  CHECK(carving.classes[0].slab_bytes == 128 && carving.classes[1].slab_bytes == 4096);
  CHECK(carving.classes[2].slab_bytes == 12288);
  CHECK(carving.bytes >= end && carving.bytes % kPageBytes == 0);
}

void impossible_classes_are_refused() {
  CHECK_THROWS(carve({}), BadArgument);
  CHECK_THROWS(carve({{0, 1}}), BadArgument);
  CHECK_THROWS(carve({{4096, 0}}), BadArgument);
  CHECK_THROWS(carve({{kMaxSegmentBytes, 2}}), BadArgument);
  CHECK_THROWS(carve({{kMaxSegmentBytes + 1, 1}}), BadArgument);
  CHECK_THROWS(carve({{UINT64_MAX, 1}}), BadArgument);  // Rounded up, it would be 0.
  CHECK_THROWS(carve({{64, 1U << 31}, {128, 1U << 31}}), BadArgument);
}

void slab_sizes_are_pages_and_waste_at_most_a_ninth() {
  CHECK(slab_bytes_for(0) == kPageBytes && slab_bytes_for(1) == kPageBytes);
  CHECK(slab_bytes_for(4 << 20) == 4 << 20 && slab_bytes_for((4 << 20) + 1) == 9 << 19);
  std::uint64_t before = 0, sizes = 0;
  for (std::uint64_t bytes = 1; bytes < std::uint64_t{1} << 38; bytes += 1 + bytes / 19) {
    const std::uint64_t size = slab_bytes_for(bytes);
    CHECK(size >= bytes && size >= before && size % kPageBytes == 0);
    CHECK(slab_bytes_for(size) == size);  // A released slab fits a lease of its size.
    CHECK(bytes < 8 * kPageBytes || size - bytes <= size / 9);
    sizes += size != before;
    before = size;
  }
  CHECK(sizes <= 8 * 38);
}

void a_segment_on_demand_has_whole_pages() {
  CHECK(carve_on_demand(10000, 100).bytes == 8192 && carve_on_demand(10000, 100).slabs == 2);
  CHECK(carve_on_demand(1 << 20, 100).slabs == 100);
  CHECK_THROWS(carve_on_demand(4095, 1), BadArgument);
  CHECK_THROWS(carve_on_demand(kMaxSegmentBytes + 1, 1), BadArgument);
}

}  // namespace

int main() {
  classes_are_sorted_aligned_and_apart();
  impossible_classes_are_refused();
  slab_sizes_are_pages_and_waste_at_most_a_ninth();
  a_segment_on_demand_has_whole_pages();
}
