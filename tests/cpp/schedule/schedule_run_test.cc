// Every algorithm, run by the executor over links between threads of one process, gives what an
// independent computation gives, and sends what it is said to send.
#include "execute/schedule/schedule_run.h"

#include <map>
#include <set>

#include "schedule/prove/prover.h"
#include "support/inproc_data.h"
#include "support/run_cases.h"
#include "support/shapes.h"

using namespace horoacc;
using schedule::Goal;
using schedule::Topology;

namespace {

/// All ranks of a job, driven by one thread in an order that is drawn: interleavings as with many
/// threads, and the same ones again.
class OneThread {
 public:
  OneThread(uint32_t ranks, const InprocDataOptions& options) : random_(options.seed) {
    auto hub = InprocDataHub::Create(static_cast<int>(ranks), options);
    CHECK(hub.ok());
    hub_ = hub.value();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      links_.push_back(hub_->MakeLinks(static_cast<int>(rank)));
    }
  }
  [[nodiscard]] DataLinks& links(uint32_t rank) { return *links_[rank]; }
  [[nodiscard]] InprocDataHub& hub() { return *hub_; }

  /// Runs all to the end. Whatever is stuck fails.
  void Drive(std::vector<std::unique_ptr<ScheduleRun>>& runs, const std::string& name) {
    std::set<uint32_t> running;
    for (uint32_t k = 0; k < runs.size(); ++k) running.insert(k);
    for (uint32_t idle = 0; !running.empty();) {
      auto pick = running.begin();
      std::advance(pick, random_() % running.size());
      ScheduleRun& run = *runs[*pick];
      const auto moved = links_[*pick % links_.size()]->Progress();
      if (!moved.ok()) check::Fail(__FILE__, __LINE__, name + ": " + moved.error().message);
      const bool advanced = run.Advance();
      if (run.failed()) check::Fail(__FILE__, __LINE__, name + ": " + run.error()->message);
      idle = moved.value() || advanced ? 0 : idle + 1;
      if (idle > 20'000) check::Fail(__FILE__, __LINE__, name + " is stuck: " + run.Waiting());
      if (run.complete()) running.erase(pick);
    }
  }

 private:
  std::mt19937 random_;
  std::shared_ptr<InprocDataHub> hub_;
  std::vector<std::unique_ptr<DataLinks>> links_;
};

void Run(const RunCase& what, const InprocDataOptions& network = {}, bool canonical = false) {
  OddMemory memory;
  const CaseData data(what, memory.allocate());
  OneThread job(data.ranks(), network);
  std::vector<std::unique_ptr<ScheduleRun>> runs;
  for (uint32_t member = 0; member < data.ranks(); ++member) {
    auto run = data.MakeRun(job.links(member), member);
    if (!run.ok()) check::Fail(__FILE__, __LINE__, what.Name() + ": " + run.error().message);
    runs.push_back(std::move(run).value());
  }
  job.Drive(runs, what.Name());
  for (uint32_t member = 0; member < data.ranks(); ++member) data.Check(member, canonical);
}

const std::vector<Topology>& Shapes() {
  static const std::vector<Topology> shapes = {
      Topology::Equal(2, 2), Topology::Equal(2, 1), Topology::Equal(4, 1), Topology::Equal(3, 2),
      Topology({2, 1}),      Topology::Equal(1, 4), Topology::Equal(8, 1), Topology::Equal(4, 4),
      Topology({1, 3}),      Topology::Equal(1, 1), Topology({3, 1, 2})};
  return shapes;
}

constexpr DType kAllTypes[] = {DType::kBool,    DType::kUInt8,     DType::kInt8,
                               DType::kInt16,   DType::kInt32,     DType::kInt64,
                               DType::kFloat16, DType::kBFloat16,  DType::kFloat32,
                               DType::kFloat64, DType::kComplex64, DType::kComplex128};

bool Reduces(Goal goal) {
  return goal == Goal::kAllreduce || goal == Goal::kReduceScatter || goal == Goal::kReduce;
}

/// Ways to cut and to run: windows, slots, slices.
std::vector<RunOptions> Ways() {
  return {
      {.window_bytes = 1 << 20, .places = 2, .depth = 1},
      {.window_bytes = 1 << 20, .places = 2, .depth = 2, .slice_bytes = 256},
      {.window_bytes = 1000, .places = 1, .depth = 1},
      {.window_bytes = 1500, .places = 3, .depth = 2, .slice_bytes = 64, .most_slices = 3},
      {.window_bytes = 700, .places = 9, .depth = 9, .slice_bytes = 1 << 20},
  };
}

InprocDataOptions Network(uint32_t seed) {
  return {.seed = seed, .longest_delay = seed % 3 == 0 ? 0 : seed % 7, .network = seed % 4 != 1};
}

}  // namespace

