#include "os/cores.hpp"

#include <sched.h>

namespace flowtrain::os {

std::vector<int> cores() {
  std::vector<int> found;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &allowed)) found.push_back(core);
    }
  }
  // The call fails on machines with more than CPU_SETSIZE cores.
  if (found.empty()) found.push_back(0);
  return found;
}

void pin_to_core(std::uint32_t index) {
  const std::vector<int> all = cores();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(all[index % all.size()], &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}

}  // namespace flowtrain::os
