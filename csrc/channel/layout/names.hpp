#pragma once

#include <string>
#include <string_view>

namespace flowtrain::channel {

/// A text in quotes, for messages, with its control characters escaped: a message ends at a NUL.
std::string quoted(std::string_view text);
/// Checks the name of a pool or ring, which must be a folder's name and fit into the control file.
/// `what` appears in errors.
///
/// Errors: BadArgument.
void check_name(const std::string& what, const std::string& name);
/// Checks the label of a lane: short enough for the control file, and without control characters.
///
/// Errors: BadArgument.
void check_label(const std::string& label);

}  // namespace flowtrain::channel
