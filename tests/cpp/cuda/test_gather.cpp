// The kernel that gathers and scatters rows, compiled for the host, on random layouts.

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "block_runner.hpp"
#include "check.hpp"
#include "cuda/gather_kernel.hpp"

namespace cuda = flowtrain::cuda;
namespace memory = flowtrain::memory;
using cuda::Bfloat16;
using cuda::Float16;

namespace {

constexpr int kLayouts = 1000;
/// Small, so that some layouts need several launches.
using Table = cuda::RowTable<12>;

/// Elements at a random distance from an aligned address, between guard bytes.
template <class T>
class Guarded {
 public:
  Guarded(std::size_t count, std::size_t shift)
      : bytes_((shift + count) * sizeof(T) + kGuard, kPattern), shift_(shift), count_(count) {}

  T* data() { return reinterpret_cast<T*>(bytes_.data() + shift_ * sizeof(T)); }
  std::uint64_t address() { return reinterpret_cast<std::uint64_t>(data()); }
  bool guards_untouched() const {
    const auto untouched = [](std::byte b) { return b == kPattern; };
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(shift_ * sizeof(T));
    return std::all_of(bytes_.begin(), begin, untouched) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(count_ * sizeof(T)), bytes_.end(),
                       untouched);
  }

 private:
  static constexpr std::size_t kGuard = 32;
  static constexpr std::byte kPattern{0x5A};
  std::vector<std::byte> bytes_;
  std::size_t shift_;
  std::size_t count_;
};

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t end) { return random_() % end; }
  /// A finite value that every dtype rounds to another, or zero.
  float value() { return std::uniform_real_distribution<float>(-100, 100)(random_); }
  template <class T>
  void shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), random_);
  }

 private:
  std::mt19937_64 random_;
};

/// One layout; whether the kernel's bytes are those of a loop over rows.
template <class From, class To, unsigned kLost>
bool same(std::uint64_t seed, bool gather) {
  Draw draw(seed);
  const std::size_t width = 1 + draw.below(draw.below(2) == 0 ? 40 : 9) * (1 + draw.below(8));
  const std::size_t num_slabs = draw.below(30);
  // A slab may have several planes, each a piece of its own.
  const std::size_t planes = 1 + draw.below(3);
  using Slab = Guarded<std::byte>;
  const std::size_t slab_bytes = gather ? sizeof(From) : sizeof(To);
  std::vector<Slab> slabs;
  std::vector<std::size_t> slab_rows;
  std::vector<memory::Elements> memories;
  std::size_t rows_of_plane = 0;
  for (std::size_t i = 0; i < num_slabs; ++i) {
    slab_rows.push_back(draw.below(4) == 0 ? 0 : draw.below(20));
    rows_of_plane += slab_rows[i];
    const std::size_t elements = planes * slab_rows[i] * width;
    slabs.emplace_back(elements * slab_bytes, slab_bytes * draw.below(9));
    memories.push_back({slabs.back().address(), elements});
  }
  const std::size_t rows = planes * rows_of_plane;
  std::vector<memory::RowPiece> pieces;
  for (std::size_t plane = 0, row = 0; plane < planes; ++plane) {
    for (std::size_t i = 0; i < num_slabs; ++i) {
      const auto offset = static_cast<std::int64_t>(plane * slab_rows[i] * width);
      pieces.push_back({static_cast<std::int64_t>(i), offset,
                        static_cast<std::int64_t>(slab_rows[i]), static_cast<std::int64_t>(row)});
      row += slab_rows[i];
    }
  }
  draw.shuffle(pieces);
  const std::size_t packed_bytes = gather ? sizeof(To) : sizeof(From);
  Slab packed(rows * width * packed_bytes, packed_bytes * draw.below(9));

  // The plain reference: element by element, in the order of the table.
  std::vector<To> expected;
  std::vector<const std::byte*> written;
  for (const memory::RowPiece& piece : pieces) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(piece.rows) * width; ++i) {
      std::byte* slab = slabs[static_cast<std::size_t>(piece.memory)].data() +
                        (static_cast<std::size_t>(piece.offset) + i) * slab_bytes;
      std::byte* row =
          packed.data() + (static_cast<std::size_t>(piece.first_row) * width + i) * packed_bytes;
      const From from = cuda::convert<From>(draw.value());
      std::memcpy(gather ? slab : row, &from, sizeof(From));
      expected.push_back(cuda::convert<To>(from));
      written.push_back(gather ? row : slab);
    }
  }

  const memory::PackedRows table(pieces, memories, slab_bytes, static_cast<std::int64_t>(width),
                                 static_cast<std::int64_t>(rows));
  if (!gather) table.check_disjoint();
  cuda::RowSplit split;
  split.threads = cuda::kWarp * static_cast<std::uint32_t>(1 + draw.below(4));
  split.warp_bytes = static_cast<std::uint32_t>(16 * (1 + draw.below(200)));
  BlockRunner runner(seed, split.threads);
  cuda::for_each_table<Table>(table, packed.address(), gather, std::max(sizeof(From), sizeof(To)),
                              split, [&](const Table& part, std::uint32_t blocks) {
                                runner.run(blocks, [&](const auto& thread) {
                                  cuda::copy_rows<From, To, kLost>(thread, part);
                                });
                              });
  bool equal = packed.guards_untouched();
  for (const Slab& slab : slabs) equal &= slab.guards_untouched();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    equal &= std::memcmp(written[i], &expected[i], sizeof(To)) == 0;
  }
  return equal;
}

template <unsigned kLost = 0>
bool same(std::uint64_t seed) {
  constexpr std::array kPairs = {
      &same<float, float, kLost>,       &same<float, Bfloat16, kLost>,
      &same<float, Float16, kLost>,     &same<Bfloat16, float, kLost>,
      &same<Bfloat16, Bfloat16, kLost>, &same<Bfloat16, Float16, kLost>,
      &same<Float16, float, kLost>,     &same<Float16, Bfloat16, kLost>,
      &same<Float16, Float16, kLost>,
  };
  return kPairs[seed % kPairs.size()](seed, seed / kPairs.size() % 2 == 0);
}

}  // namespace

int main() {
  for (std::uint64_t seed = 0; seed < kLayouts; ++seed) CHECK(same(seed));
  // An off-by-one that loses the last element of a slab whose length is odd is seen.
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) seen += same<1>(seed) ? 0 : 1;
  CHECK(seen > 50);
}
