#pragma once
// Jobs whose ranks are processes, made as a launcher makes them.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "api/horoacc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "support/check.h"
#include "support/forked_ranks.h"

namespace horoacc::testing {

using Pairs = std::vector<std::pair<std::string, std::string>>;

inline constexpr int64_t kJobLimit = 60 * kSecond;
inline const Pairs kSegment = {{"log_level", "fatal"}};
inline const Pairs kMessages = {{"simulated_hosts", "each"}, {"log_level", "fatal"}};

/// Closes an engine with its last owner.
struct DestroyEngine {
  void operator()(ha_engine* engine) const { ha_engine_destroy(engine); }
};
using OwnedEngine = std::unique_ptr<ha_engine, DestroyEngine>;

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::set<std::string> Listing(const char* folder) {
  std::set<std::string> names;
  DIR* const listing = ::opendir(folder);
  CHECK(listing != nullptr);
  while (const dirent* entry = ::readdir(listing)) names.insert(entry->d_name);
  ::closedir(listing);
  return names;
}

/// In a rank: none of its memory, mapped or open, has a name in /dev/shm, so that no end of it can
/// leave one behind.
inline void CheckNothingHasAName() {
  std::ifstream maps("/proc/self/maps");
  bool mapped = false;
  for (std::string line; std::getline(maps, line);) {
    CHECK(!Contains(line, "/dev/shm/"));
    mapped = mapped || Contains(line, "/memfd:horoacc");
  }
  CHECK(mapped);
  for (const std::string& fd : Listing("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink("/proc/self/fd/" + fd, gone);
    CHECK(gone || !Contains(target.string(), "/dev/shm/"));
  }
}

/// One job: where its ranks meet, and pipes between the test and its ranks.
class Job {
 public:
  explicit Job(int size) : size_(size) {
    CHECK_EQ(::pipe2(to_test_, O_CLOEXEC), 0);
    CHECK_EQ(::pipe2(to_ranks_, O_CLOEXEC), 0);
  }
  ~Job() {
    ranks_.clear();
    for (const int fd : {to_test_[0], to_test_[1], to_ranks_[0], to_ranks_[1]}) ::close(fd);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] int size() const { return size_; }

  void Start(const std::function<int(int rank)>& body) {
    for (int rank = 0; rank < size_; ++rank) {
      ranks_.emplace_back([&, rank] { return body(rank); });
    }
  }

  /// In a rank: makes its engine. Rank 0 takes over a copy of the job's listening socket, so that a
  /// rank can do this again.
  [[nodiscard]] OwnedEngine Engine(int rank, const Pairs& pairs) const {
    OwnedEngine engine;
    const ha_error error = MakeEngine(rank, pairs, engine);
    if (!engine)
      check::Fail(__FILE__, __LINE__, "rank " + std::to_string(rank) + ": " + error.message);
    CheckNothingHasAName();
    return engine;
  }
  /// The same, of an engine that may fail to start: then there is none, and the error.
  [[nodiscard]] ha_error MakeEngine(int rank, const Pairs& pairs, OwnedEngine& made) const {
    std::vector<ha_setting> settings;
#if defined(HOROACC_EMULATED)
    settings.push_back({"arena_bytes", "1073741824"});  // not the machine's: see kRankMemory
#endif
    for (const auto& [key, value] : pairs) settings.push_back({key.c_str(), value.c_str()});
    ha_placement placement{};
    placement.rank = placement.local_rank = rank;
    placement.size = placement.local_size = size_;
    placement.cross_size = 1;
    placement.bootstrap = "tcp";
    placement.rendezvous = port_.address.c_str();
    placement.rendezvous_fd = rank == 0 ? ::fcntl(port_.listener.get(), F_DUPFD_CLOEXEC, 0) : -1;
    placement.secret = "736563726574";
    ha_engine* engine = nullptr;
    ha_error error{};
    (void)ha_engine_create(settings.data(), settings.size(), &placement, &engine, nullptr, nullptr,
                           &error);
    made.reset(engine);
    return error;
  }

  /// In a rank: tells the test that it got so far.
  void Reached() const { CHECK_EQ(::write(to_test_[1], "r", 1), 1); }
  /// In the test: waits until `count` ranks did.
  void AwaitReached(int count) const {
    const int64_t deadline = NowNs() + kJobLimit;
    for (int k = 0; k < count; ++k) {
      CHECK(WaitReady(to_test_[0], POLLIN, deadline).ok());
      char byte = 0;
      CHECK_EQ(::read(to_test_[0], &byte, 1), 1);
    }
  }

  /// In the test: lets every rank go on, and tells it the time.
  void LetGo() const {
    const int64_t now = NowNs();
    for (int rank = 0; rank < size_; ++rank) {
      CHECK_EQ(::write(to_ranks_[1], &now, sizeof now), static_cast<ssize_t>(sizeof now));
    }
  }
  /// In a rank: waits for that, without touching the engine.
  [[nodiscard]] int64_t AwaitLetGo() const {
    CHECK(WaitReady(to_ranks_[0], POLLIN, NowNs() + kJobLimit).ok());
    int64_t time = 0;
    CHECK_EQ(::read(to_ranks_[0], &time, sizeof time), static_cast<ssize_t>(sizeof time));
    return time;
  }

  void Kill(int rank) const { ranks_[rank].Kill(); }
  /// What the body of a rank returned, or 1000 + the signal that ended it.
  [[nodiscard]] int Await(int rank) { return ranks_[rank].Await(NowNs() + kJobLimit); }

  /// Waits for all ranks. All but the victims must have returned 0.
  void CheckEnds(const std::set<int>& victims = {}) {
    const int64_t deadline = NowNs() + kJobLimit;
    for (int rank = 0; rank < size_; ++rank) {
      CHECK_EQ(ranks_[rank].Await(deadline), victims.contains(rank) ? 1000 + SIGKILL : 0);
    }
  }

 private:
  const int size_;
  FreePort port_;
  int to_test_[2] = {-1, -1};
  int to_ranks_[2] = {-1, -1};
  std::vector<ForkedRank> ranks_;
};

/// An allreduce of float32, or a join, that was submitted and not yet waited for.
class Call {
 public:
  Call(ha_engine* engine, const std::string& name, float* data, size_t count) : engine_(engine) {
    const auto shape = static_cast<int64_t>(count);
    ha_tensor tensor{name.c_str(), data, data, &shape, 1, static_cast<int32_t>(DType::kFloat32)};
    ha_call call{};
    call.collective = HA_ALLREDUCE;
    call.op = static_cast<int32_t>(ReduceOp::kSum);
    call.prescale = call.postscale = 1.0;
    code_ = ha_submit(engine, &call, &tensor, 1, nullptr, nullptr, &handle_, &error_);
  }
  explicit Call(ha_engine* engine) : engine_(engine) {
    ha_call join{};
    join.collective = HA_JOIN;
    code_ = ha_submit(engine, &join, nullptr, 0, nullptr, nullptr, &handle_, &error_);
  }
  /// An ha_error_kind, of the submission or of the result.
  int Wait(double seconds = 30) {
    if (code_ == HA_OK) {
      code_ = ha_wait(engine_, handle_, seconds, &error_);
      ha_release(engine_, handle_);
    }
    return code_;
  }
  [[nodiscard]] const ha_error& error() const { return error_; }

 private:
  ha_engine* engine_;
  ha_handle handle_ = 0;
  ha_error error_{};
  int code_ = HA_OK;
};

inline void CheckAllreduce(ha_engine* engine, int size) {
  float value = 1;
  Call call(engine, "warm", &value, 1);
  const int code = call.Wait();
  if (code != HA_OK) check::Fail(__FILE__, __LINE__, call.error().message);
  CHECK_EQ(value, static_cast<float>(size));
}

}  // namespace horoacc::testing
