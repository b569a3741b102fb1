#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.hpp"

namespace flowtrain::measure {

struct FlowFigure {
  double bytes_per_s;
  double round_trip_ns;  ///< Median from sending a payload to its acknowledgement.
};

/// Times of the acknowledged payloads of a flow, after a warm-up of a fifth of its time.
class Arrivals {
 public:
  Arrivals(std::uint64_t bytes, std::uint32_t window, double seconds)
      : bytes_(bytes), window_(window), seconds_(seconds) {}

  /// Whether another payload shall be sent.
  bool wants_more() const { return times_.size() < kMinimum || watch_.elapsed_s() < seconds_; }
  /// A payload was acknowledged `took_ns` after it was sent.
  void add(std::int64_t took_ns) {
    ++arrived_;
    last_ns_ = now_ns();
    if (begun_ns_ == 0 && watch_.elapsed_s() > seconds_ / 5 && arrived_ > window_) {
      begun_ns_ = last_ns_;
    } else if (begun_ns_ != 0) {
      times_.push_back(took_ns);
    }
  }
  FlowFigure figure() {
    const auto middle = times_.begin() + static_cast<std::ptrdiff_t>(times_.size() / 2);
    std::nth_element(times_.begin(), middle, times_.end());
    return {static_cast<double>(bytes_) * static_cast<double>(times_.size()) * 1e9 /
                static_cast<double>(last_ns_ - begun_ns_),
            static_cast<double>(*middle)};
  }

 private:
  static constexpr std::size_t kMinimum = 4;
  std::uint64_t bytes_;
  std::uint32_t window_;
  double seconds_;
  Stopwatch watch_;
  std::uint64_t arrived_ = 0;
  std::int64_t begun_ns_ = 0;
  std::int64_t last_ns_ = 0;
  std::vector<std::int64_t> times_;
};

}  // namespace flowtrain::measure
