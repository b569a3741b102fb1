#include "check.hpp"
#include "memory/address.hpp"

using namespace flowtrain::memory;

int main() {
  const Address last = make_address(65535, 255, kMaxSegmentBytes - 1);
  CHECK(last == UINT64_MAX);
  CHECK(generation_of(last) == 65535 && segment_of(last) == 255);
  CHECK(offset_of(last) == kMaxSegmentBytes - 1);
  const Address address = make_address(7, 2, 4096);
  CHECK(address == 0x0007'02'0000001000);
  CHECK(generation_of(address) == 7 && segment_of(address) == 2 && offset_of(address) == 4096);
  CHECK(segment_of(0) == 0);  // Null has no segment.
}
