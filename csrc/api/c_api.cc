// The C contract over the engine. No exception leaves this file.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/horoacc.h"
#include "api/launch.h"
#include "api/report.h"
#include "base/clock.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/locked_plan.h"
#include "transport/net/libcrypto.h"
#include "transport/wake/cancellation.h"

/// A raw pointer may still be ref'd after the engine is freed, so this shell and the arena outlive
/// it.
struct ha_engine {
  ha_engine(std::unique_ptr<horoacc::Engine> made, int mpi, std::string key)
      : arena(made->arena()),
        engine(std::move(made)),
        mpi_thread_level(mpi),
        object_key(std::move(key)) {}

  const std::shared_ptr<horoacc::Arena> arena;
  std::unique_ptr<horoacc::Engine> engine;  ///< until the last ref is gone
  std::atomic<uint32_t> refs{1};
  const int mpi_thread_level;
  const std::string object_key;
};

struct ha_locked_plan {
  explicit ha_locked_plan(horoacc::Engine* used) : engine(used) {}

  horoacc::Engine* const engine;
  std::unique_ptr<horoacc::LockedPlan> plan;
};

namespace {

// The core's enumerations have the contract's numbers.
static_assert(HA_COMPLEX128 + 1 == horoacc::kDTypeCount);
static_assert(HA_BOOL == static_cast<int>(horoacc::DType::kBool));
static_assert(HA_FLOAT16 == static_cast<int>(horoacc::DType::kFloat16));
static_assert(HA_BFLOAT16 == static_cast<int>(horoacc::DType::kBFloat16));
static_assert(HA_FLOAT32 == static_cast<int>(horoacc::DType::kFloat32));
static_assert(HA_FLOAT64 == static_cast<int>(horoacc::DType::kFloat64));
static_assert(HA_COMPLEX64 == static_cast<int>(horoacc::DType::kComplex64));
static_assert(HA_COMPLEX128 == static_cast<int>(horoacc::DType::kComplex128));
static_assert(HA_JOIN == static_cast<int>(horoacc::Collective::kJoin));
static_assert(HA_AVERAGE == static_cast<int>(horoacc::ReduceOp::kAverage));
static_assert(HA_ADASUM == static_cast<int>(horoacc::ReduceOp::kAdasum));
static_assert(HA_PRODUCT == static_cast<int>(horoacc::ReduceOp::kProduct));
static_assert(HA_BIT_XOR + 1 == horoacc::kReduceOpCount);
static_assert(HA_MONITORED_BARRIER + 1 == horoacc::kCollectiveCount);

using horoacc::Error;
using horoacc::ErrorKind;
using horoacc::Guarded;
using horoacc::MakeError;
using horoacc::Report;
using horoacc::Status;

constexpr auto kUnknown = horoacc::DType::kUInt8;  // in place of an unknown type

/// Opens /dev/null for those of the descriptors 0, 1 and 2 that are closed. Otherwise the next
/// descriptor would become one of them, and a warning would be written to a connection or to memory
/// that is reduced.
void KeepStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);  // the lowest free one
  if (fd > STDERR_FILENO) ::close(fd);
}

