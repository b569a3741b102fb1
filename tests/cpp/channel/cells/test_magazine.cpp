#include "channel/cells/magazine.hpp"
#include "check.hpp"

using flowtrain::channel::Magazine;

namespace {

/// The newest cell of a size comes first, and a full stack keeps the newest cells.
void the_newest_cell_comes_first() {
  Magazine magazine;
  CHECK(magazine.pop(4096) == Magazine::kNone);
  for (std::uint32_t c = 0; c < Magazine::kMaxStackCells + 5; ++c) magazine.push(4096, c);
  CHECK(magazine.pop(4096) == Magazine::kMaxStackCells + 4);
  for (std::uint32_t left = Magazine::kMaxStackCells - 1; left > 0; --left) {
    CHECK(magazine.pop(4096) == left - 1);
  }
  CHECK(magazine.pop(4096) == Magazine::kNone);
}

}  // namespace

int main() { the_newest_cell_comes_first(); }
