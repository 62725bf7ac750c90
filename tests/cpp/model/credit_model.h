#pragma once
// A link over TCP: production's Outbound, Inbound and their credits, at both ends of several
// connections, each of which keeps its own order only. A message is cut into two stripes, whose
// bytes are read from the sender's slot as late as they can be and come while those of other
// connections do. The receiver opens its end, and announces messages, at any time.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/data/slot_memory.h"
#include "transport/data/tcp/tcp_inbound.h"
#include "transport/data/tcp/tcp_outbound.h"

namespace horoacc::model {

/// What a careless implementation would do.
enum class CreditFault {
  kNone,
  kEarlyCredit,       ///< credits a message before the receiver has released it
  kCreditsAreCounts,  ///< a credit says how many were released since the last one was queued
  kNewestCredit,      ///< the sender believes the credit that came last, not the highest
  kNoSlots,           ///< the sender posts without a free slot
};

class CreditModel {
 public:
  struct Shape {
    int streams = 2;
    uint32_t slots = 2;
    uint64_t messages = 3;
    uint64_t bytes =
        128 << 10;  ///< of a message, stripes a multiple of kLooked; the last one is empty
  };
  enum class What : uint8_t {
    kPost,
    kHand,
    kCredited,
    kOpen,
    kExpect,
    kBegin,
    kBytes,
    kTake,
    kOwe
  };
  struct Action {
    What what;
    int stream = 0;
    friend bool operator==(const Action&, const Action&) = default;
  };

  CreditModel(Shape shape, CreditFault fault)
      : shape_(shape),
        fault_(fault),
        slots_(shape.slots, std::vector<std::byte>(shape.bytes)),
        places_(shape.messages, std::vector<std::byte>(shape.bytes)) {}

  void StartAgain() {
    all_.emplace(*this);
    wrong_.clear();
  }

  [[nodiscard]] std::vector<Action> Enabled() const {
    const All& all = *all_;
    std::vector<Action> enabled;
    const bool room = fault_ == CreditFault::kNoSlots ||
                      CheckPost(all.spec, all.posted, Taken(), SizeOf(all.posted)).ok();
    if (all.posted < shape_.messages && room) enabled.push_back({What::kPost});
    if (!all.open) enabled.push_back({What::kOpen});
    if (all.open && all.expected < shape_.messages &&
        CheckExpect(all.spec, all.expected - all.released, SizeOf(all.expected), {}).ok())
      enabled.push_back({What::kExpect});
    if (all.arrived) enabled.push_back({What::kTake});
    for (int s = 0; s < shape_.streams; ++s) {
      const Stream& stream = all.streams[s];
      if (!all.sender.empty() && stream.there.size() < kUnderWay)
        enabled.push_back({What::kHand, s});
      if (!stream.there.empty()) enabled.push_back({stream.reads ? What::kBytes : What::kBegin, s});
      if (!all.receiver.empty() && stream.back.size() < kUnderWay)
        enabled.push_back({What::kOwe, s});
      if (!stream.back.empty()) enabled.push_back({What::kCredited, s});
    }
    return enabled;
  }

