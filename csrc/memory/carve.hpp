#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::memory {

/// So many slabs of one size.
struct SlabClass {
  std::uint64_t slab_bytes;
  std::uint32_t count;
};

/// One class with its place in the segment.
struct CarvedClass {
  std::uint64_t slab_bytes;
  std::uint64_t offset;
  std::uint32_t first;  ///< First slab of the class, counted over the segment.
  std::uint32_t count;
};

/// How a segment is cut into slabs, smallest class first; no classes if it is cut on demand.
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

/// One segment of at most `max_slabs` slabs that are cut off as they are asked for, for when
/// nothing is known about the items.
///
/// Errors: BadArgument for less than one page, or more than 1 TiB.
Carving carve_on_demand(std::uint64_t bytes, std::uint32_t max_slabs);

/// Size to cut for a lease of `bytes`: whole pages, eight sizes to each doubling, so that a slab
/// given back fits what is asked for next, and of more than eight pages at most a ninth is wasted.
std::uint64_t slab_bytes_for(std::uint64_t bytes);

}  // namespace flowtrain::memory
