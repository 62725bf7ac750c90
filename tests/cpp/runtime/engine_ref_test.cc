// An engine of which others were told: who holds it, and what stays of it.
#include "api/engine_ref.h"

#include <cstring>
#include <vector>

#include "api/known_engines.h"
#include "support/check.h"
#include "support/process_jobs.h"

using horoacc::EngineRef;
using horoacc::KnownEngines;
using horoacc::testing::Call;

namespace {

constexpr size_t kBytes = 1 << 20;

ha_engine* MakeEngine() {
  // An emulator has no room for arenas as large as the machine's memory, the default.
  const ha_setting settings[] = {{"log_level", "fatal"}, {"arena_bytes", "1073741824"}};
  ha_placement placement{};
  placement.size = placement.local_size = placement.cross_size = 1;
  placement.bootstrap = "none";
  placement.rendezvous = placement.secret = "";
  placement.rendezvous_fd = -1;
  // The shell of an engine stays for as long as the process.
  static auto& engines = *new std::vector<ha_engine*>;
  ha_engine*& engine = engines.emplace_back();
  ha_error error{};
  CHECK_EQ(ha_engine_create(settings, std::size(settings), &placement, &engine, nullptr, nullptr,
                            &error),
           HA_OK);
  return engine;
}

TEST(WhoHoldsAnEngineGetsErrorsWhenItIsShutDown) {
  ha_engine* const made = MakeEngine();
  const EngineRef first(made);
  {
    const EngineRef second = first;
    CHECK(first && second.get() == made);
    CHECK_EQ(ha_engine_shutdown(made, nullptr), HA_OK);
    ha_engine_unref(made);
  }
  float value = 1;
  Call call(first.get(), "late", &value, 1);
  CHECK_EQ(call.Wait(), HA_ABORTED);
  CHECK_EQ(ha_poll(first.get(), 7), -1);
  CHECK(EngineRef(made));
}

TEST(NobodyHoldsAnEngineThatIsGone) {
  ha_engine* const made = MakeEngine();
  EngineRef last(made);
  CHECK_EQ(ha_engine_shutdown(made, nullptr), HA_OK);
  ha_engine_unref(made);
  {
    const EngineRef moved = std::move(last);
    CHECK(EngineRef(made));
  }
  CHECK(!EngineRef(made));
  CHECK(ha_arena_allocate(made, kBytes) == nullptr);
  CHECK_EQ(ha_arena_over(made), 1);
}

TEST(WhatLiesInAnArenaOutlivesItsEngine) {
  ha_engine* const made = MakeEngine();
  static KnownEngines& known = *new KnownEngines;  // has no end, as in a binding
  known.Add(made);
  auto* const block = static_cast<unsigned char*>(ha_arena_allocate(made, kBytes));
  auto* const small = static_cast<unsigned char*>(ha_arena_allocate(made, 64));
  CHECK(block != nullptr && small != nullptr);
  std::memset(block, 5, kBytes);
  *small = 6;
  CHECK_EQ(ha_engine_shutdown(made, nullptr), HA_OK);
  ha_engine_unref(made);
  CHECK(!EngineRef(made));
  CHECK(ha_arena_contains(made, block) == 1 && ha_arena_over(made) == 0);
  for (size_t k = 0; k < kBytes; k += 1000) CHECK_EQ(block[k], 5);
  std::memset(block, 7, kBytes);
  CHECK_EQ(*small, 6);

  // Others come, and leave nothing; the list knows whose a block is.
  for (int time = 0; time < 3; ++time) {
    ha_engine* const next = MakeEngine();
    known.Add(next);
    void* const freed = ha_arena_allocate(next, kBytes);
    CHECK(known.Free(freed));
    CHECK_EQ(ha_engine_shutdown(next, nullptr), HA_OK);
    ha_engine_unref(next);
    CHECK_EQ(ha_arena_over(next), 1);
  }
  CHECK(known.Free(block));
  CHECK_EQ(*small, 6);
  CHECK(ha_arena_over(made) == 0);
  CHECK(known.Free(small));
  CHECK_EQ(ha_arena_over(made), 1);
  int elsewhere = 0;
  CHECK(!known.Free(&elsewhere));
}

}  // namespace
