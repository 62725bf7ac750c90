#include "execute/cuda/host/hosts_exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace horoacc::cuda {
namespace {

constexpr uint32_t kSlots = 4;

static_assert(std::has_unique_object_representations_v<HostNews>);
bool AreEqual(const std::optional<HostNews>& one, const HostNews& other) {
  return one && std::memcmp(&*one, &other, sizeof other) == 0;
}

}  // namespace

Status HostsExchange::Open() {
  const bool root = place_.rank == place_.ranks[0];
  for (const int rank : place_.ranks) {
    if (rank == place_.rank || (!root && rank != place_.ranks[0])) continue;
    const LinkSpec spec{place_.collective, rank, 0, kSlots, sizeof(HostNews)};
    Host host;
    HA_ASSIGN(host.out, place_.links->OpenSend(spec));
    HA_ASSIGN(host.in, place_.links->OpenReceive(spec));
    HA_TRY(host.in->Expect(sizeof(HostNews), {}));
    hosts_.push_back(std::move(host));
  }
  return {};
}

Result<bool> HostsExchange::Advance() {
  if (hosts_.empty()) HA_TRY(Open());
  bool moved = false;
  for (Host& host : hosts_) {
    HA_ASSIGN(const bool heard, Hear(host));
    moved = moved || heard;
  }
  HostNews own = group_.News();
  if (place_.rank == place_.ranks[0]) {
    all_.stage = own.stage;
    std::memcpy(all_.nccl_version, own.nccl_version, sizeof all_.nccl_version);
    all_.nccl_id = own.nccl_id;
    Add(own);
    for (const Host& host : hosts_) Add(host.heard.value_or(HostNews()));
    moved = group_.Hear(all_) || moved;
    own = all_;
  } else if (hosts_[0].heard) {
    moved = group_.Hear(*hosts_[0].heard) || moved;
  }
  all_told_ = true;
  for (Host& host : hosts_) {
    HA_ASSIGN(const bool told, Tell(host, own));
    moved = moved || told;
  }
  return moved;
}

// The first trouble of which the root hears stays that of all hosts, so that all give one reason.
void HostsExchange::Add(const HostNews& news) {
  all_.stage = std::min(all_.stage, news.stage);
  if (all_.trouble_at != 0 || all_.stage == 0) return;
  if (news.trouble_at != 0) {
    all_.trouble_at = news.trouble_at;
    std::memcpy(all_.why, news.why, sizeof all_.why);
  } else if (std::strcmp(news.nccl_version, all_.nccl_version) != 0) {
    all_.trouble_at = static_cast<uint32_t>(ExchangeStage::kIntroduced);
    std::snprintf(all_.why, sizeof all_.why, "%s",
                  OtherVersion(0, all_.nccl_version, news.lowest, news.nccl_version).c_str());
  }
}

Result<bool> HostsExchange::Tell(Host& host, const HostNews& news) {
  if (AreEqual(host.told, news)) return false;
  if (!host.out->HasRoom()) {
    all_told_ = false;
    return false;
  }
  HA_ASSIGN(std::byte* const slot, host.out->Slot());
  std::memcpy(slot, &news, sizeof news);
  const std::span<const std::byte> piece(slot, sizeof news);
  HA_TRY(host.out->Post({&piece, 1}));
  host.told = news;
  return true;
}

Result<bool> HostsExchange::Hear(Host& host) const {
  HA_ASSIGN(const Arrival* const arrival, host.in->Arrived());
  if (arrival == nullptr) return false;
  HostNews& news = host.heard.emplace();
  auto* to = reinterpret_cast<std::byte*>(&news);
  for (const auto& piece : arrival->pieces) to = std::ranges::copy(piece, to).out;
  news.why[sizeof news.why - 1] = news.nccl_version[sizeof news.nccl_version - 1] = '\0';
  host.in->Release();
  HA_TRY(host.in->Expect(sizeof(HostNews), {}));
  return true;
}

bool HostsExchange::done() const {
  return all_told_ &&
         std::ranges::none_of(hosts_, [](const Host& host) { return host.out->Reads(); });
}

}  // namespace horoacc::cuda
