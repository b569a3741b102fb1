#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace flowtrain::os {

/// Starts a thread that runs `work`. It handles no signals: those of the process go to the
/// program's own threads, which may block them to wait for them.
///
/// @param what     Names the object in errors.
/// @param purpose  Of the thread, for errors: the thread that ...
///
/// Errors: SystemCallError, naming the limits, if the system has no thread left.
std::jthread start_thread(const std::string& what, const std::string& purpose,
                          std::function<void(const std::stop_token&)> work);

}  // namespace flowtrain::os
