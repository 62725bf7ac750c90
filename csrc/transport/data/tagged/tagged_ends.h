#pragma once
// The two ends of a tagged link, and the state that one rank's links share: requests at the
// carrier, and a state for each peer.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transport/data/data_frame.h"
#include "transport/data/slot_memory.h"
#include "transport/data/tagged/tagged_links.h"

namespace horoacc {

/// A control message between the two ends, of fixed size and with a tag of its own.
enum class NoticeKind : uint8_t { kGrant = 1, kCredit = 2, kAbort = 3, kCall = 4 };

struct Notice {
  uint32_t magic = kMagic;
  NoticeKind kind = NoticeKind::kGrant;
  uint8_t channel = 0;
  uint16_t reserved = 0;
  uint64_t epoch = 0;
  uint64_t sequence = 0;
  uint32_t set = 0;
  uint32_t tag = 0;     ///< of a grant
  uint64_t number = 0;  ///< of a credit: messages released so far; of an abort: kind of error
  int64_t culprit = -1;
  char text[208] = "";

  static constexpr uint32_t kMagic = 0x4e434148;  // "HACN"
  [[nodiscard]] LinkKey key() const { return {{set, sequence}, channel}; }
};
static_assert(sizeof(Notice) == 256);

/// A notice that is being sent. It is never freed if the carrier still has it at the end.
struct Posted {
  Notice notice;
  void* request = nullptr;
};

class TaggedSendLink;
class TaggedReceiveLink;

/// A rank's state of one peer.
struct TaggedPeer {
  bool reached = false;  ///< a link leads to it or comes from it
  Notice arriving;
  void* request = nullptr;  ///< for `arriving`
  std::deque<std::unique_ptr<Posted>> notices;
  std::map<LinkKey, uint64_t> credits;  ///< to be sent
  std::map<LinkKey, uint32_t> grants;   ///< received before their link was opened
  std::map<LinkKey, TaggedSendLink*> sending;
  std::map<LinkKey, TaggedReceiveLink*> receiving;
  std::vector<uint32_t> free_tags;
  uint32_t next_tag = TaggedCarrier::kFirstTag;
};

/// The requests of tagged links at their carrier, and whether the carrier still works.
class TaggedRequests {
 public:
  explicit TaggedRequests(TaggedCarrier carrier) : carrier_(std::move(carrier)) {}

  [[nodiscard]] const TaggedCarrier& carrier() const { return carrier_; }
  [[nodiscard]] DataCounters& counters() { return counters_; }
  [[nodiscard]] const DataCounters& counters() const { return counters_; }
  /// The error that ended the links.
  [[nodiscard]] const std::optional<Error>& failed() const { return failed_; }
  void Fail(const Error& error) { failed_ = error; }
  [[nodiscard]] Status Health() const { return failed_ ? Status(*failed_) : Status(); }

  [[nodiscard]] Result<void*> Start(bool send, int peer, uint32_t tag,
                                    std::span<const ha_piece> pieces);
  /// The length of the received message once the request is done.
  [[nodiscard]] Result<std::optional<uint64_t>> Test(void* request, int peer);
  void Cancel(void* request) {
    if (request != nullptr) carrier_.calls.cancel(carrier_.self, request);
  }
  /// Keeps a request whose message the carrier still sends although the link is closed.
  void Adopt(int peer, void* request) { orphans_.emplace_back(peer, request); }
  /// Drops kept requests whose messages were sent.
  [[nodiscard]] Status TestOrphans();

 private:
  [[nodiscard]] static Error Lost(int peer, const ha_transport_error& error);

  TaggedCarrier carrier_;
  std::vector<std::pair<int, void*>> orphans_;
  DataCounters counters_;
  std::optional<Error> failed_;
};

/// Both ends belong to their user, and are destroyed before the links are.
class TaggedSendLink final : public SendLink {
 public:
  TaggedSendLink(TaggedRequests& requests, TaggedPeer& peer, const LinkSpec& spec);
  ~TaggedSendLink() override;
  TaggedSendLink(const TaggedSendLink&) = delete;
  TaggedSendLink& operator=(const TaggedSendLink&) = delete;

  [[nodiscard]] LinkKey key() const { return {spec_.collective, spec_.channel}; }
  [[nodiscard]] uint64_t taken() override;
  [[nodiscard]] Result<std::byte*> Slot() override;
  void Grant(uint32_t tag) { tag_ = tag; }
  /// False if fewer messages were posted.
  bool Credit(uint64_t released);
  [[nodiscard]] bool unsent() const { return !waiting_.empty() || !under_way_.empty(); }
  /// True if something moved.
  Result<bool> Move();

 private:
  Status DoPost(uint64_t number, SendPieces pieces) override;

  TaggedRequests& requests_;
  TaggedPeer& peer_;
  const LinkSpec spec_;
  SlotMemory memory_;
  std::optional<uint32_t> tag_;
  std::deque<std::vector<ha_piece>> waiting_;
  std::deque<void*> under_way_;
  uint64_t completed_ = 0;  ///< messages that the carrier has sent
  uint64_t credited_ = 0;   ///< messages that the receiver has released
};

class TaggedReceiveLink final : public ReceiveLink {
 public:
  TaggedReceiveLink(TaggedRequests& requests, TaggedPeer& peer, const LinkSpec& spec, uint32_t tag)
      : requests_(requests), peer_(peer), spec_(spec), tag_(tag) {}
  ~TaggedReceiveLink() override;
  TaggedReceiveLink(const TaggedReceiveLink&) = delete;
  TaggedReceiveLink& operator=(const TaggedReceiveLink&) = delete;

  [[nodiscard]] LinkKey key() const { return {spec_.collective, spec_.channel}; }
  /// From here on the carrier writes to no expected buffer.
  void GiveBack();
  Status Expect(uint64_t bytes, ReceivePieces where) override;
  [[nodiscard]] Result<const Arrival*> Arrived() override;
  void Release() override;
  /// True if something moved.
  Result<bool> Move();

 private:
  struct Message {
    uint64_t bytes = 0;
    void* request = nullptr;
    std::optional<uint64_t> length;  ///< of the received message
    std::unique_ptr<std::byte[]> own;
    std::vector<std::span<const std::byte>> pieces;
    Arrival arrival;
  };

  TaggedRequests& requests_;
  TaggedPeer& peer_;
  const LinkSpec spec_;
  const uint32_t tag_;
  std::deque<std::unique_ptr<Message>> expected_;
  uint64_t released_ = 0;
};

}  // namespace horoacc
