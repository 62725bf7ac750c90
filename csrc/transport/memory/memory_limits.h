#pragma once
// How much memory, and how many addresses, this process may have.
#include <cstdint>
#include <filesystem>

namespace horoacc {

/// The machine's memory, or less if a control group of this process has a limit.
[[nodiscard]] uint64_t MemoryLimit();
/// The least limit that a control group has set, of version 1 or 2; 0: there is none. `groups`:
/// what the kernel says of the process (/proc/self/cgroup); `root`: where the groups are mounted.
[[nodiscard]] uint64_t ControlGroupLimit(const std::filesystem::path& groups,
                                         const std::filesystem::path& root);
/// The addresses for each of `parts` mappings, beside `others` bytes: all of the parts take half of
/// what there is left under RLIMIT_AS, and of what x86 and Arm give a process, at most.
[[nodiscard]] uint64_t AddressesForEach(uint64_t parts, uint64_t others);

}  // namespace horoacc
