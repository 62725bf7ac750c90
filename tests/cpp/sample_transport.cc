// A transport as a shared library: the sample of csrc/transport/transport_plugin.h. Its network is
// the memory of one process, whose threads are the ranks; a copy is made when a message and its
// place have both come.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/transport_plugin.h"

namespace {

struct Endpoint;

/// A message, or a place for one.
struct Request {
  Request(Endpoint* by, const ha_piece* first, size_t count)
      : owner(by), pieces(first, first + count) {}

  Endpoint* owner;
  std::vector<ha_piece> pieces;
  bool done = false;
  size_t bytes = 0;
};

using Shared = std::shared_ptr<Request>;

struct Lane {
  std::deque<Shared> messages;
  std::deque<Shared> places;
};

struct Endpoint {
  int rank = 0;
  std::vector<Endpoint*> peers;
  std::map<std::pair<int, uint32_t>, Lane> lanes;  ///< to here, by source and tag
  std::map<const void*, Shared> requests;          ///< that the core has not seen done
  int news = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  size_t untold = 0;  ///< requests that are done and not tested
};

/// The network: one process has one.
std::mutex& Network() {
  static std::mutex network;
  return network;
}

size_t Length(const std::vector<ha_piece>& pieces) {
  size_t bytes = 0;
  for (const ha_piece& piece : pieces) bytes += piece.count;
  return bytes;
}

void Copy(const std::vector<ha_piece>& from, const std::vector<ha_piece>& to) {
  size_t target = 0;
  size_t at = 0;
  for (const ha_piece& piece : from) {
    for (size_t done = 0; done < piece.count;) {
      while (target < to.size() && at == to[target].count) {
        ++target;
        at = 0;
      }
      if (target == to.size()) return;
      const size_t part = std::min(piece.count - done, to[target].count - at);
      std::memcpy(static_cast<char*>(to[target].bytes) + at,
                  static_cast<const char*>(piece.bytes) + done, part);
      done += part;
      at += part;
    }
  }
}

void Tell(Request& request) {
  request.done = true;
  if (request.owner->untold++ == 0) ::eventfd_write(request.owner->news, 1);
}

void Match(Lane& lane) {
  while (!lane.messages.empty() && !lane.places.empty()) {
    const Shared message = std::move(lane.messages.front());
    const Shared place = std::move(lane.places.front());
    lane.messages.pop_front();
    lane.places.pop_front();
    Copy(message->pieces, place->pieces);
    const size_t bytes = Length(message->pieces);
    place->bytes = bytes > Length(place->pieces) ? HA_TRANSPORT_TOO_LONG : bytes;
    Tell(*message);
    Tell(*place);
  }
}

int Open(void** self, int rank, int size, ha_transport_error* error) {
  if (size > 1000) {
    std::snprintf(error->message, sizeof(error->message), "%d ranks are too many", size);
    return -1;
  }
  auto own = std::make_unique<Endpoint>();
  own->rank = rank;
  own->peers.resize(static_cast<size_t>(size));
  *self = own.release();
  return 0;
}

int Address(void* self, void* bytes, size_t room, size_t* count, ha_transport_error*) {
  *count = std::min(room, sizeof(self));
  std::memcpy(bytes, &self, *count);
  return 0;
}

int Connect(void* self, const ha_piece* addresses, ha_transport_error*) {
  auto& peers = static_cast<Endpoint*>(self)->peers;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    std::memcpy(&peers[rank], addresses[rank].bytes, sizeof(Endpoint*));
  }
  return 0;
}

int Send(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count, void** request,
         ha_transport_error*) {
  const std::lock_guard lock(Network());
  auto* const own = static_cast<Endpoint*>(self);
  const auto message = std::make_shared<Request>(own, pieces, count);
  Lane& lane = own->peers[static_cast<size_t>(peer)]->lanes[{own->rank, tag}];
  lane.messages.push_back(message);
  own->requests[message.get()] = message;
  *request = message.get();
  Match(lane);
  return 0;
}

int Receive(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
            void** request, ha_transport_error*) {
  const std::lock_guard lock(Network());
  auto* const own = static_cast<Endpoint*>(self);
  const auto place = std::make_shared<Request>(own, pieces, count);
  Lane& lane = own->lanes[{peer, tag}];
  lane.places.push_back(place);
  own->requests[place.get()] = place;
  *request = place.get();
  Match(lane);
  return 0;
}

void Forget(Request* request) {
  Endpoint& owner = *request->owner;
  eventfd_t count = 0;
  if (request->done && --owner.untold == 0) ::eventfd_read(owner.news, &count);
  owner.requests.erase(request);
}

int Test(void*, void* request, int* done, size_t* bytes, ha_transport_error*) {
  const std::lock_guard lock(Network());
  auto* const own = static_cast<Request*>(request);
  *done = own->done ? 1 : 0;
  *bytes = own->bytes;
  if (own->done) Forget(own);
  return 0;
}

void Cancel(void* self, void* request) {
  const std::lock_guard lock(Network());
  auto* const own = static_cast<Request*>(request);
  for (auto& [key, lane] : static_cast<Endpoint*>(self)->lanes) {
    std::erase_if(lane.places, [own](const Shared& place) { return place.get() == own; });
  }
  Forget(own);
}

int WaitFd(void* self) { return static_cast<Endpoint*>(self)->news; }

void Close(void* self, int /*abandon*/) {
  const std::lock_guard lock(Network());
  auto* const own = static_cast<Endpoint*>(self);
  ::close(own->news);
  delete own;
}

constexpr ha_transport_plugin kPlugin = {
    .version = HA_TRANSPORT_PLUGIN_VERSION,
    .name = "sample",
    .most_tag = 1 << 20,
    .open = Open,
    .address = Address,
    .connect = Connect,
    .calls = {.send = Send, .receive = Receive, .test = Test, .cancel = Cancel},
    .wait_fd = WaitFd,
    .close = Close,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ha_transport_plugin*
horoacc_transport_plugin_v1(void) {
  return &kPlugin;
}
