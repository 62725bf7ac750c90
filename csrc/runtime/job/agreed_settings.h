#pragma once
// Settings on which the ranks agree; base/settings.cc says how, row by row.
#include "base/settings.h"
#include "transport/bootstrap/bootstrap.h"

namespace horoacc {

/// Rank 0's values of the settings with Agreement::kRank0 hold on all ranks.
Result<Settings> AgreeOnSettings(Settings settings, Bootstrap& bootstrap, int64_t deadline_ns);

/// Compares the version of HoroACC and the settings with Agreement::kSame and kSameUse, which
/// decide on the links between ranks and so must be alike before these are made. kConfig, on every
/// rank with the same text, names a rank that differs from rank 0 and both values.
Status CheckAlike(const Settings& settings, const std::string& version, Bootstrap& bootstrap,
                  int64_t deadline_ns);

}  // namespace horoacc
