#pragma once
// N ranks' views of one process set's control segment, without engines: a test moves each rank by
// hand.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "negotiate/control_segment/segment_controller.h"
#include "negotiate/control_segment/set_segment.h"
#include "support/check.h"
#include "transport/bootstrap/inproc.h"

namespace horoacc::testing {

/// One rank: what an engine would make for its process set 0, but for the controller.
struct SegmentRank {
  SegmentRank(const HostShare& share, const Settings& settings, std::function<bool(uint32_t)> alive)
      : host(share, settings.fusion_threshold), doorbells(host.doorbells(), share.wake) {
    std::vector<uint32_t> locals;
    for (uint32_t rank = 0; rank < share.ranks.size(); ++rank) {
      locals.push_back(rank);
      context.memory.push_back(share.memory[rank].data());
      context.present.push_back(rank);
    }
    context.me = static_cast<uint32_t>(share.local_rank);
    context.ranks = static_cast<uint32_t>(share.ranks.size());
    context.ring_others = [](bool) {};
    control =
        std::make_unique<SetSegment>(host, 0, locals, context.me, LockWatch{std::move(alive)});
  }

  /// What every rank submits: an allreduce of four float32 numbers.
  [[nodiscard]] static Request FourNumbers() {
    Request request;
    request.tensors = {{DType::kFloat32, {4}}};
    return request;
  }

  /// Writes the rank's row for the open generation; it has yet to be announced. `input`: where the
  /// numbers lie in its memory.
  TensorKey WriteRow(uint32_t id, Collective collective = Collective::kAllreduce,
                     uint64_t input = kPrivate) {
    const TensorKey key{id, control->id(id).arrivals.load().open()};
    Request request = FourNumbers();
    request.collective = collective;
    Row& row = control->row(context.me, id, key.generation);
    row.signature = request.Signature();
    row.prescale = row.postscale = 1;
    row.sequence = ++sequence;
    row.collective = static_cast<uint8_t>(collective);
    row.op = static_cast<uint8_t>(request.op);
    row.prescale = request.prescale;
    row.postscale = request.postscale;
    row.tensors = 1;
    row.tensor.type = static_cast<uint8_t>(DType::kFloat32);
    row.tensor.ndim = 1;
    row.tensor.shape[0] = 4;
    row.tensor.input = input;
    row.tensor.output = kPrivate;
    row.generation.store(key.generation, std::memory_order_release);
    return key;
  }

  ControlSegment host;
  Doorbells doorbells;
  SetContext context;
  std::unique_ptr<SetSegment> control;
  std::unique_ptr<Controller> controller;
  uint64_t sequence = 0;
};

class SegmentViews {
 public:
  explicit SegmentViews(
      int ranks, Settings settings = {},
      std::function<bool(uint32_t)> alive = [](uint32_t) { return true; })
      : settings_(std::move(settings)), tuned_(settings_) {
    auto hub =
        InprocHub::Create(ranks, ControlSegment::BytesFor(static_cast<uint32_t>(ranks)), 1 << 20);
    CHECK(hub.ok());
    hub_ = std::move(hub).value();
    for (int rank = 0; rank < ranks; ++rank) {
      const HostShare share = hub_->MakeHostShare(rank);
      SegmentRank& made =
          *ranks_.emplace_back(std::make_unique<SegmentRank>(share, settings_, alive));
      made.controller = std::make_unique<SegmentController>(*made.control, made.context,
                                                            made.doorbells, tuned_, share.ranks);
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] SegmentRank& operator[](int rank) const { return *ranks_[rank]; }
  [[nodiscard]] InprocHub& hub() const { return *hub_; }
  [[nodiscard]] SetSegment& control(int rank = 0) const { return *ranks_[rank]->control; }

  [[nodiscard]] SetSegment::NamedId Lookup(const std::string& name, int rank = 0) const {
    auto found = control(rank).Lookup(name);
    if (!found.ok()) check::Fail(__FILE__, __LINE__, found.error().message);
    return found.value();
  }

  TensorKey WriteRow(int rank, uint32_t id) { return ranks_[rank]->WriteRow(id); }

  Result<Announced> Announce(int rank, SetSegment::NamedId id) {
    const TensorKey key = WriteRow(rank, id.id);
    return ranks_[rank]->controller->Announce({key.id, key.generation, id.id_version});
  }

  /// Every rank submits `name`.
  void AnnounceEverywhere(const std::string& name) {
    const SetSegment::NamedId id = Lookup(name);
    for (int rank = 0; rank < size(); ++rank) CHECK(Announce(rank, id).ok());
  }

  /// Every rank takes all decisions and finishes them; the names of what ran, decision by decision.
  std::vector<std::vector<std::string>> CarryOut() {
    std::vector<std::vector<std::string>> ran;
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<std::vector<std::string>> here;
      for (;;) {
        auto next = ranks_[rank]->controller->Next();
        CHECK(next.ok());
        if (!next.value()) break;
        const Decision decision = *next.value();
        CHECK(decision.kind == Decision::Kind::kRun);
        here.emplace_back();
        for (const uint32_t id : decision.ids) here.back().push_back(control(rank).NameOf(id));
        CHECK(ranks_[rank]->controller->Finish(decision).ok());
      }
      if (rank == 0) ran = here;
      CHECK(here == ran);
    }
    return ran;
  }

 private:
  const Settings settings_;
  const Tuned tuned_;
  std::shared_ptr<InprocHub> hub_;
  std::vector<std::unique_ptr<SegmentRank>> ranks_;
};

}  // namespace horoacc::testing
