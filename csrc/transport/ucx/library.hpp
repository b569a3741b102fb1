#pragma once

#include <string>
#include <vector>

#include "transport/ucx/abi.hpp"

namespace flowtrain::transport::ucx {

/// Where to look for UCX.
struct Search {
  std::string path;                 ///< Of libucp; nothing else is tried if it is given.
  std::vector<std::string> others;  ///< Copies to try last, such as that of NIXL's wheel.
};

/// A copy of UCX that has been opened.
struct Library {
  Calls calls;
  std::string path;
  std::string version;
  std::string found;  ///< Which step of the search has found it, for people.
};

/// UCX, opened once per process and never closed: by `path`, or else a copy that the process has
/// mapped already, the system's `libucp.so.0`, and the others, in this order.
///
/// Errors: UcxError if there is none that can be used, with the reason for each place; also if a
///         copy other than `path` is mapped already, since two in one process share symbols.
const Library& open_library(const Search& search);

/// Throws UcxError, naming the object, the call and the status, if a call failed.
void check(const Library& library, Status status, const char* call, const std::string& what);

}  // namespace flowtrain::transport::ucx
