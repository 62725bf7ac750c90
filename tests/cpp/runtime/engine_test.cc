// The whole path, queue to callback, on ranks that are threads. Run under the sanitizers too.
#include <atomic>
#include <cstring>
#include <latch>
#include <numeric>
#include <random>

#include "support/ranks.h"

namespace horoacc::testing {
namespace {

void Allreduces(int ranks, const Pairs& settings, size_t count, bool in_arena) {
  RunRanks(ranks, settings, [&](Engine& engine, int rank) {
    for (int round = 0; round < 4; ++round) {
      std::vector<int32_t> own(count);
      int32_t* data =
          in_arena ? static_cast<int32_t*>(engine.AllocateShared(count * 4 + 4)) : own.data();
      for (size_t i = 0; i < count; ++i) data[i] = static_cast<int32_t>(i * (rank + 1) + round);
      auto handle = engine.Submit(Make(Collective::kAllreduce, "x", DType::kInt32,
                                       {static_cast<int64_t>(count)}, data, data));
      CHECK(handle.ok());
      const Status outcome = WaitAndRelease(engine, handle.value());
      CHECK(outcome.ok());
      for (size_t i = 0; i < count; ++i) {
        CHECK_EQ(data[i], static_cast<int32_t>(i * (ranks * (ranks + 1) / 2) + round * ranks));
      }
      if (in_arena) engine.FreeShared(data);
    }
  });
}

TEST(allreduce_every_path_and_controller) {
  for (const Pairs& controller : kControllers) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{300001}}) {
        for (const bool in_arena : {false, true}) Allreduces(ranks, controller, count, in_arena);
        Allreduces(ranks, With(controller, {{"reduce_path", "windows"}}), count, false);
        Allreduces(ranks, With(controller, {{"reduce_path", "windows"}, {"window_bytes", "8192"}}),
                   count, false);
        Allreduces(ranks, With(controller, {{"reduce_path", "staged"}}), count, false);
      }
    }
  }
}

TEST(any_order_of_submission) {
  for (const Pairs& controller : kControllers) {
    RunRanks(4, With(controller, {{"fusion_threshold", "4096"}}), [&](Engine& engine, int rank) {
      constexpr int kTensors = 60;
      std::mt19937 random(rank);
      for (int step = 0; step < 6; ++step) {
        std::vector<int> order(kTensors);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<std::vector<float>> data(kTensors);
        std::vector<uint64_t> handles(kTensors);
        for (const int t : order) {
          data[t].assign(t * 7, static_cast<float>(rank + t + step));
          auto handle =
              engine.Submit(Make(Collective::kAllreduce, "t" + std::to_string(t), DType::kFloat32,
                                 {t * 7}, data[t].data(), data[t].data(), ReduceOp::kAverage));
          CHECK(handle.ok());
          handles[t] = handle.value();
        }
        for (int t = 0; t < kTensors; ++t) {
          CHECK(WaitAndRelease(engine, handles[t]).ok());
          for (const float value : data[t]) CHECK_EQ(value, 1.5f + t + step);
        }
      }
    });
  }
}

// Waiting for one member of a bucket before the others are submitted must not block.
TEST(partial_buckets_are_split) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (int step = 0; step < 8; ++step) {
        float a = static_cast<float>(rank);
        float b = 2;
        auto first = engine.Submit(Make(Collective::kAllreduce, "a", DType::kFloat32, {1}, &a, &a));
        CHECK(first.ok());
        uint64_t second = 0;
        // The first steps put both into one bucket; later "a" is waited for alone.
        if (step < 3)
          second = engine.Submit(Make(Collective::kAllreduce, "b", DType::kFloat32, {1}, &b, &b))
                       .value();
        CHECK(WaitAndRelease(engine, first.value()).ok());
        CHECK_EQ(a, 3.0f);
        if (step >= 3)
          second = engine.Submit(Make(Collective::kAllreduce, "b", DType::kFloat32, {1}, &b, &b))
                       .value();
        CHECK(WaitAndRelease(engine, second).ok());
        CHECK_EQ(b, 6.0f);
      }
    });
  }
}