Status ReadCall(const ha_call& call, const ha_tensor* tensors, size_t count,
                horoacc::Submission& submission) {
  if (call.collective < 0 || call.collective > HA_JOIN) {
    return MakeError(ErrorKind::kInvalid, "unknown collective " + std::to_string(call.collective));
  }
  submission.process_set = static_cast<uint32_t>(call.process_set);
  horoacc::Request& request = submission.request;
  request.collective = static_cast<horoacc::Collective>(call.collective);
  // Values that the core does not know are an error of the call on all ranks, which wait for it.
  std::string& local_error = request.local_error;
  if (call.validation_error) local_error = call.validation_error;
  if (call.op < 0 || call.op >= horoacc::kReduceOpCount) {
    local_error = "unknown reduction " + std::to_string(call.op);
  } else {
    request.op = static_cast<horoacc::ReduceOp>(call.op);
  }
  request.prescale = call.prescale;
  request.postscale = call.postscale;
  request.root = call.root;
  if (call.splits) request.splits.assign(call.splits, call.splits + call.nsplits);
  if (call.receive_splits)
    request.receives.assign(call.receive_splits, call.receive_splits + call.nsplits);
  submission.limit_seconds = call.limit_seconds;
  if (call.gpu) submission.device = {call.gpu->device, call.gpu->stream};
  submission.grouped = call.grouped != 0;
  if (call.recurring != 0) submission.recurs = horoacc::Recurs::kByName;
  if (count > 0 && tensors[0].name) submission.name = tensors[0].name;
  if (call.collective == HA_JOIN && count > 0)
    return MakeError(ErrorKind::kInvalid, "join takes no tensors");
  request.tensors.reserve(count);
  submission.buffers.reserve(count);
  for (size_t t = 0; t < count; ++t) {
    const bool known = tensors[t].dtype >= 0 && tensors[t].dtype < horoacc::kDTypeCount;
    if (!known) local_error = "unknown dtype " + std::to_string(tensors[t].dtype);
    horoacc::TensorMeta& meta = request.tensors.emplace_back();
    meta.type = known ? static_cast<horoacc::DType>(tensors[t].dtype) : kUnknown;
    meta.shape.assign(tensors[t].shape, tensors[t].shape + tensors[t].ndim);
    submission.buffers.push_back({tensors[t].input, tensors[t].output});
  }
  return {};
}

horoacc::SetClaim ClaimOf(int own_part) {
  using Claim = horoacc::SetClaim;
  return own_part != 0 ? Claim::kOwnPart : Claim::kWhole;
}

horoacc::Interrupted Asking(ha_interrupted interrupted, void* context) {
  if (!interrupted) return {};
  return [=] { return interrupted(context) != 0; };
}

}  // namespace

extern "C" {

int ha_engine_create(const ha_setting* settings, size_t count, const ha_placement* placement,
                     ha_engine** engine, ha_interrupted interrupted, void* context,
                     ha_error* error) {
  const int outcome = Guarded(error, [&]() -> Status {
    KeepStandardDescriptors();
    const horoacc::Cancellation cancellation(Asking(interrupted, context), placement->rank);
    std::vector<std::pair<std::string, std::string>> pairs;
    for (size_t k = 0; k < count; ++k) pairs.emplace_back(settings[k].key, settings[k].value);
    HA_ASSIGN(auto parsed, horoacc::Settings::Parse(pairs));
    HA_ASSIGN(auto parts, horoacc::PrepareLaunch(parsed, *placement, cancellation));
    const int mpi_thread_level = parts.mpi ? static_cast<int>(parts.mpi->threads()) : -1;
    std::string object_key = std::move(parts.object_key);
    HA_ASSIGN(auto created, horoacc::Engine::Create(std::move(parsed), std::move(parts)));
    *engine = new ha_engine(std::move(created), mpi_thread_level, std::move(object_key));
    return {};
  });
  // What the standard library throws does not say whose it is.
  if (outcome == HA_SYSTEM && error && error->culprit < 0) error->culprit = placement->rank;
  return outcome;
}

int ha_engine_shutdown(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->Shutdown(); });
}

int ha_engine_abandon(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->Abandon(); });
}

int ha_mpi_finalize(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->FinalizeMpi(); });
}

int ha_mpi_thread_level(const ha_engine* engine) { return engine->mpi_thread_level; }

size_t ha_object_key(const ha_engine* engine, char out[32]) {
  return engine->object_key.copy(out, 32);
}

void ha_engine_destroy(ha_engine* engine) { delete engine; }

int ha_engine_ref(ha_engine* engine) {
  uint32_t refs = engine->refs.load(std::memory_order_relaxed);
  while (refs != 0) {
    if (engine->refs.compare_exchange_weak(refs, refs + 1, std::memory_order_acquire)) return 1;
  }
  return 0;
}

