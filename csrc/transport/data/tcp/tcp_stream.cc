#include "transport/data/tcp/tcp_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "transport/net/socket.h"

namespace horoacc {
namespace {

constexpr uint64_t kBatchBytes = 256 << 10;
constexpr size_t kBatchPieces = 512;
constexpr size_t kMostPieces = 1024;  ///< pieces that Linux takes in a call
constexpr int kReadsAtOnce = 16;
constexpr size_t kTargets = 64;

}  // namespace

/// Seals the batch's newest frame, whose payload begins at entry `first`.
Status TcpStream::SealFrame(size_t frame, size_t first) {
  Seal& seal = seals_.send;
  Head& head = heads_[frame];
  HA_TRY(seal.Apply(&head.header, sizeof(DataHeader), head.tag.data()));
  if (first == batch_.size()) return {};
  if (seal.encrypts() && !encrypted_)
    encrypted_ =
        std::make_unique_for_overwrite<std::byte[]>(kBatchBytes + Outbound::kLongestStripe);
  std::byte* const begin = encrypted_.get() + encrypted_bytes_;
  seal.Begin();
  for (const iovec& piece : std::span(batch_).subspan(first)) {
    seal.Update(piece.iov_base, encrypted_.get() + encrypted_bytes_, piece.iov_len);
    if (seal.encrypts()) encrypted_bytes_ += piece.iov_len;
  }
  HA_TRY(seal.Finish(tags_[frame].data()));
  if (seal.encrypts()) {
    batch_.resize(first);
    batch_.push_back({begin, encrypted_bytes_ - static_cast<size_t>(begin - encrypted_.get())});
  }
  batch_.push_back({tags_[frame].data(), sizeof(Seal::Tag)});
  return {};
}

Result<bool> TcpStream::Fill(Outbound& outbound, int streams) {
  batch_.clear();
  lenders_.clear();
  next_ = 0;
  encrypted_bytes_ = 0;
  uint64_t bytes = 0;
  for (size_t count = 0; count < kBatch && bytes < kBatchBytes && batch_.size() < kBatchPieces;
       ++count) {
    Head& head = heads_[count];
    batch_.push_back({&head, sizeof(DataHeader) + tag_bytes()});
    const size_t first = batch_.size();
    const auto frame = outbound.Next(epoch_, streams, batch_);
    if (!frame) {
      batch_.pop_back();
      break;
    }
    head.header = frame->header;
    if (checksums_) {
      head.header.flags |= DataHeader::kChecked;
      head.header.payload_check = ChecksumOf(std::span(batch_).subspan(first));
    }
    head.header.check = head.header.Checksum();
    if (sealed()) HA_TRY(SealFrame(count, first));
    if (frame->link != nullptr && !seals_.send.encrypts()) lenders_.push_back(frame->link);
    bytes += sizeof(DataHeader) + frame->header.length;
  }
  return !batch_.empty();
}

Status TcpStream::Queue(const DataHeader& header, std::string_view text) {
  text = text.substr(0, kLongestText);
  DataHeader& own = heads_[0].header;
  own = header;
  own.epoch = epoch_;
  own.length = static_cast<uint32_t>(text.size());
  const auto bytes = std::as_bytes(std::span(text));
  own_.assign(bytes.begin(), bytes.end());
  own.flags |= DataHeader::kChecked;
  own.payload_check = Crc32c(bytes);
  own.check = own.Checksum();
  batch_.assign({{heads_.data(), sizeof(DataHeader) + tag_bytes()}});
  if (!own_.empty()) batch_.push_back({own_.data(), own_.size()});
  lenders_.clear();
  next_ = 0;
  if (!sealed()) return {};
  encrypted_bytes_ = 0;
  return SealFrame(0, 1);
}

Result<bool> TcpStream::Flush() {
  while (sending()) {
    msghdr message = {};
    message.msg_iov = batch_.data() + next_;
    message.msg_iovlen = std::min(batch_.size() - next_, kMostPieces);
    const ssize_t sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    ++traffic_.send_calls;
    Count(counters_.send_calls);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && WouldBlock()) return false;
    if (sent < 0) return SystemError("sendmsg");
    traffic_.bytes_sent += static_cast<uint64_t>(sent);
    for (auto rest = static_cast<size_t>(sent); next_ < batch_.size();) {
      iovec& piece = batch_[next_];
      const size_t part = std::min(rest, piece.iov_len);
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
      piece.iov_len -= part;
      rest -= part;
      if (piece.iov_len > 0) break;
      ++next_;
    }
  }
  lenders_.clear();
  return true;
}

