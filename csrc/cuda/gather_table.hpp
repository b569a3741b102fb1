#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/packed_rows.hpp"

namespace flowtrain::cuda {

/// Parameter of a kernel that copies rows between slabs and a packed buffer. It travels with the
/// launch: there is no table on the device to upload, to keep alive, or to order with streams.
///
/// The work is split by elements of the packed buffer, whatever the sizes of the slabs: a warp
/// copies `chunk` of them, and finds its first slab by binary search.
template <unsigned kMostPieces>
struct RowTable {
  static constexpr unsigned kCapacity = kMostPieces;

  std::uint64_t packed;  ///< Address of the packed buffer's row 0.
  std::uint64_t width;   ///< Elements of a row.
  std::uint32_t pieces;
  std::uint32_t end_row;  ///< Of the last piece.
  std::uint32_t chunk;    ///< Elements that a warp copies.
  bool gather;            ///< From slabs to the packed buffer, or the reverse.
  std::uint64_t address[kMostPieces];
  std::uint32_t first_row[kMostPieces];
};

inline constexpr unsigned kWarp = 32;

/// How a copy is cut; results do not depend on it.
struct RowSplit {
  std::uint32_t warp_bytes = 2048;  ///< Bytes of the wider dtype that a warp copies.
  std::uint32_t threads = 256;      ///< Of a block.
};

/// Calls `launch(table, blocks)` for the pieces of a copy: once, unless there are more of them than
/// a table can hold.
template <class Table, class Launch>
void for_each_table(const memory::PackedRows& rows, std::uint64_t packed, bool gather,
                    std::size_t wider_bytes, const RowSplit& split, Launch launch) {
  const auto entries = rows.entries();
  // Without initialisation: what a launch does not use of it need not be written.
  const auto table = std::make_unique_for_overwrite<Table>();
  for (std::size_t begin = 0; begin < entries.size(); begin += Table::kCapacity) {
    const std::size_t end = std::min<std::size_t>(begin + Table::kCapacity, entries.size());
    table->packed = packed;
    table->width = rows.width();
    table->pieces = static_cast<std::uint32_t>(end - begin);
    table->end_row = end < entries.size() ? entries[end].first_row : rows.rows();
    table->chunk = static_cast<std::uint32_t>(split.warp_bytes / wider_bytes);
    table->gather = gather;
    for (std::size_t i = begin; i < end; ++i) {
      table->address[i - begin] = entries[i].address;
      table->first_row[i - begin] = entries[i].first_row;
    }
    const std::uint64_t elements = (table->end_row - table->first_row[0]) * rows.width();
    const std::uint64_t in_block = std::uint64_t{table->chunk} * (split.threads / kWarp);
    launch(*table, static_cast<std::uint32_t>((elements + in_block - 1) / in_block));
  }
}

}  // namespace flowtrain::cuda
