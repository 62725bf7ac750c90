#pragma once
// Data links over a transport from a shared library (transport_plugin.h).
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/data/data_links.h"

namespace horoacc {

/// All ranks call it with the same library. kConfig names it if it cannot be loaded, is none or of
/// another version, or if a rank could not open it.
Result<std::unique_ptr<DataLinks>> LoadDataLinks(Bootstrap& bootstrap, const std::string& path,
                                                 uint64_t epoch, int64_t deadline_ns);

}  // namespace horoacc
