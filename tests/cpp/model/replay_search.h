#pragma once
// All schedules of production objects, which cannot be copied: a search that goes back to an
// earlier state starts the model again and repeats the actions that led there. And schedules drawn
// by lot, where there are too many.
//
// Actions of different places that exchange no message may change places in a schedule without a
// difference. Of the schedules that differ in this way only, the search follows one (sleep sets:
// Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, 1996). It follows no
// state twice.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/check.h"

namespace horoacc::model {

/// `Model` has: Action, with ==; StartAgain(); Enabled(); Do(action); Digest(), equal for equal
/// states only; wrong(), empty as long as nothing is, which is asked after each action;
/// WrongAtEnd(), if no action is enabled; Commute(a, b); Show(action). No schedule is endless.
template <typename Model>
class ReplaySearch {
 public:
  using Action = typename Model::Action;
  struct Report {
    uint64_t states = 0;
    uint64_t ends = 0;     ///< schedules that were followed to their end
    uint64_t actions = 0;  ///< repeated ones included
    size_t longest = 0;    ///< actions of a schedule
    bool complete = true;  ///< false: there are more states than were allowed
    std::string wrong;     ///< and the schedule that leads there; empty: every schedule ends well
  };

  explicit ReplaySearch(Model& model) : model_(model) {}

  /// Every schedule, unless there are more than `most_states` states.
  Report All(uint64_t most_states) {
    Begin();
    most_states_ = most_states;
    Follow({});
    report_.states = slept_.size();
    return std::move(report_);
  }

  /// `walks` schedules by lot.
  Report Walk(uint64_t seed, uint64_t walks) {
    Begin();
    std::mt19937_64 random(seed);
    for (uint64_t walk = 0; walk < walks && report_.wrong.empty(); ++walk) {
      GoTo({});
      for (std::vector<Action> enabled; report_.wrong.empty();) {
        enabled = model_.Enabled();
        if (enabled.empty()) break;
        Do(enabled[random() % enabled.size()]);
      }
      End();
    }
    report_.complete = false;
    return std::move(report_);
  }

 private:
  void Begin() {
    report_ = {};
    slept_.clear();
    GoTo({});
  }

  void GoTo(const std::vector<Action>& path) {
    model_.StartAgain();
    at_.clear();
    for (const Action& action : path) Do(action);
  }

  void Do(const Action& action) {
    at_.push_back(action);
    ++report_.actions;
    report_.longest = std::max(report_.longest, at_.size());
    model_.Do(action);
    if (!model_.wrong().empty()) Tell(model_.wrong());
  }

  void End() {
    if (!report_.wrong.empty()) return;
    ++report_.ends;
    if (const std::string wrong = model_.WrongAtEnd(); !wrong.empty()) Tell(wrong);
  }

  void Tell(const std::string& wrong) {
    if (!report_.wrong.empty()) return;
    report_.wrong = wrong + ", after";
    for (const Action& action : at_) report_.wrong += "\n  " + model_.Show(action);
  }

  // From the model's present state. `sleeping`: what need not be done here, as other schedules do.
  void Follow(std::vector<Action> sleeping) {
    const auto sleeps = [](const std::vector<Action>& set, const Action& action) {
      return std::ranges::find(set, action) != set.end();
    };
    std::vector<Action> open = model_.Enabled();
    if (open.empty()) End();
    const auto [known, fresh] = slept_.try_emplace(model_.Digest(), sleeping);
    if (!fresh) {
      // What slept at each earlier visit has never been done here.
      std::erase_if(open, [&](const Action& action) { return !sleeps(known->second, action); });
      std::erase_if(known->second, [&](const Action& action) { return !sleeps(sleeping, action); });
    }
    std::erase_if(open, [&](const Action& action) { return sleeps(sleeping, action); });
    const std::vector<Action> path = at_;
    for (const Action& action : open) {
      if (!report_.wrong.empty()) return;
      if (slept_.size() > most_states_) {
        report_.complete = false;
        return;
      }
      if (at_ != path) GoTo(path);
      Do(action);
      if (!report_.wrong.empty()) return;
      std::vector<Action> below;
      for (const Action& other : sleeping) {
        if (model_.Commute(other, action)) below.push_back(other);
      }
      Follow(std::move(below));
      sleeping.push_back(action);
    }
  }

  Model& model_;
  Report report_;
  std::vector<Action> at_;  ///< actions from the start to the model's present state
  uint64_t most_states_ = 0;
  /// By state: what has slept at every visit.
  std::unordered_map<uint64_t, std::vector<Action>> slept_;
};

}  // namespace horoacc::model
