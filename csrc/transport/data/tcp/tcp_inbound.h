#pragma once
// Incoming messages of one peer: assembled from stripes, in the announced buffer or, if a message
// comes before it is announced, in memory of its own.
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "transport/data/data_frame.h"

namespace horoacc {

/// A message that may be incomplete. A stream that is reading one of its stripes keeps it alive;
/// once it is dropped, the stream discards the rest.
class InboundMessage {
 public:
  /// Allocates memory for a message that has no announced buffer.
  void Own(uint64_t bytes);
  void Place(ReceivePieces where);
  void Drop() { dropped_ = true; }

  [[nodiscard]] bool dropped() const { return dropped_; }
  [[nodiscard]] bool complete() const { return begun_ && received_ == total_; }
  /// Appends where `length` bytes at `offset` go; less if there is no room for all pieces.
  uint64_t AppendTarget(uint64_t offset, uint64_t length, size_t room, std::vector<iovec>& to);
  void Received(uint64_t bytes) { received_ += bytes; }

 private:
  friend class InboundLink;
  bool begun_ = false;      ///< its first stripe has come, with its size
  bool announced_ = false;  ///< Expect has announced it
  bool placed_ = false;
  bool dropped_ = false;
  uint64_t total_ = 0;
  uint64_t expected_ = 0;
  uint64_t received_ = 0;
  std::unique_ptr<std::byte[]> own_;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<std::span<const std::byte>> arrived_;
};

/// The receiving end of a link; exists from its opening or its first stripe on.
class InboundLink {
 public:
  InboundLink(LinkKey key, int peer) : key_(key), peer_(peer) {}

  /// kMismatch if a message that has come already does not fit.
  Status Open(const LinkSpec& spec);
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] const LinkKey& key() const { return key_; }

  Status Expect(uint64_t bytes, ReceivePieces where);
  Result<const Arrival*> Arrived();
  void Release();
  [[nodiscard]] uint64_t released() const { return released_; }

  /// The message of a stripe. kMismatch if the link can have no such message.
  Result<std::shared_ptr<InboundMessage>> Take(const DataHeader& stripe);
  /// After this no byte is written to announced memory.
  void DropAll();
  /// Whether an announced message has not arrived in full, for which the peer must be there.
  [[nodiscard]] bool waiting() const;

 private:
  std::shared_ptr<InboundMessage>& Of(uint64_t number);
  [[nodiscard]] Error Misfit(uint64_t number, const std::string& what) const;

  const LinkKey key_;
  const int peer_;
  bool open_ = false;
  LinkSpec spec_;  ///< valid once the link is open
  uint64_t released_ = 0;
  uint64_t announced_ = 0;
  std::map<uint64_t, std::shared_ptr<InboundMessage>> messages_;  ///< by number
  Arrival arrival_;
  friend class Inbound;
  std::list<LinkKey> closed_place_{key_};  ///< for Inbound::Close, which must not allocate
};

/// All links from one peer.
class Inbound {
 public:
  explicit Inbound(int peer) : peer_(peer) {}

  Result<InboundLink*> Open(const LinkSpec& spec);
  /// Stripes that still come for the link are dropped. Called by destructors.
  void Close(InboundLink* link);
  /// The message of a stripe; a dropped one if its link was closed recently.
  Result<std::shared_ptr<InboundMessage>> Take(const DataHeader& stripe);
  void DropAll();
  [[nodiscard]] bool waiting() const;
  /// Whether there is a link.
  [[nodiscard]] bool used() const { return !links_.empty(); }
  /// Whether the peer has called (DataLinks::TakeCallers) since the last question.
  [[nodiscard]] bool TakeCall() { return std::exchange(called_, false); }

 private:
  InboundLink& Of(const LinkKey& key);

  const int peer_;
  std::map<LinkKey, std::unique_ptr<InboundLink>> links_;
  /// Recently, without their links; a stripe of an older link looks like an early one.
  std::map<LinkKey, std::unique_ptr<InboundLink>> closed_;
  std::list<LinkKey> closed_order_;
  bool called_ = false;
};

}  // namespace horoacc
