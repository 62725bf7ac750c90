#include "transport/data/tagged/tagged_ends.h"

#include <algorithm>
#include <string>
#include <utility>

namespace horoacc {
namespace {

template <typename Piece>
std::vector<ha_piece> Listed(std::span<const Piece> pieces) {
  std::vector<ha_piece> list;
  for (const auto& piece : pieces) {
    if (!piece.empty()) list.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  }
  return list;
}

}  // namespace

Error TaggedRequests::Lost(int peer, const ha_transport_error& error) {
  return MakeError(ErrorKind::kPeerLost,
                   "lost the data links to rank " + std::to_string(peer) + ": " + error.message,
                   peer);
}

Result<void*> TaggedRequests::Start(bool send, int peer, uint32_t tag,
                                    std::span<const ha_piece> pieces) {
  ha_transport_error error = {};
  void* request = nullptr;
  const auto call = send ? carrier_.calls.send : carrier_.calls.receive;
  if (call(carrier_.self, peer, tag, pieces.data(), pieces.size(), &request, &error) == 0) {
    return request;
  }
  return Lost(peer, error);
}

Result<std::optional<uint64_t>> TaggedRequests::Test(void* request, int peer) {
  ha_transport_error error = {};
  int done = 0;
  size_t bytes = 0;
  if (carrier_.calls.test(carrier_.self, request, &done, &bytes, &error) != 0) {
    return Lost(peer, error);
  }
  return done != 0 ? std::optional<uint64_t>(bytes) : std::nullopt;
}

Status TaggedRequests::TestOrphans() {
  for (size_t index = 0; index < orphans_.size();) {
    const auto [rank, request] = orphans_[index];
    HA_ASSIGN(const auto done, Test(request, rank));
    if (!done) {
      ++index;
    } else {
      orphans_.erase(orphans_.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
  return {};
}

TaggedSendLink::TaggedSendLink(TaggedRequests& requests, TaggedPeer& peer, const LinkSpec& spec)
    : SendLink(spec.slots),
      requests_(requests),
      peer_(peer),
      spec_(spec),
      memory_(spec.slots, spec.slot_bytes) {}

TaggedSendLink::~TaggedSendLink() {
  peer_.sending.erase(key());
  for (void* const request : under_way_) requests_.Adopt(spec_.peer, request);
}

uint64_t TaggedSendLink::taken() { return std::min(credited_, completed_); }

Result<std::byte*> TaggedSendLink::Slot() {
  HA_TRY(requests_.Health());
  return memory_.Of(posted());
}

bool TaggedSendLink::Credit(uint64_t released) {
  credited_ = std::max(credited_, released);
  return released <= posted();
}

Result<bool> TaggedSendLink::Move() {
  bool moved = false;
  for (; tag_ && !waiting_.empty(); waiting_.pop_front()) {
    HA_ASSIGN(void* const request, requests_.Start(true, spec_.peer, *tag_, waiting_.front()));
    under_way_.push_back(request);
    moved = true;
  }
  while (!under_way_.empty()) {
    HA_ASSIGN(const auto done, requests_.Test(under_way_.front(), spec_.peer));
    if (!done) break;
    under_way_.pop_front();
    ++completed_;
    moved = true;
  }
  return moved;
}

Status TaggedSendLink::DoPost(uint64_t number, SendPieces pieces) {
  HA_TRY(requests_.Health());
  uint64_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  HA_TRY(CheckPost(spec_, number, taken(), total));
  DataCounters& counters = requests_.counters();
  counters.messages += 1;
  counters.bytes += total;
  counters.copied += memory_.Share(pieces);
  waiting_.push_back(Listed(pieces));
  return {};
}

TaggedReceiveLink::~TaggedReceiveLink() {
  peer_.receiving.erase(key());
  // A message may still come for the tag of a cancelled receive.
  if (expected_.empty()) peer_.free_tags.push_back(tag_);
  GiveBack();
}

void TaggedReceiveLink::GiveBack() {
  for (const auto& message : expected_) {
    if (!message->length) requests_.Cancel(std::exchange(message->request, nullptr));
  }
}

Status TaggedReceiveLink::Expect(uint64_t bytes, ReceivePieces where) {
  HA_TRY(requests_.Health());
  HA_TRY(CheckExpect(spec_, expected_.size(), bytes, where));
  auto message = std::make_unique<Message>();
  message->bytes = bytes;
  message->arrival.placed = !where.empty();
  std::vector<std::span<std::byte>> places(where.begin(), where.end());
  if (where.empty()) {
    message->own = std::make_unique_for_overwrite<std::byte[]>(bytes);
    places.assign(1, std::span(message->own.get(), bytes));
  }
  message->pieces.assign(places.begin(), places.end());
  message->arrival.pieces = message->pieces;
  const auto list = Listed(std::span<const std::span<std::byte>>(places));
  HA_ASSIGN(message->request, requests_.Start(false, spec_.peer, tag_, list));
  expected_.push_back(std::move(message));
  return {};
}

Result<const Arrival*> TaggedReceiveLink::Arrived() {
  HA_TRY(requests_.Health());
  if (expected_.empty() || !expected_.front()->length) return nullptr;
  const Message& message = *expected_.front();
  if (*message.length == message.bytes) return &message.arrival;
  const std::string came = *message.length == HA_TRANSPORT_TOO_LONG
                               ? "more bytes"
                               : std::to_string(*message.length) + " bytes";
  return MakeError(ErrorKind::kMismatch,
                   NameOfMessage(spec_.collective, spec_.channel, released_, spec_.peer) + ": " +
                       came + " came, " + std::to_string(message.bytes) + " were expected",
                   spec_.peer);
}

void TaggedReceiveLink::Release() {
  expected_.pop_front();
  ++released_;
  peer_.credits[key()] = released_;
}

Result<bool> TaggedReceiveLink::Move() {
  bool moved = false;
  // Starts all announced receives, so that several are under way at once.
  for (const auto& message : expected_) {
    if (message->length) continue;
    HA_ASSIGN(message->length, requests_.Test(message->request, spec_.peer));
    moved = moved || message->length;
  }
  return moved;
}

}  // namespace horoacc