TEST(exchanges) {
  for (const Pairs& controller : kControllers) {
    for (const char* path : {"auto", "windows"}) {
      for (const int ranks : {1, 2, 3, 4}) {
        RunRanks(
            ranks, With(controller, {{"reduce_path", path}, {"window_bytes", "4096"}}),
            [&](Engine& engine, int rank) {
              for (int round = 0; round < 3; ++round) {
                // All-gather of rank+1 rows of 1500 numbers.
                const int64_t rows = rank + 1;
                std::vector<int64_t> mine(rows * 1500);
                for (size_t i = 0; i < mine.size(); ++i)
                  mine[i] = static_cast<int64_t>(i) * ranks + rank + round;
                auto gathered = engine.Submit(Make(Collective::kAllgather, "g", DType::kInt64,
                                                   {rows, 1500}, mine.data(), nullptr));
                CHECK(gathered.ok());
                CHECK(engine.Wait(gathered.value(), NowNs() + 60 * kSecond).ok());
                const auto entry = engine.Find(gathered.value());
                CHECK_EQ(entry->tensors[0].result_shape[0],
                         static_cast<int64_t>(ranks * (ranks + 1) / 2));
                const auto* all = reinterpret_cast<const int64_t*>(entry->tensors[0].output);
                size_t at = 0;
                for (int from = 0; from < ranks; ++from) {
                  for (int64_t k = 0; k < (from + 1) * 1500; ++k)
                    CHECK_EQ(all[at++], k * ranks + from + round);
                }
                engine.Release(gathered.value());
                // Broadcast from the last rank.
                std::vector<double> shown(5000);
                for (size_t i = 0; i < shown.size(); ++i)
                  shown[i] = rank == ranks - 1 ? i + 0.25 * round : -1.0;
                Submission broadcast = Make(Collective::kBroadcast, "b", DType::kFloat64, {5000},
                                            shown.data(), shown.data());
                broadcast.request.root = ranks - 1;
                CHECK(WaitAndRelease(engine, engine.Submit(std::move(broadcast)).value()).ok());
                for (size_t i = 0; i < shown.size(); ++i) CHECK_EQ(shown[i], i + 0.25 * round);
                // All-to-all: rank r sends (to+1)*1000 rows to `to`.
                std::vector<int64_t> splits(ranks);
                std::vector<int32_t> sent;
                for (int to = 0; to < ranks; ++to) {
                  splits[to] = (to + 1) * 1000;
                  for (int k = 0; k < splits[to]; ++k) sent.push_back(k * 100 + rank * 10 + to);
                }
                Submission alltoall =
                    Make(Collective::kAlltoall, "a", DType::kInt32,
                         {static_cast<int64_t>(sent.size())}, sent.data(), nullptr);
                alltoall.request.splits = splits;
                const uint64_t handle = engine.Submit(std::move(alltoall)).value();
                CHECK(engine.Wait(handle, NowNs() + 60 * kSecond).ok());
                const auto got = engine.Find(handle);
                CHECK_EQ(got->tensors[0].result_shape[0],
                         static_cast<int64_t>(ranks) * (rank + 1) * 1000);
                CHECK_EQ(AsCollective(got.get())->received_splits[0],
                         static_cast<int64_t>(rank + 1) * 1000);
                const auto* received = reinterpret_cast<const int32_t*>(got->tensors[0].output);
                for (int from = 0; from < ranks; ++from) {
                  for (int k = 0; k < (rank + 1) * 1000; ++k) {
                    CHECK_EQ(received[from * (rank + 1) * 1000 + k], k * 100 + from * 10 + rank);
                  }
                }
                engine.Release(handle);
                // Reduce-scatter of 7 rows.
                std::vector<float> scattered(7 * 1100);
                for (size_t i = 0; i < scattered.size(); ++i)
                  scattered[i] = static_cast<float>(i % 97 + rank);
                const uint64_t scatter =
                    engine
                        .Submit(Make(Collective::kReducescatter, "r", DType::kFloat32, {7, 1100},
                                     scattered.data(), nullptr))
                        .value();
                CHECK(engine.Wait(scatter, NowNs() + 60 * kSecond).ok());
                const auto part = engine.Find(scatter);
                const int64_t first = 7 / ranks * rank + std::min(rank, 7 % ranks);
                const auto* sums = reinterpret_cast<const float*>(part->tensors[0].output);
                for (int64_t i = 0; i < part->tensors[0].result_shape[0] * 1100; ++i) {
                  CHECK_EQ(sums[i], static_cast<float>((first * 1100 + i) % 97 * ranks +
                                                       ranks * (ranks - 1) / 2));
                }
                engine.Release(scatter);
                // Barrier, unnamed.
                Submission barrier;
                barrier.request.collective = Collective::kBarrier;
                CHECK(WaitAndRelease(engine, engine.Submit(std::move(barrier)).value()).ok());
              }
            });
      }
    }
  }
}

