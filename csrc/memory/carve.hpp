#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::memory {

/// Slabs of one size.
struct SlabClass {
  std::uint64_t slab_bytes;
  std::uint32_t count;
};

/// A class with its place in the segment.
struct CarvedClass {
  std::uint64_t slab_bytes;
  std::uint64_t offset;
  std::uint32_t first;  ///< First slab of the class, counted over the segment.
  std::uint32_t count;
};

/// Division of a segment into slabs, smallest class first; without classes, slabs are allocated on
/// demand.
struct Carving {
  std::vector<CarvedClass> classes;
  std::uint64_t bytes = 0;  ///< Size of the segment.
  std::uint32_t slabs = 0;
};

/// Lays classes out one after another: slabs of a page or more start on a page, smaller ones
/// on a cache line.
///
/// Errors: BadArgument for an empty list, a size or count of zero, or a segment beyond 1 TiB or
/// 2**32 - 1 slabs.
Carving carve(std::vector<SlabClass> classes);

/// A segment of at most `max_slabs` slabs that are allocated on demand, for items of unknown sizes.
///
/// Errors: BadArgument for less than one page, or more than 1 TiB.
Carving carve_on_demand(std::uint64_t bytes, std::uint32_t max_slabs);

/// Slab size for a lease of `bytes` on demand: whole pages, eight sizes per doubling. So a released
/// slab fits later leases of similar size, and slabs of more than eight pages waste at most a
/// ninth.
std::uint64_t slab_bytes_for(std::uint64_t bytes);

}  // namespace flowtrain::memory
