#pragma once
// A collective of known inputs and its expected outputs, for tests of whatever runs schedules.
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "execute/kernels/reduce.h"
#include "execute/reduce_oracle.h"
#include "execute/schedule/schedule_run.h"
#include "schedule/algorithms.h"
#include "support/check.h"
#include "support/run_numbers.h"

namespace horoacc {

struct RunCase {
  std::string algorithm;
  schedule::Topology shape = schedule::Topology::Equal(1, 1);
  uint32_t root = 0;
  /// Of goals with shards the first one: its count is spread unevenly over the ranks.
  std::vector<CaseTensor> tensors{CaseTensor{}};
  bool even_shards = false;
  bool in_place = false;
  bool wide = false;
  RunOptions options{};
  uint32_t seed = 1;
  std::vector<uint32_t> member_of_place{};  ///< empty: the same numbers

  [[nodiscard]] std::string Name() const {
    std::string text = algorithm + " on";
    for (uint32_t h = 0; h < shape.hosts(); ++h) text += " " + std::to_string(shape.local(h));
    for (const CaseTensor& t : tensors) {
      text += ", " + std::string(NameOf(t.op)) + " of " + std::to_string(t.count) + " " +
              std::string(NameOf(t.type));
    }
    return text + (in_place ? ", in place" : "") + (wide ? ", wide" : "") + ", window " +
           std::to_string(options.window_bytes) + ", depth " + std::to_string(options.depth) +
           ", slices of " + std::to_string(options.slice_bytes);
  }
};

/// Memory of a rank, for an input or an output.
using Allocate = std::function<std::byte*(uint32_t member, size_t bytes)>;

/// Inputs and outputs of all ranks. Members have the numbers of the job.
class CaseData {
 public:
  CaseData(const RunCase& what, const Allocate& allocate) : case_(what) {
    const auto found = schedule::FindAlgorithm(what.algorithm);
    CHECK(found.ok());
    algorithm_ = found.value();
    plan_ = {.topology = what.shape, .root = what.root, .trees = 3};
    ranks_ = what.shape.ranks();
    members_ = what.member_of_place;
    if (members_.empty()) {
      members_.resize(ranks_);
      std::iota(members_.begin(), members_.end(), 0);
    }
    SetSizes();
    for (uint32_t member = 0; member < ranks_; ++member) AddMember(member, allocate);
  }

  [[nodiscard]] uint32_t ranks() const { return ranks_; }
  [[nodiscard]] const schedule::Algorithm& algorithm() const { return *algorithm_; }
  [[nodiscard]] const schedule::Plan& plan() const { return plan_; }
  [[nodiscard]] const std::vector<uint32_t>& members() const { return members_; }
  [[nodiscard]] std::shared_ptr<const schedule::Schedule> MakeSchedule() const {
    return algorithm_->make(plan_);
  }

  [[nodiscard]] Payload PayloadOf(uint32_t member) const {
    Payload payload;
    payload.sizes = sizes_;
    payload.wide = case_.wide;
    for (size_t t = 0; t < case_.tensors.size(); ++t) {
      const CaseTensor& tensor = case_.tensors[t];
      payload.tensors.push_back({tensor.type, tensor.op, tensor.scale, tensor.count,
                                 memory_[member][t].input, memory_[member][t].output});
    }
    return payload;
  }

  [[nodiscard]] Result<std::unique_ptr<ScheduleRun>> MakeRun(DataLinks& links, uint32_t member,
                                                             RunMemory memory = {}) const {
    RunGroup group{.me = member, .ranks = {}, .member_of_place = members_};
    for (uint32_t m = 0; m < ranks_; ++m) group.ranks.push_back(static_cast<int>(m));
    return ScheduleRun::Make(links, MakeSchedule(), group, case_.options, PayloadOf(member),
                             std::move(memory));
  }

