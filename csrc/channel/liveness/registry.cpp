#include "channel/liveness/registry.hpp"

#include <pthread.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "channel/pool.hpp"

namespace flowtrain::channel {
namespace {

struct Registry {
  std::mutex mutex;
  std::set<Pool*> pools;
};

Registry& registry();

void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }
void after_fork_in_child() {
  for (Pool* pool : registry().pools) pool->abandon();
  registry().mutex.unlock();
}

Registry& registry() {
  // Never destroyed: a handle may outlive every static object.
  static auto* instance = [] {
    ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return new Registry;
  }();
  return *instance;
}

}  // namespace

NoFork::NoFork() : lock_(registry().mutex) {}

void NoFork::register_pool(Pool* pool) { registry().pools.insert(pool); }

void unregister_pool(Pool* pool) {
  const std::lock_guard lock(registry().mutex);
  registry().pools.erase(pool);
}

void close_all_pools(const Interrupted& interrupted) {
  std::vector<std::shared_ptr<Pool>> open;
  {
    const std::lock_guard lock(registry().mutex);
    for (Pool* pool : registry().pools) {
      if (auto held = pool->weak_from_this().lock()) open.push_back(std::move(held));
    }
  }
  std::string losses;
  for (const auto& pool : open) {
    try {
      pool->close(interrupted);
    } catch (const Error& error) {
      losses += (losses.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!losses.empty()) throw PoolTimeout(losses);
}

}  // namespace flowtrain::channel
