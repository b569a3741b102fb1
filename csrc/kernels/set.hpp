// Included once by the source of each instruction set, which defines KERNELS, and the name of
// ROTATE, which is compiled apart. All is in an unnamed namespace and nothing of the standard
// library is used: the linker would merge functions of the same name, and a processor could get
// those of another instruction set.

#include "kernels/attention_body.hpp"
#include "kernels/rms_norm_body.hpp"
#include "kernels/swiglu_body.hpp"

namespace flowtrain::kernels {

Kernels KERNELS() {
  return {attend, attend_backward, normalize, normalize_backward, ROTATE, gated, gated_backward};
}

}  // namespace flowtrain::kernels
