#include "negotiate/disagreement.h"

#include <bit>
#include <cstdio>

namespace horoacc {
namespace {

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

// Whether every rank of an alltoall sends the rows for which its receivers have room.
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

}  // namespace

std::string ShapeText(const Dims& shape) {
  std::string text = "[";
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    text += (dim ? ", " : "") + std::to_string(shape[dim]);
  }
  return text + "]";
}

std::string WayText(const Way& way) {
  return "algorithm " + std::to_string(way.algorithm) + " and windows of " +
         std::to_string(way.window_bytes) + " bytes";
}

std::string ListText(std::span<const int> ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
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
  if (a.way != b.way) return differ("tuned settings", WayText(a.way), WayText(b.way));
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

Error FindDisagreement(const std::string& name, std::span<const int> ranks,
                       std::span<const Request* const> requests) {
  std::vector<size_t> present;
  std::vector<int> joined;
  for (size_t m = 0; m < ranks.size(); ++m) {
    if (requests[m]) {
      present.push_back(m);
    } else {
      joined.push_back(ranks[m]);
    }
  }
  for (const size_t m : present) {
    if (requests[m]->local_error.empty()) continue;
    return MakeError(ErrorKind::kInvalid,
                     "tensor '" + name + "' on rank " + std::to_string(ranks[m]) + ": " +
                         requests[m]->local_error,
                     ranks[m]);
  }
  const Request& lowest = *requests[present[0]];
  for (const size_t m : present) {
    if (requests[m]->Signature() == lowest.Signature()) continue;
    return MakeError(ErrorKind::kMismatch,
                     DescribeMismatch(name, ranks[present[0]], lowest, ranks[m], *requests[m]),
                     ranks[m]);
  }
  if (!joined.empty() && lowest.collective != Collective::kAllreduce) {
    return MakeError(ErrorKind::kMismatch,
                     "tensor '" + name + "': " + NameOf(lowest.collective) +
                         " is not possible while rank(s) " + ListText(joined) +
                         " have joined; allreduce is",
                     joined.front());
  }
  if (lowest.collective != Collective::kAlltoall) return MakeError(ErrorKind::kOk, "");
  return CompareSplits(name, ranks, requests);
}

}  // namespace horoacc
