#include "cuda/rotary.hpp"

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "cuda/context.hpp"

namespace flowtrain::cuda {
namespace {

void check_aligned(std::uint64_t address, Float dtype, const char* what) {
  if (address % bytes_of(dtype) != 0) {
    throw BadArgument(std::string(what) + ": its address is not a multiple of the " +
                      std::to_string(bytes_of(dtype)) + " bytes of an element");
  }
}

}  // namespace

void rotate(int device, const RotaryTask& task, Float dtype, Float angle_dtype, CUstream stream) {
  check_aligned(task.queries.from | task.queries.to, dtype, "queries");
  check_aligned(task.keys.from | task.keys.to, dtype, "keys");
  check_aligned(task.cos | task.sin, angle_dtype, "angles");
  if (task.tokens == 0 || task.half == 0) return;
  const ContextScope scope(device);
  launch_rotation(stream, task, dtype, angle_dtype);
}

}  // namespace flowtrain::cuda
