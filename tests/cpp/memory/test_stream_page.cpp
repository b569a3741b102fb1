#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "check.hpp"
#include "memory/stream_page.hpp"

using namespace flowtrain::memory;

namespace {

constexpr std::uint32_t kProducer = 1;
constexpr std::uint32_t kConsumer = 2;

/// A page in memory of its own, and the writes that streams would do.
struct Page : StreamPage {
  explicit Page(std::uint32_t slabs, std::uint32_t next = 0)
      : Page(std::make_unique<SlabWords[]>(slabs), slabs) {
    for (std::uint32_t slab = 0; slab < slabs; ++slab) reset(slab, next);
  }

  bool publish(std::uint32_t slab, std::uint32_t generation) const {
    if (!begin_write(slab, generation, kProducer)) return false;
    submitted_write(slab, generation, kProducer);
    return true;
  }
  void stream_writes(std::uint32_t slab, std::uint32_t generation) const {
    words(slab).written.store(stream_word(generation));
  }
  void stream_reads(std::uint32_t slab, std::uint32_t generation) const {
    words(slab).read.store(stream_word(generation));
  }

 private:
  Page(std::unique_ptr<SlabWords[]> memory, std::uint32_t slabs)
      : StreamPage(reinterpret_cast<std::byte*>(memory.get()), slabs), memory_(std::move(memory)) {}

  std::unique_ptr<SlabWords[]> memory_;
};

/// The same steps for the first generation, and where 32 bits wrap.
void a_generation_takes_its_steps_once_and_in_order() {
  for (const std::uint32_t g : {0U, 7U, 0x7fffffffU, 0xffffffffU}) {
    const Page page(1, g);
    CHECK(page.written(0, g) == Progress::kPending && page.may_write(0, g));
    CHECK(!page.may_write(0, g + 1) && !page.may_write(0, g - 1));
    CHECK(!page.write_submitted(0, g) && !page.write_submitted(0, g - 1));
    CHECK(page.begin_write(0, g, kProducer) && !page.write_submitted(0, g));
    page.submitted_write(0, g, kProducer);
    CHECK(page.write_submitted(0, g) && !page.write_submitted(0, g + 1));
    // The stream has not written yet: the host may not end it, nor is it anybody's turn.
    CHECK(!page.finish_read(0, g) && !page.begin_write(0, g + 1, kProducer));
    page.stream_writes(0, g);
    CHECK(page.written(0, g) == Progress::kReached && page.written(0, g + 1) == Progress::kPending);
    CHECK(!page.begin_write(0, g, kProducer));
    CHECK(page.begin_read(0, g, kConsumer) && !page.begin_read(0, g, kConsumer));
    CHECK(!page.finish_read(0, g) && !page.may_write(0, g + 1));
    page.stream_reads(0, g);
    CHECK(page.read(0, g) == Progress::kReached && page.may_write(0, g + 1));
    CHECK(!page.begin_read(0, g, kConsumer) && !page.begin_write(0, g, kProducer));
    CHECK(page.finish_write(0, g + 1) && page.write_submitted(0, g + 1));
    CHECK(page.written(0, g) == Progress::kStale && page.confirm(0, g));
    CHECK(page.finish_read(0, g + 1) && page.may_write(0, g + 2));
  }
}

void poison_lets_waiters_pass_and_holds_the_slab_until_confirmed() {
  const Page page(3);
  for (const std::uint32_t slab : {0U, 1U, 2U}) CHECK(page.publish(slab, 0));
  page.stream_writes(0, 0);
  CHECK(page.settle(kProducer) && page.settle(kProducer));
  CHECK(page.written(0, 0) == Progress::kReached && page.written(1, 0) == Progress::kPoisoned);
  CHECK(has_reached(page.words(1).written, 0) && !has_reached(page.words(1).written, 1));
  for (const std::uint32_t slab : {0U, 1U}) {
    CHECK(page.begin_read(slab, 0, kConsumer));
    page.stream_reads(slab, 0);
  }
  CHECK(page.may_write(0, 1) && !page.may_write(1, 1));
  CHECK(!page.has_work(kConsumer) && page.must_settle(kConsumer));
  CHECK(page.confirm(0, 0) && !page.confirm(1, 0) && page.may_write(1, 1));
  CHECK(!page.must_settle(kConsumer));
  // Nobody had waited for it: a host ends it.
  CHECK(page.finish_read(2, 0) && page.may_write(2, 1));
}

/// As after an abort, an item that could not be read, or the death of a producer.
void a_generation_that_nobody_reads_is_skipped_once_it_is_written() {
  const Page page(3, 5);
  CHECK(page.is_free(0) && page.begin(0) == 5 && page.is_free(0) && page.begin(0) == 5);
  CHECK(page.publish(0, 5) && !page.is_free(0));
  page.stream_writes(0, 5);
  CHECK(page.is_free(0) && page.begin(0) == 6 && page.begin(0) == 6);
  CHECK(page.publish(1, 5) && page.settle(kProducer) && page.is_free(1) && page.begin(1) == 6);
  CHECK(page.may_write(1, 6));
  CHECK(page.begin_read(2, 5, kProducer) && !page.is_free(2));
  page.stream_reads(2, 5);
  CHECK(page.is_free(2) && page.begin(2) == 6);
}

void a_lane_has_work_until_its_streams_are_done() {
  const Page page(1);
  CHECK(!page.has_work(kProducer) && page.publish(0, 0) && page.has_work(kProducer));
  CHECK(page.begin_read(0, 0, kConsumer) && page.has_work(kConsumer));
  page.stream_writes(0, 0);
  CHECK(!page.has_work(kProducer) && page.has_work(kConsumer));
  page.stream_reads(0, 0);
  CHECK(!page.has_work(kConsumer));
}

void a_dead_consumers_slab_is_free_once_its_producer_has_written() {
  const Page page(2);
  CHECK(page.publish(0, 0) && page.publish(1, 0));
  CHECK(page.begin_read(0, 0, kConsumer) && page.begin_read(1, 0, kConsumer));
  page.stream_writes(0, 0);
  CHECK(!page.settle(kConsumer));
  CHECK(page.may_write(0, 1) && !page.may_write(1, 1));
  page.stream_writes(1, 0);
  CHECK(page.settle(kConsumer) && page.may_write(1, 1));
  // Also if the consumer would have had to confirm.
  CHECK(page.publish(0, 1) && page.begin_read(0, 1, kConsumer) && page.settle(kProducer));
  CHECK(!page.may_write(0, 2) && page.settle(kConsumer) && page.may_write(0, 2));
}

void an_aborted_lease_is_settled_with_its_producer() {
  const Page page(2);
  CHECK(page.begin_read(0, 0, kProducer) && !page.may_write(0, 1));
  CHECK(page.begin_write(1, 0, kProducer) && page.begin_read(1, 0, kProducer));
  CHECK(page.settle(kProducer) && page.may_write(0, 1) && page.may_write(1, 1));
}

/// Random walks of hosts and streams, any of which die. A stream is a queue of operations of which
/// the first runs if it may; a process that dies takes the queue with it. Data is the number of the
/// item, and an overwrite takes two operations, between which it is neither.
class Walk {
 public:
  explicit Walk(std::uint64_t seed) : random_(seed), page_(kSlabs, 0xfffffff0U) {}

