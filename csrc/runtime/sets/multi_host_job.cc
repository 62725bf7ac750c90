#include "runtime/sets/multi_host_job.h"

#include <iterator>
#include <utility>

#include "base/clock.h"
#include "negotiate/wire.h"
#include "transport/data/data_links.h"
#include "transport/data/shm/shm_data.h"

namespace horoacc {
namespace {

constexpr uint32_t kJobChannel = 0xffffffff;  // not the number of a process set
enum class JobMessage : uint8_t {
  kAbort = 1,
  kLeft = 2,
  kBeat = 3,
  kWhereAreYou = 4,
  kHere = 5,
  kLeftGroup = 6
};

}  // namespace

MultiHostJob::MultiHostJob(MultiHostParts& parts, Surroundings surroundings)
    : host_of_(std::move(parts.host_of)),
      sockets_(std::move(parts.sockets)),
      surroundings_(std::move(surroundings)),
      left_(host_of_.size()),
      heard_ns_(host_of_.size()) {
  surroundings_.mux->Register(kJobChannel, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

MultiHostJob::~MultiHostJob() { surroundings_.mux->Unregister(kJobChannel); }

Result<std::unique_ptr<MultiHostJob>> MultiHostJob::Make(MultiHostParts parts,
                                                         Surroundings surroundings) {
  std::unique_ptr<MultiHostJob> job(new MultiHostJob(parts, std::move(surroundings)));
  const Surroundings& around = job->surroundings_;
  const HostShare& share = *around.share;
  std::vector<std::unique_ptr<DataLinks>> kinds;
  kinds.push_back(std::move(parts.across));
  if (share.ranks.size() > 1) {
    HA_ASSIGN(auto inside, MakeShmDataLinks({.share = &share,
                                             .control = share.control.data() + parts.shm_offset,
                                             .arena = around.arena,
                                             .doorbells = around.doorbells,
                                             .has_left = around.has_left}));
    kinds.push_back(std::move(inside));
  }
  std::vector<int> kind_of;
  for (const int host : job->host_of_)
    kind_of.push_back(host == job->host_of_[around.rank] ? 1 : 0);
  kind_of[around.rank] = -1;
  HA_ASSIGN(job->links_, MixDataLinks(std::move(kinds), std::move(kind_of)));
  return job;
}

void MultiHostJob::TellAll(const WireWriter& writer) {
  for (int rank = 0; rank < static_cast<int>(host_of_.size()); ++rank) {
    if (rank == surroundings_.rank || HasLeft(rank)) continue;
    (void)surroundings_.mux->Send(kJobChannel, rank, writer.bytes());
  }
}

// Hosts form a ring in the order of their numbers, without hosts whose ranks have all left.
std::vector<int> MultiHostJob::watched() const {
  std::map<int, int> speakers;  // by host: its lowest rank that has not left
  for (int rank = 0; rank < static_cast<int>(host_of_.size()); ++rank) {
    if (!HasLeft(rank)) speakers.emplace(host_of_[rank], rank);
  }
  const auto mine = speakers.find(host_of_[surroundings_.rank]);
  if (mine == speakers.end() || mine->second != surroundings_.rank) return {};
  std::vector<int> neighbours;
  const auto next = std::next(mine) == speakers.end() ? speakers.begin() : std::next(mine);
  const auto before = mine == speakers.begin() ? std::prev(speakers.end()) : std::prev(mine);
  if (next != mine) neighbours.push_back(next->second);
  if (before != next && before != mine) neighbours.push_back(before->second);
  return neighbours;
}

void MultiHostJob::TellBeat() {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(JobMessage::kBeat));
  for (const int rank : watched()) {
    // If this fails, the watching rank misses the beat, and reading from the link gives the error.
    (void)surroundings_.mux->Send(kJobChannel, rank, writer.bytes());
  }
}

void MultiHostJob::AskForStack(int rank) {
  {
    std::lock_guard lock(stacks_mutex_);
    stacks_[rank].reset();
  }
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(JobMessage::kWhereAreYou));
  (void)surroundings_.mux->Send(kJobChannel, rank, writer.bytes());
}

std::optional<std::string> MultiHostJob::StackOf(int rank) {
  std::lock_guard lock(stacks_mutex_);
  const auto found = stacks_.find(rank);
  return found == stacks_.end() ? std::nullopt : found->second;
}

void MultiHostJob::AnswerForStacks() {
  std::vector<int> sources;
  {
    std::lock_guard lock(stacks_mutex_);
    sources.swap(unanswered_);
  }
  if (sources.empty()) return;
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(JobMessage::kHere));
  writer.Put(std::string_view(surroundings_.stack()));
  // If one cannot be sent, reading from the link gives the error.
  for (const int source : sources)
    (void)surroundings_.mux->Send(kJobChannel, source, writer.bytes());
}

void MultiHostJob::TellAbort(const Error& error) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(JobMessage::kAbort));
  Put(writer, error);
  TellAll(writer);
}

Result<bool> MultiHostJob::Progress() {
  if (!links_) return false;
  Result<bool> moved = links_->Progress();
  if (!moved.ok()) return std::move(moved.error()).Within("the links between ranks");
  return moved;
}

void MultiHostJob::Leave(const Error& aborted) {
  if (aborted.kind != ErrorKind::kOk) return TellAbort(aborted);
  links_.reset();
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(JobMessage::kLeft));
  TellAll(writer);
}

void MultiHostJob::TellLeftGroup(uint32_t group, const std::vector<int>& members) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(JobMessage::kLeftGroup));
  writer.Put(group);
  for (const int rank : members) {
    if (rank != surroundings_.rank && !HasLeft(rank))
      (void)surroundings_.mux->Send(kJobChannel, rank, writer.bytes());
  }
  std::lock_guard lock(groups_mutex_);
  std::erase_if(left_groups_, [&](const auto& left) { return left.first == group; });
}

bool MultiHostJob::HasLeftGroup(uint32_t group, int rank) const {
  std::lock_guard lock(groups_mutex_);
  return left_groups_.contains({group, rank});
}

Status MultiHostJob::OnMessage(int source, std::span<const std::byte> payload) {
  WireReader reader(payload);
  const auto kind = static_cast<JobMessage>(reader.Get<uint8_t>());
  if (kind == JobMessage::kLeft) {
    left_[source].store(true, std::memory_order_release);
    return {};
  }
  if (kind == JobMessage::kLeftGroup) {
    const auto group = reader.Get<uint32_t>();
    if (!reader.ok()) return Damaged(source);
    std::lock_guard lock(groups_mutex_);
    left_groups_.emplace(group, source);
    return {};
  }
  if (kind == JobMessage::kWhereAreYou) {
    {
      std::lock_guard lock(stacks_mutex_);
      unanswered_.push_back(source);
    }
    surroundings_.doorbells->WakeCoordinator(surroundings_.share->local_rank);
    return {};
  }
  if (kind == JobMessage::kHere) {
    std::string text = reader.GetText();
    if (!reader.ok() || text.size() > kStackText) return Damaged(source);
    std::lock_guard lock(stacks_mutex_);
    if (const auto asked = stacks_.find(source); asked != stacks_.end())
      asked->second = std::move(text);
    return {};
  }
  if (kind == JobMessage::kBeat) {
    heard_ns_[source].store(NowNs(), std::memory_order_release);
    return {};
  }
  const Error error = GetError(reader);
  if (kind != JobMessage::kAbort || !reader.ok() || error.kind == ErrorKind::kOk)
    return Damaged(source);
  surroundings_.aborted(error);
  return {};
}

}  // namespace horoacc