TEST(every_algorithm_shape_and_way) {
  uint32_t seed = 1;
  for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
    for (const Topology& shape : Shapes()) {
      for (const RunOptions& options : Ways()) {
        for (const bool in_place : {false, true}) {
          if (in_place && algorithm.goal == Goal::kAllToAll) continue;
          RunCase what{.algorithm = std::string(algorithm.name), .shape = shape};
          what.root = shape.ranks() - 1;
          what.tensors[0].count = 997;
          what.in_place = in_place;
          what.options = options;
          what.seed = ++seed;
          Run(what, Network(seed));
        }
      }
    }
  }
}

TEST(every_type_and_operation) {
  uint32_t seed = 1;
  for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
    for (const DType type : kAllTypes) {
      for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct}) {
        if (Reduces(algorithm.goal) ? !CheckReducible(type, op).ok() : op != ReduceOp::kSum) {
          continue;
        }
        const Topology& shape = Shapes()[seed % 9];
        RunCase what{.algorithm = std::string(algorithm.name), .shape = shape};
        what.options = Ways()[++seed % 5];
        what.wide = seed % 3 == 0;
        what.in_place = seed % 2 == 0 && algorithm.goal != Goal::kAllToAll;
        what.seed = seed;
        Scale scale{.divisor = op == ReduceOp::kAverage ? 1.0 * shape.ranks() : 1.0};
        if (seed % 5 == 0 && op != ReduceOp::kProduct) scale = {0.5, 3.0, scale.divisor};
        what.tensors = {{type, op, scale, 333}};
        Run(what, Network(seed));
      }
    }
  }
}

TEST(sizes_around_the_cuts) {
  uint32_t seed = 1;
  for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
    for (const uint64_t count : {0, 1, 2, 3, 15, 16, 17, 63, 250, 4001}) {
      RunCase what{.algorithm = std::string(algorithm.name), .shape = Shapes()[++seed % 9]};
      what.tensors[0].count = count;
      what.options = Ways()[seed % 5];
      what.seed = seed;
      Run(what, Network(seed));
    }
  }
}

TEST(a_bucket_of_many_tensors_and_types) {
  uint32_t seed = 1;
  for (const char* name :
       {"ring", "double_tree", "trees", "hierarchical", "cpu_reduce", "hierarchical_tree",
        "cpu_reduce_tree", "tree_reduce", "canonical_reduce"}) {
    for (const RunOptions& options : Ways()) {
      RunCase what{.algorithm = name, .shape = Shapes()[++seed % 9]};
      const double ranks = what.shape.ranks();
      what.tensors = {{DType::kFloat32, ReduceOp::kAverage, {1.0, 1.0, ranks}, 77},
                      {DType::kInt8, ReduceOp::kAverage, {1.0, 1.0, ranks}, 501},
                      {DType::kBFloat16, ReduceOp::kSum, {}, 3},
                      {DType::kFloat16, ReduceOp::kSum, {2.0, 0.5, 1.0}, 0},
                      {DType::kFloat16, ReduceOp::kSum, {2.0, 0.5, 1.0}, 130},
                      {DType::kInt64, ReduceOp::kMax, {}, 99},
                      {DType::kBool, ReduceOp::kSum, {}, 11}};
      what.options = options;
      what.in_place = seed % 2 == 0;
      what.wide = seed % 3 != 0;
      what.seed = seed;
      Run(what, Network(seed));
    }
  }
}

