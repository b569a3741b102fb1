#include "check.hpp"
#include "packing/draw.hpp"
#include "packing/search.hpp"

using namespace flowtrain::packing;

namespace {

/// Whether the samples from `next` on fit into what the bins have left, by trying everything.
bool fit(const std::vector<std::int64_t>& tokens, std::size_t next,
         std::vector<std::int64_t>& rooms) {
  if (next == tokens.size()) return true;
  for (std::int64_t& room : rooms) {
    if (room < tokens[next]) continue;
    room -= tokens[next];
    const bool found = fit(tokens, next + 1, rooms);
    room += tokens[next];
    if (found) return true;
  }
  return false;
}

void check_bins(const std::vector<std::int64_t>& tokens, const Search& found, std::uint32_t bins,
                std::int64_t cap) {
  CHECK(found.bin_of.size() == tokens.size() && !found.impossible);
  std::vector<std::int64_t> used(bins);
  for (std::size_t i = 0; i < tokens.size(); ++i) used.at(found.bin_of[i]) += tokens[i];
  for (const std::int64_t held : used) CHECK(held <= cap);
}

void it_finds_what_is_there_and_proves_what_is_not() {
  std::mt19937_64 random(1);
  int possible = 0, impossible = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto bins = static_cast<std::uint32_t>(uniform(random, 1, 4));
    const std::int64_t cap = uniform(random, 8, 30);
    std::vector<std::int64_t> tokens;
    for (std::int64_t left = cap * bins - uniform(random, 0, bins); left > 0;) {
      tokens.push_back(std::min(left, uniform(random, 0, cap * 3 / 4)));
      left -= tokens.back();
    }
    if (tokens.size() > 9) continue;
    std::vector<std::int64_t> rooms(bins, cap);
    const Search found = search_bins(tokens, bins, cap);
    if (fit(tokens, 0, rooms)) {
      ++possible;
      check_bins(tokens, found, bins, cap);
    } else {
      ++impossible;
      CHECK(found.impossible && found.bin_of.empty());
    }
  }
  CHECK(possible > 300 && impossible > 300);
}

/// Longest first, both bins take 6 or 4 and 4, and the last 3 finds no room.
void it_finds_full_bins() {
  check_bins({6, 4, 4, 4, 3, 3}, search_bins(std::vector<std::int64_t>{6, 4, 4, 4, 3, 3}, 2, 12), 2,
             12);
}

/// Even samples leave a token of each odd bin, which only a count of all would show.
void it_ends_without_a_proof() {
  std::mt19937_64 random(2);
  std::vector<std::int64_t> tokens;
  std::int64_t left = 40 * 100 + 2;
  for (; left > 0; left -= tokens.back()) {
    tokens.push_back(std::min(left, 2 * uniform(random, 1, 20)));
  }
  const Search found = search_bins(tokens, 40, 101);
  CHECK(found.bin_of.empty() && !found.impossible && found.tries > 1000);
  const Search again = search_bins(tokens, 40, 101);
  CHECK(again.tries == found.tries);
}

}  // namespace

int main() {
  it_finds_what_is_there_and_proves_what_is_not();
  it_finds_full_bins();
  it_ends_without_a_proof();
}
