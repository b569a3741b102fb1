#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::measure {

/// A nearly full pool, and the processes that free and lease its slabs.
struct SlabLoad {
  std::uint32_t classes;    ///< Slab sizes.
  std::uint32_t slabs;      ///< Of all classes together; each class has the same number.
  double fill;              ///< Share of the slabs of each class in use.
  std::uint32_t processes;  ///< Each on its own core, if there are enough.
  bool by_consumer;         ///< Free slabs as a consumer does, not as an aborting producer.
  std::uint32_t pairs;      ///< Per slice.
  std::uint32_t slices;
};

/// Nanoseconds of a pair: free a random slab of the process, then lease a slab of the size that was
/// freed kLag pairs ago. Both are the shipped calls. A slab is leased by
/// `SlabAllocator::try_lease`. It is freed by `SlabAllocator::release`, as for an aborted lease,
/// or, with `by_consumer`, by `release_cell`, as for an item that a consumer releases. One
/// mean per slice and process; all processes work at the same time.
///
/// The caller's process must have one thread: the measured processes are its forked children.
///
/// Errors: BadArgument for a load that leaves a class without a free slab, or a process without a
///         slab.
std::vector<double> slab_pairs_ns(const SlabLoad& load);

}  // namespace flowtrain::measure