TEST(mismatches_are_errors_everywhere_and_the_engine_goes_on) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      for (const bool warm : {false, true}) {
        float value[4] = {1, 1, 1, 1};
        const std::string name = warm ? "warm" : "cold";
        if (warm) {
          for (int k = 0; k < 2; ++k) {
            CHECK(WaitAndRelease(engine, engine
                                             .Submit(Make(Collective::kAllreduce, name,
                                                          DType::kFloat32, {4}, value, value))
                                             .value())
                      .ok());
          }
        }
        const int64_t length = rank == 2 ? 3 : 4;
        auto handle = engine.Submit(
            Make(Collective::kAllreduce, name, DType::kFloat32, {length}, value, value));
        CHECK(handle.ok());
        Status outcome = WaitAndRelease(engine, handle.value());
        CHECK(!outcome.ok());
        CHECK(outcome.error().kind == ErrorKind::kMismatch);
        CHECK(outcome.error().message.find("[4]") != std::string::npos);
        CHECK(outcome.error().message.find("[3]") != std::string::npos);
        CHECK(outcome.error().message.find(name) != std::string::npos);
        CHECK(outcome.error().message.find("rank 2") != std::string::npos);
        float after[4] = {1, 2, 3, 4};
        CHECK(WaitAndRelease(engine, engine
                                         .Submit(Make(Collective::kAllreduce, name, DType::kFloat32,
                                                      {4}, after, after))
                                         .value())
                  .ok());
        CHECK_EQ(after[3], 12.0f);
      }
      // A bad argument on one rank: an invalid-argument error there, a mismatch elsewhere.
      Submission bad = Make(Collective::kBroadcast, "root", DType::kFloat32, {1}, &rank, &rank);
      float value = 0;
      bad.buffers = {{&value, &value}};
      bad.request.root = rank == 1 ? 7 : 0;
      auto handle = engine.Submit(std::move(bad));
      if (rank == 1) {
        CHECK(!handle.ok());
        CHECK(handle.error().kind == ErrorKind::kInvalid);
      } else {
        Status outcome = WaitAndRelease(engine, handle.value());
        CHECK(!outcome.ok());
        CHECK(outcome.error().kind == ErrorKind::kMismatch);
        CHECK(outcome.error().message.find("root rank 7") != std::string::npos);
      }
      float again = 1;
      CHECK(WaitAndRelease(engine, engine
                                       .Submit(Make(Collective::kAllreduce, "root", DType::kFloat32,
                                                    {1}, &again, &again))
                                       .value())
                .ok());
      CHECK_EQ(again, 3.0f);
    });
  }
}

TEST(process_sets_do_not_wait_for_each_other) {
  for (const Pairs& controller : kControllers) {
    RunRanks(4, controller, [&](Engine& engine, int rank) {
      auto low = engine.AddProcessSet({0, 1, 2});
      auto high = engine.AddProcessSet({1, 2, 3});
      CHECK(low.ok());
      CHECK(high.ok());
      CHECK(!engine.AddProcessSet({2, 1, 0}).ok());
      std::vector<float> a(200000, 1.0f);
      std::vector<float> b(200000, 1.0f);
      const auto submit = [&](uint32_t id, std::vector<float>& data) {
        Submission submission = Make(Collective::kAllreduce, "same", DType::kFloat32, {200000},
                                     data.data(), data.data());
        submission.process_set = id;
        return engine.Submit(std::move(submission));
      };
      // Ranks 1 and 2 begin with different sets: only independent progress gets out of this.
      std::vector<uint64_t> handles;
      if (rank == 1) handles.push_back(submit(low.value(), a).value());
      if (rank == 3 || rank == 2 || rank == 1) handles.push_back(submit(high.value(), b).value());
      if (rank == 0 || rank == 2) handles.push_back(submit(low.value(), a).value());
      for (const uint64_t handle : handles) CHECK(WaitAndRelease(engine, handle).ok());
      if (rank < 3) CHECK_EQ(a[199999], 3.0f);
      if (rank > 0) CHECK_EQ(b[0], 3.0f);
      if (rank == 3) CHECK(!submit(low.value(), a).ok());
    });
  }
}