TEST(ranks_that_are_not_numbered_host_by_host) {
  for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
    RunCase what{.algorithm = std::string(algorithm.name), .shape = Topology::Equal(2, 3)};
    what.member_of_place = {0, 2, 4, 1, 3, 5};
    what.root = 3;
    what.tensors[0].count = 1003;
    if (algorithm.make({.topology = what.shape})->facts().in_rank_order) continue;
    Run(what, Network(5));
  }
}

TEST(canonical_sums_have_the_bits_of_one_host) {
  uint32_t seed = 1;
  std::vector<Topology> shapes = schedule::EqualShapes(9);
  for (Topology& shape : schedule::UnequalShapes(6)) shapes.push_back(shape);
  for (Topology& shape : schedule::SeededShapes(6, 20, 11)) shapes.push_back(shape);
  for (const auto& [hosts, local] : {std::pair{4u, 4u}, {2u, 8u}, {16u, 1u}, {1u, 16u}, {8u, 2u}}) {
    shapes.push_back(Topology::Equal(hosts, local));
  }
  for (const Topology& shape : shapes) {
    const double ranks = shape.ranks();
    const std::vector<CaseTensor> tensors = {
        {DType::kFloat32, ReduceOp::kSum, {}, 301},
        {DType::kFloat16, ReduceOp::kAverage, {1.0, 1.0, ranks}, 203},
        {DType::kBFloat16, ReduceOp::kSum, {}, 155},
        {DType::kBFloat16, ReduceOp::kProduct, {}, 100},
        {DType::kFloat64, ReduceOp::kSum, {0.3, 7.0, 1.0}, 77},
        {DType::kFloat16, ReduceOp::kSum, {0.25, 3.0, ranks}, 64},
        {DType::kInt8, ReduceOp::kAverage, {1.0, 1.0, ranks}, 70},
        {DType::kComplex64, ReduceOp::kProduct, {}, 41}};
    for (const char* name : {"canonical", "canonical_reduce", "canonical_reduce_scatter"}) {
      RunCase what{.algorithm = name, .shape = shape};
      what.options = Ways()[++seed % 5];
      what.in_place = seed % 2 == 0;
      what.root = seed % shape.ranks();
      what.wide = true;
      what.seed = seed;
      what.tensors = tensors;
      // A vector in shards is of one type.
      if (std::string_view(name) == "canonical_reduce_scatter") {
        what.tensors = {tensors[seed % tensors.size()]};
        what.tensors[0].count *= shape.ranks();
      }
      Run(what, Network(seed), true);
    }
  }
}

TEST(other_orders_have_other_bits) {
  // What the test above would show of a ring: the oracle and the numbers tell orders apart.
  RunCase what{.algorithm = "ring", .shape = Topology::Equal(5, 1)};
  what.tensors[0].count = 1000;
  OddMemory memory;
  const CaseData data(what, memory.allocate());
  OneThread job(5, {});
  std::vector<std::unique_ptr<ScheduleRun>> runs;
  for (uint32_t member = 0; member < 5; ++member) {
    runs.push_back(std::move(data.MakeRun(job.links(member), member)).value());
  }
  job.Drive(runs, what.Name());
  CHECK(!data.HasBitsOfOneHost(0));
}

