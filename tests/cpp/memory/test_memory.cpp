#include "base/error.hpp"
#include "base/math.hpp"
#include "check.hpp"
#include "memory/address.hpp"
#include "memory/carve.hpp"

using namespace flowtrain;

namespace {

void addresses_keep_their_parts() {
  const auto address = memory::make_address(255, 65535, memory::kMaxSegmentBytes - 1);
  CHECK(memory::generation_of(address) == 255);
  CHECK(memory::segment_of(address) == 65535);
  CHECK(memory::offset_of(address) == memory::kMaxSegmentBytes - 1);
  CHECK(memory::segment_of(memory::make_address(1, 1, memory::kMaxSegmentBytes)) == 1);
}

void slabs_do_not_overlap_and_large_ones_start_on_pages() {
  const auto carving = memory::carve({{5000, 3}, {100, 5}, {64, 1}});
  std::uint64_t end = 0;
  std::uint32_t slabs = 0;
  for (const auto& c : carving.classes) {
    CHECK(c.offset >= end && c.first == slabs);
    CHECK(c.offset % (c.slab_bytes >= kPageBytes ? kPageBytes : kCacheLine) == 0);
    end = c.offset + c.slab_bytes * c.count;
    slabs += c.count;
  }
  CHECK(end <= carving.bytes && slabs == carving.slabs);
  CHECK(carving.classes.front().slab_bytes == 64 && carving.classes.back().slab_bytes == 8192);
}

void default_classes_use_the_budget() {
  for (std::uint64_t bytes = kPageBytes; bytes < std::uint64_t{1} << 34; bytes = bytes * 3 + 4097) {
    const auto carving = memory::carve(memory::default_classes(bytes));
    CHECK(carving.bytes <= bytes);
    if (bytes > 1 << 20) CHECK(carving.bytes > bytes * 9 / 10);
  }
}

template <class F>
bool refuses(F&& call) {
  try {
    call();
  } catch (const BadArgument&) {
    return true;
  }
  return false;
}

void bad_classes_are_refused() {
  CHECK(refuses([] { memory::carve({}); }));
  CHECK(refuses([] { memory::carve({{0, 1}}); }));
  CHECK(refuses([] { memory::carve({{64, 0}}); }));
  CHECK(refuses([] { memory::carve({{memory::kMaxSegmentBytes, 2}}); }));
}

}  // namespace

int main() {
  addresses_keep_their_parts();
  slabs_do_not_overlap_and_large_ones_start_on_pages();
  default_classes_use_the_budget();
  bad_classes_are_refused();
}
