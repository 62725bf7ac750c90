#pragma once
// Settings in which the ranks must not differ.
#include "base/settings.h"
#include "transport/bootstrap/bootstrap.h"

namespace horoacc {

/// They travel with the bootstrap, and rank 0's values hold.
Result<Settings> AgreeOnSettings(Settings settings, Bootstrap& bootstrap, int64_t deadline_ns);

/// What decides which links there are must be alike before these are made: the version of HoroACC,
/// the setting `control`, and whether a library carries the data. kConfig, on every rank with the
/// same text, names a rank that differs from rank 0 and both values.
Status CheckAlike(const Settings& settings, const std::string& version, Bootstrap& bootstrap,
                  int64_t deadline_ns);

}  // namespace horoacc
