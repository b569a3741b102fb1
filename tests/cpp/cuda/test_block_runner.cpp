// The harness itself, by a kernel that needs a barrier.

#include <stdexcept>
#include <vector>

#include "block_runner.hpp"
#include "check.hpp"

namespace {

constexpr unsigned kThreads = 64;
constexpr unsigned kBlocks = 3;

enum class Barrier { kThere, kMissing, kOnlyForSome };

/// Reverses the elements of each block by shared memory.
template <class Thread>
void reverse(const Thread& thread, const std::vector<int>& in, std::vector<int>& out,
             Barrier barrier) {
  auto* shared = static_cast<int*>(thread.shared());
  const unsigned first = thread.block() * thread.threads();
  shared[thread.index()] = in[first + thread.index()];
  if (barrier == Barrier::kThere || (barrier == Barrier::kOnlyForSome && thread.index() % 2 == 0)) {
    thread.sync();
  }
  out[first + thread.index()] = shared[thread.threads() - 1 - thread.index()];
}

bool right(std::uint64_t seed, Barrier barrier) {
  std::vector<int> in(kThreads * kBlocks), out(in.size()), expected(in.size());
  for (unsigned i = 0; i < in.size(); ++i) {
    in[i] = static_cast<int>(i);
    expected[i] = static_cast<int>(i / kThreads * kThreads + kThreads - 1 - i % kThreads);
  }
  BlockRunner runner(seed, kThreads, kThreads * sizeof(int));
  runner.run(kBlocks, [&](const auto& thread) { reverse(thread, in, out, barrier); });
  return out == expected;
}

}  // namespace

int main() {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    CHECK(right(seed, Barrier::kThere));
    CHECK(!right(seed, Barrier::kMissing));
    CHECK_THROWS(right(seed, Barrier::kOnlyForSome), std::logic_error);
  }
}
