#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/pool_folder.hpp"
#include "channel/telemetry/inspect.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {

using channel::LaneRole;
using channel::LaneState;

const char* role_name(LaneRole role) {
  switch (role) {
    case LaneRole::kPool: return "pool";
    case LaneRole::kProducer: return "producer";
    case LaneRole::kConsumer: return "consumer";
  }
  return "?";
}

const char* state_name(LaneState state) {
  switch (state) {
    case LaneState::kFree: return "free";
    case LaneState::kAlive: return "alive";
    case LaneState::kLeft: return "left";
    case LaneState::kDying:
    case LaneState::kDead: return "dead";
  }
  return "?";
}

void add_place(py::dict& segment, const memory::Place& place) {
  const auto kind = static_cast<std::size_t>(place.kind);
  segment["tier"] = memory::tier_of(place.kind);
  segment["kind"] = memory::kKindNames[kind];
  segment["device"] = place.device == memory::DeviceId{} ? "" : text(place.device);
}

namespace {

using channel::Event;
using channel::EventKind;
using channel::Histogram;
using channel::LaneInfo;
using channel::Observer;

const char* kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kLeased: return "leased";
    case EventKind::kAborted: return "aborted";
    case EventKind::kPublished: return "published";
    case EventKind::kTaken: return "taken";
    case EventKind::kReleased: return "released";
    case EventKind::kRedelivered: return "redelivered";
    case EventKind::kFreed: return "freed";
  }
  return "?";
}

py::dict histogram(const Histogram& from) {
  py::list counts;
  for (const auto& count : from.counts) counts.append(static_cast<std::uint64_t>(count));
  py::dict out;
  out["counts"] = std::move(counts);
  out["sum_ns"] = static_cast<std::uint64_t>(from.sum_ns);
  return out;
}

py::dict lane_dict(const Observer& pool, const LaneInfo& info) {
  const channel::Lane& lane = pool.control().lane(info.index);
  const channel::LaneRecord& record = pool.control().record(info.index);
  py::dict out;
  out["index"] = info.index;
  out["label"] = info.label;
  out["role"] = role_name(info.role);
  out["ring"] = info.role == LaneRole::kPool ? py::object(py::none())
                                             : py::str(pool.control().ring_name(info.ring));
  out["pid"] = info.pid;
  // The word may still say alive: if all processes are dead, none is left to change it.
  out["state"] = pool.lanes().has_died(info.index) ? "dead" : state_name(info.state);
  out["generation"] = info.generation;
  const auto count = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  out["items_published"] = count(lane.items_published);
  out["bytes_published"] = count(lane.bytes_published);
  out["items_taken"] = count(lane.items_taken);
  out["items_released"] = count(lane.items_released);
  out["items_redelivered"] = count(lane.items_redelivered);
  out["items_lost"] = count(lane.items_lost);
  out["items_spilled"] = count(lane.items_spilled);
  out["bytes_spilled"] = count(lane.bytes_spilled);
  out["alloc_wait"] = histogram(record.alloc_wait);
  out["transfer"] = histogram(record.transfer);
  out["queue_wait"] = histogram(record.queue_wait);
  out["use"] = histogram(record.use);
  return out;
}

py::dict inspect(const std::string& name) {
  const Observer pool(name);
  py::list lanes, rings, segments;
  for (const LaneInfo& info : pool.lanes().all()) lanes.append(lane_dict(pool, info));
  for (const channel::RingInfo& ring : ring_infos(pool.control())) {
    py::dict entry;
    entry["name"] = ring.name;
    entry["items"] = ring.items;
    entry["bytes"] = ring.bytes;
    rings.append(std::move(entry));
  }
  for (const channel::SegmentInfo& segment : segment_infos(pool.control())) {
    py::list classes;
    for (const channel::ClassInfo& size : segment.classes) {
      py::dict entry;
      entry["slab_bytes"] = size.slab_bytes;
      entry["slabs"] = size.slabs;
      entry["in_use_slabs"] = size.slabs_in_use;
      classes.append(std::move(entry));
    }
    py::dict entry;
    entry["id"] = segment.id;
    entry["owner"] = segment.owner;
    add_place(entry, segment.place);
    entry["bytes"] = segment.bytes;
    entry["in_use_bytes"] = segment.bytes_in_use;
    entry["unused_bytes"] = segment.bytes_unused;
    entry["classes"] = std::move(classes);
    segments.append(std::move(entry));
  }
  py::dict out;
  out["name"] = pool.name();
  out["creator_pid"] = pool.control().header().creator_pid;
  out["nonce"] = pool.control().header().nonce;
  out["time_ns"] = now_ns();
  out["lanes"] = std::move(lanes);
  out["rings"] = std::move(rings);
  out["segments"] = std::move(segments);
  return out;
}

py::list flight_record(const std::string& name) {
  const Observer pool(name);
  std::vector<std::pair<std::uint32_t, Event>> events;
  const std::vector<LaneInfo> lanes = pool.lanes().all();
  for (const LaneInfo& lane : lanes) {
    pool.control().record(lane.index).flight.for_each([&](const Event& event) {
      events.emplace_back(lane.index, event);
    });
  }
  std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
    return a.second.time_ns < b.second.time_ns;
  });
  py::list out;
  for (const auto& [lane, event] : events) {
    py::dict entry;
    entry["time_ns"] = event.time_ns;
    entry["lane"] = lane;
    entry["kind"] = kind_name(event.kind);
    entry["cell"] = event.cell;
    entry["bytes"] = event.bytes;
    entry["key_low"] = event.key_low;
    entry["item_lane"] = event.lane;
    out.append(std::move(entry));
  }
  return out;
}

}  // namespace

void bind_inspect(py::module_& module) {
  module.def("inspect", &inspect, py::arg("name"), py::call_guard<ReadsPoolFolder>());
  module.def("flight_record", &flight_record, py::arg("name"), py::call_guard<ReadsPoolFolder>());
}

}  // namespace flowtrain::bindings