TEST(callbacks_run_once_after_completion) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int) {
      std::atomic<int> called{0};
      std::vector<float> data(50, 1.0f);
      for (int k = 0; k < 20; ++k) {
        Submission submission = Make(Collective::kAllreduce, "c" + std::to_string(k),
                                     DType::kFloat32, {1}, &data[k], &data[k]);
        submission.done = [&called] { called.fetch_add(1); };
        CHECK(engine.Submit(std::move(submission)).ok());
      }
      const int64_t limit = NowNs() + 60 * kSecond;
      while (called.load() < 20 && NowNs() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CHECK_EQ(called.load(), 20);
      for (int k = 0; k < 20; ++k) CHECK_EQ(data[k], 3.0f);
    });
  }
}

// Rank 0 comes last. The others wait, mostly in slices that end too early, and one of a call's two
// waiters, or the completion thread, runs the callback: which may ask for the call itself.
TEST(a_callback_runs_once_whoever_waits) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      std::atomic<int> called{0}, right{0};
      for (int k = 0; k < 200; ++k) {
        if (rank == 0 && k % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        float value = 1;
        std::atomic<uint64_t> number{0};
        Submission submission =
            Make(Collective::kAllreduce, "", DType::kFloat32, {1}, &value, &value);
        submission.done = [&] {
          number.wait(0);
          if (engine.Wait(number, NowNs() + 60 * kSecond).ok() && value == 3.0f) ++right;
          ++called;
        };
        const auto handle = engine.Submit(std::move(submission));
        CHECK(handle.ok());
        number = handle.value();
        number.notify_all();
        const auto wait = [&](int64_t slice) {
          Status status;
          do status = engine.Wait(handle.value(), NowNs() + slice);
          while (!status.ok() && status.error().kind == ErrorKind::kTimeout);
          CHECK(status.ok());
        };
        {
          const std::jthread other([&] { wait(50 * kMicrosecond); });
          wait(k % 2 == 0 ? 20 * kMicrosecond : kSecond);
        }
        const int64_t limit = NowNs() + 60 * kSecond;
        while (called.load() <= k && NowNs() < limit) std::this_thread::yield();
        CHECK_EQ(called.load(), k + 1);
        engine.Release(handle.value());
      }
      CHECK_EQ(right.load(), 200);
    });
  }
}

TEST(threads_of_a_rank_may_wait_together) {
  RunRanks(2, {}, [&](Engine& engine, int rank) {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int k = 0; k < 50; ++k) {
          std::vector<int32_t> data(100 + t * 40000, rank + k);
          const auto length = static_cast<int64_t>(data.size());
          auto handle = engine.Submit(Make(Collective::kAllreduce, "t" + std::to_string(t),
                                           DType::kInt32, {length}, data.data(), data.data()));
          CHECK(handle.ok());
          CHECK(WaitAndRelease(engine, handle.value()).ok());
          CHECK_EQ(data.back(), 1 + 2 * k);
        }
      });
    }
  });
}

TEST(shutdown_of_one_rank_ends_what_waits_for_it) {
  for (const Pairs& controller : kControllers) {
    RunRanks(3, controller, [&](Engine& engine, int rank) {
      float value = 1;
      CHECK(WaitAndRelease(engine, engine
                                       .Submit(Make(Collective::kAllreduce, "x", DType::kFloat32,
                                                    {1}, &value, &value))
                                       .value())
                .ok());
      if (rank == 2) {
        CHECK(engine.Shutdown().ok());
        return;
      }
      auto handle =
          engine.Submit(Make(Collective::kAllreduce, "y", DType::kFloat32, {1}, &value, &value));
      CHECK(handle.ok());
      const Status outcome = WaitAndRelease(engine, handle.value());
      CHECK(!outcome.ok());
      CHECK(outcome.error().kind == ErrorKind::kAborted);
      CHECK(outcome.error().message.find("rank 2") != std::string::npos);
    });
  }
}

}  // namespace
}  // namespace horoacc::testing
