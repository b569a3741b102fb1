#pragma once

#include <cstdint>
#include <string>

namespace flowtrain::torture {

/// Which faults to inject, and into which ring.
struct Options {
  std::uint32_t kills = 1000;
  std::uint32_t stops = 0;
  double max_s = 600.0;  ///< Injection ends after this time, even with faults left.
  std::uint64_t seed = 1;
  /// One producer, one cell and many readers. The cell is reused at once, which is the case that
  /// most parts of the protocol exist for.
  bool tight = false;
  /// "", or a part of the protocol to run without: "publishing", "taking", "re-check" or
  /// "generation". Injection must then show the faults that the part prevents.
  std::string without;
};

/// Faults injected, and the state of every item by the ledger outside the pool.
struct Report {
  std::uint64_t kills = 0;
  std::uint64_t stops = 0;
  std::uint64_t kills_in_window = 0;  ///< Kills during a push, a pop or a decision of a reaper.
  std::uint64_t published = 0;        ///< Items whose push returned.
  std::uint64_t shrunk = 0;           ///< Leases shrunk before their push.
  std::uint64_t committed = 0;        ///< Items released by their reader.
  std::uint64_t undecided = 0;        ///< Items whose reader died during the release.
  std::uint64_t lost = 0;             ///< Published, never committed, and not undecided.
  std::uint64_t committed_twice = 0;
  std::uint64_t corrupt = 0;       ///< Items that did not hold, or did not keep, their bytes.
  std::uint64_t crashed = 0;       ///< Participants that ended without being killed.
  std::uint64_t leaked_slabs = 0;  ///< Cells not free after the last participant ended.
  std::uint64_t leaked_bytes = 0;
  std::uint64_t redelivered = 0;
  std::uint64_t stalled_by_stop = 0;  ///< Stops of a second in which nothing was committed.
  double longest_stall_ms = 0.0;      ///< Longest time between two commits.
  double seconds = 0.0;
};

/// Runs producers, consumers and reapers on a ring, and kills and stops them at random
/// instructions. Random delays at the protocol's critical points make hits there likely. Unless
/// `tight`, there are twice as many producers and twice as many consumers as cores, and a second
/// segment whose slabs are made on demand, and shrunk before their items are published.
///
/// The caller's process must have one thread: participants are its forked children.
///
/// Errors: BadArgument for an unknown `without`, SystemCallError.
Report inject_faults(const Options& options);

}  // namespace flowtrain::torture
