#pragma once
// Links to which something happens when a test has ordered it (base/fault.h). Of a job to which
// nothing was ordered they are the links themselves.
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
