#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

/// Runs kernels on the host. The threads of a block are fibers: each runs until a barrier or its
/// end, then one that is drawn among those that can run. Blocks run in random order, each with
/// shared memory full of a pattern. A missing barrier so shows as a wrong result for some seeds.
///
/// Errors: std::logic_error if some threads of a block wait at a barrier that others never reach.
class BlockRunner {
 public:
  /// The `Thread` of a kernel.
  class Thread {
   public:
    unsigned block() const { return runner_->block_; }
    unsigned index() const { return index_; }
    unsigned threads() const { return static_cast<unsigned>(runner_->fibers_.size()); }
    void* shared() const { return runner_->shared_.get(); }
    void sync() const { runner_->wait(index_); }

   private:
    friend class BlockRunner;
    Thread(BlockRunner* runner, unsigned index) : runner_(runner), index_(index) {}
    BlockRunner* runner_;
    unsigned index_;
  };
  using Kernel = std::function<void(const Thread&)>;

  BlockRunner(std::uint64_t seed, unsigned threads, std::size_t shared_bytes = 0)
      : random_(seed), fibers_(threads), shared_bytes_(shared_bytes) {
    // Of the exact size, so that the address sanitizer sees an access behind it.
    shared_ = std::make_unique<std::byte[]>(shared_bytes);
    for (Fiber& fiber : fibers_) fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
  }

  void run(unsigned blocks, const Kernel& kernel) {
    kernel_ = &kernel;
    std::vector<unsigned> order(blocks);
    for (unsigned i = 0; i < blocks; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const unsigned block : order) run_block(block);
  }

 private:
  static constexpr std::size_t kStackBytes = 64 << 10;
  static constexpr int kPoison = 0xA5;

  enum class State { kReady, kAtBarrier, kDone };
  struct Fiber {
    std::unique_ptr<std::byte[]> stack;
    ucontext_t context;
    State state;
  };

  void run_block(unsigned block) {
    block_ = block;
    std::memset(shared_.get(), kPoison, shared_bytes_);
    for (Fiber& fiber : fibers_) {
      fiber.state = State::kReady;
      ::getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      ::makecontext(&fiber.context, reinterpret_cast<void (*)()>(&BlockRunner::enter), 0);
    }
    std::vector<unsigned> ready(fibers_.size());
    for (unsigned i = 0; i < ready.size(); ++i) ready[i] = i;
    while (!ready.empty()) {
      std::swap(ready[random_() % ready.size()], ready.back());
      resume(ready.back());
      ready.pop_back();
      if (ready.empty()) ready = release_barrier();
    }
  }

  /// The threads that a barrier lets go on, once none can run; none at the end of the block.
  std::vector<unsigned> release_barrier() {
    std::vector<unsigned> waiting;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].state == State::kAtBarrier) waiting.push_back(i);
    }
    if (!waiting.empty() && waiting.size() < fibers_.size()) {
      throw std::logic_error(std::to_string(waiting.size()) + " of " +
                             std::to_string(fibers_.size()) + " threads of block " +
                             std::to_string(block_) + " wait at a barrier; the others ended");
    }
    for (const unsigned i : waiting) fibers_[i].state = State::kReady;
    return waiting;
  }

  void resume(unsigned index) {
    current_ = this;
    running_ = index;
    Fiber& fiber = fibers_[index];
    switch_context(main_, fiber.context, fiber.stack.get(), kStackBytes, &main_fake_stack_);
  }

  static void enter() {
    finish_switch(nullptr);
    BlockRunner& self = *current_;
    const unsigned index = self.running_;
    (*self.kernel_)(Thread(&self, index));
    self.fibers_[index].state = State::kDone;
    self.to_main(index, nullptr);
  }

  void wait(unsigned index) {
    fibers_[index].state = State::kAtBarrier;
    void* fake_stack = nullptr;
    to_main(index, &fake_stack);
  }

  void to_main(unsigned index, void** fake_stack) {
    switch_context(fibers_[index].context, main_, main_stack_, main_stack_bytes_, fake_stack);
  }

#if defined(__SANITIZE_ADDRESS__)
  void switch_context(ucontext_t& from, ucontext_t& to, const void* stack, std::size_t bytes,
                      void** fake_stack) {
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
    ::swapcontext(&from, &to);
    finish_switch(fake_stack == nullptr ? nullptr : *fake_stack);
  }
  static void finish_switch(void* fake_stack) {
    const void* stack = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    // A fiber is entered or resumed from the main stack alone.
    if (current_->fibers_[current_->running_].stack.get() == stack) return;
    current_->main_stack_ = stack;
    current_->main_stack_bytes_ = bytes;
  }
#else
  void switch_context(ucontext_t& from, ucontext_t& to, const void*, std::size_t, void**) {
    ::swapcontext(&from, &to);
  }
  static void finish_switch(void*) {}
#endif

  static inline thread_local BlockRunner* current_ = nullptr;

  std::mt19937_64 random_;
  std::vector<Fiber> fibers_;
  std::unique_ptr<std::byte[]> shared_;
  std::size_t shared_bytes_;
  const Kernel* kernel_ = nullptr;
  unsigned block_ = 0;
  unsigned running_ = 0;
  ucontext_t main_{};
  void* main_fake_stack_ = nullptr;
  const void* main_stack_ = nullptr;
  std::size_t main_stack_bytes_ = 0;
};
