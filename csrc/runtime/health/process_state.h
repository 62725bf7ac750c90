#pragma once
// What the kernel says of a process of this host.
#include <cstdint>
#include <string>

namespace horoacc {

/// When it started, in clock ticks since the machine did; with its number this names a process for
/// good. 0: there is none, or none that can be seen.
[[nodiscard]] uint64_t StartOfProcess(int pid);
/// For how long this process's main thread was ready to run, and had no processor; 0 if the kernel
/// does not say.
[[nodiscard]] double SecondsWithoutProcessor();

/// Why a process may give no sign of life: "it is stopped".
[[nodiscard]] std::string WhyProcessIsSilent(int pid, uint64_t started_ticks);

/// Whether it has crashed and the kernel is writing its memory to a core file, or to a program: it
/// is dead to everybody but the kernel, which tells no other process before it has finished.
[[nodiscard]] bool IsDumpingCore(int pid, uint64_t started_ticks);

}  // namespace horoacc