  /// `canonical`: every bit is that of the tree over the ranks.
  void Check(uint32_t member, bool canonical = false) const {
    for (size_t t = 0; t < case_.tensors.size(); ++t) {
      const TensorMemory& memory = memory_[member][t];
      const std::vector<char> expected = Expected(member, t, canonical);
      if (!expected.empty()) CompareTo(expected, member, t, canonical);
      if (!case_.in_place && !memory.original.empty()) {
        CHECK(std::memcmp(memory.input, memory.original.data(), memory.original.size()) == 0);
      }
    }
  }

  [[nodiscard]] bool HasBitsOfOneHost(uint32_t member) const {
    const std::vector<char> tree = Expected(member, 0, true);
    return std::memcmp(memory_[member][0].output, tree.data(), tree.size()) == 0;
  }

 private:
  using Goal = schedule::Goal;
  struct TensorMemory {
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::vector<std::byte> original;
  };

  [[nodiscard]] Goal goal() const { return algorithm_->goal; }
  [[nodiscard]] bool shards() const {
    return goal() == Goal::kReduceScatter || goal() == Goal::kAllGather ||
           goal() == Goal::kAllToAll;
  }
  [[nodiscard]] bool reduces() const {
    return goal() == Goal::kAllreduce || goal() == Goal::kReduceScatter || goal() == Goal::kReduce;
  }

  void SetSizes() {
    if (!shards()) return;
    const uint64_t each = case_.tensors[0].count / ranks_;
    const uint64_t entries = goal() == Goal::kAllToAll ? uint64_t{ranks_} * ranks_ : ranks_;
    for (uint64_t k = 0; k < entries; ++k) {
      const uint64_t uneven = (k * 7) % 5 == 3 ? 0 : each + (k * 11) % 13;
      sizes_.push_back(case_.even_shards ? each : uneven);
    }
  }
  [[nodiscard]] uint64_t ShardsBefore(uint32_t row, uint32_t k, bool column) const {
    uint64_t sum = 0;
    for (uint32_t j = 0; j < k; ++j) sum += Shard(column ? j : row, column ? row : j);
    return sum;
  }
  [[nodiscard]] uint64_t Shard(uint32_t from, uint32_t to) const {
    if (goal() == Goal::kAllToAll) return sizes_[from * ranks_ + to];
    return sizes_[goal() == Goal::kAllGather ? from : to];
  }
  /// Elements of a member's input and output.
  [[nodiscard]] uint64_t InputCount(uint32_t member, size_t t) const {
    if (goal() == Goal::kAllGather) return sizes_[member];
    return shards() ? ShardsBefore(member, ranks_, false) : case_.tensors[t].count;
  }
  [[nodiscard]] uint64_t OutputCount(uint32_t member, size_t t) const {
    if (goal() == Goal::kReduceScatter) return sizes_[member];
    return shards() ? ShardsBefore(member, ranks_, true) : case_.tensors[t].count;
  }

  void AddMember(uint32_t member, const Allocate& allocate) {
    std::mt19937 random(case_.seed * 131 + member);
    std::vector<TensorMemory>& all = memory_.emplace_back();
    for (size_t t = 0; t < case_.tensors.size(); ++t) {
      const DType type = case_.tensors[t].type;
      TensorMemory& memory = all.emplace_back();
      memory.original.resize(InputCount(member, t) * SizeOf(type));
      Fill(random, case_.tensors[t], memory.original);
      const size_t out_bytes = OutputCount(member, t) * SizeOf(type);
      memory.input = memory.output = nullptr;
      if (!case_.in_place) {
        memory.input = allocate(member, memory.original.size());
        memory.output = allocate(member, out_bytes);
      } else if (goal() == Goal::kAllGather) {
        memory.output = allocate(member, out_bytes);
        memory.input = memory.output + ShardsBefore(0, member, true) * SizeOf(type);
      } else {
        memory.input = allocate(member, memory.original.size());
        memory.output = memory.input;
        if (goal() == Goal::kReduceScatter) {
          memory.output += ShardsBefore(0, member, false) * SizeOf(type);
        }
      }
      if (!memory.original.empty()) {
        std::memcpy(memory.input, memory.original.data(), memory.original.size());
      }
    }
  }