TEST(links_carry_what_the_schedule_says) {
  for (const schedule::Algorithm& algorithm : schedule::Algorithms()) {
    for (const Topology& shape : Shapes()) {
      for (const RunOptions& options : {RunOptions{.window_bytes = 1 << 20, .depth = 1},
                                        RunOptions{.depth = 2, .slice_bytes = 512}}) {
        RunCase what{.algorithm = std::string(algorithm.name), .shape = shape};
        what.even_shards = true;
        what.options = options;
        OddMemory memory;
        const uint32_t chunks = CaseData(what, memory.allocate()).MakeSchedule()->facts().chunks;
        constexpr uint64_t kChunkBytes = 1024;
        what.tensors[0].count = kChunkBytes / sizeof(float) * chunks;
        const CaseData data(what, memory.allocate());
        OneThread job(data.ranks(), {});
        std::vector<std::unique_ptr<ScheduleRun>> runs;
        for (uint32_t member = 0; member < data.ranks(); ++member) {
          runs.push_back(std::move(data.MakeRun(job.links(member), member)).value());
        }
        job.Drive(runs, what.Name());
        std::map<std::pair<uint32_t, uint32_t>, uint64_t> expected;
        const auto proof = schedule::Prove(*data.MakeSchedule(), {});
        CHECK(proof.ok());
        for (const auto& link : proof.value().links) {
          expected[{link.from, link.to}] += link.chunks * kChunkBytes;
        }
        for (uint32_t from = 0; from < data.ranks(); ++from) {
          const schedule::Fraction stated = algorithm.sent(data.plan(), from);
          CHECK_EQ(runs[from]->bytes_posted() * stated.under, stated.over * chunks * kChunkBytes);
          for (uint32_t to = 0; to < data.ranks(); ++to) {
            const uint64_t bytes =
                job.hub().BytesBetween(static_cast<int>(from), static_cast<int>(to));
            CHECK_EQ(bytes, (expected[{from, to}]));
          }
        }
      }
    }
  }
}

TEST(several_collectives_in_flight) {
  constexpr uint32_t kRuns = 5;
  const char* names[kRuns] = {"ring", "hierarchical", "direct_all_to_all", "trees", "ring"};
  OddMemory memory;
  OneThread job(6, {.seed = 3, .longest_delay = 4});
  std::vector<std::unique_ptr<CaseData>> data;
  std::vector<std::unique_ptr<ScheduleRun>> runs;
  for (uint32_t k = 0; k < kRuns; ++k) {
    RunCase what{.algorithm = names[k], .shape = Topology::Equal(3, 2)};
    what.options = Ways()[k];
    what.options.collective = {.set = k / 4, .sequence = k % 4};
    what.seed = k;
    data.push_back(std::make_unique<CaseData>(what, memory.allocate()));
    for (uint32_t member = 0; member < 6; ++member) {
      runs.push_back(std::move(data[k]->MakeRun(job.links(member), member)).value());
    }
  }
  job.Drive(runs, "five at once");
  for (const auto& one : data) {
    for (uint32_t member = 0; member < 6; ++member) one->Check(member);
  }
}

TEST(ranks_that_disagree_about_the_size) {
  OddMemory memory;
  OneThread job(2, {});
  std::vector<std::unique_ptr<ScheduleRun>> runs;
  for (uint32_t member = 0; member < 2; ++member) {
    RunCase what{.algorithm = "ring", .shape = Topology::Equal(2, 1)};
    what.tensors[0].count = 100 + 100 * member;
    const CaseData data(what, memory.allocate());
    runs.push_back(std::move(data.MakeRun(job.links(member), member)).value());
  }
  for (int turn = 0; turn < 100; ++turn) {
    for (uint32_t member = 0; member < 2; ++member) {
      CHECK(job.links(member).Progress().ok());
      runs[member]->Advance();
    }
  }
  for (const auto& run : runs) {
    CHECK(run->failed() && !run->complete());
    CHECK(run->error()->kind == ErrorKind::kMismatch);
    CHECK(run->error()->message.find("bytes") != std::string::npos);
  }
}

TEST(a_payload_that_does_not_fit) {
  OneThread job(2, {});
  const auto found = schedule::FindAlgorithm("ring_all_gather");
  CHECK(found.ok());
  const RunGroup group{.me = 0, .ranks = {0, 1}, .member_of_place = {0, 1}};
  Payload payload{.tensors = {{}}, .sizes = {1, 2, 3}};
  const schedule::Plan plan{.topology = Topology::Equal(2, 1)};
  auto run = ScheduleRun::Make(job.links(0), found.value()->make(plan), group, {}, payload, {});
  CHECK(!run.ok() && run.error().kind == ErrorKind::kInvalid);
  payload = {.tensors = {{.type = DType::kComplex64, .op = ReduceOp::kMin}}};
  const auto ring = schedule::FindAlgorithm("ring");
  run = ScheduleRun::Make(job.links(0), ring.value()->make(plan), group, {}, payload, {});
  CHECK(!run.ok() && run.error().kind == ErrorKind::kUnsupported);
}
