#pragma once

#include <cstdlib>

#include "os/folder.hpp"

namespace flowtrain::bindings {

/// Guard of calls that name a pool: reads where pools are from the environment, under the GIL, as
/// Python writes `os.environ` under it.
struct ReadsPoolFolder {
  ReadsPoolFolder() {
    const char* const chosen = std::getenv(os::kPoolFolderVariable);
    os::choose_runtime_parent(chosen == nullptr ? "" : chosen);
  }
};

}  // namespace flowtrain::bindings
