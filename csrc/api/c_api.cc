// The C contract over the engine. Nothing is thrown past this file.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "api/horoacc.h"
#include "api/launch.h"
#include "api/report.h"
#include "base/clock.h"
#include "runtime/engine.h"

struct ha_engine {
  std::unique_ptr<horoacc::Engine> engine;
  int mpi_thread_level = -1;
};

namespace {

// The core's enumerations and the contract's are one.
static_assert(HA_COMPLEX128 + 1 == horoacc::kDTypeCount);
static_assert(HA_BOOL == static_cast<int>(horoacc::DType::kBool));
static_assert(HA_FLOAT16 == static_cast<int>(horoacc::DType::kFloat16));
static_assert(HA_BFLOAT16 == static_cast<int>(horoacc::DType::kBFloat16));
static_assert(HA_FLOAT32 == static_cast<int>(horoacc::DType::kFloat32));
static_assert(HA_FLOAT64 == static_cast<int>(horoacc::DType::kFloat64));
static_assert(HA_COMPLEX64 == static_cast<int>(horoacc::DType::kComplex64));
static_assert(HA_COMPLEX128 == static_cast<int>(horoacc::DType::kComplex128));
static_assert(HA_AVERAGE == static_cast<int>(horoacc::ReduceOp::kAverage));
static_assert(HA_ADASUM == static_cast<int>(horoacc::ReduceOp::kAdasum));
static_assert(HA_PRODUCT == static_cast<int>(horoacc::ReduceOp::kProduct));

using horoacc::Error;
using horoacc::ErrorKind;
using horoacc::Guarded;
using horoacc::MakeError;
using horoacc::Report;
using horoacc::Status;

horoacc::Result<horoacc::Submission> ToSubmission(const ha_call& call, const ha_tensor* tensors,
                                                  size_t count) {
  if (call.collective < 0 || call.collective >= horoacc::kCollectiveCount) {
    return MakeError(ErrorKind::kInvalid, "unknown collective " + std::to_string(call.collective));
  }
  if (call.op < 0 || call.op > HA_PRODUCT) {
    return MakeError(ErrorKind::kInvalid, "unknown reduction " + std::to_string(call.op));
  }
  if (call.op == HA_ADASUM) {
    return MakeError(ErrorKind::kUnsupported, "adasum is not a reduction of the core");
  }
  horoacc::Submission submission;
  submission.process_set = static_cast<uint32_t>(call.process_set);
  horoacc::Request& request = submission.request;
  request.collective = static_cast<horoacc::Collective>(call.collective);
  request.op = static_cast<horoacc::ReduceOp>(call.op);
  request.prescale = call.prescale;
  request.postscale = call.postscale;
  request.root = call.root;
  if (call.splits) request.splits.assign(call.splits, call.splits + call.nsplits);
  if (count > 0 && tensors[0].name) submission.name = tensors[0].name;
  for (size_t t = 0; t < count; ++t) {
    if (tensors[t].dtype < 0 || tensors[t].dtype >= horoacc::kDTypeCount) {
      return MakeError(ErrorKind::kInvalid, "unknown dtype " + std::to_string(tensors[t].dtype));
    }
    request.tensors.push_back({static_cast<horoacc::DType>(tensors[t].dtype),
                               {tensors[t].shape, tensors[t].shape + tensors[t].ndim}});
    submission.buffers.push_back({tensors[t].input, tensors[t].output});
  }
  return submission;
}

}  // namespace

extern "C" {

int ha_engine_create(const ha_setting* settings, size_t count, const ha_placement* placement,
                     ha_engine** engine, ha_error* error) {
  return Guarded(error, [&] {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (size_t k = 0; k < count; ++k) pairs.emplace_back(settings[k].key, settings[k].value);
    auto parsed = horoacc::Settings::Parse(pairs);
    if (!parsed.ok()) return Report(parsed.error(), error);
    auto parts = horoacc::PrepareLaunch(parsed.value(), *placement);
    if (!parts.ok()) return Report(parts.error(), error);
    const auto& mpi = parts.value().mpi;
    const int mpi_thread_level = mpi ? static_cast<int>(mpi->threads()) : -1;
    auto created = horoacc::Engine::Create(std::move(parsed).value(), std::move(parts).value());
    if (!created.ok()) return Report(created.error(), error);
    *engine = new ha_engine{std::move(created).value(), mpi_thread_level};
    return static_cast<int>(HA_OK);
  });
}

int ha_engine_shutdown(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return Report(engine->engine->Shutdown(), error); });
}

int ha_mpi_finalize(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return Report(engine->engine->FinalizeMpi(), error); });
}

int ha_mpi_thread_level(const ha_engine* engine) { return engine->mpi_thread_level; }

void ha_engine_destroy(ha_engine* engine) { delete engine; }

void ha_engine_placement(const ha_engine* engine, int32_t out[6]) {
  const horoacc::Placement& placement = engine->engine->placement();
  const int32_t values[6] = {placement.rank,       placement.size,       placement.local_rank,
                             placement.local_size, placement.cross_rank, placement.cross_size};
  std::copy_n(values, 6, out);
}

int ha_process_set_add(ha_engine* engine, const int32_t* ranks, size_t count, int32_t* id,
                       ha_error* error) {
  return Guarded(error, [&] {
    auto added = engine->engine->AddProcessSet({ranks, ranks + count});
    if (!added.ok()) return Report(added.error(), error);
    *id = static_cast<int32_t>(added.value());
    return static_cast<int>(HA_OK);
  });
}