void TcpStream::Detach(const OutboundLink* link) {
  if (!sending() || !Reads(link)) return;
  std::vector<std::byte> rest;
  for (size_t index = next_; index < batch_.size(); ++index) {
    const auto* bytes = static_cast<const std::byte*>(batch_[index].iov_base);
    rest.insert(rest.end(), bytes, bytes + batch_[index].iov_len);
  }
  own_ = std::move(rest);
  batch_.assign({{own_.data(), own_.size()}});
  lenders_.clear();
  next_ = 0;
}

/// Takes a header, and a notice's text, from the staging area; false if they are incomplete.
Result<bool> TcpStream::ConsumeHeader(FrameReceiver& receiver) {
  DataHeader& header = stripe_;
  if (!open_) {
    if (end_ - begin_ < sizeof(header) + tag_bytes()) return false;
    std::byte* const from = staging_.data() + begin_;
    if (sealed()) {
      const Status right = seals_.receive.Apply(from, sizeof(header), from + sizeof(header));
      if (!right.ok())
        return MakeError(ErrorKind::kSystem, "the header of a frame was " + right.error().message);
    }
    std::memcpy(&header, from, sizeof(header));
    begin_ += sizeof(header) + tag_bytes();
    open_ = true;
    if (header.magic != DataHeader::kMagic) {
      return MakeError(ErrorKind::kSystem, "a frame has a broken header");
    }
    if (header.check != header.Checksum()) {
      return MakeError(ErrorKind::kSystem, "the header of a frame was damaged on its way");
    }
    if (header.epoch != epoch_) {
      return MakeError(ErrorKind::kMismatch, "a frame belongs to epoch " +
                                                 std::to_string(header.epoch) + ", this one is " +
                                                 std::to_string(epoch_));
    }
  }
  if (header.kind == DataKind::kStripe) {
    open_ = false;
    HA_ASSIGN(message_, receiver.OnStripe(header));
    at_ = header.offset;
    left_ = header.length;
    awaits_tag_ = sealed() && left_ > 0;
    if (awaits_tag_) seals_.receive.Begin();
    HA_TRY(Took(0));
    return true;
  }
  if (header.length > kLongestText) {
    return MakeError(ErrorKind::kMismatch, "a frame has a broken length");
  }
  const size_t tag = header.length > 0 ? tag_bytes() : 0;
  if (end_ - begin_ < header.length + tag) return false;
  std::byte* const text = staging_.data() + begin_;
  begin_ += header.length + tag;
  open_ = false;
  if (tag > 0) {
    const Status right = seals_.receive.Apply(text, header.length, text + header.length);
    if (!right.ok()) return MakeError(ErrorKind::kSystem, "a notice was " + right.error().message);
  }
  const bool checked = (header.flags & DataHeader::kChecked) != 0;
  if (checked && header.payload_check != Crc32c({text, header.length})) {
    return MakeError(ErrorKind::kSystem, "a notice was damaged on its way");
  }
  HA_TRY(receiver.OnNotice(header, {reinterpret_cast<const char*>(text), header.length}));
  return true;
}

/// Opens bytes of the stripe that have just come to their place, and counts them. With a checksum
/// or a seal they count once the whole stripe is verified, so that no reader sees damaged bytes.
Status TcpStream::Took(uint64_t bytes) {
  if (awaits_tag_ && !message_->dropped()) {
    targets_.clear();
    message_->AppendTarget(at_, bytes, SIZE_MAX, targets_);
    for (const iovec& piece : targets_)
      seals_.receive.Update(piece.iov_base, piece.iov_base, piece.iov_len);
  }
  at_ += bytes;
  left_ -= bytes;
  if (awaits_tag_) return {};
  if ((stripe_.flags & DataHeader::kChecked) == 0) {
    message_->Received(bytes);
    return {};
  }
  if (left_ > 0 || message_->dropped()) return {};
  targets_.clear();
  message_->AppendTarget(stripe_.offset, stripe_.length, SIZE_MAX, targets_);
  if (ChecksumOf(targets_) != stripe_.payload_check) {
    return MakeError(ErrorKind::kSystem, std::to_string(stripe_.length) +
                                             " bytes of a message were damaged on their way");
  }
  message_->Received(stripe_.length);
  return {};
}

