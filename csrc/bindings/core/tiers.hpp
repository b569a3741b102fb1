#pragma once

#include <string>

#include "memory/resources.hpp"

namespace flowtrain::bindings {

/// The kinds of memory that this build has.
const memory::Resources& resources();

/// Place of a new segment.
///
/// @param tier    `host`, `device`, `auto`, `fake`, or `vmm` or `ipc`, the kinds of device memory.
///                `device` is vmm; `auto` is host where vmm cannot be had.
/// @param device  Number of the device in this process.
/// Errors: BadArgument; MemoryUnreachable with the reason if this process cannot have such memory.
memory::Place place_of(const std::string& tier, int device);

/// Why memory of a kind cannot be had on a device of this process; empty if it can.
std::string why_not_on(memory::Kind kind, int device);

}  // namespace flowtrain::bindings
