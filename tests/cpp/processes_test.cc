// Ranks that are processes, made as a launcher makes them: what the others get when one is killed
// or keeps them waiting, and what an engine leaves behind.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/horoacc.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "check.h"
#include "forked_ranks.h"

namespace horoacc {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// How long the others may take to hear of a death.
constexpr int64_t kNoticeLimit = 5 * kSecond;
constexpr int64_t kJobLimit = 60 * kSecond;
constexpr size_t kBig = 4 << 20;  ///< float32 numbers: 16 MiB, many windows

/// Closes an engine with its last owner.
struct DestroyEngine {
  void operator()(ha_engine* engine) const { ha_engine_destroy(engine); }
};
using OwnedEngine = std::unique_ptr<ha_engine, DestroyEngine>;

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
    std::vector<ha_setting> settings;
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
    if (ha_engine_create(settings.data(), settings.size(), &placement, &engine, &error) != HA_OK) {
      check::Fail(__FILE__, __LINE__, "rank " + std::to_string(rank) + ": " + error.message);
    }
    return OwnedEngine(engine);
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

/// An allreduce of float32 that was submitted and not yet waited for.
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

void CheckAllreduce(ha_engine* engine, int size) {
  float value = 1;
  Call call(engine, "warm", &value, 1);
  const int code = call.Wait();
  if (code != HA_OK) check::Fail(__FILE__, __LINE__, call.error().message);
  CHECK_EQ(value, static_cast<float>(size));
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// What a survivor must be told, and that its engine still comes to an end.
int CheckTold(OwnedEngine engine, Call& call, int victim, int64_t killed_ns) {
  const int code = call.Wait();
  if (code != HA_PEER_LOST) {
    check::Fail(__FILE__, __LINE__,
                "expected a lost peer, got " + std::to_string(code) + ": " + call.error().message);
  }
  if (killed_ns > 0) CHECK(NowNs() - killed_ns < kNoticeLimit);
  CHECK_EQ(call.error().culprit, victim);
  CHECK(Contains(call.error().message, "rank " + std::to_string(victim)));
  // From now on every call fails at once with the same error.
  float value = 1;
  const int64_t start = NowNs();
  Call next(engine.get(), "next", &value, 1);
  CHECK_EQ(next.Wait(), HA_PEER_LOST);
  CHECK_EQ(next.error().culprit, victim);
  CHECK(NowNs() - start < kSecond);
  CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
  return 0;
}

void KilledIdle(int size, int victim, const Pairs& settings) {
  Job job(size);
  job.Start([&](int rank) {
    OwnedEngine engine = job.Engine(rank, settings);
    CheckAllreduce(engine.get(), size);
    job.Reached();
    const int64_t killed_ns = job.AwaitLetGo();
    float value = 1;
    Call call(engine.get(), "after", &value, 1);
    return CheckTold(std::move(engine), call, victim, killed_ns);
  });
  job.AwaitReached(size);
  job.Kill(victim);
  job.LetGo();
  job.CheckEnds({victim});
}

void KilledWhileOthersWait(int size, int victim, const Pairs& settings) {
  Job job(size);
  job.Start([&](int rank) {
    OwnedEngine engine = job.Engine(rank, settings);
    CheckAllreduce(engine.get(), size);
    job.Reached();
    if (rank == victim) return ::pause();
    float value = 1;
    Call call(engine.get(), "waits", &value, 1);
    return CheckTold(std::move(engine), call, victim, 0);
  });
  job.AwaitReached(size);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // now they sleep
  const int64_t killed_ns = NowNs();
  job.Kill(victim);
  job.CheckEnds({victim});
  CHECK(NowNs() - killed_ns < kNoticeLimit);
}

void KilledInBigCollectives(int size, int victim, const Pairs& settings, bool in_arena) {
  Job job(size);
  job.Start([&](int rank) {
    OwnedEngine engine = job.Engine(rank, settings);
    std::vector<float> own(in_arena ? 0 : kBig, 1.0f);
    float* data = own.data();
    if (in_arena) {
      data = static_cast<float*>(ha_arena_allocate(engine.get(), kBig * sizeof(float)));
      std::fill_n(data, kBig, 1.0f);
    }
    for (int round = 0;; ++round) {
      if (round == 2) job.Reached();
      Call call(engine.get(), "big", data, kBig);
      if (rank == victim) {
        CHECK_EQ(call.Wait(), HA_OK);
        continue;
      }
      if (call.Wait() != HA_OK) return CheckTold(std::move(engine), call, victim, 0);
    }
  });
  job.AwaitReached(size);
  const int64_t killed_ns = NowNs();
  job.Kill(victim);
  job.CheckEnds({victim});
  CHECK(NowNs() - killed_ns < kNoticeLimit);
}

std::set<std::string> Listing(const char* folder) {
  std::set<std::string> names;
  DIR* const listing = ::opendir(folder);
  CHECK(listing != nullptr);
  while (const dirent* entry = ::readdir(listing)) names.insert(entry->d_name);
  ::closedir(listing);
  return names;
}

/// Runs a test, and makes sure that no file of ours remains that was not there before.
template <typename Body>
void LeavingNothing(Body body) {
  const std::set<std::string> before = Listing("/dev/shm");
  body();
  for (const std::string& name : Listing("/dev/shm")) {
    if (Contains(name, "horoacc")) CHECK(before.contains(name));
  }
}

const Pairs kBoard = {{"control", "board"}, {"log_level", "fatal"}};
const Pairs kMessages = {{"control", "tcp"}, {"log_level", "fatal"}};

TEST(allreduce_in_processes) {
  for (const Pairs& settings : {kBoard, kMessages}) {
    for (const int size : {2, 4}) {
      LeavingNothing([&] {
        Job job(size);
        job.Start([&](int rank) {
          const OwnedEngine engine = job.Engine(rank, settings);
          for (int k = 0; k < 5; ++k) {
            CheckAllreduce(engine.get(), size);
            std::vector<float> data(300'000, static_cast<float>(rank + k));
            Call call(engine.get(), "data", data.data(), data.size());
            CHECK_EQ(call.Wait(), HA_OK);
            const auto sum = static_cast<float>(size * (size - 1) / 2 + size * k);
            for (const float value : data) CHECK_EQ(value, sum);
          }
          CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
          return 0;
        });
        job.CheckEnds();
      });
    }
  }
}

TEST(a_rank_killed_idle) {
  LeavingNothing([] {
    KilledIdle(2, 1, kBoard);
    KilledIdle(4, 2, kBoard);
    KilledIdle(4, 0, kMessages);
  });
}

TEST(a_rank_killed_while_the_others_wait) {
  LeavingNothing([] {
    KilledWhileOthersWait(2, 0, kBoard);
    KilledWhileOthersWait(4, 3, kBoard);
    KilledWhileOthersWait(4, 1, kMessages);
  });
}

TEST(a_rank_killed_in_big_windows) {
  LeavingNothing([] {
    KilledInBigCollectives(2, 1, kBoard, false);
    KilledInBigCollectives(4, 2, kBoard, false);
    KilledInBigCollectives(4, 0, kMessages, false);
  });
}

TEST(a_rank_killed_in_big_slices) {
  LeavingNothing([] {
    KilledInBigCollectives(2, 0, kBoard, true);
    KilledInBigCollectives(4, 3, kBoard, true);
  });
}

// Two at once, so that the survivors do not agree on who it was; each must still be told.
TEST(two_ranks_killed_at_once) {
  constexpr int kSize = 4;
  Job job(kSize);
  job.Start([&](int rank) {
    const OwnedEngine engine = job.Engine(rank, kBoard);
    CheckAllreduce(engine.get(), kSize);
    job.Reached();
    if (rank % 2) return ::pause();
    float value = 1;
    Call call(engine.get(), "waits", &value, 1);
    CHECK_EQ(call.Wait(), HA_PEER_LOST);
    CHECK_EQ(call.error().culprit % 2, 1);
    return 0;
  });
  job.AwaitReached(kSize);
  job.Kill(1);
  job.Kill(3);
  job.CheckEnds({1, 3});
}

/// How many descriptors, threads and mappings this process has.
struct Footprint {
  size_t descriptors = Listing("/proc/self/fd").size();
  size_t threads = Listing("/proc/self/task").size();
  size_t mappings = 0;
  Footprint() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) mappings += Contains(line, "horoacc");
  }
};

TEST(twenty_engines_leave_nothing_behind) {
  for (const Pairs& settings : {kBoard, kMessages}) {
    LeavingNothing([&] {
      Job job(2);
      job.Start([&](int rank) {
        std::thread([] {}).join();  // with the first one, a sanitizer starts a thread of its own
        const Footprint before;
        for (int cycle = 0; cycle < 20; ++cycle) {
          OwnedEngine engine = job.Engine(rank, settings);
          CheckAllreduce(engine.get(), 2);
          if (cycle == 0) CHECK(Footprint().descriptors > before.descriptors);
          if (cycle == 0) CHECK(Footprint().mappings > before.mappings);
          if (cycle % 2) CHECK_EQ(ha_engine_shutdown(engine.get(), nullptr), HA_OK);
          engine.reset();
          // The kernel may list a thread for a moment after it was joined.
          const int64_t deadline = NowNs() + 5 * kSecond;
          while (Footprint().threads > before.threads && NowNs() < deadline) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          const Footprint after;
          CHECK_EQ(after.descriptors, before.descriptors);
          CHECK(after.threads <= before.threads);
          CHECK_EQ(after.mappings, before.mappings);
        }
        return 0;
      });
      job.CheckEnds();
    });
  }
}

/// What a rank writes to stderr.
class Stderr {
 public:
  Stderr() : file_(std::tmpfile()) { CHECK(file_ != nullptr); }
  ~Stderr() { std::fclose(file_); }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;

