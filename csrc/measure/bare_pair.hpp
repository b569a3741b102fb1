#pragma once

#include "measure/placements.hpp"

namespace flowtrain::measure {

constexpr double kFlowTimeoutS = 60.0;

/// As receive_placements and send_placements, by bare system calls over one blocking connection.
void receive_bare(const PlacementFlow& flow, const TellReceiver& tell);
FlowFigure send_bare(const PlacementFlow& flow, const std::string& address, double seconds);

}  // namespace flowtrain::measure