void ha_engine_unref(ha_engine* engine) {
  if (engine->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  (void)engine->engine->Shutdown();
  horoacc::Segment memory = engine->engine->memory();
  engine->engine.reset();
  engine->arena->Own(std::move(memory));
}

void ha_engine_placement(const ha_engine* engine, int32_t out[6]) {
  const horoacc::Placement& placement = engine->engine->placement();
  const int32_t values[6] = {placement.rank,       placement.size,       placement.local_rank,
                             placement.local_size, placement.cross_rank, placement.cross_size};
  std::copy_n(values, 6, out);
}

int ha_process_set_add(ha_engine* engine, const int32_t* ranks, size_t count, int own_part,
                       int32_t* id, ha_interrupted interrupted, void* context, ha_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_ASSIGN(const uint32_t added,
              engine->engine->AddProcessSet({ranks, ranks + count}, ClaimOf(own_part),
                                            Asking(interrupted, context)));
    *id = static_cast<int32_t>(added);
    return {};
  });
}

int ha_process_set_remove(ha_engine* engine, int32_t id, int own_part, ha_interrupted interrupted,
                          void* context, ha_error* error) {
  return Guarded(error, [&] {
    return engine->engine->RemoveProcessSet(static_cast<uint32_t>(id), ClaimOf(own_part),
                                            Asking(interrupted, context));
  });
}

size_t ha_process_set_ids(const ha_engine* engine, int32_t* ids, size_t capacity) {
  const std::vector<uint32_t> found = engine->engine->ProcessSetIds();
  std::copy_n(found.begin(), std::min(capacity, found.size()), ids);
  return found.size();
}

int ha_group_claim(ha_engine* engine, const int32_t* ranks, size_t count, int32_t* id,
                   ha_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_ASSIGN(const uint32_t claimed, engine->engine->groups().Claim({ranks, ranks + count}));
    *id = static_cast<int32_t>(claimed);
    return {};
  });
}

int ha_group_join(ha_engine* engine, int32_t id, const int32_t* ranks, size_t count,
                  ha_error* error) {
  return Guarded(error, [&] {
    return engine->engine->groups().Join(static_cast<uint32_t>(id), {ranks, ranks + count});
  });
}

int ha_group_leave(ha_engine* engine, int32_t id, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->LeaveGroup(static_cast<uint32_t>(id)); });
}

int32_t ha_process_set_ranks(const ha_engine* engine, int32_t id, int32_t* ranks, size_t capacity) {
  const auto found = engine->engine->ProcessSetRanks(static_cast<uint32_t>(id));
  if (!found) return -1;
  std::copy_n(found->begin(), std::min(capacity, found->size()), ranks);
  return static_cast<int32_t>(found->size());
}

int ha_submit(ha_engine* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
              ha_done done, void* context, ha_handle* handle, ha_error* error) {
  return Guarded(error, [&]() -> Status {
    horoacc::Submission submission;
    HA_TRY(ReadCall(*call, tensors, count, submission));
    // The callback needs the handle, which is known only once the call is submitted.
    std::shared_ptr<std::atomic<uint64_t>> number;
    if (done) {
      number = std::make_shared<std::atomic<uint64_t>>(0);
      submission.done = [done, context, number] {
        number->wait(0, std::memory_order_acquire);
        done(context, number->load(std::memory_order_acquire));
      };
    }
    auto submitted = engine->engine->Submit(std::move(submission));
    if (number) {
      number->store(submitted.ok() ? submitted.value() : std::numeric_limits<uint64_t>::max());
      number->notify_all();
    }
    HA_ASSIGN(*handle, std::move(submitted));
    return {};
  });
}

int ha_send(ha_engine* engine, int32_t process_set, int32_t to, int32_t tag, const void* data,
            size_t bytes, double limit_seconds, ha_handle* handle, ha_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_ASSIGN(*handle, engine->engine->SubmitMessage(static_cast<uint32_t>(process_set),
                                                     {true, to, tag, bytes}, {data, nullptr},
                                                     limit_seconds, nullptr));
    return {};
  });
}

int ha_receive(ha_engine* engine, int32_t process_set, int32_t from, int32_t tag, void* data,
               size_t bytes, double limit_seconds, ha_handle* handle, ha_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_ASSIGN(*handle, engine->engine->SubmitMessage(static_cast<uint32_t>(process_set),
                                                     {false, from, tag, bytes}, {nullptr, data},
                                                     limit_seconds, nullptr));
    return {};
  });
}

