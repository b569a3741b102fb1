// The kinds of memory that need no device.

#include "memory/conformance.hpp"
#include "memory/fake.hpp"
#include "memory/memfd.hpp"

using namespace flowtrain::memory;

int main() {
  conformance::check({memfd(), {}, true});
  conformance::check({fake(), {Kind::kFake, fake_device(1)}, true});
}