  /// In a rank: from now on its stderr goes here.
  void Take() const { CHECK(::dup2(::fileno(file_), STDERR_FILENO) >= 0); }
  [[nodiscard]] std::string Text() const {
    std::string text(1 << 16, '\0');
    const ssize_t length = ::pread(::fileno(file_), text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(length, 0)));
    return text;
  }

 private:
  std::FILE* file_;
};

TEST(a_stalled_tensor_is_told_and_goes_on) {
  for (const char* control : {"board", "tcp"}) {
    constexpr int kSize = 4;
    Job job(kSize);
    const std::array<Stderr, kSize> texts;
    job.Start([&](int rank) {
      texts[rank].Take();
      const OwnedEngine engine = job.Engine(
          rank, {{"control", control}, {"stall_warning_seconds", "1"}, {"log_hide_time", "1"}});
      CheckAllreduce(engine.get(), kSize);
      if (rank == 1 || rank == 3) (void)job.AwaitLetGo();
      float value = 2;
      Call call(engine.get(), "layer.weight", &value, 1);
      CHECK_EQ(call.Wait(), HA_OK);
      CHECK_EQ(value, 8.0f);
      return 0;
    });
    // The lowest rank that is ready tells it, once.
    const std::string expected =
        "horoacc rank 0 warning: tensor 'layer.weight' has waited for 1 s: "
        "rank(s) 0, 2 are ready, rank(s) 1, 3 have not submitted it\n";
    const int64_t deadline = NowNs() + 20 * kSecond;
    while (texts[0].Text() != expected) {
      if (NowNs() > deadline) check::Fail(__FILE__, __LINE__, "rank 0 said: " + texts[0].Text());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    job.LetGo();
    job.CheckEnds();
    CHECK_EQ(texts[0].Text(), expected);
    for (int rank = 1; rank < kSize; ++rank) CHECK_EQ(texts[rank].Text(), "");
  }
}

TEST(a_stalled_tensor_ends_the_job_if_asked_to) {
  for (const char* control : {"board", "tcp"}) {
    constexpr int kSize = 4;
    Job job(kSize);
    job.Start([&](int rank) {
      const OwnedEngine engine = job.Engine(rank, {{"control", control},
                                                   {"stall_warning_seconds", "1"},
                                                   {"stall_shutdown_seconds", "1.5"},
                                                   {"log_level", "fatal"}});
      CheckAllreduce(engine.get(), kSize);
      float value = 2;
      if (rank % 2 == 0) {
        Call call(engine.get(), "layer.weight", &value, 1);
        CHECK_EQ(call.Wait(), HA_TIMEOUT);
        CHECK(Contains(call.error().message, "'layer.weight'"));
        CHECK(Contains(call.error().message, "rank(s) 1, 3"));
        CHECK_EQ(call.error().culprit, 1);
        job.Reached();
        return 0;
      }
      // Those that did not come hear of it with whatever they do next.
      (void)job.AwaitLetGo();
      Call call(engine.get(), "other", &value, 1);
      CHECK_EQ(call.Wait(), HA_TIMEOUT);
      CHECK(Contains(call.error().message, "'layer.weight'"));
      return 0;
    });
    job.AwaitReached(2);
    job.LetGo();
    job.CheckEnds();
  }
}

TEST(a_rank_that_leaves_in_good_order_is_no_loss) {
  for (const Pairs& settings : {kBoard, kMessages}) {
    constexpr int kSize = 4;
    Job job(kSize);
    job.Start([&](int rank) {
      const OwnedEngine engine = job.Engine(rank, settings);
      CheckAllreduce(engine.get(), kSize);
      if (rank == 2) return 0;
      float value = 1;
      Call call(engine.get(), "late", &value, 1);
      CHECK_EQ(call.Wait(), HA_ABORTED);
      CHECK(Contains(call.error().message, "rank 2 has shut down"));
      return 0;
    });
    job.CheckEnds();
  }
}

}  // namespace
}  // namespace horoacc
