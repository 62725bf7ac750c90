#pragma once
// The controller of a set that lies on several hosts, as each of its ranks drives it: it announces
// in the host's control segment, and the host's leader does the rest.
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "negotiate/multi_host/leader.h"

namespace horoacc {

class MultiHostController final : public HostGroup {
 public:
  /// `context`: of the members on this host; the first of them leads.
  MultiHostController(ControlMux& mux, Leader::Place place, SetSegment& control,
                      const SetContext& context, const Doorbells& doorbells, EagerRule eager,
                      NoteMemory memory);

  Result<Announced> Announce(const Announcement& announcement) override;
  Status Unblock(std::span<const uint32_t> in_flight) override;
  Status Join(uint64_t unnamed) override;
  Status Pump() override;
  Result<std::optional<Decision>> Next() override;
  Status Reject(TensorKey tensor, const Error& error) override;
  Status Finish(const Decision& decision) override;
  Status End(SetEnd end) override;
  [[nodiscard]] Result<std::optional<Attendance>> WhoHas(std::optional<TensorKey> tensor) override;
  Status Release() override;
  [[nodiscard]] bool Released() override {
    return control_.header().all_released.load(std::memory_order_acquire) != 0;
  }
  [[nodiscard]] bool HoldsNews() override { return leader_ && leader_->HoldsNews(); }

 private:
  /// A call that other ranks of this host had not submitted when this one did.
  struct Waiting {
    TensorKey key;
    int64_t since_ns;
  };
  /// An answer that this rank was given, or asked for.
  struct Answer {
    int64_t asked_ns = 0;
    uint64_t generation = 0;
    std::optional<Attendance> attendance;
  };

  /// What a rank saw when it asked that a bucket be split for its call.
  struct Split {
    uint64_t decided = 0;
    uint32_t plan = 0;  ///< its version
    TensorKey witness{};
    bool operator==(const Split&) const = default;
  };

  // Under the set's lock.
  void OnReady(TensorKey key, bool partial) override;
  bool OnIdle() override;
  [[nodiscard]] bool HasRoom() const override { return true; }
  bool Put(const OutboxItem& item);
  [[nodiscard]] std::optional<uint64_t> Undecided(uint32_t id) const;

  Status PutLocked(const OutboxItem& item, bool& put);
  Status TellWaiting();
  [[nodiscard]] Status Lead() { return leader_ ? leader_->Pump() : Status(); }
  Status TakeNews(const LogNote& note);
  [[nodiscard]] std::span<const std::byte> BytesOf(const LogNote& note) const {
    return {context_.memory[0] + note.offset, note.bytes};
  }

  std::optional<Leader> leader_;  ///< none: another rank of this host leads

  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::map<uint32_t, Answer> answers_;  ///< by id
  Answer joins_;
  std::map<uint32_t, Split> splits_;  ///< the latest that this rank has asked for, by bucket
  std::atomic<bool> any_waiting_{false};

  // The driver's.
  std::deque<std::pair<TensorKey, Error>> rejections_;  ///< they wait for room in the outbox
  uint64_t unfinished_ = 0;  ///< decisions that this rank has taken and not carried out
  bool news_unfinished_ = false;
  bool released_ = false;
  std::atomic<bool> end_asked_{false};
};

}  // namespace horoacc
