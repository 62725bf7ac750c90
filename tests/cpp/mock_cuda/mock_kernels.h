#pragma once
// What stands for the kernels of the plug-in: launches that read and write at the GPU's addresses
// when their stream comes to them.
#include <cstdint>
#include <functional>

namespace horoacc::mock {

[[nodiscard]] bool IsKernel(const void* kernel);
/// A launch's work, with the arguments as they are by now.
[[nodiscard]] std::function<void()> KernelOf(const void* kernel, void** arguments, uint32_t blocks);
/// Blocks of the last launch.
[[nodiscard]] uint32_t LastBlocks();

}  // namespace horoacc::mock