  /// What the output must hold; empty: it is nobody's business. In float64 unless `canonical`.
  [[nodiscard]] std::vector<char> Expected(uint32_t member, size_t t, bool canonical) const {
    const CaseTensor& tensor = case_.tensors[t];
    const size_t element = SizeOf(tensor.type);
    const auto original = [&](uint32_t m) { return memory_[m][t].original.data(); };
    if (reduces()) {
      if (goal() == Goal::kReduce && member != members_[case_.root]) return {};
      const uint64_t first =
          goal() == Goal::kReduceScatter ? ShardsBefore(0, member, false) * element : 0;
      std::vector<const void*> sources;
      for (uint32_t m = 0; m < ranks_; ++m) sources.push_back(original(m) + first);
      const uint64_t count = OutputCount(member, t);
      if (canonical || !Rounds(tensor)) {
        return oracle::Reduce(sources, count, tensor.type, tensor.op, tensor.scale);
      }
      return ReduceInDouble(sources, count, tensor);
    }
    std::vector<char> bytes;
    const auto append = [&](uint32_t m, uint64_t first, uint64_t count) {
      const char* from = reinterpret_cast<const char*>(original(m)) + first * element;
      bytes.insert(bytes.end(), from, from + count * element);
    };
    if (goal() == Goal::kBroadcast) append(members_[case_.root], 0, tensor.count);
    for (uint32_t m = 0; m < ranks_ && goal() != Goal::kBroadcast; ++m) {
      const uint64_t first = goal() == Goal::kAllToAll ? ShardsBefore(m, member, false) : 0;
      append(m, first, Shard(m, member));
    }
    return bytes;
  }

  void CompareTo(const std::vector<char>& expected, uint32_t member, size_t t,
                 bool canonical) const {
    const CaseTensor& tensor = case_.tensors[t];
    const std::byte* actual = memory_[member][t].output;
    const auto fail = [&](uint64_t i) {
      check::Fail(__FILE__, __LINE__,
                  case_.Name() + ": rank " + std::to_string(member) + ", tensor " +
                      std::to_string(t) + ", element " + std::to_string(i) + " is wrong");
    };
    if (!reduces() || canonical || !Rounds(tensor)) {
      const uint64_t count = expected.size() / SizeOf(tensor.type);
      const uint64_t i = oracle::FirstDifference(actual, expected.data(), count, tensor.type);
      if (i < count) fail(i);
      return;
    }
    const double allowed = AllowedError(tensor, ranks_);
    const uint64_t numbers = expected.size() / sizeof(double);
    const std::vector<char> wide =
        ToDouble(actual, expected.size() / SizeOf(DoubleOf(tensor.type)), tensor.type);
    for (uint64_t i = 0; i < numbers; ++i) {
      const double difference =
          oracle::At<double>(wide.data(), i) - oracle::At<double>(expected.data(), i);
      if (!(std::fabs(difference) <= allowed)) fail(i);
    }
  }

  const RunCase case_;
  const schedule::Algorithm* algorithm_ = nullptr;
  schedule::Plan plan_{.topology = schedule::Topology::Equal(1, 1)};
  uint32_t ranks_ = 0;
  std::vector<uint32_t> members_;
  std::vector<uint64_t> sizes_;
  std::vector<std::vector<TensorMemory>> memory_;  ///< by member and tensor
};

/// Memory that lives as long as the test, at odd addresses: elements need not be aligned.
class OddMemory {
 public:
  [[nodiscard]] Allocate allocate() {
    return [this](uint32_t, size_t bytes) {
      blocks_.push_back(std::make_unique<std::byte[]>(bytes + 1));
      return blocks_.back().get() + 1;
    };
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace horoacc
