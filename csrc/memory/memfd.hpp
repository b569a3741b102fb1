#pragma once

#include "memory/resource.hpp"

namespace flowtrain::memory {

/// Memory of the host: a sealed memfd.
const Resource& memfd();

/// A memfd at any place, as memfd() makes it.
std::unique_ptr<Memory> make_memfd(const Place& place, int ordinal, std::uint64_t bytes,
                                   const std::string& name);
/// As Resource::import of memfd().
std::unique_ptr<Memory> import_memfd(Exported exported, const Place& place, int ordinal,
                                     std::uint64_t bytes, const std::string& name);

}  // namespace flowtrain::memory
