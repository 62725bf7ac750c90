#include "runtime/sets/job_channel.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.h"
#include "negotiate/control_segment/segment_layout.h"

namespace horoacc {
namespace {

constexpr int64_t kAbortIsTold = kSecond;  // by the rank that speaks for its host

enum class JobMessage : uint8_t {
  kAbort = 1,
  kDepartures = 2,
  kBeat = 3,
  kWhereAreYou = 4,  ///< a question for a stack
  kHere = 5,
  kAskAddress = 6,
  kAddress = 7,
  kSilence = 8,
  kFarewell = 9,  ///< the last rank of a host asks whether its departure was heard
  kFarewellHeard = 10,
  kHowAreYou = 11,  ///< a question for a reading
  kSo = 12,
};

WireWriter Begin(JobMessage kind) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(kind));
  return writer;
}

WireWriter Pack(const std::vector<Departure>& departures) {
  WireWriter writer = Begin(JobMessage::kDepartures);
  writer.Put(static_cast<uint32_t>(departures.size()));
  for (const Departure& each : departures) {
    writer.Put(each.group);
    writer.Put(static_cast<int32_t>(each.rank));
  }
  return writer;
}

WireWriter PackAddress(int rank, const std::string& packed) {
  WireWriter writer = Begin(JobMessage::kAddress);
  writer.Put(static_cast<int32_t>(rank));
  writer.Put(std::string_view(packed));
  return writer;
}

}  // namespace

JobChannel::JobChannel(std::vector<int> host_of, Surroundings surroundings)
    : host_of_(std::move(host_of)),
      order_(host_of_),
      around_(std::move(surroundings)),
      place_(order_.PlaceOf(static_cast<uint32_t>(around_.rank))),
      were_next_(NextHosts()),
      questions_(AroundQuestions()) {
  around_.mux->Register(kNumber, [this](int source, std::span<const std::byte> payload) {
    return OnMessage(source, payload);
  });
}

JobChannel::~JobChannel() { around_.mux->Unregister(kNumber); }

// The tree of hosts.

std::optional<int> JobChannel::SpeakerOf(uint32_t place) const {
  for (const uint32_t rank : order_.members(place)) {
    if (!HasLeft(static_cast<int>(rank))) return static_cast<int>(rank);
  }
  return std::nullopt;
}

std::optional<uint32_t> JobChannel::RootPlace() const {
  for (uint32_t place = 0; place < order_.hosts(); ++place) {
    if (SpeakerOf(place)) return place;
  }
  return std::nullopt;
}

std::optional<uint32_t> JobChannel::ParentOf(uint32_t place) const {
  for (auto above = HostOrder::ParentOf(place); above; above = HostOrder::ParentOf(*above)) {
    if (SpeakerOf(*above)) return above;
  }
  const std::optional<uint32_t> root = RootPlace();
  return root == place ? std::nullopt : root;
}

// Of the children of a place those that are left, and those of the others in their stead.
void JobChannel::AddChildren(uint32_t place, std::vector<uint32_t>& places) const {
  for (const uint32_t child : order_.ChildrenOf(place)) {
    if (SpeakerOf(child)) {
      places.push_back(child);
    } else {
      AddChildren(child, places);
    }
  }
}

std::vector<uint32_t> JobChannel::ChildrenOf(uint32_t place) const {
  std::vector<uint32_t> places;
  AddChildren(place, places);
  if (place == 0 || RootPlace() != place) return places;
  for (uint32_t other = place + 1; other < order_.hosts(); ++other) {
    const bool listed = std::ranges::find(places, other) != places.end();
    if (!listed && SpeakerOf(other) && ParentOf(other) == place) places.push_back(other);
  }
  return places;
}

std::vector<int> JobChannel::NextHosts() const {
  std::vector<int> ranks;
  const auto add = [&](uint32_t place) {
    if (const auto speaker = SpeakerOf(place)) ranks.push_back(*speaker);
  };
  for (const uint32_t child : ChildrenOf(place_)) add(child);
  if (const auto parent = ParentOf(place_)) add(*parent);
  return ranks;
}

void JobChannel::Send(int rank, const WireWriter& writer) {
  // If this fails, reading from the link gives the error.
  (void)around_.mux->Send(kNumber, rank, writer.bytes());
}

// Another process of the host may have just said that its last rank has left.
void JobChannel::SendToHost(uint32_t place, const WireWriter& writer) {
  if (const auto speaker = SpeakerOf(place)) Send(*speaker, writer);
}

void JobChannel::SendToNextHosts(const WireWriter& writer, int except_host) {
  for (const int rank : NextHosts()) {
    if (host_of_[rank] != except_host) Send(rank, writer);
  }
}

