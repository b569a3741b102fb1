#pragma once

#include <string>

namespace flowtrain::channel {

/// Checks the name of a pool or ring, which must be a folder's name and fit into the control file.
/// `what` appears in errors.
///
/// Errors: BadArgument.
void check_name(const std::string& what, const std::string& name);
void check_label(const std::string& label);

}  // namespace flowtrain::channel
