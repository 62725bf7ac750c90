#include "negotiate/request.h"

#include <bit>
#include <cstdio>

namespace horoacc {
namespace {

// FNV-1a over 64-bit words with a final mix: quick, and the same on every rank.
class Hash {
 public:
  void Add(uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) {
      state_ = (state_ ^ ((word >> (8 * byte)) & 0xff)) * 0x100000001b3ull;
    }
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

bool FirstDimensionIsFree(Collective collective) {
  return collective == Collective::kAllgather || collective == Collective::kAlltoall;
}

bool ShapesFit(Collective collective, const Dims& a, const Dims& b) {
  if (a.size() != b.size()) return false;
  for (size_t dim = FirstDimensionIsFree(collective) ? 1 : 0; dim < a.size(); ++dim) {
    if (a[dim] != b[dim]) return false;
  }
  return true;
}

// All digits: two factors that print alike would make a puzzling message.
std::string FactorText(double factor) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", factor);
  return text;
}

}  // namespace

const char* NameOf(Collective collective) {
  constexpr const char* kNames[] = {"allreduce",     "allgather",         "broadcast", "alltoall",
                                    "reducescatter", "barrier",           "reduce",    "gather",
                                    "scatter",       "monitored_barrier", "join"};
  return kNames[static_cast<int>(collective)];
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

std::string ShapeText(const Dims& shape) {
  std::string text = "[";
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    text += (dim ? ", " : "") + std::to_string(shape[dim]);
  }
  return text + "]";
}

std::string DescribeMismatch(const std::string& name, int rank_a, const Request& a, int rank_b,
                             const Request& b) {
  const auto differ = [&](const std::string& what, const std::string& left,
                          const std::string& right) {
    return "tensor '" + name + "': mismatched " + what + ": rank " + std::to_string(rank_a) +
           " has " + left + ", rank " + std::to_string(rank_b) + " has " + right;
  };
  if (a.collective != b.collective) {
    return differ("operation", NameOf(a.collective), NameOf(b.collective));
  }
  if (a.tensors.size() != b.tensors.size()) {
    return differ("number of grouped tensors", std::to_string(a.tensors.size()),
                  std::to_string(b.tensors.size()));
  }
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const std::string member = a.tensors.size() > 1 ? " of member " + std::to_string(i) : "";
    if (a.tensors[i].type != b.tensors[i].type) {
      return differ("data type" + member, std::string(NameOf(a.tensors[i].type)),
                    std::string(NameOf(b.tensors[i].type)));
    }
    if (!ShapesFit(a.collective, a.tensors[i].shape, b.tensors[i].shape)) {
      return differ(
          (FirstDimensionIsFree(a.collective) ? "shape beyond the first dimension" : "shape") +
              member,
          ShapeText(a.tensors[i].shape), ShapeText(b.tensors[i].shape));
    }
  }
  if (a.on_gpu != b.on_gpu) {
    const auto where = [](const Request& request) { return request.on_gpu ? "a GPU" : "the CPU"; };
    return differ("device", where(a), where(b));
  }
  if (Reduces(a.collective)) {
    if (a.op != b.op) {
      return differ("reduction", std::string(NameOf(a.op)), std::string(NameOf(b.op)));
    }
    if (std::bit_cast<uint64_t>(a.prescale) != std::bit_cast<uint64_t>(b.prescale)) {
      return differ("prescale factor", FactorText(a.prescale), FactorText(b.prescale));
    }
    if (std::bit_cast<uint64_t>(a.postscale) != std::bit_cast<uint64_t>(b.postscale)) {
      return differ("postscale factor", FactorText(a.postscale), FactorText(b.postscale));
    }
  }
  if (HasRoot(a.collective) && a.root != b.root) {
    return differ("root rank", std::to_string(a.root), std::to_string(b.root));
  }
  return "";
}

Error CompareSplits(const std::string& name, std::span<const int> ranks,
                    std::span<const Request* const> requests) {
  const auto mismatch = [&](const std::string& what, int culprit) {
    return MakeError(ErrorKind::kMismatch, "tensor '" + name + "': mismatched splits: " + what,
                     culprit);
  };
  const auto rank = [](int number) { return "rank " + std::to_string(number); };
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const auto* parts : {&requests[r]->splits, &requests[r]->receives}) {
      if (parts->empty() || parts->size() == ranks.size()) continue;
      return mismatch(rank(ranks[r]) + " has " + std::to_string(parts->size()) + ", the set has " +
                          std::to_string(ranks.size()) + " ranks",
                      ranks[r]);
    }
  }
  for (size_t to = 0; to < ranks.size(); ++to) {
    const std::vector<int64_t>& receives = requests[to]->receives;
    for (size_t from = 0; from < receives.size(); ++from) {
      const int64_t sent = SplitOf(*requests[from], to, ranks.size());
      if (sent == receives[from]) continue;
      return mismatch(rank(ranks[from]) + " sends " + std::to_string(sent) + " rows to " +
                          rank(ranks[to]) + ", whose output has room for " +
                          std::to_string(receives[from]),
                      ranks[from]);
    }
  }
  return MakeError(ErrorKind::kOk, "");
}

}  // namespace horoacc
