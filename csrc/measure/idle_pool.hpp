#pragma once

#include <cstdint>
#include <vector>

namespace flowtrain::measure {

/// Milliseconds from the kill of a process that holds a slab until the monitor of another pool
/// handle has freed the slab. Sorted.
///
/// The caller's process must have one thread: the others are its forked children.
std::vector<double> reclaim_times_ms(std::uint32_t kills);

/// CPU time, in percent of one core, of a process that waits for an item; its monitor included.
///
/// The caller's process must have one thread.
double idle_cpu_percent(double seconds);

}  // namespace flowtrain::measure