void JobChannel::Progress() {
  if (!PassesOn()) return;
  for (const int rank : around_.directory->Wanted(wanted_seen_)) AskForAddress(rank);
  PassOnDepartures(around_.rank, {});
}

// Of all ranks: one that does not speak for the host may have put them into the directory. A host
// that was not next to this one, or for which another rank spoke, may have missed the earlier ones.
void JobChannel::PassOnDepartures(int source, const std::vector<Departure>& told) {
  const std::vector<Departure> fresh = around_.directory->DeparturesSince(departures_seen_);
  if (fresh.empty()) return;
  const bool only_told = std::ranges::all_of(
      fresh, [&](const Departure& each) { return std::ranges::find(told, each) != told.end(); });
  const WireWriter news = Pack(fresh);
  const std::vector<int> next = NextHosts();
  for (const int rank : next) {
    if (std::ranges::find(were_next_, rank) == were_next_.end()) {
      uint64_t from_the_first = 0;
      Send(rank, Pack(around_.directory->DeparturesSince(from_the_first)));
    } else if (!only_told || host_of_[rank] != host_of_[source]) {
      Send(rank, news);
    }
  }
  were_next_ = next;
  const std::optional<uint32_t> root = RootPlace();
  if (root && std::exchange(root_told_, *root) != *root) TellAddress(*root);
}

// Aborts and departures.

void JobChannel::TellAbort(const Error& error) {
  if (abort_told_.load(std::memory_order_relaxed)) return;
  const int64_t now = NowNs();
  int64_t seen = 0;
  const bool first = abort_seen_ns_.compare_exchange_strong(seen, now);
  const bool told = AbortTold();
  // The rank that speaks for this host may have died, or be stopped: then another one tells the
  // other hosts.
  const bool late = !first && now - seen > kAbortIsTold;
  const bool tells = Speaks() || (!told && (late || LostSpeaker(error)));
  WireWriter writer = Begin(JobMessage::kAbort);
  Put(writer, error);
  std::set<int> ranks;
  if (first) {
    for (const int rank : around_.mux->peers()) ranks.insert(rank);
  }
  if (tells) {
    for (const int rank : NextHosts()) ranks.insert(rank);
  }
  for (const int rank : ranks) Send(rank, writer);
  if (tells) around_.directory->SetAbortTold();
  if (tells || told) abort_told_.store(true, std::memory_order_relaxed);
}

void JobChannel::LeaveGroup(uint32_t group) {
  (void)around_.directory->PutDeparture({group, around_.rank});
  around_.ring_host();
}

bool JobChannel::SpeaksForOthers() const {
  return Speaks() && std::ranges::any_of(around_.locals, [this](int rank) {
           return rank != around_.rank && !HasLeft(rank);
         });
}

void JobChannel::Depart() {
  farewell_ = Speaks() ? Farewell::kSaid : Farewell::kNone;
  (void)around_.directory->PutDeparture({Departure::kJob, around_.rank});
  around_.ring_host();
  // Ranks with a link to this one must know before the link closes.
  const WireWriter told = Pack(HostsDepartures());
  for (const int rank : around_.mux->peers()) Send(rank, told);
  if (farewell_ == Farewell::kNone && SpeakerOf(place_)) return;
  // The last rank of a host tells of all, too: the one that spoke before may not have seen them.
  farewell_ = Farewell::kSaid;
  TellAddress(place_);
  SendToNextHosts(told, kNoHost);
  PassOnDepartures(around_.rank, {});
  HandOverAddresses();
}

std::vector<Departure> JobChannel::HostsDepartures() const {
  std::vector<Departure> departures;
  for (const int rank : around_.locals) {
    if (HasLeft(rank)) departures.push_back({Departure::kJob, rank});
  }
  if (SpeakerOf(place_)) return departures;
  uint64_t from_the_first = 0;
  for (const Departure& each : around_.directory->DeparturesSince(from_the_first)) {
    if (each.group != Departure::kJob && std::ranges::binary_search(around_.locals, each.rank))
      departures.push_back(each);
  }
  return departures;
}

// A host that leaves at the same time may close without reading: then the next one is told.
bool JobChannel::AwaitsFarewell() {
  if (farewell_ == Farewell::kNone) return around_.mux->HasUnsent();
  if (farewell_ == Farewell::kHeard) return false;
  const std::vector<int> next = NextHosts();
  if (next.empty()) return false;
  const int before = std::exchange(farewell_to_, next.back());
  if (before != farewell_to_) {
    if (before >= 0) HandOverAddresses();
    Send(farewell_to_, Begin(JobMessage::kFarewell));
    return true;
  }
  // The link is there, or being made; otherwise that host has left as well, or nobody is left who
  // knows its address.
  const std::vector<int> peers = around_.mux->peers();
  if (std::ranges::find(peers, farewell_to_) != peers.end()) return true;
  return around_.mux->HasUnsent() && (!peers.empty() || around_.directory->Knows(farewell_to_));
}

