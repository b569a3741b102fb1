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

/// How a segment is cut into slabs, smallest class first.
struct Carving {
  std::vector<CarvedClass> classes;
  std::uint64_t bytes = 0;  ///< Size of the segment.
  std::uint32_t slabs = 0;
};

/// Lays classes out one after another: slabs of a page or more start on a page, smaller ones
/// on a cache line.
///
/// Errors: BadArgument for an empty list, a size or count of zero, or a segment beyond 1 TiB.
Carving carve(std::vector<SlabClass> classes);

/// Geometric classes, about 1.25x apart, that use `bytes` well whatever is asked for: each
/// class gets an equal share, the largest at least one slab of an eighth of the budget.
///
/// Errors: BadArgument for less than one page.
std::vector<SlabClass> default_classes(std::uint64_t bytes);

}  // namespace flowtrain::memory
