#pragma once
// What is arriving from one peer: messages put together from stripes, in the memory that was
// announced for them or, if they came before that, in memory of their own.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "transport/data/data_frame.h"

namespace horoacc {

/// A message of which some or all bytes may still be missing. Streams that are in the middle of a
/// stripe keep it alive; once it is dropped they read past it.
class InboundMessage {
 public:
  /// Memory of its own, for a message that nobody has announced or given a place.
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
  bool begun_ = false;      ///< its first stripe has come, and so its size
  bool announced_ = false;  ///< by Expect
  bool placed_ = false;
  bool dropped_ = false;
  uint64_t total_ = 0;
  uint64_t expected_ = 0;
  uint64_t received_ = 0;
  std::unique_ptr<std::byte[]> own_;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<std::span<const std::byte>> arrived_;
};

/// The receiving end of a link; exists from its opening or its first stripe on, whatever is first.
class InboundLink {
 public:
  InboundLink(LinkKey key, int peer) : key_(key), peer_(peer) {}

  /// kMismatch if what has come already does not fit.
  Status Open(const LinkSpec& spec);
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] const LinkKey& key() const { return key_; }

  Status Expect(uint64_t bytes, ReceivePieces where);
  Result<const Arrival*> Arrived();
  void Release();
  [[nodiscard]] uint64_t released() const { return released_; }

  /// Where a stripe goes. kMismatch if no message of this link could have it.
  Result<std::shared_ptr<InboundMessage>> Take(const DataHeader& stripe);
  /// Nothing is written to announced memory any more.
  void DropAll();
  /// Whether an announced message is not all there.
  [[nodiscard]] bool waiting() const;

 private:
  [[nodiscard]] Error Misfit(uint64_t number, const std::string& what) const;

  const LinkKey key_;
  const int peer_;
  bool open_ = false;
  LinkSpec spec_;  ///< once it is open
  uint64_t released_ = 0;
  uint64_t announced_ = 0;
  std::map<uint64_t, std::shared_ptr<InboundMessage>> messages_;  ///< by number
  Arrival arrival_;
};

/// All links from one peer.
class Inbound {
 public:
  explicit Inbound(int peer) : peer_(peer) {}

  Result<InboundLink*> Open(const LinkSpec& spec);
  /// What still comes for the link is dropped.
  void Close(InboundLink* link);
  /// Where a stripe goes; a dropped message if its link was closed not long ago.
  Result<std::shared_ptr<InboundMessage>> Take(const DataHeader& stripe);
  void DropAll();
  [[nodiscard]] bool waiting() const;

 private:
  InboundLink& Of(const LinkKey& key);

  const int peer_;
  std::map<LinkKey, std::unique_ptr<InboundLink>> links_;
  std::set<LinkKey> closed_;  ///< the last ones; older stale stripes cannot be told from early ones
  std::deque<LinkKey> closed_order_;
};

}  // namespace horoacc
