// A transport as a shared library: the sample of csrc/transport/data/tagged/transport_plugin.h,
// which carries the data of a job over TCP, one connection for each pair of ranks.
//
//   c++ -std=c++20 -shared -fPIC -I csrc tests/cpp/transport/sample_transport.cc -o sample.so
//   horoaccrun --transport-plugin $PWD/sample.so ...
//
// SAMPLE_TRANSPORT_ADDRESS is where a rank listens, by default on the loopback.
// SAMPLE_TRANSPORT_FAILS=open:1 (or send:1) makes rank 1 fail there, for tests.
// SAMPLE_TRANSPORT_TELLS=1 tells on standard error what was sent, when a rank closes it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/data/tagged/transport_plugin.h"

namespace {

/// Where a rank listens, and a number that only ranks of the job know.
struct WireAddress {
  sockaddr_in where{};
  uint64_t secret = 0;
};

/// What a caller says first, and what goes before every message.
struct Hello {
  uint64_t secret = 0;
  int64_t rank = -1;
};
struct Head {
  uint64_t tag = 0;
  uint64_t bytes = 0;
};

/// A message that is on its way, or a place for one.
struct Request {
  int peer = -1;
  std::vector<ha_piece> pieces;
  bool done = false;
  size_t bytes = 0;
};

/// Messages of one tag that wait for places, or places that wait for messages.
struct Lane {
  std::deque<std::string> messages;
  std::deque<Request*> places;
};

struct Peer {
  int socket = -1;
  bool met = false;   ///< bytes have passed
  bool lost = false;  ///< it could not be reached
  bool watched_for_room = false;
  std::string out, in;  ///< bytes that the kernel has not taken, and parts of messages
  std::map<uint64_t, Lane> lanes;
};

/// A connection that has not said yet whose it is.
struct Unproved {
  int socket = -1;
  Hello hello{};
  size_t got = 0;
};

bool WouldBlock() { return errno == EAGAIN || errno == EINTR || errno == ENOTCONN; }

template <typename T>
void Append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// One rank. Messages are copied on both sides, which a transport for more than tests avoids.
class Endpoint {
 public:
  Endpoint(int rank, int size) : rank_(rank), peers_(static_cast<size_t>(size)) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint() {
    if (std::getenv("SAMPLE_TRANSPORT_TELLS") != nullptr) {
      std::fprintf(stderr, "sample transport: rank %d sent %zu bytes\n", rank_, sent_);
    }
    for (const Peer& peer : peers_) ::close(peer.socket);
    for (const Unproved& peer : unproved_) ::close(peer.socket);
    for (const int fd : {listener_, news_, epoll_}) ::close(fd);
  }