/// Takes the tag behind a stripe from the staging area; false if it is incomplete.
Result<bool> TcpStream::ConsumeTag() {
  if (end_ - begin_ < Sealing::kTagBytes) return false;
  std::byte* const tag = staging_.data() + begin_;
  begin_ += Sealing::kTagBytes;
  awaits_tag_ = false;
  if (message_->dropped()) return true;  // some of its bytes were not kept, and none is used
  if (const Status right = seals_.receive.Finish(tag); !right.ok()) {
    // Bytes that are not copied to be encrypted are sealed and sent where the program has them.
    return MakeError(
        ErrorKind::kSystem,
        std::to_string(stripe_.length) + " bytes of a message were damaged on their way, " +
            (seals_.receive.encrypts() ? "or forged"
                                       : "forged, or changed by the sender while they were sent"));
  }
  message_->Received(stripe_.length);
  return true;
}

/// Processes the staging area, as far as it has whole headers.
Status TcpStream::Consume(FrameReceiver& receiver) {
  while (true) {
    if (left_ > 0) {
      const uint64_t part = std::min<uint64_t>(left_, end_ - begin_);
      if (part == 0) {
        begin_ = end_ = 0;
        return {};
      }
      if (!message_->dropped()) {
        targets_.clear();
        message_->AppendTarget(at_, part, SIZE_MAX, targets_);
        const std::byte* from = staging_.data() + begin_;
        for (const iovec& piece : targets_) {
          std::memcpy(piece.iov_base, from, piece.iov_len);
          from += piece.iov_len;
        }
      }
      begin_ += part;
      HA_TRY(Took(part));
      continue;
    }
    if (!awaits_tag_) message_.reset();
    HA_ASSIGN(const bool whole, awaits_tag_ ? ConsumeTag() : ConsumeHeader(receiver));
    if (whole) continue;
    std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    return {};
  }
}

/// One system call; `direct`: how many bytes it could place without the staging area.
Result<ssize_t> TcpStream::Receive(uint64_t& direct) {
  direct = 0;
  targets_.clear();
  ssize_t got = 0;
  do {
    ++traffic_.receive_calls;
    Count(counters_.receive_calls);
    if (left_ > 0 && message_->dropped()) {
      direct = asked_ = left_;
      got = ::recv(fd_.get(), nullptr, left_, MSG_DONTWAIT | MSG_TRUNC);  // discards
      continue;
    }
    targets_.clear();
    direct = left_ > 0 ? message_->AppendTarget(at_, left_, kTargets, targets_) : 0;
    asked_ = direct;
    if (direct == left_) {
      targets_.push_back({staging_.data() + end_, staging_.size() - end_});
      asked_ += staging_.size() - end_;
    }
    msghdr message = {};
    message.msg_iov = targets_.data();
    message.msg_iovlen = targets_.size();
    got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && !WouldBlock()) return SystemError("recvmsg");
  return got;
}

Result<bool> TcpStream::Read(FrameReceiver& receiver) {
  for (int count = 0; count < kReadsAtOnce; ++count) {
    if (left_ == 0) HA_TRY(Consume(receiver));
    uint64_t direct = 0;
    HA_ASSIGN(const ssize_t got, Receive(direct));
    if (got < 0) return true;
    if (got == 0) return false;
    moved_ = true;
    traffic_.bytes_received += static_cast<uint64_t>(got);
    const uint64_t placed = std::min<uint64_t>(static_cast<uint64_t>(got), direct);
    if (placed > 0) HA_TRY(Took(placed));
    end_ += static_cast<size_t>(got) - placed;
    HA_TRY(Consume(receiver));
    if (static_cast<uint64_t>(got) < asked_) return true;  // no byte is left
  }
  return true;
}

}  // namespace horoacc