int ha_process_set_remove(ha_engine* engine, int32_t id, ha_error* error) {
  return Guarded(error, [&] {
    return Report(engine->engine->RemoveProcessSet(static_cast<uint32_t>(id)), error);
  });
}

int32_t ha_process_set_ranks(const ha_engine* engine, int32_t id, int32_t* ranks, size_t capacity) {
  const auto found = engine->engine->ProcessSetRanks(static_cast<uint32_t>(id));
  if (!found) return -1;
  std::copy_n(found->begin(), std::min(capacity, found->size()), ranks);
  return static_cast<int32_t>(found->size());
}

int ha_submit(ha_engine* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
              ha_done done, void* context, ha_handle* handle, ha_error* error) {
  return Guarded(error, [&] {
    auto submission = ToSubmission(*call, tensors, count);
    if (!submission.ok()) return Report(submission.error(), error);
    // The callback needs the handle, which is known only once the call is submitted.
    auto number = std::make_shared<std::atomic<uint64_t>>(0);
    if (done) {
      submission.value().done = [done, context, number] {
        number->wait(0, std::memory_order_acquire);
        done(context, number->load(std::memory_order_acquire));
      };
    }
    auto submitted = engine->engine->Submit(std::move(submission).value());
    number->store(submitted.ok() ? submitted.value() : std::numeric_limits<uint64_t>::max());
    number->notify_all();
    if (!submitted.ok()) return Report(submitted.error(), error);
    *handle = submitted.value();
    return static_cast<int>(HA_OK);
  });
}

int ha_poll(ha_engine* engine, ha_handle handle) {
  const std::optional<bool> complete = engine->engine->Poll(handle);
  return complete ? static_cast<int>(*complete) : -1;
}

int ha_wait(ha_engine* engine, ha_handle handle, double seconds, ha_error* error) {
  return Guarded(error, [&] {
    const int64_t deadline = seconds < 0 ? std::numeric_limits<int64_t>::max()
                                         : horoacc::NowNs() + static_cast<int64_t>(seconds * 1e9);
    return Report(engine->engine->Wait(handle, deadline), error);
  });
}

int ha_result(ha_engine* engine, ha_handle handle, size_t index, ha_output* output,
              ha_error* error) {
  const auto entry = engine->engine->Find(handle);
  if (!entry || !entry->complete.load(std::memory_order_acquire) ||
      index >= entry->tensors.size()) {
    return Report(MakeError(ErrorKind::kInvalid, "no result for this handle"), error);
  }
  const horoacc::EntryTensor& tensor = entry->tensors[index];
  const horoacc::DType type = entry->request.tensors[index].type;
  uint64_t bytes = SizeOf(type);
  output->ndim = static_cast<int32_t>(std::min<size_t>(tensor.result_shape.size(), 16));
  for (int32_t dim = 0; dim < output->ndim; ++dim) {
    output->shape[dim] = tensor.result_shape[dim];
    bytes *= static_cast<uint64_t>(tensor.result_shape[dim]);
  }
  output->data = tensor.output;
  output->bytes = bytes;
  output->dtype = static_cast<int32_t>(type);
  output->received_splits =
      entry->received_splits.empty() ? nullptr : entry->received_splits.data();
  output->nsplits = static_cast<int32_t>(entry->received_splits.size());
  return HA_OK;
}

void* ha_take(ha_engine* engine, ha_handle handle, size_t index) {
  const auto entry = engine->engine->Find(handle);
  if (!entry || !entry->complete.load(std::memory_order_acquire) || index >= entry->tensors.size())
    return nullptr;
  return entry->tensors[index].owned.release();
}

void ha_free(void* memory) { std::free(memory); }

void ha_release(ha_engine* engine, ha_handle handle) { engine->engine->Release(handle); }

void* ha_arena_allocate(ha_engine* engine, size_t bytes) {
  return engine->engine->AllocateShared(bytes);
}

void ha_arena_free(ha_engine* engine, void* memory) { engine->engine->FreeShared(memory); }

int ha_arena_contains(const ha_engine* engine, const void* memory) {
  return engine->engine->IsShared(memory) ? 1 : 0;
}

void ha_before_fork(ha_engine* engine) { engine->engine->arena().BeforeFork(); }

void ha_after_fork_in_parent(ha_engine* engine) { engine->engine->arena().AfterForkInParent(); }

void ha_after_fork_in_child(ha_engine* engine) { engine->engine->arena().AfterForkInChild(); }

int ha_timeline_start(ha_engine* engine, const char* path, int mark_cycles, ha_error* error) {
  return Guarded(
      error, [&] { return Report(engine->engine->StartTimeline(path, mark_cycles != 0), error); });
}

int ha_timeline_stop(ha_engine* engine, ha_error* error) {
  return Guarded(error, [&] { return Report(engine->engine->StopTimeline(), error); });
}

size_t ha_counters(const ha_engine* engine, char* text, size_t capacity) {
  return horoacc::PutText(engine->engine->CounterText(), text, capacity);
}

const char* ha_version(void) { return HOROACC_VERSION; }

size_t ha_setting_defaults(char* text, size_t capacity) {
  return horoacc::PutText(horoacc::Settings::Defaults(), text, capacity);
}

}  // extern "C"