  void run() {
    for (int i = 0; i < 3000; ++i) step();
    kills_ = false;
    for (int i = 0; i < 4000; ++i) step(false);
    for (const auto& [lane, stream] : streams_) CHECK(stream.empty());
    CHECK(taken_.empty());
    for (std::uint32_t s = 0; s < kSlabs; ++s) {
      CHECK(cells_[s].state == State::kFree && page_.is_free(s));
    }
  }

  std::uint64_t gathered() const { return gathered_; }
  std::uint64_t lost() const { return lost_; }

 private:
  static constexpr std::uint32_t kSlabs = 3;
  static constexpr std::uint64_t kTorn = UINT64_MAX;
  enum class State { kFree, kLeased, kPublished, kTaken };
  struct Cell {
    State state = State::kFree;
    std::uint32_t generation = 0, lane = 0;
    std::uint64_t item = 0;
  };
  /// Returns whether it ran; false if it waits.
  using Operation = std::function<bool()>;
  /// An item whose stream has not passed yet, and what the stream gathered.
  struct Taken {
    std::uint32_t lane, slab, generation;
    std::uint64_t item;
    std::shared_ptr<std::optional<std::uint64_t>> seen;
  };

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }

  void step(bool produce = true) {
    const auto s = static_cast<std::uint32_t>(draw(kSlabs));
    switch (draw(10)) {
      case 0:
      case 1: return produce ? lease(s) : free_leased(s);
      case 2: return publish(s);
      case 3: return draw(20) == 0 ? discard(s) : take(s);
      case 4: return release(s);
      case 5: return confirm();
      case 6: return kills_ && draw(20) == 0 ? die(draw(2) == 0 ? producer_ : consumer_) : settle();
      default: return run_stream();
    }
  }

