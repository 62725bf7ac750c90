#include "negotiate/multi_host/host_grants.h"

namespace horoacc {

Result<bool> HostGrants::BeginRound(const HostLog::News& news) {
  const Grants::Grant* const grant =
      grants_.Begin(news.call, news.ready_set, links_.tree().locals.size());
  if (!grant) {
    if (grants_.Has(news.call)) HA_TRY(AskToRevoke());
    return false;
  }
  Decision decision;
  decision.path = grant->path;
  decision.run = grant->latest_run();
  decision.facts.resize(1);
  HA_TRY(log_.TakeUnordered(news.call, std::move(decision)));
  return true;
}

// Of a granted call nobody else knows, so whoever asks of it, or gives it up, brings it before the
// root; a rank that waits for others of its host is nothing unusual.
Result<bool> HostGrants::PutsOff(const OutboxItem& item) {
  using Kind = OutboxItem::Kind;
  // The error of a rank that gives up goes before the end for which it asks.
  const bool behind = item.kind == Kind::kEnd && !put_off_.empty();
  // The root hears of all that a rank has submitted before it hears that the rank has joined.
  const bool ahead = item.kind == Kind::kJoined &&
                     (log_.rounds().HasDropped() || (!grants_.empty() && log_.rounds().AnyBegun()));
  if (behind || ahead) {
    HA_TRY(AskToRevoke());
    put_off_.push_back(item);
    return true;
  }
  const bool waits = item.kind == Kind::kWaiting;
  if (!waits && item.kind != Kind::kReject && item.kind != Kind::kAsk) return false;
  if (log_.rounds().IsBegun(item.tensor)) {
    if (waits) return true;  // the others of its host have come since
    HA_TRY(AskToRevoke());
    put_off_.push_back(item);
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
  put_off_.push_back(item);
  return true;
}

// What a host has begun by itself goes on on all hosts, or on none.
Result<bool> HostGrants::PutsOff(SetEnd end) {
  if (grants_.empty()) return false;
  if (!end_) end_ = end;
  HA_TRY(AskToRevoke());
  return true;
}

Status HostGrants::AskToRevoke() {
  if (grants_.empty() || grants_.closed()) return {};
  if (root_) return Revoke();
  return std::exchange(asked_, true) ? Status() : links_.SendUp(Begin(MultiHostMessage::kRevoke));
}

Status HostGrants::Revoke() {
  if (root_) root_->Grant(false);
  HA_TRY(links_.SendDown(Begin(MultiHostMessage::kRevoke).bytes()));
  for (size_t k = 0; k < grants_.all().size(); ++k) {
    if (!log_.Hold(grants_.all()[k].call)) grants_.TakeBack(k);
  }
  grants_.Close();
  begun_ = grants_.Begun();
  begun_missing_ = links_.tree().children.size();
  return TellBegun();
}

Status HostGrants::TellBegun() {
  if (begun_missing_ > 0) return {};
  if (root_) return Settle(begun_);
  WireWriter writer = Begin(MultiHostMessage::kBegun);
  Put(writer, begun_);
  return links_.SendUp(writer);
}

// The latest round here is one that all hosts have begun, unless it is dropped.
Status HostGrants::Settle(const BegunRounds& begun) {
  WireWriter writer = Begin(MultiHostMessage::kSettle);
  Put(writer, begun);
  HA_TRY(links_.SendDown(writer.bytes()));
  const std::vector<Grants::Grant> grants = grants_.Forget();
  asked_ = false;
  settled_ = true;
  for (size_t k = 0; k < grants.size(); ++k) {
    const RoundFate fate = FateOf(grants[k].begun, begun.least[k], begun.most[k]);
    HA_TRY(log_.rounds().Settle(grants[k].call, fate == RoundFate::kDropped));
    if (fate == RoundFate::kDrained) log_.TakeDrain(grants[k]);
  }
  for (auto& [id, item] : std::exchange(waiting_, {})) put_off_.push_back(std::move(item));
  return {};
}

std::optional<SetEnd> HostGrants::Resume() {
  if (root_) root_->Grant(true);
  return std::exchange(end_, std::nullopt);
}

Status HostGrants::FromBelow(MultiHostMessage kind, WireReader& reader, int source) {
  if (kind == MultiHostMessage::kRevoke) return AskToRevoke();
  const BegunRounds begun = GetBegun(reader);
  if (kind != MultiHostMessage::kBegun || !reader.ok() || begun_missing_ == 0 ||
      !grants_.closed() || !begun.Fits(grants_.all().size()))
    return Damaged(source);
  begun_.Add(begun);
  --begun_missing_;
  return TellBegun();
}

Status HostGrants::FromAbove(MultiHostMessage kind, WireReader& reader, int source) {
  if (kind == MultiHostMessage::kRevoke) return grants_.closed() ? Damaged(source) : Revoke();
  const BegunRounds begun = GetBegun(reader);
  if (kind != MultiHostMessage::kSettle || !reader.ok() || !grants_.closed() ||
      !begun.Fits(grants_.all().size()))
    return Damaged(source);
  return Settle(begun);
}

}  // namespace horoacc