  void Do(const Action& action) {
    All& all = *all_;
    Stream& stream = all.streams[action.stream];
    switch (action.what) {
      case What::kPost:
        Post();
        break;
      case What::kHand: {
        Frame frame;
        frame.head = all.sender.Next(0, shape_.streams, frame.pieces)->header;
        ++all.handed;
        stream.there.push_back(std::move(frame));
        break;
      }
      case What::kCredited: {
        const uint64_t told = stream.back.front().number;
        stream.back.pop_front();
        all.newest = told;
        if (fault_ == CreditFault::kCreditsAreCounts) all.sum += told;
        const uint64_t number = fault_ == CreditFault::kCreditsAreCounts ? all.sum : told;
        if (!all.sender.Credit(kKey, number)) wrong_ = "more is released than was posted";
        break;
      }
      case What::kOpen: {
        all.open = true;
        const auto opened = all.inbound.Open(all.spec);
        Require(opened);
        if (opened.ok()) all.in = opened.value();
        break;
      }
      case What::kExpect:
        Expect();
        break;
      case What::kBegin:
        Begin(stream);
        break;
      case What::kBytes:
        for (size_t k = 0; k < stream.pieces.size(); ++k) {
          // A few bytes of each stripe tell whose it is.
          const iovec& from = stream.there.front().pieces[k];
          for (size_t at = 0; at < from.iov_len; at += kLooked)
            static_cast<std::byte*>(stream.pieces[k].iov_base)[at] =
                static_cast<const std::byte*>(from.iov_base)[at];
        }
        stream.reads->Received(stream.there.front().head.length);
        End(stream);
        break;
      case What::kTake:
        Take();
        break;
      case What::kOwe: {
        std::vector<iovec> none;
        stream.back.push_back(all.receiver.Next(0, shape_.streams, none)->header);
        break;
      }
    }
    Look();
  }

  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] std::string WrongAtEnd() const {
    if (all_->released < shape_.messages) return "a message is never received";
    return all_->out->taken() < shape_.messages ? "a credit is lost" : "";
  }
  [[nodiscard]] uint64_t Digest() const {
    uint64_t hash = 0xcbf29ce484222325ull;
    const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15ull; };
    const All& all = *all_;
    for (const uint64_t part :
         {all.posted, all.handed, all.out->taken(), all.newest, all.sum, all.expected, all.released,
          all.owed, uint64_t{all.open}, uint64_t{all.early}})
      add(part + 1);
    for (const Stream& stream : all.streams) {
      add(stream.reads != nullptr);
      for (const Frame& frame : stream.there)
        add((frame.head.number << 32 | frame.head.offset) + 2);
      add(3);
      for (const DataHeader& head : stream.back) add(head.number + 4);
      add(5);
    }
    for (const std::array<uint8_t, 3>& message : all.messages)
      add(message[0] | message[1] << 8 | message[2] << 16);
    return hash;
  }
  /// The two ends, unless the bytes of a slot are posted and read.
  [[nodiscard]] bool Commute(const Action& a, const Action& b) const {
    const auto sends = [](const Action& action) { return action.what <= What::kCredited; };
    const bool slot = (a.what == What::kPost && b.what == What::kBytes) ||
                      (b.what == What::kPost && a.what == What::kBytes);
    return sends(a) != sends(b) && !slot;
  }
  [[nodiscard]] static std::string Show(const Action& action) {
    static constexpr const char* kNames[] = {"post",   "hand over", "credited", "open", "expect",
                                             "header", "bytes",     "take",     "owe"};
    return std::string(kNames[static_cast<int>(action.what)]) + " " + std::to_string(action.stream);
  }

 private:
  static constexpr LinkKey kKey{{0, 7}, 0};
  static constexpr size_t kLooked = 32 << 10;
  static constexpr size_t kUnderWay = 2;  ///< frames in a connection, a direction

  struct Frame {
    DataHeader head;
    std::vector<iovec> pieces;
  };
  struct Stream {
    std::deque<Frame> there;
    std::deque<DataHeader> back;
    std::shared_ptr<InboundMessage> reads;  ///< the header has been read, the bytes have not
    std::vector<iovec> pieces;
  };
  struct All {
    explicit All(const CreditModel& model)
        : spec{kKey.collective, 0, kKey.channel, model.shape_.slots, model.shape_.bytes},
          streams(static_cast<size_t>(model.shape_.streams)),
          messages(model.shape_.messages) {
      out = sender.Open(kKey).value();
    }
    const LinkSpec spec;
    Outbound sender, receiver;
    Inbound inbound{1};
    OutboundLink* out = nullptr;
    InboundLink* in = nullptr;
    std::vector<Stream> streams;
    uint64_t posted = 0, handed = 0, expected = 0, released = 0;
    uint64_t owed = 0;  ///< what the queued credit says; 0: there is none
    uint64_t newest = 0, sum = 0;
    bool open = false, arrived = false, early = false;
    /// By message: stripes that have begun, stripes that are whole, announced with a place.
    std::vector<std::array<uint8_t, 3>> messages;
  };

  [[nodiscard]] uint64_t SizeOf(uint64_t number) const {
    return number + 1 == shape_.messages ? 0 : shape_.bytes;
  }
  [[nodiscard]] uint64_t Taken() const {
    return fault_ == CreditFault::kNewestCredit ? all_->newest : all_->out->taken();
  }
  template <typename Outcome>
  void Require(const Outcome& outcome) {
    if (!outcome.ok() && wrong_.empty()) wrong_ = outcome.error().message;
  }

  void Post() {
    All& all = *all_;
    std::vector<std::byte>& slot = slots_[all.posted % shape_.slots];
    for (size_t at = 0; at < slot.size(); at += kLooked)
      slot[at] = static_cast<std::byte>(all.posted + 1);
    const std::span<const std::byte> piece(slot.data(), SizeOf(all.posted));
    all.sender.Post(*all.out, {&piece, 1});
    ++all.posted;
  }

  // Every other message has a place.
  void Expect() {
    All& all = *all_;
    const uint64_t number = all.expected++;
    const std::span<std::byte> place(places_[number].data(), SizeOf(number));
    const bool placed = number % 2 == 0;
    all.messages[number][2] = placed ? 2 : 1;
    Require(all.in->Expect(SizeOf(number), {&place, placed ? size_t{1} : size_t{0}}));
  }

  void Begin(Stream& stream) {
    All& all = *all_;
    const DataHeader& head = stream.there.front().head;
    const auto message = all.inbound.Take(head);
    Require(message);
    if (!message.ok()) return;
    ++all.messages[head.number][0];
    stream.reads = message.value();
    stream.pieces.clear();
    stream.reads->AppendTarget(head.offset, head.length, 16, stream.pieces);
    if (head.length == 0) End(stream);
  }
  void End(Stream& stream) {
    ++all_->messages[stream.there.front().head.number][1];
    stream.there.pop_front();
    stream.reads.reset();
  }

  void Take() {
    All& all = *all_;
    const Result<const Arrival*> arrival = all.in->Arrived();
    Require(arrival);
    if (!arrival.ok()) return;
    if (fault_ == CreditFault::kEarlyCredit && !all.early) {
      all.early = true;
      return Owe(all.released + 1);
    }
    all.early = false;
    for (const auto& piece : arrival.value()->pieces) {
      for (size_t at = 0; at < piece.size(); at += kLooked) {
        if (piece[at] != static_cast<std::byte>(all.released + 1)) wrong_ = "reads another message";
      }
    }
    all.in->Release();
    ++all.released;
    if (fault_ == CreditFault::kEarlyCredit) return;
    Owe(fault_ == CreditFault::kCreditsAreCounts ? 1 : all.in->released());
  }
  void Owe(uint64_t number) {
    all_->owed = number;
    all_->receiver.Owe(kKey, number);
  }

  // What the state needs of the objects.
  void Look() {
    All& all = *all_;
    if (all.receiver.empty()) all.owed = 0;
    all.arrived = false;
    if (!all.open || !wrong_.empty()) return;
    const Result<const Arrival*> arrival = all.in->Arrived();
    Require(arrival);
    all.arrived = arrival.ok() && arrival.value() != nullptr;
  }

  const Shape shape_;
  const CreditFault fault_;
  std::vector<std::vector<std::byte>> slots_, places_;
  std::optional<All> all_;
  std::string wrong_;
};

}  // namespace horoacc::model
