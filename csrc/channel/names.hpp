#pragma once

#include <string>

namespace flowtrain::channel {

/// Refuses what cannot name a folder and be stored in the control file; `what` is said in errors.
void check_name(const std::string& what, const std::string& name);
void check_label(const std::string& label);

}  // namespace flowtrain::channel
