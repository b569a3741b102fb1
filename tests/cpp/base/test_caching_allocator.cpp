#include <cstring>
#include <random>
#include <vector>

#include "base/caching_allocator.hpp"
#include "check.hpp"

using namespace flowtrain;

namespace {

struct Held {
  unsigned char* at;
  std::size_t bytes;
  unsigned char fill;
};

/// Each block is filled to its last byte; another block in its place would change it.
void blocks_in_use_never_overlap() {
  BlockCache cache;
  std::mt19937_64 random(1);
  std::vector<Held> held;
  for (int round = 0; round < 3000; ++round) {
    if (held.size() < 20 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (6 * BlockCache::kMinBytes);
      const auto fill = static_cast<unsigned char>(round);
      held.push_back({static_cast<unsigned char*>(cache.allocate(bytes)), bytes, fill});
      std::memset(held.back().at, fill, bytes);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const auto [at, bytes, fill] = held.back();
      held.pop_back();
      for (std::size_t k = 0; k < bytes; ++k) CHECK(at[k] == fill);
      cache.free(at, bytes);
    }
  }
  for (const Held& block : held) cache.free(block.at, block.bytes);
}

void a_freed_block_is_used_again_and_what_is_kept_is_limited() {
  BlockCache cache;
  void* const first = cache.allocate(100000);
  cache.free(first, 100000);
  CHECK(cache.kept_bytes() == 131072);
  CHECK(cache.allocate(131072) == first);
  CHECK(cache.kept_bytes() == 0);
  cache.free(first, 131072);

  std::vector<void*> many;
  for (int k = 0; k < 40; ++k) many.push_back(cache.allocate(std::size_t{1} << 20));
  many.push_back(cache.allocate(2 * BlockCache::kMaxKeptBytes));
  cache.free(many.back(), 2 * BlockCache::kMaxKeptBytes);
  many.pop_back();
  for (void* const at : many) cache.free(at, std::size_t{1} << 20);
  CHECK(cache.kept_bytes() <= BlockCache::kMaxKeptBytes);
  CHECK(cache.kept_bytes() > BlockCache::kMaxKeptBytes - (std::size_t{1} << 20));
}

}  // namespace

int main() {
  blocks_in_use_never_overlap();
  a_freed_block_is_used_again_and_what_is_kept_is_limited();
}
