// Tables that are not in order, and those that are refused.

#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "memory/packed_rows.hpp"

namespace memory = flowtrain::memory;

int main() {
  const std::vector<memory::Elements> memories{{64, 40}};
  const auto made = [&](std::vector<memory::RowPiece> pieces, std::int64_t rows) {
    return memory::PackedRows(pieces, memories, 4, 4, rows);
  };
  const memory::PackedRows table =
      made({{0, 16, 2, 3}, {0, 0, 1, 0}, {0, 9, 0, 1}, {0, 8, 2, 1}}, 5);
  table.check_disjoint();
  CHECK(table.rows() == 5 && table.width() == 4 && table.entries().size() == 3);
  constexpr std::uint32_t kRows[]{0, 1, 3};
  constexpr std::uint64_t kAddresses[]{64, 64 + 8 * 4, 64 + 16 * 4};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(table.entries()[i].first_row == kRows[i] && table.entries()[i].address == kAddresses[i]);
  }
  CHECK_THROWS(made({{0, 0, 2, 0}, {0, 4, 2, 2}}, 4).check_disjoint(), std::invalid_argument);
  CHECK_THROWS(made({{0, 0, 2, 0}}, 3), std::invalid_argument);                // A row is missing.
  CHECK_THROWS(made({{0, 0, 2, 0}, {0, 8, 2, 1}}, 4), std::invalid_argument);  // One has two.
  CHECK_THROWS(made({{0, 0, 1, 0}, {0, 8, 1, 2}}, 2), std::invalid_argument);  // Beyond the last.
  CHECK_THROWS(made({{0, 36, 2, 0}}, 2), std::invalid_argument);               // Of the slab.
  CHECK_THROWS(made({{0, -4, 2, 0}}, 2), std::invalid_argument);
  CHECK_THROWS(made({{1, 0, 2, 0}}, 2), std::invalid_argument);
  CHECK_THROWS(made({{0, 0, -1, 0}}, 2), std::invalid_argument);
  CHECK_THROWS(memory::PackedRows({}, memories, 4, 0, 0), std::invalid_argument);
}
