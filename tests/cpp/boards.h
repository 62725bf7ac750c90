#pragma once
// N ranks' views of one process set's board, without engines: a test moves each rank by hand.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "negotiate/board_plane.h"
#include "negotiate/set_board.h"
#include "transport/inproc.h"

namespace horoacc::testing {

/// One rank: what an engine would make for its process set 0.
struct BoardRank {
  BoardRank(const HostShare& share, const Settings& settings, std::function<bool(uint32_t)> alive)
      : host(share, settings.fusion_threshold), bells(host.bells(), share.wake) {
    std::vector<uint32_t> locals;
    std::vector<int> globals;
    for (uint32_t rank = 0; rank < share.ranks.size(); ++rank) {
      locals.push_back(rank);
      globals.push_back(share.ranks[rank]);
      context.memory.push_back(share.memory[rank].data());
      context.present.push_back(rank);
    }
    context.me = static_cast<uint32_t>(share.local_rank);
    context.ranks = static_cast<uint32_t>(share.ranks.size());
    context.ring_others = [](bool) {};
    board = std::make_unique<SetBoard>(host, 0, locals, context.me, std::move(alive));
    plane = std::make_unique<BoardPlane>(*board, context, bells, settings, globals);
  }

  HostBoard host;
  Bells bells;
  SetContext context;
  std::unique_ptr<SetBoard> board;
  std::unique_ptr<BoardPlane> plane;
};

class Boards {
 public:
  explicit Boards(
      int ranks, Settings settings = {},
      std::function<bool(uint32_t)> alive = [](uint32_t) { return true; })
      : settings_(std::move(settings)) {
    auto hub = InprocHub::Create(ranks, HostBoard::BytesFor(static_cast<uint32_t>(ranks)), 1 << 20);
    CHECK(hub.ok());
    hub_ = std::move(hub).value();
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<BoardRank>(hub_->MakeHostShare(rank), settings_, alive));
    }
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] BoardRank& operator[](int rank) const { return *ranks_[rank]; }
  [[nodiscard]] InprocHub& hub() const { return *hub_; }
  [[nodiscard]] SetBoard& board(int rank = 0) const { return *ranks_[rank]->board; }

  [[nodiscard]] SetBoard::NamedId Lookup(const std::string& name, int rank = 0) const {
    auto found = board(rank).Lookup(name);
    if (!found.ok()) check::Fail(__FILE__, __LINE__, found.error().message);
    return found.value();
  }

  /// What every rank submits: an allreduce of four private float32 numbers.
  [[nodiscard]] static Request FourNumbers() {
    Request request;
    request.tensors = {{DType::kFloat32, {4}}};
    return request;
  }

  /// Rank `rank` writes its row for the open generation; it has yet to announce itself.
  TensorKey WriteRow(int rank, uint32_t id) {
    SetBoard& view = board(rank);
    const TensorKey key{id, view.id(id).arrivals.load().open()};
    const Request request = FourNumbers();
    Row& row = view.row(static_cast<uint32_t>(rank), id, key.generation);
    row.signature = request.Signature();
    row.sequence = ++sequence_;
    row.op = static_cast<uint8_t>(request.op);
    row.tensors = 1;
    row.tensor.type = static_cast<uint8_t>(DType::kFloat32);
    row.tensor.ndim = 1;
    row.tensor.shape[0] = 4;
    row.tensor.input = row.tensor.output = kPrivate;
    row.generation.store(key.generation, std::memory_order_release);
    return key;
  }

  Result<Announced> Announce(int rank, SetBoard::NamedId id) {
    const TensorKey key = WriteRow(rank, id.id);
    const Request request = FourNumbers();
    return ranks_[rank]->plane->Announce({key.id, key.generation, id.incarnation, &request, {}});
  }

  /// Every rank submits `name`.
  void AnnounceEverywhere(const std::string& name) {
    const SetBoard::NamedId id = Lookup(name);
    for (int rank = 0; rank < size(); ++rank) CHECK(Announce(rank, id).ok());
  }

  /// Every rank takes all decisions and finishes them; the names of what ran, decision by decision.
  std::vector<std::vector<std::string>> CarryOut() {
    std::vector<std::vector<std::string>> ran;
    for (int rank = 0; rank < size(); ++rank) {
      std::vector<std::vector<std::string>> here;
      for (;;) {
        auto next = ranks_[rank]->plane->Next();
        CHECK(next.ok());
        if (!next.value()) break;
        const Decision decision = *next.value();
        CHECK(decision.kind == Decision::Kind::kRun);
        here.emplace_back();
        for (const uint32_t id : decision.ids) here.back().push_back(board(rank).NameOf(id));
        CHECK(ranks_[rank]->plane->Finish(decision).ok());
      }
      if (rank == 0) ran = here;
      CHECK(here == ran);
    }
    return ran;
  }

 private:
  const Settings settings_;
  std::shared_ptr<InprocHub> hub_;
  std::vector<std::unique_ptr<BoardRank>> ranks_;
  uint64_t sequence_ = 0;
};

}  // namespace horoacc::testing
