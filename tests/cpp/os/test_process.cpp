// Tells a process from a later one with its pid, whatever its name is.

#include <sys/prctl.h>
#include <unistd.h>

#include <stdexcept>

#include "check.hpp"
#include "os/child.hpp"
#include "os/process.hpp"

using namespace flowtrain;

int main() {
  os::ProcessAge age;
  os::write_own_age(age);
  ::prctl(PR_SET_NAME, ") S 1 2");
  CHECK(!os::has_ended(::getpid(), age));
  ::usleep(50'000);  // Starts are counted in ticks of 10 ms.
  os::Child later([&] {
    if (!os::has_ended(::getpid(), age)) throw std::runtime_error("taken for its parent");
  });
  CHECK(later.wait() == decltype(later)::End::kDone);
}