  void lease(std::uint32_t s) {
    Cell& cell = cells_[s];
    if (cell.state != State::kFree || !page_.is_free(s)) return;
    cell = {State::kLeased, page_.begin(s), producer_, ++items_};
    streams_[producer_].push_back([this, s] { return data_[s] = kTorn, true; });
    streams_[producer_].push_back([this, s, item = cell.item] { return data_[s] = item, true; });
  }
  void free_leased(std::uint32_t s) {
    Cell& cell = cells_[s];
    if (cell.state != State::kLeased || cell.lane != producer_) return;
    CHECK(page_.begin_read(s, cell.generation, producer_));
    write_on(producer_, page_.words(s).read, cell.generation);
    free(s);
  }
  void publish(std::uint32_t s) {
    Cell& cell = cells_[s];
    if (cell.state != State::kLeased || cell.lane != producer_) return;
    CHECK(page_.begin_write(s, cell.generation, producer_));
    write_on(producer_, page_.words(s).written, cell.generation);
    page_.submitted_write(s, cell.generation, producer_);
    if (kills_ && draw(50) == 0) return die(producer_);  // Before it pushed the descriptor.
    cell.state = State::kPublished;
  }
  /// An item that no consumer can read.
  void discard(std::uint32_t s) {
    if (cells_[s].state == State::kPublished) free(s);
  }
  void take(std::uint32_t s) {
    Cell& cell = cells_[s];
    if (cell.state != State::kPublished) return;
    cell.state = State::kTaken;
    cell.lane = consumer_;
    CHECK(page_.write_submitted(s, cell.generation));
    auto& stream = streams_[consumer_];
    const auto seen = std::make_shared<std::optional<std::uint64_t>>();
    stream.push_back(
        [this, s, g = cell.generation] { return has_reached(page_.words(s).written, g); });
    // A gather reads at two times.
    stream.push_back([this, s, seen] { return *seen = data_[s], true; });
    stream.push_back([this, s, seen] {
      if (*seen != data_[s]) *seen = kTorn;
      return true;
    });
    taken_.push_back({consumer_, s, cell.generation, cell.item, seen});
  }
  void release(std::uint32_t s) {
    Cell& cell = cells_[s];
    if (cell.state != State::kTaken || cell.lane != consumer_) return;
    CHECK(page_.begin_read(s, cell.generation, consumer_));
    write_on(consumer_, page_.words(s).read, cell.generation);
    if (kills_ && draw(50) == 0) return die(consumer_);  // Before it freed the cell.
    free(s);
  }
  /// A consumer that knows that its stream has passed an item.
  void confirm() {
    if (taken_.empty() || !streams_[consumer_].empty()) return;
    for (const Taken& taken : taken_) {
      if (page_.confirm(taken.slab, taken.generation)) {
        CHECK(**taken.seen == taken.item);
        ++gathered_;
      } else {
        ++lost_;
      }
    }
    taken_.clear();
  }
  void run_stream() {
    if (streams_.empty()) return;
    auto stream = streams_.begin();
    std::advance(stream, draw(streams_.size()));
    if (!stream->second.empty() && stream->second.front()()) stream->second.pop_front();
  }

  void die(std::uint32_t& lane) {
    dead_.push_back(lane);
    streams_.erase(lane);
    std::erase_if(taken_, [&](const Taken& taken) { return taken.lane == lane; });
    lane = next_lane_++;
  }
  /// Recovery: the words, then the cells.
  void settle() {
    std::erase_if(dead_, [this](std::uint32_t lane) {
      if (!page_.settle(lane)) return false;
      for (std::uint32_t s = 0; s < kSlabs; ++s) {
        Cell& cell = cells_[s];
        if (cell.lane != lane) continue;
        if (cell.state == State::kLeased) {
          free(s);
        } else if (cell.state == State::kTaken) {
          if (has_reached(page_.words(s).read, cell.generation)) {
            free(s);
          } else {
            cell.state = State::kPublished;
          }
        }
      }
      return true;
    });
  }
  void free(std::uint32_t s) { cells_[s] = {}; }
  void write_on(std::uint32_t lane, std::atomic<StreamWord>& word, std::uint32_t generation) {
    streams_[lane].push_back([&word, generation] {
      word.store(stream_word(generation));
      return true;
    });
  }

  std::mt19937_64 random_;
  Page page_;
  Cell cells_[kSlabs];
  std::uint64_t data_[kSlabs] = {};
  std::map<std::uint32_t, std::deque<Operation>> streams_;
  std::vector<Taken> taken_;
  std::vector<std::uint32_t> dead_;
  std::uint32_t producer_ = 1, consumer_ = 2, next_lane_ = 3;
  std::uint64_t items_ = 0, gathered_ = 0, lost_ = 0;
  bool kills_ = true;
};

void every_walk_gathers_what_was_written_and_leaves_nothing() {
  std::uint64_t gathered = 0, lost = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Walk walk(seed);
    walk.run();
    gathered += walk.gathered();
    lost += walk.lost();
  }
  CHECK(gathered > 10000 && lost > 100);
}

}  // namespace

int main() {
  a_generation_takes_its_steps_once_and_in_order();
  poison_lets_waiters_pass_and_holds_the_slab_until_confirmed();
  a_generation_that_nobody_reads_is_skipped_once_it_is_written();
  a_lane_has_work_until_its_streams_are_done();
  a_dead_consumers_slab_is_free_once_its_producer_has_written();
  an_aborted_lease_is_settled_with_its_producer();
  every_walk_gathers_what_was_written_and_leaves_nothing();
}
