#pragma once
// What every kind of data links must do, from the point of view of one rank. All ranks call the
// same function; `meet` waits until all of them have come to it.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "support/data_ranks.h"

namespace horoacc::testing {

using Meet = std::function<void()>;

/// Messages that every rank sends to every other one.
struct Traffic {
  std::vector<size_t> sizes;
  int channels = 1;
  uint64_t sequences = 1;
  uint64_t first_sequence = 0;
  bool placed = true;  ///< Expect names the place
  bool late = false;   ///< receiving ends are opened one by one, the last first
  size_t pieces = 1;   ///< of each message, different ones at both ends
};

/// Cuts `bytes` into pieces of different lengths, an empty one among them.
inline std::vector<std::span<std::byte>> Cut(std::vector<std::byte>& bytes, size_t parts) {
  std::vector<std::span<std::byte>> pieces;
  std::span<std::byte> rest(bytes);
  for (size_t part = 1; part < parts; ++part) {
    const size_t length = rest.size() / (part + 1);
    pieces.push_back(rest.first(length));
    rest = rest.subspan(length);
    if (part == 1) pieces.push_back(rest.first(0));
  }
  pieces.push_back(rest);
  return pieces;
}

class Exchange {
 public:
  Exchange(DataLinks& own, int rank, int size, const Traffic& traffic)
      : own_(own), rank_(rank), traffic_(traffic) {
    for (uint64_t sequence = 0; sequence < traffic.sequences; ++sequence) {
      for (int channel = 0; channel < traffic.channels; ++channel) {
        for (int peer = 0; peer < size; ++peer) {
          if (peer != rank) lanes_.push_back({peer, channel, traffic.first_sequence + sequence});
        }
      }
    }
    for (const Lane& lane : lanes_) sending_.push_back({lane, MustSend(own, SpecOf(lane)), {}});
    if (!traffic.late) {
      for (const Lane& lane : lanes_) OpenReceive(lane);
    }
  }

  void Run(const Meet& meet) {
    const auto error = Drive(own_, [this] { return Work(); });
    if (error) check::Fail(__FILE__, __LINE__, error->message);
    CHECK(!Drive(own_, [this] { return !own_.HasUnsent(); }));
    meet();
  }

 private:
  struct Lane {
    int peer;
    int channel;
    uint64_t sequence;
  };
  struct Sending {
    Lane lane;
    std::unique_ptr<SendLink> link;
    std::deque<std::vector<std::byte>> kept;
  };
  struct Receiving {
    Lane lane;
    std::unique_ptr<ReceiveLink> link;
    std::deque<std::vector<std::byte>> places;
    uint64_t released = 0;
  };

  static LinkSpec SpecOf(const Lane& lane) {
    return Spec(lane.peer, lane.sequence, static_cast<uint8_t>(lane.channel));
  }
  [[nodiscard]] std::vector<std::byte> Contents(int from, int to, const Lane& lane,
                                                uint64_t number) const {
    const auto channel = static_cast<uint64_t>(lane.channel);
    const uint64_t seed = static_cast<uint64_t>(from) + static_cast<uint64_t>(to) * 3 +
                          lane.sequence * 11 + channel * 101 + number * 1009;
    return Pattern(traffic_.sizes[number], seed);
  }
  void OpenReceive(const Lane& lane) {
    receiving_.push_back({lane, MustReceive(own_, SpecOf(lane)), {}, 0});
  }

  void Send(Sending& each) {
    while (each.link->posted() < traffic_.sizes.size() && each.link->HasRoom()) {
      const uint64_t number = each.link->posted();
      each.kept.push_back(Contents(rank_, each.lane.peer, each.lane, number));
      const auto pieces = Cut(each.kept.back(), traffic_.pieces);
      const std::vector<std::span<const std::byte>> constant(pieces.begin(), pieces.end());
      CHECK(each.link->Post(constant).ok());
      while (each.kept.size() > 2) each.kept.pop_front();  // their slots were given back
    }
  }

  void Receive(Receiving& each) {
    const uint64_t all = traffic_.sizes.size();
    while (each.released + each.places.size() < all && each.places.size() < 2) {
      const size_t size = traffic_.sizes[each.released + each.places.size()];
      each.places.emplace_back(size, std::byte{0xee});
      const auto where = Cut(each.places.back(), 1 + (traffic_.pieces > 1 ? traffic_.pieces : 0));
      CHECK(each.link->Expect(size, traffic_.placed ? ReceivePieces(where) : ReceivePieces()).ok());
    }
    if (each.released == all || Look(*each.link) == nullptr) return;
    const Arrival& arrival = *Look(*each.link);
    const auto expected = Contents(each.lane.peer, rank_, each.lane, each.released);
    CHECK(Gather(arrival) == expected);
    if (arrival.placed) CHECK(each.places.front() == expected);
    if (!traffic_.placed) CHECK(!arrival.placed);
    each.link->Release();
    each.places.pop_front();
    ++each.released;
  }

