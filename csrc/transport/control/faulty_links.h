#pragma once
// Links with the faults that a test has ordered (base/fault.h). Without an order they are the links
// themselves.
#include <memory>

#include "base/fault.h"
#include "transport/control/control_links.h"
#include "transport/data/data_links.h"

namespace horoacc {

/// `points` must live as long as the links.
[[nodiscard]] std::unique_ptr<ControlLinks> WithFaults(std::unique_ptr<ControlLinks> links,
                                                       FaultPoints& points);
[[nodiscard]] std::unique_ptr<DataLinks> WithFaults(std::unique_ptr<DataLinks> links,
                                                    FaultPoints& points);

}  // namespace horoacc
