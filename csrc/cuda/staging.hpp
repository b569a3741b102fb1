#pragma once

#include <memory>

#include "memory/resource.hpp"

namespace flowtrain::cuda {

/// A staging of a segment in memory of a CUDA device, with a stream of its own.
///
/// @param on_done  Called after each fetch, by a thread of the driver: it must not call the driver.
/// @param name     Of the segment, for errors.
std::unique_ptr<memory::Staging> make_staging(std::shared_ptr<const memory::Memory> segment,
                                              memory::Copies copies, memory::OnDone on_done,
                                              const std::string& name);

}  // namespace flowtrain::cuda
