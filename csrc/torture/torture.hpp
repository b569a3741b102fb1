#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flowtrain::torture {

/// A storm of kills and stops: what is done to whom.
struct Options {
  std::uint32_t kills = 1000;
  std::uint32_t stops = 0;
  double most_s = 600.0;  ///< The storm ends then, whatever was done by then.
  std::uint64_t seed = 1;
  /// One producer, one cell and many readers: the same cell comes back at once, which is what
  /// most parts of the protocol are there for.
  bool tight = false;
  /// "", or a part of the protocol that the participants work without: "publishing", "taking",
  /// "re-check" or "generation". The storm then has to show what the part is for.
  std::string without;
};

/// What the storm did, and what the ledger outside the pool found afterwards.
struct Storm {
  std::uint64_t kills = 0;
  std::uint64_t stops = 0;
  std::uint64_t kills_in_window = 0;  ///< While a push, a pop or a judgement was under way.
  std::uint64_t published = 0;        ///< Items whose push had returned.
  std::uint64_t committed = 0;        ///< Items released by who had them.
  std::uint64_t undecided = 0;        ///< Items whose reader died while it released them.
  std::uint64_t lost = 0;             ///< Published, never committed, and not undecided.
  std::uint64_t committed_twice = 0;
  std::uint64_t corrupt = 0;       ///< Items that were not, or did not stay, what was written.
  std::uint64_t crashed = 0;       ///< Participants that ended without being killed.
  std::uint64_t leaked_slabs = 0;  ///< Cells not free when nobody was left.
  std::uint64_t leaked_bytes = 0;
  std::uint64_t redelivered = 0;
  std::uint64_t stalled_by_stop = 0;  ///< Stops during which nothing was committed.
  double longest_stall_ms = 0.0;      ///< Longest time between two commits.
  double seconds = 0.0;
};

/// Runs producers, consumers and reapers, of the first two twice as many as cores unless it is
/// tight, and kills and stops them at random instructions, with delays at the protocol's points.
///
/// The caller's process must have one thread: participants are its forked children.
///
/// Errors: BadArgument for an unknown `without`, SystemCallError.
Storm storm(const Options& options);

/// Milliseconds from the kill of a process that holds a slab until the slab is free, as a pool
/// handle's monitor does it. Sorted. The caller's process must have one thread.
std::vector<double> reclaim_times_ms(std::uint32_t kills);

/// CPU time of a process that waits for an item, with its monitor, in percent of one core. The
/// caller's process must have one thread.
double idle_cpu_percent(double seconds);

}  // namespace flowtrain::torture
