#pragma once
// The two ends of a tagged link. Each belongs to its user and must go before the links do.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "transport/data/tagged/tagged_peer.h"
#include "transport/data/tagged/tagged_requests.h"
#include "transport/memory/slot_memory.h"

namespace horoacc {

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
  /// False if so much was never posted.
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
  uint64_t completed_ = 0;  ///< the carrier reads their memory no more
  uint64_t credited_ = 0;   ///< the receiver has released them
};

class TaggedReceiveLink final : public ReceiveLink {
 public:
  TaggedReceiveLink(TaggedRequests& requests, TaggedPeer& peer, const LinkSpec& spec, uint32_t tag)
      : requests_(requests), peer_(peer), spec_(spec), tag_(tag) {}
  ~TaggedReceiveLink() override;
  TaggedReceiveLink(const TaggedReceiveLink&) = delete;
  TaggedReceiveLink& operator=(const TaggedReceiveLink&) = delete;

  [[nodiscard]] LinkKey key() const { return {spec_.collective, spec_.channel}; }
  /// From here on nothing is written where messages were expected.
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
    std::optional<uint64_t> length;  ///< what came
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
