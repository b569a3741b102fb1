#include <algorithm>
#include <random>
#include <vector>

#include "check.hpp"
#include "memory/fit.hpp"

using namespace flowtrain;
using namespace flowtrain::memory;

namespace {

struct Slab {
  std::uint64_t offset, bytes;
  bool free;
};

std::optional<Extent> place_in(std::uint64_t all, const std::vector<Slab>& slabs,
                               std::uint64_t least, std::uint64_t wanted) {
  Fit fit(all, least, wanted);
  for (const Slab& slab : slabs) fit.pass({slab.offset, slab.bytes}, slab.free);
  return fit.place();
}

bool is(const std::optional<Extent>& place, std::uint64_t offset, std::uint64_t bytes) {
  return place && place->offset == offset && place->bytes == bytes;
}

void the_smallest_gap_comes_before_free_slabs() {
  // A gap of 4 at 3, one of 3 at 10, free slabs at 13, in use at 20 to 30.
  const std::vector<Slab> slabs{
      {0, 3, false}, {7, 3, false}, {13, 2, true}, {15, 5, true}, {20, 10, false}};
  CHECK(is(place_in(30, slabs, 3, 3), 10, 3));
  CHECK(is(place_in(30, slabs, 4, 4), 3, 4));
  CHECK(is(place_in(30, slabs, 5, 5), 10, 5));  // The gap at 10 with the slabs behind it.
  CHECK(is(place_in(30, slabs, 3, 5), 10, 3));  // Less than wanted, so that larger places stay.
  CHECK(is(place_in(30, slabs, 5, 11), 10, 10));
  CHECK(!place_in(30, slabs, 11, 11));
  CHECK(is(place_in(31, slabs, 1, 1), 30, 1));
  CHECK(is(place_in(9, {}, 2, 4), 0, 4));
}

/// Random slabs that do not overlap: the place is as large as the free bytes allow.
void a_place_is_found_wherever_there_is_one() {
  std::mt19937 random(3);
  const auto draw = [&](std::uint64_t end) { return random() % end; };
  for (int round = 0; round < 20000; ++round) {
    const std::uint64_t all = 1 + draw(40);
    std::vector<Slab> slabs;
    std::vector<bool> used(all, false);
    for (std::uint64_t at = draw(4); at < all; at += draw(4)) {
      const Slab slab{at, std::min(1 + draw(6), all - at), draw(2) == 0};
      slabs.push_back(slab);
      std::fill_n(used.begin() + static_cast<std::ptrdiff_t>(at), slab.bytes, !slab.free);
      at += slab.bytes;
    }
    std::uint64_t longest = 0, row = 0;
    for (const bool taken : used) longest = std::max(longest, row = taken ? 0 : row + 1);
    const std::uint64_t least = 1 + draw(10), wanted = least + draw(3);
    const auto place = place_in(all, slabs, least, wanted);
    CHECK(place.has_value() == (longest >= least));
    if (!place) continue;
    CHECK(place->bytes >= least && place->bytes <= wanted);
    for (std::uint64_t i = 0; i < place->bytes; ++i) CHECK(!used[place->offset + i]);
  }
}

void damaged_slabs_give_a_place_inside() {
  std::mt19937_64 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::vector<Slab> slabs;
    for (int i = 0; i < 6; ++i) {
      slabs.push_back({random() >> random() % 64, random() >> random() % 64, random() % 2 == 0});
    }
    std::sort(slabs.begin(), slabs.end(),
              [](const Slab& a, const Slab& b) { return a.offset < b.offset; });
    const std::uint64_t all = 1 + random() % 100000;
    if (const auto place = place_in(all, slabs, 1 + random() % 99, 100)) {
      CHECK(place->bytes <= 100 && place->offset < all && place->bytes <= all - place->offset);
    }
  }
}

}  // namespace

int main() {
  the_smallest_gap_comes_before_free_slabs();
  a_place_is_found_wherever_there_is_one();
  damaged_slabs_give_a_place_inside();
}
