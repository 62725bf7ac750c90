#include "negotiate/multi_host/ready_set.h"

#include <algorithm>

namespace horoacc {

bool ReadySet::Add(const std::shared_ptr<const Request>& request,
                   std::span<const uint32_t> members) {
  if (members.empty()) return true;
  if (std::ranges::any_of(members, [&](uint32_t member) { return Has(member); })) return false;
  here_.resize(std::max<size_t>(here_.size(), std::ranges::max(members) + 1));
  for (const uint32_t member : members) here_[member] = true;
  count_ += static_cast<uint32_t>(members.size());
  const auto same = std::ranges::find_if(groups_, [&](const Group& group) {
    return group.request == request || *group.request == *request;
  });
  if (same == groups_.end()) {
    groups_.push_back({request, {members.begin(), members.end()}});
  } else {
    same->members.insert(same->members.end(), members.begin(), members.end());
  }
  return true;
}

bool ReadySet::Add(const ReadySet& other) {
  for (const Group& group : other.groups_) {
    if (std::ranges::any_of(group.members, [&](uint32_t member) { return Has(member); }))
      return false;
  }
  if (other.count_ > 0) proposal_ = count_ == 0 ? other.proposal_ : proposal_.With(other.proposal_);
  for (const Group& group : other.groups_) (void)Add(group.request, group.members);
  shared_ = shared_ && other.shared_;
  inputs_.insert(inputs_.end(), other.inputs_.begin(), other.inputs_.end());
  return true;
}

bool ReadySet::GivesAll(size_t members) const {
  size_t given = 0;
  for (const Input& input : inputs_) given += input.members;
  return count_ == members && given == members;
}

std::vector<const Request*> ReadySet::ByMember(size_t members) const {
  std::vector<const Request*> requests(members);
  for (const Group& group : groups_) {
    for (const uint32_t member : group.members) requests[member] = group.request.get();
  }
  return requests;
}

}  // namespace horoacc