int32_t ha_source(ha_engine* engine, ha_handle handle) {
  const auto entry = engine->engine->Find(handle);
  const horoacc::MessageEntry* const message = horoacc::AsMessage(entry.get());
  return message && message->complete.load(std::memory_order_acquire) ? message->message.source
                                                                      : -1;
}

ha_locked_plan* ha_locked_plan_create(ha_engine* engine, const ha_call* call,
                                      const char* const* names, size_t count) {
  ha_locked_plan* made = nullptr;
  (void)Guarded(nullptr, [&]() -> Status {
    horoacc::Submission submission;
    HA_TRY(ReadCall(*call, nullptr, 0, submission));
    auto plan = std::make_unique<ha_locked_plan>(engine->engine.get());
    plan->plan = plan->engine->MakePlan(std::move(submission), {names, names + count});
    made = plan.release();
    return {};
  });
  return made;
}

void ha_locked_plan_destroy(ha_locked_plan* plan) {
  (void)Guarded(nullptr, [&]() -> Status {
    plan->plan.reset();
    return {};
  });
  delete plan;
}

int ha_locked_plan_submit(ha_locked_plan* plan, size_t index, const ha_tensor* tensor,
                          ha_error* error) {
  return Guarded(error, [&] {
    const horoacc::TensorMeta meta{static_cast<horoacc::DType>(tensor->dtype),
                                   {tensor->shape, tensor->shape + tensor->ndim}};
    return plan->plan->Submit(index, meta, {tensor->input, tensor->output});
  });
}

int ha_locked_plan_in_flight(const ha_locked_plan* plan, size_t index) {
  return plan->plan->InFlight(index) ? 1 : 0;
}

int ha_locked_plan_wait(ha_locked_plan* plan, size_t index, double seconds, ha_error* error) {
  return Guarded(error, [&] { return plan->plan->Wait(index, horoacc::DeadlineIn(seconds)); });
}

void ha_locked_plan_end_round(ha_locked_plan* plan) {
  (void)Guarded(nullptr, [&]() -> Status {
    plan->plan->EndRound();
    return {};
  });
}

int ha_poll(ha_engine* engine, ha_handle handle) {
  const std::optional<bool> complete = engine->engine->Poll(handle);
  return complete ? static_cast<int>(*complete) : -1;
}

int ha_wait(ha_engine* engine, ha_handle handle, double seconds, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->WaitFor(handle, seconds); });
}

int ha_join_stream(ha_engine* engine, ha_handle handle, void* stream, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->JoinStream(handle, stream); });
}

int ha_give_up(ha_engine* engine, ha_handle handle, double seconds, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->GiveUp(handle, seconds); });
}

int ha_result(ha_engine* engine, ha_handle handle, size_t index, ha_output* output,
              ha_error* error) {
  const auto entry = engine->engine->Find(handle);
  if (!entry || !entry->complete.load(std::memory_order_acquire) ||
      index >= entry->tensors.size()) {
    return Report(MakeError(ErrorKind::kInvalid, "no result for this handle"), error);
  }
  const horoacc::EntryTensor& tensor = entry->tensors[index];
  const horoacc::CollectiveEntry* const call = horoacc::AsCollective(entry.get());
  const horoacc::DType type =
      call ? call->request.tensors[index].type : horoacc::DType::kInt32;  // of a join's last rank
  output->ndim = static_cast<int32_t>(std::min<size_t>(tensor.result_shape.size(), 16));
  std::copy_n(tensor.result_shape.begin(), output->ndim, output->shape);
  if (const horoacc::JoinEntry* const join = horoacc::AsJoin(entry.get()); join && join->over)
    join->over->taken.store(true, std::memory_order_relaxed);
  output->on_gpu = call && call->device && call->device->has_result(index) ? 1 : 0;
  output->data = output->on_gpu != 0 ? nullptr : tensor.output;
  output->bytes = call ? call->ResultBytes(index) : SizeOf(type);
  output->dtype = static_cast<int32_t>(type);
  const bool has_splits = call && !call->received_splits.empty();
  output->received_splits = has_splits ? call->received_splits.data() : nullptr;
  output->nsplits = has_splits ? static_cast<int32_t>(call->received_splits.size()) : 0;
  return HA_OK;
}

