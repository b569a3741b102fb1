// Lanes of a control file.

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/error.hpp"
#include "channel/layout/control.hpp"
#include "channel/liveness/lanes.hpp"
#include "check.hpp"
#include "os/folder.hpp"

using namespace flowtrain;
using namespace flowtrain::channel;

namespace {

/// As in a sandbox whose kernel has no such locks: not as if all lanes were taken.
void a_file_that_cannot_be_locked_is_named_with_the_reason() {
  const std::string path = os::runtime_folder() + "/cpp-lanes-" + std::to_string(::getpid());
  const Geometry geometry{4, 8, 1, 8};
  const os::Fd file = os::create_file(path, Control::file_bytes(geometry));
  const Control control = Control::make(file, path, geometry);
  const os::Fd read_only(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(::unlink(path.c_str()) == 0);
  Lanes lanes(control, read_only);
  try {
    lanes.join(LaneRole::kPool, 0, "label", "name");
    CHECK(false);
  } catch (const SystemCallError& error) {
    const std::string text = error.what();
    CHECK(text.find("pool 'name': the control file cannot be locked") == 0);
    CHECK(text.find("(errno 9)") != std::string::npos);
  }
  CHECK(lanes.all().empty());
}

}  // namespace

int main() { a_file_that_cannot_be_locked_is_named_with_the_reason(); }
