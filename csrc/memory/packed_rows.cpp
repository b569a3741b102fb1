#include "memory/packed_rows.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.hpp"

namespace flowtrain::memory {
namespace {

constexpr std::int64_t kMostRows = std::numeric_limits<std::uint32_t>::max();
/// Keeps products of rows, width and bytes of an element far below 2^64.
constexpr std::int64_t kMostElements = std::int64_t{1} << 56;

std::string name(std::size_t piece) { return "piece " + std::to_string(piece); }

void check_piece(const RowPiece& piece, std::size_t number, std::span<const Elements> memories,
                 std::int64_t width, std::int64_t rows) {
  if (piece.memory < 0 || piece.memory >= static_cast<std::int64_t>(memories.size())) {
    throw BadArgument(name(number) + ": memory " + std::to_string(piece.memory) + " is not among " +
                      std::to_string(memories.size()));
  }
  if (piece.rows < 0 || piece.first_row < 0 || piece.rows > rows ||
      piece.first_row > rows - piece.rows) {
    throw BadArgument(name(number) + ": " + std::to_string(piece.rows) + " rows from row " +
                      std::to_string(piece.first_row) + " are not within the " +
                      std::to_string(rows) + " of the packed buffer");
  }
  const auto room =
      static_cast<std::int64_t>(memories[static_cast<std::size_t>(piece.memory)].count);
  if (piece.offset < 0 || piece.offset > room || piece.rows * width > room - piece.offset) {
    throw BadArgument(name(number) + ": " + std::to_string(piece.rows) + " rows of " +
                      std::to_string(width) + " elements from element " +
                      std::to_string(piece.offset) + " are not within the " + std::to_string(room) +
                      " of memory " + std::to_string(piece.memory));
  }
}

}  // namespace

PackedRows::PackedRows(std::span<const RowPiece> pieces, std::span<const Elements> memories,
                       std::size_t element_bytes, std::int64_t width, std::int64_t rows)
    : element_bytes_(element_bytes),
      width_(static_cast<std::uint64_t>(width)),
      rows_(static_cast<std::uint32_t>(rows)) {
  if (width < 1) throw BadArgument("width=" + std::to_string(width) + ": must be at least 1");
  if (rows < 0 || rows > std::min(kMostRows, kMostElements / width)) {
    throw BadArgument("rows=" + std::to_string(rows) + ": must be 0 to " +
                      std::to_string(std::min(kMostRows, kMostElements / width)));
  }
  for (std::size_t i = 0; i < memories.size(); ++i) {
    if (memories[i].address % element_bytes != 0) {
      throw BadArgument("memory " + std::to_string(i) + ": its address is not a multiple of the " +
                        std::to_string(element_bytes) + " bytes of an element");
    }
    if (memories[i].count > static_cast<std::uint64_t>(kMostElements)) {
      throw BadArgument("memory " + std::to_string(i) + ": " + std::to_string(memories[i].count) +
                        " elements; the maximum is " + std::to_string(kMostElements));
    }
  }
  entries_.reserve(pieces.size());
  std::uint64_t filled = 0;
  bool in_order = true;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const RowPiece& piece = pieces[i];
    check_piece(piece, i, memories, width, rows);
    if (piece.rows == 0) continue;
    in_order &= static_cast<std::uint64_t>(piece.first_row) == filled;
    filled += static_cast<std::uint64_t>(piece.rows);
    entries_.push_back({memories[static_cast<std::size_t>(piece.memory)].address +
                            static_cast<std::uint64_t>(piece.offset) * element_bytes,
                        static_cast<std::uint32_t>(piece.first_row)});
  }
  if (in_order && filled == rows_) return;
  // The slow path: out of order, or wrong.
  std::vector<const RowPiece*> sorted;
  for (const RowPiece& piece : pieces) {
    if (piece.rows > 0) sorted.push_back(&piece);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const RowPiece* a, const RowPiece* b) { return a->first_row < b->first_row; });
  std::int64_t row = 0;
  for (const RowPiece* piece : sorted) {
    if (piece->first_row != row) {
      throw BadArgument("the packed buffer's row " +
                        std::to_string(std::min(row, piece->first_row)) + " belongs to " +
                        (piece->first_row < row ? "two pieces" : "no piece") +
                        "; pieces must cover each row once");
    }
    row += piece->rows;
  }
  if (row != rows) {
    throw BadArgument("the packed buffer's row " + std::to_string(row) +
                      " belongs to no piece; pieces must cover each row once");
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const PlacedRows& a, const PlacedRows& b) { return a.first_row < b.first_row; });
}

void PackedRows::check_disjoint() const {
  const auto bytes = [this](std::size_t i) {
    return (end_of(i) - entries_[i].first_row) * width_ * element_bytes_;
  };
  std::vector<std::size_t> order(entries_.size());
  bool in_order = true;
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
    in_order &= i == 0 || entries_[i - 1].address <= entries_[i].address;
  }
  if (!in_order) {
    std::sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return entries_[a].address < entries_[b].address;
    });
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (entries_[order[i]].address < entries_[order[i - 1]].address + bytes(order[i - 1])) {
      throw BadArgument("rows " + std::to_string(entries_[order[i - 1]].first_row) + " and " +
                        std::to_string(entries_[order[i]].first_row) +
                        " of the packed buffer begin pieces that overlap; a scatter needs pieces "
                        "that share no element");
    }
  }
}

}  // namespace flowtrain::memory