  [[nodiscard]] int wait_fd() const { return epoll_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const WireAddress& address() const { return address_; }

  bool Listen() {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    news_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const char* const given = std::getenv("SAMPLE_TRANSPORT_ADDRESS");
    sockaddr_in& where = address_.where;
    where.sin_family = AF_INET;
    socklen_t length = sizeof(where);
    auto* const name = reinterpret_cast<sockaddr*>(&where);
    if (::inet_pton(AF_INET, given ? given : "127.0.0.1", &where.sin_addr) != 1) {
      errno = EINVAL;
      return false;
    }
    return ::bind(listener_, name, length) == 0 && ::listen(listener_, 128) == 0 &&
           ::getsockname(listener_, name, &length) == 0 &&
           ::getrandom(&address_.secret, sizeof(address_.secret), 0) == sizeof(address_.secret) &&
           Watch(listener_, EPOLL_CTL_ADD, false) && Watch(news_, EPOLL_CTL_ADD, false);
  }

  /// Ranks call those below them.
  bool Call(const ha_piece* addresses) {
    for (int lower = 0; lower < rank_; ++lower) {
      WireAddress there;
      errno = EPROTO;
      if (addresses[lower].count != sizeof(there)) return false;
      std::memcpy(&there, addresses[lower].bytes, sizeof(there));
      Peer& peer = peers_[static_cast<size_t>(lower)];
      const int fresh = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const auto* const name = reinterpret_cast<const sockaddr*>(&there.where);
      if (::connect(fresh, name, sizeof(there.where)) != 0 && errno != EINPROGRESS) {
        ::close(fresh);
        return false;
      }
      Append(peer.out, Hello{there.secret, rank_});
      if (!Watch(fresh, EPOLL_CTL_ADD, false)) return false;
      Attach(peer, fresh);
    }
    return true;
  }

  void* Send(int to, uint32_t tag, const ha_piece* pieces, size_t count) {
    Request& request = Add(to, {});
    for (size_t k = 0; k < count; ++k) request.bytes += pieces[k].count;
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (peer.socket < 0) Accept();  // last words may be the first
    const bool left = peer.met && peer.socket < 0;
    if (!left) Append(peer.out, Head{tag, request.bytes});
    for (size_t k = 0; k < count && !left; ++k) {
      peer.out.append(static_cast<const char*>(pieces[k].bytes), pieces[k].count);
    }
    sent_ += request.bytes;
    Tell(request);
    Write(peer);
    return &request;
  }

  void* Receive(int from, uint32_t tag, const ha_piece* pieces, size_t count) {
    Request& request = Add(from, {pieces, pieces + count});
    Lane& lane = peers_[static_cast<size_t>(from)].lanes[tag];
    lane.places.push_back(&request);
    Match(lane);
    return &request;
  }

  /// False: its peer cannot be reached.
  bool Test(Request* request, int* done, size_t* bytes) {
    if (!request->done) Move();
    *done = request->done ? 1 : 0;
    *bytes = request->bytes;
    if (!request->done) return !peers_[static_cast<size_t>(request->peer)].lost;
    Forget(request);
    return true;
  }

  void Cancel(Request* request) {
    for (auto& [tag, lane] : peers_[static_cast<size_t>(request->peer)].lanes) {
      std::erase(lane.places, request);
    }
    Forget(request);
  }

 private:
  bool Watch(int fd, int how, bool for_room) const {
    epoll_event event{};
    event.events = EPOLLIN;
    if (for_room) event.events |= EPOLLOUT;
    return ::epoll_ctl(epoll_, how, fd, &event) == 0;
  }

  void Attach(Peer& peer, int socket) {
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    peer.socket = socket;
    Write(peer);
  }

  // Who has left closes its end; whether a rank has died the control links tell.
  static void End(Peer& peer) {
    peer.lost = !peer.met;
    peer.out.clear();
    ::close(std::exchange(peer.socket, -1));
  }

  Request& Add(int peer, std::vector<ha_piece> pieces) {
    auto request = std::make_unique<Request>(Request{peer, std::move(pieces)});
    Request& added = *request;
    requests_[&added] = std::move(request);
    return added;
  }
  // The descriptor is readable as long as something is done that the core does not know of.
  void Tell(Request& request) {
    request.done = true;
    if (untold_++ == 0) ::eventfd_write(news_, 1);
  }
  void Forget(Request* request) {
    eventfd_t count = 0;
    if (request->done && --untold_ == 0) ::eventfd_read(news_, &count);
    requests_.erase(request);
  }

  void Match(Lane& lane) {
    while (!lane.messages.empty() && !lane.places.empty()) {
      const std::string message = std::move(lane.messages.front());
      Request& place = *lane.places.front();
      lane.messages.pop_front();
      lane.places.pop_front();
      size_t at = 0;
      for (const ha_piece& piece : place.pieces) {
        at += message.copy(static_cast<char*>(piece.bytes), piece.count, at);
      }
      place.bytes = message.size();
      Tell(place);
    }
  }

  void Move() {
    Accept();
    for (Peer& peer : peers_) Write(peer);
    for (Peer& peer : peers_) Read(peer);
  }

  // Who calls must know this rank's secret and be a higher rank that has not called yet.
  void Accept() {
    for (Unproved fresh; (fresh.socket = ::accept4(listener_, nullptr, nullptr,
                                                   SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
      Watch(fresh.socket, EPOLL_CTL_ADD, false);
      unproved_.push_back(fresh);
    }
    unproved_.remove_if([this](Unproved& peer) {
      char* const at = reinterpret_cast<char*>(&peer.hello) + peer.got;
      const ssize_t got = ::recv(peer.socket, at, sizeof(Hello) - peer.got, 0);
      if (got < 0 && WouldBlock()) return false;
      peer.got += static_cast<size_t>(std::max<ssize_t>(got, 0));
      if (got > 0 && peer.got < sizeof(Hello)) return false;
      const int64_t rank = peer.hello.rank;
      const bool known = got > 0 && peer.hello.secret == address_.secret && rank > rank_ &&
                         rank < static_cast<int64_t>(peers_.size());
      if (known && peers_[static_cast<size_t>(rank)].socket < 0) {
        Attach(peers_[static_cast<size_t>(rank)], peer.socket);
      } else {
        ::close(peer.socket);
      }
      return true;
    });
  }

  void Write(Peer& peer) {
    if (peer.socket < 0) return;
    size_t taken = 0;
    while (taken < peer.out.size()) {
      const ssize_t sent =
          ::send(peer.socket, peer.out.data() + taken, peer.out.size() - taken, MSG_NOSIGNAL);
      if (sent < 0 && !WouldBlock()) return End(peer);
      if (sent < 0) break;
      taken += static_cast<size_t>(sent);
      peer.met = true;
    }
    peer.out.erase(0, taken);
    const bool full = !peer.out.empty();
    if (full != std::exchange(peer.watched_for_room, full)) Watch(peer.socket, EPOLL_CTL_MOD, full);
  }

  void Read(Peer& peer) {
    std::vector<char> part(1 << 18);
    while (peer.socket >= 0) {
      const ssize_t got = ::recv(peer.socket, part.data(), part.size(), 0);
      if (got < 0 && WouldBlock()) break;
      if (got <= 0) return End(peer);
      peer.met = true;
      peer.in.append(part.data(), static_cast<size_t>(got));
      TakeMessages(peer);
    }
  }

  void TakeMessages(Peer& peer) {
    size_t at = 0;
    Head head;
    while (peer.in.size() - at >= sizeof(head)) {
      std::memcpy(&head, peer.in.data() + at, sizeof(head));
      if (peer.in.size() - at - sizeof(head) < head.bytes) break;
      Lane& lane = peer.lanes[head.tag];
      lane.messages.push_back(peer.in.substr(at + sizeof(head), head.bytes));
      Match(lane);
      at += sizeof(head) + head.bytes;
    }
    peer.in.erase(0, at);
  }

  const int rank_;
  WireAddress address_;
  int epoll_ = -1, news_ = -1, listener_ = -1;
  std::vector<Peer> peers_;
  std::list<Unproved> unproved_;
  std::map<const Request*, std::unique_ptr<Request>> requests_;  ///< that were not seen done
  size_t untold_ = 0;  ///< requests that are done and not tested
  size_t sent_ = 0;
};

Endpoint* Self(void* self) { return static_cast<Endpoint*>(self); }

int Fail(ha_transport_error* error, const char* what) {
  std::snprintf(error->message, sizeof(error->message), "%s: %s", what, std::strerror(errno));
  return -1;
}

// Whether a test wants rank `rank` to fail at `where`.
bool MustFail(const char* where, int rank) {
  const char* const fault = std::getenv("SAMPLE_TRANSPORT_FAILS");
  return fault != nullptr && fault == std::string(where) + ":" + std::to_string(rank);
}

int Open(void** self, int rank, int size, ha_transport_error* error) {
  auto own = std::make_unique<Endpoint>(rank, size);
  if (MustFail("open", rank)) errno = ENODEV;
  if (MustFail("open", rank) || !own->Listen()) return Fail(error, "cannot listen");
  *self = own.release();
  return 0;
}

int Address(void* self, void* bytes, size_t room, size_t* count, ha_transport_error* /*error*/) {
  *count = std::min(room, sizeof(WireAddress));
  std::memcpy(bytes, &Self(self)->address(), *count);
  return 0;
}

int Connect(void* self, const ha_piece* addresses, ha_transport_error* error) {
  return Self(self)->Call(addresses) ? 0 : Fail(error, "cannot connect");
}

int Send(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count, void** request,
         ha_transport_error* error) {
  errno = ENETDOWN;
  if (MustFail("send", Self(self)->rank())) return Fail(error, "cannot send");
  *request = Self(self)->Send(peer, tag, pieces, count);
  return 0;
}

int Receive(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
            void** request, ha_transport_error* /*error*/) {
  *request = Self(self)->Receive(peer, tag, pieces, count);
  return 0;
}

int Test(void* self, void* request, int* done, size_t* bytes, ha_transport_error* error) {
  if (Self(self)->Test(static_cast<Request*>(request), done, bytes)) return 0;
  std::snprintf(error->message, sizeof(error->message), "it cannot be reached");
  return -1;
}

void Cancel(void* self, void* request) { Self(self)->Cancel(static_cast<Request*>(request)); }

int WaitFd(void* self) { return Self(self)->wait_fd(); }

void Close(void* self, int /*abandon*/) { delete Self(self); }

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
