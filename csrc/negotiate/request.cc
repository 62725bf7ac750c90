#include "negotiate/request.h"

#include <bit>

namespace horoacc {
namespace {

// One multiplication a word: a group has thousands. The same on every rank.
class Hash {
 public:
  void Add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15ull;
    state_ ^= state_ >> 32;
  }
  [[nodiscard]] uint64_t Finish() const {
    uint64_t h = state_;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    return h ^ (h >> 33);
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace

const char* NameOf(Collective collective) {
  constexpr const char* kNames[] = {"allreduce",     "allgather",         "broadcast", "alltoall",
                                    "reducescatter", "barrier",           "reduce",    "gather",
                                    "scatter",       "monitored_barrier", "join"};
  return kNames[static_cast<int>(collective)];
}

std::string NameOfUnnamed(Collective collective, uint64_t number) {
  return std::string(NameOf(collective)) + ".noname." + std::to_string(number);
}

uint64_t TensorMeta::count() const {
  uint64_t count = 1;
  for (int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

int64_t SplitOf(const Request& request, size_t to, size_t ranks) {
  if (!request.splits.empty()) return request.splits[to];
  return request.tensors[0].shape[0] / static_cast<int64_t>(ranks);
}

uint64_t Request::Signature() const {
  Hash hash;
  hash.Add(static_cast<uint64_t>(collective));
  if (Reduces(collective)) {
    hash.Add(static_cast<uint64_t>(op));
    hash.Add(std::bit_cast<uint64_t>(prescale));
    hash.Add(std::bit_cast<uint64_t>(postscale));
  }
  if (HasRoot(collective)) hash.Add(static_cast<uint64_t>(root));
  hash.Add(on_gpu ? 1 : 0);
  if (way != Way()) {
    hash.Add(way.algorithm);
    hash.Add(way.window_bytes);
  }
  hash.Add(tensors.size());
  for (const TensorMeta& tensor : tensors) {
    hash.Add(static_cast<uint64_t>(tensor.type));
    hash.Add(tensor.shape.size());
    for (size_t dim = FirstDimensionIsFree(collective) ? 1 : 0; dim < tensor.shape.size(); ++dim) {
      hash.Add(static_cast<uint64_t>(tensor.shape[dim]));
    }
  }
  return hash.Finish();
}

}  // namespace horoacc
