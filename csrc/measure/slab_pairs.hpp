#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::measure {

/// A pool that is nearly full, and who gives slabs back and takes others.
struct SlabLoad {
  std::uint32_t classes;    ///< Slab sizes.
  std::uint32_t slabs;      ///< Of all classes together; each has as many.
  double fill;              ///< Share of the slabs of each class that is in use.
  std::uint32_t processes;  ///< Each on a core of its own, if there are so many.
  bool elsewhere;           ///< Slabs are given back as by a consumer.
  std::uint32_t pairs;      ///< In a slice.
  std::uint32_t slices;
};

/// Nanoseconds of a pair: a slab that is picked at random of all that a process has, of whatever
/// class, is given back, and one is taken that has the size of what was given back kLag pairs ago.
/// Both are the shipped calls: `SlabAllocator::try_lease`, and `SlabAllocator::release`, as when a
/// lease is aborted, or, `elsewhere`, `Control::release_cell` as when a consumer releases an item.
/// One mean for each slice of each process; all of them work at the same time.
///
/// The caller's process must have one thread: those that are measured are its forked children.
///
/// Errors: BadArgument for a load that no slab is free in, or of which a process has none.
std::vector<double> slab_pairs_ns(const SlabLoad& load);

}  // namespace flowtrain::measure