  /// A little of everything; true once all is done.
  bool Work() {
    for (Sending& each : sending_) Send(each);
    for (Receiving& each : receiving_) Receive(each);
    const uint64_t all = traffic_.sizes.size();
    const bool received = std::ranges::all_of(
        receiving_, [&](const Receiving& each) { return each.released == all; });
    if (received && receiving_.size() < lanes_.size()) {
      OpenReceive(lanes_[lanes_.size() - 1 - receiving_.size()]);
      return false;
    }
    return received && std::ranges::all_of(sending_, [&](const Sending& each) {
             return each.link->taken() == all;
           });
  }

  DataLinks& own_;
  const int rank_;
  const Traffic traffic_;
  std::vector<Lane> lanes_;
  std::vector<Sending> sending_;
  std::vector<Receiving> receiving_;
};

inline void CheckSizes(DataLinks& own, int rank, int size, const Meet& meet) {
  Traffic traffic;
  traffic.sizes = {0, 1, 63, 4096, 65535, 65536, 65537, 1048579, 17 << 20, 5, 0, 300001};
  traffic.pieces = 3;
  Exchange(own, rank, size, traffic).Run(meet);
}

inline void CheckManyLateLinks(DataLinks& own, int rank, int size, const Meet& meet) {
  Traffic traffic;
  traffic.sizes = {9001, 0, 70001, 1, 140003};
  traffic.channels = 12;
  traffic.sequences = 3;
  traffic.first_sequence = 10;
  traffic.placed = false;
  traffic.late = true;
  Exchange(own, rank, size, traffic).Run(meet);
}

/// Rank 0 sends to rank 1 over a lane that is not taken, and meanwhile over another.
inline void CheckStuckLane(DataLinks& own, int rank, const Meet& meet) {
  constexpr uint64_t kBig = 6 << 20;
  constexpr uint64_t kMany = 200;
  constexpr uint64_t kSequence = 20;
  if (rank == 0) {
    const auto stuck = MustSend(own, Spec(1, kSequence, 0, 3));
    const auto lively = MustSend(own, Spec(1, kSequence, 1));
    const auto over = MustSend(own, Spec(1, kSequence, 2));
    std::vector<std::vector<std::byte>> kept;
    for (uint64_t number = 0; number < 3; ++number) {
      kept.push_back(Pattern(kBig, number));
      CHECK(PostAll(*stuck, kept.back()).ok());
    }
    CHECK(!stuck->HasRoom());
    CHECK(PostAll(*stuck, kept.back()).error().kind == ErrorKind::kInvalid);
    const auto small = Pattern(1000, 5);
    CHECK(!Drive(own, [&] {
      while (lively->posted() < kMany && lively->HasRoom()) CHECK(PostAll(*lively, small).ok());
      return lively->taken() == kMany;
    }));
    CHECK_EQ(stuck->taken(), 0);
    CHECK(PostAll(*over, {}).ok());
    CHECK(!Drive(own, [&] { return stuck->taken() == 3 && over->taken() == 1; }));
  } else if (rank == 1) {
    const auto lively = MustReceive(own, Spec(0, kSequence, 1));
    const auto over = MustReceive(own, Spec(0, kSequence, 2));
    CHECK(over->Expect(0, {}).ok());
    uint64_t announced = 0;
    uint64_t released = 0;
    CHECK(!Drive(own, [&] {
      for (; announced < kMany && announced < released + 2; ++announced) {
        CHECK(lively->Expect(1000, {}).ok());
      }
      if (released < kMany && Look(*lively) != nullptr) {
        CHECK(Gather(*Look(*lively)) == Pattern(1000, 5));
        lively->Release();
        ++released;
      }
      return released == kMany && Look(*over) != nullptr;
    }));
    over->Release();
    const auto stuck = MustReceive(own, Spec(0, kSequence, 0, 3));
    for (uint64_t number = 0; number < 3; ++number) {
      CHECK(stuck->Expect(kBig, {}).ok());
      CHECK(!Drive(own, [&] { return Look(*stuck) != nullptr; }));
      CHECK(Gather(*Look(*stuck)) == Pattern(kBig, number));
      stuck->Release();
    }
  }
  CHECK(!Drive(own, [&] { return !own.HasUnsent(); }));
  meet();
}

/// Messages from rank 0 to rank 1 that are longer and shorter than expected.
inline void CheckOtherSizes(DataLinks& own, int rank, const Meet& meet) {
  uint64_t sequence = 30;
  for (const auto& [sent, expected] : {std::pair<size_t, size_t>{300000, 200000}, {10, 4000}}) {
    const auto bytes = Pattern(sent, 1);
    std::unique_ptr<SendLink> sender;
    if (rank == 0) {
      sender = MustSend(own, Spec(1, sequence, 4));
      CHECK(PostAll(*sender, bytes).ok());
      CHECK(!Drive(own, [&] { return !own.HasUnsent(); }));
      meet();
    } else if (rank == 1) {
      const auto receiver = MustReceive(own, Spec(0, sequence, 4));
      std::vector<std::byte> where(expected);
      const std::span<std::byte> piece(where);
      CHECK(receiver->Expect(expected, {&piece, 1}).ok());
      std::optional<Error> found;
      CHECK(!Drive(own, [&] {
        const auto arrived = receiver->Arrived();
        if (!arrived.ok()) found = arrived.error();
        return found.has_value();
      }));
      CHECK(found->kind == ErrorKind::kMismatch);
      CHECK_EQ(found->culprit, 0);
      for (const std::string& word : {"collective " + std::to_string(sequence),
                                      std::string("channel 4"), std::to_string(expected)}) {
        CHECK(found->message.find(word) != std::string::npos);
      }
      meet();
    } else {
      meet();
    }
    ++sequence;
    meet();
  }
}

/// A link's own slots, from rank 0 to rank 1.
inline void CheckSlots(DataLinks& own, int rank, const Meet& meet) {
  constexpr uint64_t kSequence = 40;
  constexpr uint64_t kBytes = 1000;
  if (rank == 0) {
    const uint64_t before = own.counters().copied;
    const auto sender = MustSend(own, Spec(1, kSequence, 0, 2, kBytes));
    const std::byte* seen[2] = {};
    for (uint64_t number = 0; number < 6; ++number) {
      CHECK(!Drive(own, [&] { return sender->HasRoom(); }));
      std::byte* const slot = sender->Slot().value();
      CHECK_EQ(reinterpret_cast<uintptr_t>(slot) % 64, 0);
      if (number < 2) seen[number] = slot;
      CHECK(slot == seen[number % 2] && seen[0] != seen[1]);
      const auto bytes = Pattern(kBytes, number);
      std::copy(bytes.begin(), bytes.end(), slot);
      const std::span<const std::byte> piece(slot, kBytes);
      CHECK(sender->Post({&piece, 1}).ok());
    }
    CHECK(!Drive(own, [&] { return sender->taken() == 6; }));
    CHECK_EQ(own.counters().copied - before, 6 * kBytes);
    CHECK_EQ(sender->bytes_posted(), 6 * kBytes);
  } else if (rank == 1) {
    const auto receiver = MustReceive(own, Spec(0, kSequence, 0, 2, kBytes));
    for (uint64_t number = 0; number < 6; ++number) {
      CHECK(receiver->Expect(kBytes, {}).ok());
      CHECK(!Drive(own, [&] { return Look(*receiver) != nullptr; }));
      CHECK(Gather(*Look(*receiver)) == Pattern(kBytes, number));
      receiver->Release();
    }
  }
  CHECK(!Drive(own, [&] { return !own.HasUnsent(); }));
  meet();
}

/// What a caller may not do; `own` has at least one peer.
inline void CheckRefusals(DataLinks& own, int rank, int size) {
  const int peer = rank == 0 ? 1 : 0;
  constexpr uint64_t kSequence = 50;
  CHECK(own.OpenSend(Spec(rank, kSequence)).error().kind == ErrorKind::kInvalid);
  CHECK(own.OpenSend(Spec(size, kSequence)).error().kind == ErrorKind::kInvalid);
  CHECK(own.OpenReceive(Spec(-1, kSequence)).error().kind == ErrorKind::kInvalid);
  CHECK(own.OpenReceive(Spec(peer, kSequence, 0, 0)).error().kind == ErrorKind::kInvalid);
  const auto link = MustSend(own, Spec(peer, kSequence, 0, 1, 10));
  CHECK(own.OpenSend(Spec(peer, kSequence)).error().kind == ErrorKind::kInvalid);
  CHECK(PostAll(*link, Pattern(11, 0)).error().kind == ErrorKind::kInvalid);
  const auto receiver = MustReceive(own, Spec(peer, kSequence, 0, 1, 10));
  CHECK(own.OpenReceive(Spec(peer, kSequence)).error().kind == ErrorKind::kInvalid);
  std::vector<std::byte> few(3);
  const std::span<std::byte> piece(few);
  CHECK(receiver->Expect(4, {&piece, 1}).error().kind == ErrorKind::kInvalid);
  CHECK(receiver->Expect(11, {}).error().kind == ErrorKind::kInvalid);
  CHECK(receiver->Expect(10, {}).ok());
  CHECK(receiver->Expect(10, {}).error().kind == ErrorKind::kInvalid);
}

/// Messages of everybody to everybody on links that only their senders know of.
inline void CheckCalls(DataLinks& own, int rank, int size, const Meet& meet) {
  constexpr size_t kBytes = 3000;
  const auto spec = [](int peer) -> LinkSpec { return {{kStandingSet, 0}, peer, 0, 2, kBytes}; };
  std::deque<std::vector<std::byte>> kept;
  std::vector<std::unique_ptr<SendLink>> senders;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    senders.push_back(MustSend(own, spec(peer)));
    for (int number = 0; number < 2; ++number) {
      kept.push_back(Pattern(kBytes, static_cast<uint64_t>(10 * rank + number)));
      CHECK(PostAll(*senders.back(), kept.back()).ok());
    }
  }
  std::vector<std::unique_ptr<ReceiveLink>> receivers(static_cast<size_t>(size));
  std::vector<int> taken(static_cast<size_t>(size), 0);
  int left = 2 * (size - 1);
  CHECK(!Drive(own, [&] {
    for (const int caller : own.TakeCallers()) {
      CHECK(!receivers[caller] && caller != rank);
      receivers[caller] = MustReceive(own, spec(caller));
      for (int number = 0; number < 2; ++number) CHECK(receivers[caller]->Expect(kBytes, {}).ok());
    }
    for (int peer = 0; peer < size; ++peer) {
      if (!receivers[peer] || taken[peer] == 2 || Look(*receivers[peer]) == nullptr) continue;
      CHECK(Gather(*Look(*receivers[peer])) ==
            Pattern(kBytes, static_cast<uint64_t>(10 * peer + taken[peer])));
      receivers[peer]->Release();
      ++taken[peer];
      --left;
    }
    return left == 0 &&
           std::ranges::all_of(senders, [](const auto& link) { return link->taken() == 2; });
  }));
  CHECK(!Drive(own, [&] { return !own.HasUnsent(); }));
  meet();
}

