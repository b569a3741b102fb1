#include "measure/ring.hpp"

#include "measure/cell_queue.hpp"
#include "measure/pool_queue.hpp"

namespace flowtrain::measure {

namespace {

void check(const Load& load) {
  const std::uint32_t share = load.producers == 0 ? 0 : kInFlight / load.producers;
  if (load.consumers == 0 || load.batch == 0 || load.batch > share / 2 || share % load.batch != 0) {
    throw BadArgument("measure: producers=" + std::to_string(load.producers) +
                      " and consumers=" + std::to_string(load.consumers) +
                      " must be at least 1, and batch=" + std::to_string(load.batch) +
                      " must divide the " + std::to_string(share) +
                      " cells of a producer into two or more");
  }
}

}  // namespace

Figure ring_flow(const Load& load) {
  check(load);
  return flow<CellQueue>(load);
}

Figure ring_round_trip(double seconds) { return bounce<CellQueue>(seconds); }

Figure pool_flow(const Load& load, bool records) {
  check(load);
  return records ? flow<PoolQueue<Recording::kOn>>(load) : flow<PoolQueue<Recording::kOff>>(load);
}

}  // namespace flowtrain::measure
