#pragma once

#include <array>
#include <string>
#include <vector>

#include "channel/consumer.hpp"
#include "channel/layout/dtype.hpp"
#include "channel/producer.hpp"
#include "measure/queue_bench.hpp"

namespace flowtrain::measure {

using channel::Consumer;
using channel::dtype_number;
using channel::Key;
using channel::Layout;
using channel::Lease;
using channel::Pool;
using channel::Producer;
using channel::Recording;

/// A pool as a queue, used through the public classes: a sender leases and publishes slabs, a
/// receiver gets and releases items, and each process has its own pool handle.
template <Recording kRecording>
class PoolQueue {
 public:
  static std::size_t bytes(const Load&) { return 0; }

  PoolQueue(std::byte*, const Load& load)
      : load_(load), name_("measure-" + std::to_string(::getpid())) {}

  class Sender {
   public:
    Sender(PoolQueue& queue, std::uint32_t i)
        : pool_(i == 0 ? make(queue) : Pool::open(queue.name_, "", Deadline::in(kTimeoutS))),
          producer_(std::make_shared<Producer>(pool_, "default", std::nullopt, Producer::Credits{},
                                               kRecording)),
          keys_(queue.load_.batch) {}

    bool send() {
      while (leases_.size() < keys_.size()) {
        auto lease = producer_->try_lease(kLayout);
        if (!lease) return false;
        leases_.push_back(std::move(lease));
      }
      if (leases_.size() == 1) {
        leases_[0]->publish(keys_[0]);
      } else {
        producer_->publish_many(leases_, keys_);
      }
      leases_.clear();
      return true;
    }

   private:
    static std::shared_ptr<Pool> make(const PoolQueue& queue) {
      const std::uint32_t lanes = 4 * (queue.load_.producers + queue.load_.consumers);
      auto pool = Pool::create({queue.name_, "", {"default"}, kInFlight, lanes});
      pool->add_segment(memory::carve({{kSlabBytes, kSlabs}}), true);
      return pool;
    }

    std::shared_ptr<Pool> pool_;
    std::shared_ptr<Producer> producer_;
    std::vector<std::shared_ptr<Lease>> leases_;
    std::vector<Key> keys_;
  };

  class Receiver {
   public:
    Receiver(PoolQueue& queue, std::uint32_t)
        : consumer_(std::make_shared<Consumer>(Pool::open(queue.name_, "", Deadline::in(kTimeoutS)),
                                               "default", false, kRecording)),
          batch_(queue.load_.batch) {}

    std::uint32_t receive() {
      if (batch_ == 1) {
        const auto item = consumer_->try_get();
        if (!item) return 0;
        item->release();
        return 1;
      }
      const auto items = consumer_->try_get_many(batch_);
      for (const auto& item : items) item->release();
      return static_cast<std::uint32_t>(items.size());
    }

   private:
    std::shared_ptr<Consumer> consumer_;
    std::uint32_t batch_;
  };

 private:
  static constexpr double kTimeoutS = 10.0;
  static constexpr std::uint64_t kSlabBytes = 4096;
  static constexpr std::uint32_t kSlabs = 64;
  static constexpr Layout kLayout{*dtype_number("uint8"), 1, {kSlabBytes}, kSlabBytes};

  Load load_;
  std::string name_;
};

}  // namespace flowtrain::measure
