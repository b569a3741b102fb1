#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace flowtrain::memory {

/// Rows of a slab, and their place in a packed buffer. A row of a table of int64 [pieces, 4].
struct RowPiece {
  std::int64_t memory;     ///< Number of the memory that holds the slab.
  std::int64_t offset;     ///< Of the first element of the rows in that memory.
  std::int64_t rows;       ///< Rows of `width` elements each, one behind the other.
  std::int64_t first_row;  ///< In the packed buffer.
};
static_assert(sizeof(RowPiece) == 4 * sizeof(std::int64_t));

/// Memory of elements of one dtype.
struct Elements {
  std::uint64_t address;
  std::uint64_t count;
};

/// Rows of the packed buffer from `first_row` up to the next entry, and where their slab is.
struct PlacedRows {
  std::uint64_t address;
  std::uint32_t first_row;
};

/// A checked table: its entries are in order of rows, none is empty, and together they are all rows
/// of the packed buffer.
///
/// Memory:   12 bytes a piece, padded to 16.
/// Threads:  immutable once made.
/// Progress: time proportional to the pieces; they are sorted only if they are out of order.
/// Ordering: none.
/// Errors:   BadArgument names the piece that leaves its memory or the buffer, or where rows of the
///           buffer belong to no piece or to several.
class PackedRows {
 public:
  PackedRows(std::span<const RowPiece> pieces, std::span<const Elements> memories,
             std::size_t element_bytes, std::int64_t width, std::int64_t rows);

  std::span<const PlacedRows> entries() const noexcept { return entries_; }
  std::uint64_t width() const noexcept { return width_; }
  std::uint32_t rows() const noexcept { return rows_; }

  /// Throws BadArgument if two pieces share an element, which a scatter would write twice.
  void check_disjoint() const;

 private:
  std::uint32_t end_of(std::size_t entry) const noexcept {
    return entry + 1 < entries_.size() ? entries_[entry + 1].first_row : rows_;
  }

  std::vector<PlacedRows> entries_;
  std::size_t element_bytes_;
  std::uint64_t width_;
  std::uint32_t rows_;
};

}  // namespace flowtrain::memory