void* ha_take(ha_engine* engine, ha_handle handle, size_t index) {
  const auto entry = engine->engine->Find(handle);
  if (!entry || !entry->complete.load(std::memory_order_acquire) || index >= entry->tensors.size())
    return nullptr;
  return entry->tensors[index].owned.release();
}

void ha_free(void* memory) { std::free(memory); }

int ha_copy_result(ha_engine* engine, ha_handle handle, size_t index, size_t first, size_t bytes,
                   void* to, void* stream, ha_error* error) {
  return Guarded(error, [&]() -> Status {
    const auto entry = engine->engine->Find(handle);
    const horoacc::CollectiveEntry* const call =
        entry ? horoacc::AsCollective(entry.get()) : nullptr;
    if (!call || !entry->complete.load(std::memory_order_acquire) || !call->device ||
        !call->device->has_result(index)) {
      return MakeError(ErrorKind::kInvalid, "no result on a GPU for this handle");
    }
    return call->device->CopyResult(index, first, bytes, to, stream);
  });
}

void ha_release(ha_engine* engine, ha_handle handle) { engine->engine->Release(handle); }

void* ha_arena_allocate(ha_engine* engine, size_t bytes) {
  if (ha_engine_ref(engine) == 0) return nullptr;
  void* const memory = engine->engine->AllocateShared(bytes);
  ha_engine_unref(engine);
  return memory;
}

void ha_arena_free(ha_engine* engine, void* memory) {
  if (ha_engine_ref(engine) == 0) return engine->arena->Free(memory);
  engine->engine->FreeShared(memory);
  ha_engine_unref(engine);
}

int ha_arena_contains(const ha_engine* engine, const void* memory) {
  return engine->arena->Contains(memory) ? 1 : 0;
}

int ha_arena_over(const ha_engine* engine) { return engine->arena->Over() ? 1 : 0; }

void ha_before_fork(ha_engine* engine) { engine->arena->BeforeFork(); }

void ha_after_fork_in_parent(ha_engine* engine) { engine->arena->AfterForkInParent(); }

void ha_after_fork_in_child(ha_engine* engine) { engine->engine->AfterForkInChild(); }

void ha_stacks(ha_engine* engine, int talk, int signal, int fd, uint32_t (*requests)(void)) {
  engine->engine->stacks().Set(talk, signal, fd, requests);
}

int ha_serve_readings(ha_engine* engine, int listener, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->readings().Start(horoacc::Fd(listener)); });
}

int ha_tune(ha_engine* engine, const ha_tuned_values* values, uint64_t trials, uint64_t kept,
            const char* story, ha_error* error) {
  return Guarded(error, [&] {
    const auto& [fusion_threshold, last_arriver_bytes, window_bytes, algorithm] = *values;
    return engine->engine->Tune({fusion_threshold, last_arriver_bytes, {algorithm, window_bytes}},
                                {story, trials, kept});
  });
}

void ha_tuned(const ha_engine* engine, ha_tuned_values* values) {
  const horoacc::Tuned::Values now = engine->engine->tuned().values();
  *values = {now.fusion_threshold, now.last_arriver_bytes, now.way.window_bytes, now.way.algorithm};
}

int ha_timeline_start(ha_engine* engine, const char* path, int mark_cycles, ha_error* error) {
  return Guarded(error,
                 [&] { return engine->engine->telemetry().StartTimeline(path, mark_cycles != 0); });
}

int ha_timeline_stop(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return engine->engine->telemetry().StopTimeline(); });
}

size_t ha_counters(const ha_engine* engine, char* text, size_t capacity) {
  return horoacc::PutText(engine->engine->telemetry().CounterText(), text, capacity);
}

int ha_check_libcrypto(const char* library, char* version, ha_error* error) {
  return Guarded(error, [&]() -> Status {
    HA_ASSIGN(const horoacc::Libcrypto found, horoacc::Libcrypto::Load(library));
    const std::string_view name(found.version(0));
    version[name.copy(version, 63)] = '\0';
    return {};
  });
}

const char* ha_version(void) { return HOROACC_VERSION; }

size_t ha_setting_defaults(char* text, size_t capacity) {
  return horoacc::PutText(horoacc::Settings::Defaults(), text, capacity);
}

}  // extern "C"
