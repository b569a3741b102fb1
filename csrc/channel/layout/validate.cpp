#include "channel/layout/validate.hpp"

#include "channel/layout/dtype.hpp"

namespace flowtrain::channel {

std::optional<std::string> find_fault(const Control& control, const Descriptor& item,
                                      std::uint32_t c) {
  const Cell& cell = control.cell(c);
  if (item.dtype >= kDtypes.size()) {
    return "dtype " + std::to_string(item.dtype) + " does not exist";
  }
  if (item.ndim > kMaxDims) {
    return "ndim=" + std::to_string(item.ndim) + " exceeds " + std::to_string(kMaxDims);
  }
  if (array_bytes(item.dtype, {item.shape, item.ndim}) != item.bytes) {
    return "its shape and dtype do not make " + std::to_string(item.bytes) + " bytes";
  }
  const std::uint64_t slab_bytes = cell.slab_bytes;
  if (item.address != cell.slab || item.bytes > slab_bytes) {
    return std::to_string(item.bytes) + " bytes at address " + std::to_string(item.address) +
           " are not in its slab of " + std::to_string(slab_bytes) + " bytes at " +
           std::to_string(static_cast<std::uint64_t>(cell.slab));
  }
  if (item.producer != cell.producer || item.producer >= control.geometry().max_lanes) {
    return "lane " + std::to_string(item.producer) + " did not lease its slab";
  }
  // A segment does not end while a cell of it is in use.
  const std::uint32_t segment = memory::segment_of(item.address);
  const auto name = [segment] { return "segment " + std::to_string(segment); };
  if (segment < 1 || segment > kMaxSegments) return name() + " does not exist";
  const SegmentEntry& entry = control.segment(segment - 1);
  const SegmentWord word = entry.word.load(std::memory_order_acquire);  // sync: segment.word
  if (!has_memory(word)) return name() + " does not exist";
  if (generation_of(word) != memory::generation_of(item.address)) {
    return "its address names generation " + std::to_string(memory::generation_of(item.address)) +
           " of " + name() + ", which is in generation " + std::to_string(generation_of(word));
  }
  if (const memory::Place place = entry.place(); !is_valid(place)) {
    return "the entry of " + name() + " names memory of kind " + text(place) +
           ", which is not valid";
  }
  if (entry.kind != memory::Kind::kMemfd &&
      !control.streams().write_submitted(c, item.generation)) {
    return "no write of generation " + std::to_string(item.generation) + " of its slab was begun";
  }
  const std::uint64_t all = entry.bytes, offset = memory::offset_of(item.address);
  if (offset > all || item.bytes > all - offset) {
    return "it ends beyond " + name() + " of " + std::to_string(all) + " bytes";
  }
  return std::nullopt;
}

}  // namespace flowtrain::channel
