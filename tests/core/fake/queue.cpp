#include "queue.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>

namespace fake {
namespace {

std::int64_t variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoll(text);
}

}  // namespace

Queue::Queue(std::uint64_t number)
    : longest_us_(variable("FAKE_CUDA_DELAY_US")),
      random_(static_cast<std::uint64_t>(variable("FAKE_CUDA_SEED")) * 0x9E3779B97F4A7C15 +
              number) {
  // Ends with the process, whatever it is doing, as a device's work does.
  std::thread([this] { run(); }).detach();
}

std::uint64_t Queue::push(std::function<void()> operation) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(operation));
  changed_.notify_all();
  return ++pushed_;
}

void Queue::wait_for(std::uint64_t position) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= position; });
}

void Queue::wait_for_all() {
  std::unique_lock lock(mutex_);
  const std::uint64_t last = pushed_;
  changed_.wait(lock, [&] { return done_ >= last; });
}

bool Queue::is_idle() {
  const std::lock_guard lock(mutex_);
  return done_ == pushed_;
}

void Queue::delay() {
  if (longest_us_ == 0) return;
  // Mostly short ones, so that a run has many, and some long ones.
  const std::int64_t longest = random_() % 8 == 0 ? longest_us_ : longest_us_ / 16;
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % (longest + 1)));
}

void Queue::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !waiting_.empty(); });
    const auto operation = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    delay();
    operation();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace fake
