#pragma once
// Which cores the ranks of a host may use. A launcher may have bound each rank to cores of its own,
// so that no rank sees by itself how many there are for all.
#include <span>
#include <string>

namespace horoacc {

/// The cores that this process may use, as "0,1,5".
[[nodiscard]] std::string AllowedCores();

/// How many different cores the lists name together.
[[nodiscard]] int CountCores(std::span<const std::string> lists);

}  // namespace horoacc
