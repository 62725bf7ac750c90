#include "transport/control/faulty_links.h"

#include <utility>

namespace horoacc {
namespace {

bool Ordered(const FaultPoints& points) {
  return points.Has(FaultSite::kSend) || points.Has(FaultSite::kReceive);
}

class FaultyControlLinks final : public ControlLinks {
 public:
  FaultyControlLinks(std::unique_ptr<ControlLinks> links, FaultPoints& points)
      : links_(std::move(links)), points_(points) {}
  Status Send(int peer, std::span<const std::byte> bytes) override {
    HA_FAULT(points_, kSend);
    return links_->Send(peer, bytes);
  }
  void Hold() override { links_->Hold(); }
  void Flush() override { links_->Flush(); }
  Result<std::optional<ControlMessage>> Receive() override {
    Result<std::optional<ControlMessage>> received = links_->Receive();
    if (received.ok() && received.value()) HA_FAULT(points_, kReceive);
    return received;
  }
  [[nodiscard]] bool HasUnsent() override { return links_->HasUnsent(); }
  [[nodiscard]] std::vector<int> peers() const override { return links_->peers(); }
  [[nodiscard]] int WaitFd() const override { return links_->WaitFd(); }
  void LeaveToParent() override { links_->LeaveToParent(); }
  [[nodiscard]] const char* kind() const override { return links_->kind(); }
  [[nodiscard]] uint64_t messages_sent() const override { return links_->messages_sent(); }
  [[nodiscard]] uint64_t bytes_sent() const override { return links_->bytes_sent(); }

 private:
  std::unique_ptr<ControlLinks> links_;
  FaultPoints& points_;
};

class FaultySendLink final : public SendLink {
 public:
  FaultySendLink(std::unique_ptr<SendLink> link, FaultPoints& points, uint32_t slots)
      : SendLink(slots), link_(std::move(link)), points_(points) {}
  [[nodiscard]] uint64_t taken() override { return link_->taken(); }
  [[nodiscard]] bool Reads() override { return link_->Reads(); }
  [[nodiscard]] Result<std::byte*> Slot() override { return link_->Slot(); }

 private:
  Status DoPost(uint64_t, SendPieces pieces) override {
    HA_FAULT(points_, kSend);
    return link_->Post(pieces);
  }

  std::unique_ptr<SendLink> link_;
  FaultPoints& points_;
};

class FaultyReceiveLink final : public ReceiveLink {
 public:
  FaultyReceiveLink(std::unique_ptr<ReceiveLink> link, FaultPoints& points)
      : link_(std::move(link)), points_(points) {}
  Status Expect(uint64_t bytes, ReceivePieces where) override {
    return link_->Expect(bytes, where);
  }
  [[nodiscard]] Result<const Arrival*> Arrived() override {
    Result<const Arrival*> arrived = link_->Arrived();
    if (arrived.ok() && arrived.value() != nullptr) HA_FAULT(points_, kReceive);
    return arrived;
  }
  void Release() override { link_->Release(); }

 private:
  std::unique_ptr<ReceiveLink> link_;
  FaultPoints& points_;
};

class FaultyDataLinks final : public DataLinks {
 public:
  FaultyDataLinks(std::unique_ptr<DataLinks> links, FaultPoints& points)
      : links_(std::move(links)), points_(points) {}
  Result<std::unique_ptr<SendLink>> OpenSend(const LinkSpec& spec) override {
    HA_ASSIGN(std::unique_ptr<SendLink> link, links_->OpenSend(spec));
    return std::unique_ptr<SendLink>(
        std::make_unique<FaultySendLink>(std::move(link), points_, spec.slots));
  }
  Result<std::unique_ptr<ReceiveLink>> OpenReceive(const LinkSpec& spec) override {
    HA_ASSIGN(std::unique_ptr<ReceiveLink> link, links_->OpenReceive(spec));
    return std::unique_ptr<ReceiveLink>(
        std::make_unique<FaultyReceiveLink>(std::move(link), points_));
  }
  std::vector<int> TakeCallers() override { return links_->TakeCallers(); }
  Result<bool> Progress() override { return links_->Progress(); }
  [[nodiscard]] bool HasUnsent() override { return links_->HasUnsent(); }
  void Abort(const Error& error) override { links_->Abort(error); }
  [[nodiscard]] int WaitFd() const override { return links_->WaitFd(); }
  void LeaveToParent() override { links_->LeaveToParent(); }
  [[nodiscard]] bool MustPoll() const override { return links_->MustPoll(); }
  [[nodiscard]] const char* kind() const override { return links_->kind(); }
  [[nodiscard]] DataCounters counters() const override { return links_->counters(); }

 private:
  std::unique_ptr<DataLinks> links_;
  FaultPoints& points_;
};

}  // namespace

std::unique_ptr<ControlLinks> WithFaults(std::unique_ptr<ControlLinks> links, FaultPoints& points) {
  if (!Ordered(points)) return links;
  return std::make_unique<FaultyControlLinks>(std::move(links), points);
}

std::unique_ptr<DataLinks> WithFaults(std::unique_ptr<DataLinks> links, FaultPoints& points) {
  if (!Ordered(points)) return links;
  return std::make_unique<FaultyDataLinks>(std::move(links), points);
}

}  // namespace horoacc
