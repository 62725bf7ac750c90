// Persistent kernels of the fake GPU: the code for GPUs, with a thread for each block.
#include "fake_cuda/fake_programs.h"

#include <vector>

#include "fake_cuda/host_cta.h"

namespace horoacc::testing {

using namespace horoacc::cuda;

void RunProgram(const FakeProgram& fake) {
  const char* const image = reinterpret_cast<const char*>(fake.image.get());
  const auto& header = *reinterpret_cast<const KernelHeader*>(image);
  const KernelProgram program(header, image);
  HostWatch watch;
  watch.host_abort = &fake.watch->abort;
  std::vector<std::thread> blocks;
  for (uint32_t block = 0; block < header.lanes * header.channels; ++block) {
    blocks.emplace_back([&, block] {
      HostCta cta(
          watch,
          {static_cast<uint32_t>(fake.rank), block / header.channels, block % header.channels}, 4);
      RunBlock(cta, program, fake.call);
    });
  }
  for (std::thread& block : blocks) block.join();
  std::atomic_ref(fake.watch->report).store(watch.report);
}

}  // namespace horoacc::testing
