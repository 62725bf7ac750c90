#pragma once
// The members of a set that have submitted a call, with their requests.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "negotiate/request.h"

namespace horoacc {

/// Members with equal requests are one group, so that many equal ranks cost little.
class ReadySet {
 public:
  /// What travels with the news of a call: the input of a member, or the sum of the inputs of
  /// `members` from `first` on, which is not finished.
  struct Input {
    uint32_t first = 0;
    uint32_t members = 1;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  struct Group {
    std::shared_ptr<const Request> request;
    std::vector<uint32_t> members;
  };

  /// False if one of them is here already: then nothing is added.
  [[nodiscard]] bool Add(const std::shared_ptr<const Request>& request,
                         std::span<const uint32_t> members);
  [[nodiscard]] bool Add(const ReadySet& other);
  /// Of members that are here.
  void AddInput(Input input) { inputs_.push_back(std::move(input)); }
  /// Of the members that are here, together.
  void SetProposal(const Proposal& proposal) { proposal_ = proposal; }
  [[nodiscard]] const Proposal& proposal() const { return proposal_; }
  /// Memory of some member is not shared on its host, or does not stay on its GPU.
  void MarkPrivate() { shared_ = false; }
  [[nodiscard]] bool shared() const { return shared_; }

  [[nodiscard]] bool Has(uint32_t member) const { return member < here_.size() && here_[member]; }
  [[nodiscard]] uint32_t count() const { return count_; }
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  [[nodiscard]] const std::vector<Input>& inputs() const { return inputs_; }
  /// Whether all of `members` members are here, and their inputs, too.
  [[nodiscard]] bool GivesAll(size_t members) const;
  /// By member; null for those that are not here. `members`: of the set.
  [[nodiscard]] std::vector<const Request*> ByMember(size_t members) const;

 private:
  std::vector<Group> groups_;
  std::vector<Input> inputs_;
  std::vector<bool> here_;  ///< by member
  uint32_t count_ = 0;
  bool shared_ = true;
  Proposal proposal_;
};

}  // namespace horoacc
