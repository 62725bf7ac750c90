// How leaders revoke the grants of a set (grants.h): the root orders it, each host closes and says
// what it has begun, and the root tells all hosts what they have begun together.
#include <utility>

#include "negotiate/multi_host/leader.h"

namespace horoacc {

// Whether an item has to wait. Of a granted call nobody else knows, so whoever asks of it, or gives
// it up, brings it before the root; a rank that waits for others of its host is nothing unusual.
Result<bool> Leader::PutsOff(const OutboxItem& item) {
  using Kind = OutboxItem::Kind;
  // The error of a rank that gives up goes before the end for which it asks.
  const bool behind = item.kind == Kind::kEnd && !put_off_.empty();
  // The root hears of all that a rank has submitted before it hears that the rank has joined.
  const bool ahead =
      item.kind == Kind::kJoined && (log_.HasDropped() || (!grants_.empty() && log_.AnyBegun()));
  if (behind || ahead) {
    HA_TRY(AskToRevoke());
    put_off_.push_back(item);
    return true;
  }
  const bool waits = item.kind == Kind::kWaiting;
  if (!waits && item.kind != Kind::kReject && item.kind != Kind::kAsk) return false;
  if (log_.IsBegun(item.tensor)) {
    HA_TRY(AskToRevoke());
    if (!waits) put_off_.push_back(item);
    return true;
  }
  if (grants_.empty()) return false;
  const std::optional<CallName> call = log_.CallOf(item.tensor);
  if (!call || !grants_.Has(*call)) return false;
  if (waits) {
    // News of it, which the root answers by revoking.
    if (grants_.closed() || log_.IsRefused(item.tensor)) return false;
    waiting_.insert_or_assign(item.tensor.id, item);
    return true;
  }
  // Or the root would end the call of hosts that do not know that it is undecided.
  HA_TRY(AskToRevoke());
  if (grants_.empty()) return false;
  put_off_.push_back(item);
  return true;
}

Status Leader::AskToRevoke() {
  if (grants_.empty() || grants_.closed()) return {};
  if (root_) return Revoke();
  return std::exchange(revoke_asked_, true) ? Status() : SendUp(Begin(MultiHostMessage::kRevoke));
}

Status Leader::Revoke() {
  if (root_) root_->Grant(false);
  HA_TRY(SendDown(Begin(MultiHostMessage::kRevoke).bytes()));
  for (size_t k = 0; k < grants_.all().size(); ++k) {
    if (!log_.Hold(grants_.all()[k].call)) grants_.TakeBack(k);
  }
  grants_.Close();
  begun_ = grants_.Begun();
  begun_missing_ = place_.tree.children.size();
  return TellBegun();
}

Status Leader::OnBegun(const BegunRounds& begun, int source) {
  if (begun_missing_ == 0 || !grants_.closed() || !begun.Fits(grants_.all().size()))
    return Damaged(source);
  begun_.Add(begun);
  --begun_missing_;
  return TellBegun();
}

Status Leader::TellBegun() {
  if (begun_missing_ > 0) return {};
  if (root_) return SettleGrants(begun_);
  WireWriter writer = Begin(MultiHostMessage::kBegun);
  Put(writer, begun_);
  return SendUp(writer);
}

Status Leader::SettleGrants(const BegunRounds& begun) {
  WireWriter writer = Begin(MultiHostMessage::kSettle);
  Put(writer, begun);
  HA_TRY(SendDown(writer.bytes()));
  const std::vector<Grants::Grant> grants = grants_.Forget();
  revoke_asked_ = false;
  for (size_t k = 0; k < grants.size(); ++k) {
    const RoundFate fate = FateOf(grants[k].begun, begun.least[k], begun.most[k]);
    HA_TRY(log_.Settle(grants[k], fate));
  }
  for (auto& [id, item] : std::exchange(waiting_, {})) put_off_.push_back(std::move(item));
  HA_TRY(PumpGrants());
  if (!root_) return {};
  root_->Grant(true);
  const std::optional<SetEnd> end = std::exchange(end_after_, std::nullopt);
  return end ? OnEnd(*end) : Status();
}

// Tells of dropped calls again, once their runs are over here, and then takes what waited for that.
Status Leader::PumpGrants() {
  if (ended_ || ending_) put_off_.clear();
  for (const TensorKey& key : log_.TakeDropped()) {
    if (!ended_ && !ending_) HA_TRY(OnNews(key));
  }
  for (const OutboxItem& item : std::exchange(put_off_, {})) HA_TRY(TakeItem(item));
  return {};
}

}  // namespace horoacc