void JobChannel::OnDepartures(int source, const std::vector<Departure>& departures) {
  bool fresh = false;
  for (const Departure& each : departures) fresh |= around_.directory->PutDeparture(each);
  if (fresh) around_.ring_host();
  if (PassesOn()) PassOnDepartures(source, departures);
}

void JobChannel::AnswerFarewell(int source) {
  if (Speaks()) return Send(source, Begin(JobMessage::kFarewellHeard));
  if (HasLeft(around_.rank)) Send(source, Pack(HostsDepartures()));
}

// Addresses: a question climbs the tree until a host knows the answer.

void JobChannel::TellAddress(uint32_t place) {
  const std::optional<int> speaker = SpeakerOf(place);
  if (!speaker || !around_.directory->Knows(*speaker)) return;
  if (const auto addresses = around_.directory->Find(*speaker))
    SendToNextHosts(PackAddress(*speaker, addresses->Pack()), kNoHost);
}

// The root leaves. The next root is asked for addresses from now on; it, and those that follow it,
// may leave at once, and are next to hosts that do not know their addresses.
void JobChannel::HandOverAddresses() {
  const std::optional<uint32_t> root = RootPlace();
  const std::optional<int> speaker = root ? SpeakerOf(*root) : std::nullopt;
  if (!speaker || *root <= place_) return;
  for (uint32_t place = *root; place < std::min(order_.hosts(), *root + kRootsKnown); ++place)
    TellAddress(place);
  for (int rank = 0; rank < std::ssize(host_of_); ++rank) {
    if (rank == *speaker || HasLeft(rank) || !around_.directory->Knows(rank)) continue;
    if (const auto addresses = around_.directory->Find(rank))
      Send(*speaker, PackAddress(rank, addresses->Pack()));
  }
}

void JobChannel::AskForAddress(int rank) {
  WireWriter writer = Begin(JobMessage::kAskAddress);
  writer.Put(static_cast<int32_t>(rank));
  const std::optional<uint32_t> parent = ParentOf(place_);
  if (!around_.directory->Knows(rank) && parent) SendToHost(*parent, writer);
}

void JobChannel::OnAddressAsked(int source, int rank) {
  if (around_.directory->Knows(rank)) {
    if (const auto known = around_.directory->Find(rank))
      Send(source, PackAddress(rank, known->Pack()));
    return;
  }
  std::vector<int>& waiting = asked_[rank];
  if (std::ranges::find(waiting, source) == waiting.end()) waiting.push_back(source);
  AskForAddress(rank);
}

void JobChannel::OnAddress(int rank, const std::string& packed) {
  if (const auto addresses = RankAddresses::Unpack(packed))
    around_.directory->Put(rank, *addresses);
  around_.ring_host();
  const auto asked = asked_.find(rank);
  if (asked == asked_.end()) return;
  for (const int source : asked->second) Send(source, PackAddress(rank, packed));
  asked_.erase(asked);
}

// Heartbeats.

std::vector<int> JobChannel::watched() const {
  if (!Speaks()) return {};
  std::vector<int> ranks = NextHosts();
  const std::optional<uint32_t> parent = ParentOf(place_);
  const auto grandparent = parent ? ParentOf(*parent) : std::nullopt;
  const auto speaker = grandparent ? SpeakerOf(*grandparent) : std::nullopt;
  if (speaker) ranks.push_back(*speaker);
  return ranks;
}

int64_t JobChannel::heard_ns(int rank) const {
  std::lock_guard lock(heard_mutex_);
  const auto found = heard_ns_.find(rank);
  return found == heard_ns_.end() ? 0 : found->second;
}

void JobChannel::TellBeat() {
  if (!Speaks()) return;
  std::vector<int> watchers = NextHosts();
  for (const uint32_t child : ChildrenOf(place_)) {
    for (const uint32_t below : ChildrenOf(child)) {
      if (const auto speaker = SpeakerOf(below)) watchers.push_back(*speaker);
    }
  }
  for (const int rank : watchers) Send(rank, Begin(JobMessage::kBeat));
}

void JobChannel::TellSilence(int rank, bool silent) { SetSilent(rank, silent, host_of_[rank]); }

void JobChannel::SetSilent(int rank, bool silent, int except_host) {
  if (around_.directory->IsSilent(rank) == silent) return;
  around_.directory->SetSilent(rank, silent);
  if (!Speaks()) return;
  WireWriter writer = Begin(JobMessage::kSilence);
  writer.Put(static_cast<int32_t>(rank));
  writer.Put(static_cast<uint8_t>(silent ? 1 : 0));
  SendToNextHosts(writer, except_host);
}