/// The second of two ranks shuts down although messages of standing links are missing both ways.
inline void CheckLeaving(DataLinks& stays, std::unique_ptr<DataLinks> leaves) {
  const auto to = [](int peer) -> LinkSpec { return {{kStandingSet, 0}, peer, 0, 2, 10}; };
  const auto bytes = Pattern(10, 1);
  auto sender = MustSend(*leaves, to(0));
  CHECK(PostAll(*sender, bytes).ok());
  std::unique_ptr<ReceiveLink> receiver;
  CHECK(!Drive(stays, [&] {
    CHECK(leaves->Progress().ok());
    for (const int caller : stays.TakeCallers()) receiver = MustReceive(stays, to(caller));
    return receiver != nullptr;
  }));
  for (int number = 0; number < 2; ++number) CHECK(receiver->Expect(10, {}).ok());
  CHECK(!Drive(stays, [&] {
    CHECK(leaves->Progress().ok());
    return Look(*receiver) != nullptr;
  }));
  receiver->Release();
  const auto unheard = MustSend(stays, to(1));
  CHECK(PostAll(*unheard, bytes).ok());
  CHECK(!Drive(stays, [&] {
    CHECK(leaves->Progress().ok());
    return sender->taken() == 1;
  }));
  sender.reset();
  leaves.reset();
  const int64_t until = NowNs() + 300 * kMillisecond;
  CHECK(!Drive(stays, [&] { return NowNs() > until; }));
  CHECK(Look(*receiver) == nullptr);
}

/// All of the above.
inline void RunBattery(DataLinks& own, int rank, int size, const Meet& meet) {
  CheckSizes(own, rank, size, meet);
  CheckManyLateLinks(own, rank, size, meet);
  CheckStuckLane(own, rank, meet);
  CheckOtherSizes(own, rank, meet);
  CheckSlots(own, rank, meet);
  CheckCalls(own, rank, size, meet);
  CheckRefusals(own, rank, size);
  meet();
}

}  // namespace horoacc::testing
