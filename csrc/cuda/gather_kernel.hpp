#pragma once

#include <cstdint>

#include "cuda/gather_table.hpp"
#include "cuda/host_device.hpp"
#include "cuda/vector.hpp"

namespace flowtrain::cuda {

/// Elements from an address to the next one at which a vector may begin.
template <class T, unsigned kCount>
FLOWTRAIN_DEVICE unsigned head_of(std::uint64_t address) {
  return (kCount - static_cast<unsigned>(address / sizeof(T)) % kCount) % kCount;
}

/// Copies `count` elements by the lanes of a warp.
///
/// @tparam kLost  Elements that the planted fault of a test leaves out behind the last vector.
template <class From, class To, unsigned kLost>
FLOWTRAIN_DEVICE void copy_elements(std::uint64_t from_address, std::uint64_t to_address,
                                    unsigned count, unsigned lane) {
  constexpr unsigned kVector = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  constexpr unsigned kInFlight = 4;  // Loads of a lane before its first store.
  const auto* from = global<const From>(from_address);
  auto* to = global<To>(to_address);
  unsigned head = head_of<From, kVector>(from_address);
  unsigned vectors = 0;
  if (head == head_of<To, kVector>(to_address)) {
    if (head > count) head = count;
    vectors = (count - head) / kVector;
  } else {
    head = count;  // The two are never aligned at once.
  }
  const auto* from_vectors = reinterpret_cast<const Vector<From, kVector>*>(from + head);
  auto* to_vectors = reinterpret_cast<Vector<To, kVector>*>(to + head);
  for (unsigned base = lane; base < vectors; base += kInFlight * kWarp) {
    Vector<From, kVector> loaded[kInFlight];
    FLOWTRAIN_UNROLL
    for (unsigned i = 0; i < kInFlight; ++i) {
      if (base + i * kWarp < vectors) loaded[i] = from_vectors[base + i * kWarp];
    }
    FLOWTRAIN_UNROLL
    for (unsigned i = 0; i < kInFlight; ++i) {
      if (base + i * kWarp >= vectors) continue;
      Vector<To, kVector> out;
      FLOWTRAIN_UNROLL
      for (unsigned k = 0; k < kVector; ++k) {
        out.at[k] = convert<To>(loaded[i].at[k]);
      }
      to_vectors[base + i * kWarp] = out;
    }
  }
  for (unsigned i = lane; i < head; i += kWarp) to[i] = convert<To>(from[i]);
  for (unsigned i = head + vectors * kVector + lane; i + kLost < count; i += kWarp) {
    to[i] = convert<To>(from[i]);
  }
}

/// Gathers or scatters the rows of a table, with a cast. It needs no barrier: each warp writes
/// elements of its own.
template <class From, class To, unsigned kLost = 0, class Thread, class Table>
FLOWTRAIN_DEVICE void copy_rows(const Thread& thread, const Table& table) {
  const std::uint64_t warp =
      (std::uint64_t{thread.block()} * thread.threads() + thread.index()) / kWarp;
  const unsigned lane = thread.index() % kWarp;
  const std::uint64_t width = table.width;
  const std::uint64_t end_of_all = table.end_row * width;
  std::uint64_t at = table.first_row[0] * width + warp * table.chunk;
  const std::uint64_t end = at + table.chunk < end_of_all ? at + table.chunk : end_of_all;
  // The last piece that begins at or before the first row of this warp.
  const auto row = static_cast<std::uint32_t>(at / width);
  std::uint32_t piece = 0;
  for (std::uint32_t after = table.pieces; after - piece > 1;) {
    const std::uint32_t middle = piece + (after - piece) / 2;
    if (table.first_row[middle] <= row) {
      piece = middle;
    } else {
      after = middle;
    }
  }
  for (; at < end; ++piece) {
    const std::uint64_t first = table.first_row[piece] * width;
    const std::uint32_t next_row =
        piece + 1 < table.pieces ? table.first_row[piece + 1] : table.end_row;
    const std::uint64_t stop = next_row * width < end ? next_row * width : end;
    const std::uint64_t slab =
        table.address[piece] + (at - first) * (table.gather ? sizeof(From) : sizeof(To));
    const std::uint64_t packed = table.packed + at * (table.gather ? sizeof(To) : sizeof(From));
    copy_elements<From, To, kLost>(table.gather ? slab : packed, table.gather ? packed : slab,
                                   static_cast<unsigned>(stop - at), lane);
    at = stop;
  }
}

}  // namespace flowtrain::cuda