// Not beyond a host that is on this one's own way to the root.
std::optional<int> JobChannel::SilentOnTheWay(int rank) const {
  std::set<uint32_t> own_way{place_};
  for (auto place = ParentOf(place_); place; place = ParentOf(*place)) own_way.insert(*place);
  for (std::optional<uint32_t> place = order_.PlaceOf(static_cast<uint32_t>(rank));
       place && !own_way.contains(*place); place = ParentOf(*place)) {
    const auto speaker = SpeakerOf(*place);
    if (speaker && *speaker != rank && around_.directory->IsSilent(*speaker)) return speaker;
  }
  return std::nullopt;
}

// Questions, directly between the rank that asks and the rank that is asked.

RankQuestions::Surroundings JobChannel::AroundQuestions() {
  RankQuestions::Surroundings around;
  around.ask = [this](int rank, RankQuestion question, const ReadingScope& scope) {
    const bool stack = question == RankQuestion::kStack;
    WireWriter writer = Begin(stack ? JobMessage::kWhereAreYou : JobMessage::kHowAreYou);
    if (!stack) Put(writer, scope);
    Send(rank, writer);
  };
  around.answer = [this](int rank, RankQuestion question, const std::string& text) {
    const bool stack = question == RankQuestion::kStack;
    WireWriter writer = Begin(stack ? JobMessage::kHere : JobMessage::kSo);
    writer.Put(std::string_view(text));
    Send(rank, writer);
  };
  around.stack = around_.stack;
  around.reading = around_.reading;
  around.wake_coordinator = around_.wake_coordinator;
  return around;
}

Status JobChannel::OnMessage(int source, std::span<const std::byte> payload) {
  WireReader reader(payload);
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < std::ssize(host_of_); };
  const auto kind = static_cast<JobMessage>(reader.Get<uint8_t>());
  switch (kind) {
    case JobMessage::kAbort: {
      const Error error = GetError(reader);
      if (!reader.ok() || error.kind == ErrorKind::kOk) return Damaged(source);
      around_.aborted(error);
      return {};
    }
    case JobMessage::kDepartures: {
      std::vector<Departure> departures(
          reader.GetCount(sizeof(Departure::group) + sizeof(int32_t)));
      for (Departure& each : departures) {
        each.group = reader.Get<uint32_t>();
        each.rank = reader.Get<int32_t>();
        if (!is_rank(each.rank)) reader.Fail();
      }
      if (!reader.ok()) return Damaged(source);
      OnDepartures(source, departures);
      return {};
    }
    case JobMessage::kFarewell: {
      AnswerFarewell(source);
      return {};
    }
    case JobMessage::kFarewellHeard: {
      farewell_ = Farewell::kHeard;
      return {};
    }
    case JobMessage::kBeat: {
      std::lock_guard lock(heard_mutex_);
      heard_ns_[source] = NowNs();
      return {};
    }
    case JobMessage::kWhereAreYou: {
      questions_.OnQuestion(source, RankQuestion::kStack, {});
      return {};
    }
    case JobMessage::kHowAreYou: {
      const ReadingScope scope = GetReadingScope(reader);
      if (!reader.ok()) return Damaged(source);
      questions_.OnQuestion(source, RankQuestion::kReading, scope);
      return {};
    }
    case JobMessage::kHere:
    case JobMessage::kSo: {
      const bool stack = kind == JobMessage::kHere;
      std::string text = reader.GetText();
      if (!reader.ok()) return Damaged(source);
      if (text.size() > 2 * kMostReading) text.clear();  // counts as no answer, and ends no job
      questions_.OnAnswer(source, stack ? RankQuestion::kStack : RankQuestion::kReading,
                          std::move(text));
      return {};
    }
    case JobMessage::kAskAddress: {
      const auto rank = reader.Get<int32_t>();
      if (!reader.ok() || !is_rank(rank)) return Damaged(source);
      OnAddressAsked(source, rank);
      return {};
    }
    case JobMessage::kAddress: {
      const auto rank = reader.Get<int32_t>();
      const std::string packed = reader.GetText();
      if (!reader.ok() || !is_rank(rank)) return Damaged(source);
      OnAddress(rank, packed);
      return {};
    }
    case JobMessage::kSilence: {
      const auto rank = reader.Get<int32_t>();
      const bool silent = reader.Get<uint8_t>() != 0;
      if (!reader.ok() || !is_rank(rank)) return Damaged(source);
      SetSilent(rank, silent, host_of_[source]);
      return {};
    }
  }
  return Damaged(source);
}

}  // namespace horoacc
