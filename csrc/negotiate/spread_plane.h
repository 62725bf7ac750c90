#pragma once
// The plane of ranks that share no memory: every rank tells the set's lowest what it has submitted,
// by name, and gets the decisions in one order.
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/settings.h"
#include "negotiate/control_mux.h"
#include "negotiate/plane.h"
#include "negotiate/set_board.h"
#include "negotiate/spread_root.h"
#include "transport/bell.h"

namespace horoacc {

/// The board is this rank's alone: its ids and generations mean nothing to the others, and a
/// decision's are put in as it is taken.
class SpreadPlane final : public Plane {
 public:
  struct Place {
    uint32_t set = 0;
    std::vector<int> ranks;  ///< global, of the set
    int rank = 0;            ///< global, this one; it may be no member
    int local_rank = 0;      ///< whose bell rings
    /// Has this rank of the job shut down in good order?
    std::function<bool(int)> has_left;
  };
  SpreadPlane(ControlMux& mux, Place place, SetBoard& board, const Bells& bells,
              const Settings& settings);
  ~SpreadPlane() override;

  Result<Announced> Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Join(uint64_t unnamed) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  [[nodiscard]] SetEnd Ended() override;
  Status Release() override;
  [[nodiscard]] bool Released() override;

  /// This rank has left the group: for what no decision is needed.
  Status SayLeft();
  /// Has this rank of the job said so?
  [[nodiscard]] bool HasLeft(int rank);

  /// Who has submitted a call of this rank's that is not decided, or, without a key, who has
  /// joined. The root knows; others ask it, and have the answer at a later look.
  [[nodiscard]] Result<std::optional<Attendance>> WhoHas(std::optional<TensorKey> tensor);

 private:
  /// A call of this rank's that is not decided.
  struct Own {
    TensorKey key;
    std::optional<Attendance> attendance;  ///< as the root last said
  };

  // All under mutex_.
  Status OnMessage(int source, std::span<const std::byte> payload);
  Status AtRoot(uint32_t member, SpreadMessage kind, WireReader& reader);
  Status OnWhoHas(uint32_t member, WireReader& reader);
  Status OnAttendance(WireReader& reader);
  Status Tell(SpreadRoot::Verdicts verdicts);
  Status Take(SpreadDecision spread);
  Status EndAll(SetEnd end);
  Status SendToRoot(const WireWriter& writer);
  Status SendToAll(const WireWriter& writer);

  ControlMux& mux_;
  const Place place_;
  const std::optional<uint32_t> member_;  ///< this rank's index; none: it is not in the set
  SetBoard& board_;
  const Bells& bells_;

  std::mutex mutex_;
  std::map<CallName, Own> own_;
  std::unordered_map<uint32_t, CallName> call_of_;  ///< by id: of own_
  std::optional<Attendance> joins_;                 ///< as the root last said
  std::deque<Decision> decisions_;
  uint64_t decided_ = 0;
  bool end_told_ = false;
  SetEnd end_;
  bool release_told_ = false;
  std::vector<bool> released_, left_;  ///< by member, as they have said
  std::optional<SpreadRoot> root_;
};

}  // namespace horoacc
