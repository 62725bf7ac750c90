#include "execute/cuda/device/gpus.h"

#include <utility>

#include "execute/cuda/device/cuda_library.h"

namespace horoacc::cuda {

Gpus::Gpus(std::string plugin, SharedMemory memory)
    : plugin_(std::move(plugin)), memory_(std::move(memory)) {}

Result<Gpus::Place> Gpus::Find(int device) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = places_.find(device); found != places_.end()) return found->second;
  if (!loaded_) {
    LibraryNames names;
    names.plugin = plugin_;
    if (plugin_.empty()) {
      HA_ASSIGN(names.plugin, PluginBesideThisLibrary());
    } else {
      names.driver.clear();  // another plug-in may need none
    }
    HA_ASSIGN(loaded_, LoadCudaPlugin(names));
  }
  HA_ASSIGN(std::shared_ptr<Gpu> gpu, Gpu::Open(*loaded_, device));
  Place place{gpu, std::make_shared<PinnedBlocks>(gpu, memory_),
              std::make_shared<ResultBlocks>(gpu)};
  places_.emplace(device, place);
  return place;
}

void Gpus::Close() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(places_, [](const auto& place) {
    const bool has_no_results = place.second.results->Close();
    return place.second.blocks->Close() && has_no_results;
  });
}

}  // namespace horoacc::cuda
