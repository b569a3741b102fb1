#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>

namespace fake {

/// A hardware queue: runs the operations of its streams one after another, in the order of their
/// submission, on a thread of its own. An operation that blocks, blocks all that follow.
///
/// Delays are drawn from the seed, the queue's number and the operation's position, so a seed gives
/// the same delays in every run.
class Queue {
 public:
  explicit Queue(std::uint64_t number);

  /// Enqueues an operation. Returns its position.
  std::uint64_t push(std::function<void()> operation);
  /// Waits until the operation at this position, and so all before it, have run.
  void wait_for(std::uint64_t position);
  void wait_for_all();
  bool is_idle();

  /// A random delay. Only for operations of this queue.
  void delay();

 private:
  [[noreturn]] void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  std::int64_t longest_us_;
  std::mt19937_64 random_;
};

}  // namespace fake
