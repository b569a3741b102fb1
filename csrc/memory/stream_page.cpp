#include "memory/stream_page.hpp"

namespace flowtrain::memory {
namespace {

constexpr std::uint64_t kSubmitted = 1;
constexpr std::uint64_t kLaneMask = (std::uint64_t{1} << 32) - 2;
constexpr std::uint64_t kNoLane = kLaneMask;

constexpr std::uint64_t record(std::uint32_t generation, std::uint64_t lane) {
  return stream_word(generation) | (lane << 1 & kLaneMask);
}
constexpr bool is_of(std::uint64_t record, std::uint32_t generation) {
  return generation_of_word(record) == generation;
}
constexpr bool is_by(std::uint64_t record, std::uint32_t lane) {
  return (record & kLaneMask) == (std::uint64_t{lane} << 1 & kLaneMask);
}

Progress progress(StreamWord word, std::uint32_t generation) {
  if (!has_reached(word, generation)) return Progress::kPending;
  if (generation_of_word(word) != generation) return Progress::kStale;
  return (word & kPoison) != 0 ? Progress::kPoisoned : Progress::kReached;
}

StreamWord written_of(const SlabWords& words) {
  return words.written.load(std::memory_order_acquire);  // sync: stream.written
}
StreamWord read_of(const SlabWords& words) {
  return words.read.load(std::memory_order_acquire);  // sync: stream.read
}
std::uint64_t writer_of(const SlabWords& words) {
  return words.writer.load(std::memory_order_acquire);  // sync: stream.writer
}

/// Whether the write of `written` was begun, and did not happen yet.
bool awaits_write(const SlabWords& words, std::uint32_t generation) {
  return is_of(writer_of(words), generation) && !has_reached(written_of(words), generation);
}

/// Whether the generation before was read, and this one was not.
bool is_current(const SlabWords& words, std::uint32_t generation) {
  const StreamWord read = read_of(words);
  return has_reached(read, generation - 1) && !has_reached(read, generation);
}

/// Whether the write of `read` was begun, and did not happen yet.
bool awaits_read(const SlabWords& words) {
  const std::uint64_t reader = words.reader.load(std::memory_order_relaxed);
  return !has_reached(read_of(words), generation_of_word(reader));
}

/// Lets a poisoned slab be reused. Nothing else writes the word at this time. The poison stays: the
/// item may be delivered again.
void confirm_poison(SlabWords& words, std::uint32_t generation) {
  const StreamWord poisoned = stream_word(generation) | kPoison;
  if (written_of(words) != poisoned) return;
  words.written.store(poisoned | kConfirmed, std::memory_order_release);  // sync: stream.written
}

}  // namespace

void StreamPage::reset(std::uint32_t slab, std::uint32_t next) const noexcept {
  SlabWords& words = words_[slab];
  words.written.store(stream_word(next - 1), std::memory_order_release);     // sync: stream.written
  words.read.store(stream_word(next - 1), std::memory_order_release);        // sync: stream.read
  words.writer.store(record(next - 1, kNoLane), std::memory_order_release);  // sync: stream.writer
  words.reader.store(record(next - 1, kNoLane), std::memory_order_relaxed);
}

bool StreamPage::may_write(std::uint32_t slab, std::uint32_t generation) const noexcept {
  const SlabWords& words = words_[slab];
  return is_current(words, generation) && (written_of(words) & (kPoison | kConfirmed)) != kPoison;
}

std::uint32_t StreamPage::next(std::uint32_t slab) const noexcept {
  return generation_of_word(read_of(words_[slab])) + 1;
}

bool StreamPage::is_free(std::uint32_t slab) const noexcept {
  const SlabWords& words = words_[slab];
  const std::uint32_t generation = next(slab);
  if (is_of(words.reader.load(std::memory_order_relaxed), generation)) return false;
  if (has_reached(written_of(words), generation)) return true;
  return !is_of(writer_of(words), generation) && may_write(slab, generation);
}

std::uint32_t StreamPage::begin(std::uint32_t slab) const noexcept {
  const std::uint32_t generation = next(slab);
  if (!has_reached(written_of(words_[slab]), generation)) return generation;
  finish_read(slab, generation);
  return generation + 1;
}

bool StreamPage::has_work(std::uint32_t lane) const noexcept {
  for (std::uint32_t slab = 0; slab < slabs_; ++slab) {
    const SlabWords& words = words_[slab];
    const std::uint64_t writer = writer_of(words);
    const std::uint32_t writing = generation_of_word(writer);
    if (is_by(writer, lane) && awaits_write(words, writing) &&
        !has_reached(read_of(words), writing)) {
      return true;
    }
    if (is_by(words.reader.load(std::memory_order_relaxed), lane) && awaits_read(words)) {
      return true;
    }
  }
  return false;
}

bool StreamPage::is_idle() const noexcept {
  for (std::uint32_t slab = 0; slab < slabs_; ++slab) {
    const SlabWords& words = words_[slab];
    const std::uint32_t writing = generation_of_word(writer_of(words));
    if (awaits_write(words, writing) && !has_reached(read_of(words), writing)) return false;
    if (awaits_read(words)) return false;
  }
  return true;
}

bool StreamPage::must_settle(std::uint32_t lane) const noexcept {
  for (std::uint32_t slab = 0; slab < slabs_; ++slab) {
    const std::uint64_t reader = words_[slab].reader.load(std::memory_order_relaxed);
    const StreamWord poisoned = stream_word(generation_of_word(reader)) | kPoison;
    if (is_by(reader, lane) && written_of(words_[slab]) == poisoned) return true;
  }
  return has_work(lane);
}

Progress StreamPage::written(std::uint32_t slab, std::uint32_t generation) const noexcept {
  return progress(written_of(words_[slab]), generation);
}

Progress StreamPage::read(std::uint32_t slab, std::uint32_t generation) const noexcept {
  return progress(read_of(words_[slab]), generation);
}

bool StreamPage::write_submitted(std::uint32_t slab, std::uint32_t generation) const noexcept {
  const std::uint64_t writer = writer_of(words_[slab]);
  return is_of(writer, generation) && (writer & kSubmitted) != 0;
}

bool StreamPage::begin_write(std::uint32_t slab, std::uint32_t generation,
                             std::uint32_t lane) const noexcept {
  SlabWords& words = words_[slab];
  if (!may_write(slab, generation) || has_reached(written_of(words), generation)) return false;
  words.writer.store(record(generation, lane), std::memory_order_release);  // sync: stream.writer
  return true;
}

void StreamPage::submitted_write(std::uint32_t slab, std::uint32_t generation,
                                 std::uint32_t lane) const noexcept {
  words_[slab].writer.store(record(generation, lane) | kSubmitted,
                            std::memory_order_release);  // sync: stream.writer
}

bool StreamPage::begin_read(std::uint32_t slab, std::uint32_t generation,
                            std::uint32_t lane) const noexcept {
  SlabWords& words = words_[slab];
  if (!is_current(words, generation)) return false;
  if (is_of(words.reader.load(std::memory_order_relaxed), generation)) return false;
  words.reader.store(record(generation, lane), std::memory_order_relaxed);
  return true;
}

void StreamPage::cancel_write(std::uint32_t slab, std::uint32_t generation) const noexcept {
  words_[slab].writer.store(record(generation - 1, kNoLane),
                            std::memory_order_release);  // sync: stream.writer
}

void StreamPage::cancel_read(std::uint32_t slab, std::uint32_t generation) const noexcept {
  words_[slab].reader.store(record(generation - 1, kNoLane), std::memory_order_relaxed);
}

bool StreamPage::confirm(std::uint32_t slab, std::uint32_t generation) const noexcept {
  if (written(slab, generation) != Progress::kPoisoned) return true;
  confirm_poison(words_[slab], generation);
  return false;
}

bool StreamPage::finish_write(std::uint32_t slab, std::uint32_t generation) const noexcept {
  SlabWords& words = words_[slab];
  if (!may_write(slab, generation) || has_reached(written_of(words), generation)) return false;
  words.written.store(stream_word(generation), std::memory_order_release);  // sync: stream.written
  submitted_write(slab, generation, kNoLane);
  return true;
}

bool StreamPage::finish_read(std::uint32_t slab, std::uint32_t generation) const noexcept {
  SlabWords& words = words_[slab];
  if (!is_current(words, generation) || awaits_write(words, generation)) return false;
  if (is_of(words.reader.load(std::memory_order_relaxed), generation)) return false;
  confirm_poison(words, generation);
  words.read.store(stream_word(generation), std::memory_order_release);  // sync: stream.read
  return true;
}

bool StreamPage::settle(std::uint32_t lane) const noexcept {
  bool done = true;
  for (std::uint32_t slab = 0; slab < slabs_; ++slab) {
    SlabWords& words = words_[slab];
    const std::uint64_t writer = writer_of(words);
    const std::uint32_t writing = generation_of_word(writer);
    if (is_by(writer, lane) && awaits_write(words, writing) &&
        !has_reached(read_of(words), writing)) {
      words.written.store(stream_word(writing) | kPoison,
                          std::memory_order_release);  // sync: stream.written
    }
    const std::uint64_t reader = words.reader.load(std::memory_order_relaxed);
    if (!is_by(reader, lane)) continue;
    const std::uint32_t reading = generation_of_word(reader);
    if (!has_reached(read_of(words), reading)) {
      // The producer's stream may still write the data. If it was poisoned now, the slab could get
      // its next generation first.
      if (awaits_write(words, reading)) {
        done = false;
        continue;
      }
      words.read.store(stream_word(reading) | kPoison,
                       std::memory_order_release);  // sync: stream.read
    }
    confirm_poison(words, reading);
  }
  return done;
}

}  // namespace flowtrain::memory
