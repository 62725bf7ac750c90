#include "transport/memory/fd_passing.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "transport/net/socket.h"

namespace horoacc {
namespace {

/// The descriptors are sent with these bytes, which fit in any buffer and so are never cut.
struct Note {
  uint32_t number;
  uint32_t count;
};

union ControlBuffer {
  char bytes[CMSG_SPACE(kMostFds * sizeof(int))];
  cmsghdr align;
};

}  // namespace

Status SendFds(int socket, uint32_t number, std::span<const int> fds, int64_t deadline_ns) {
  if (fds.size() > kMostFds) return MakeError(ErrorKind::kInvalid, "too many descriptors at once");
  Note note{number, static_cast<uint32_t>(fds.size())};
  iovec bytes{&note, sizeof(note)};
  ControlBuffer control = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  }
  while (true) {
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(sizeof(note))) return {};
    if (sent >= 0) return MakeError(ErrorKind::kSystem, "a Unix socket cut a message of 8 bytes");
    if (errno == EINTR) continue;
    if (WouldBlock()) {
      HA_TRY(WaitReady(socket, POLLOUT, deadline_ns));
      continue;
    }
    // The kernel limits a user's descriptors in transit: other processes must receive first.
    if (errno != ETOOMANYREFS || NowNs() >= deadline_ns) return SystemError("sendmsg");
    ::poll(nullptr, 0, 2);
  }
}

Result<PassedFds> ReceiveFds(int socket, int64_t deadline_ns) {
  Note note = {};
  iovec bytes{&note, sizeof(note)};
  ControlBuffer control = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t got = 0;
  while ((got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) continue;
    if (!WouldBlock()) return SystemError("recvmsg");
    HA_TRY(WaitReady(socket, POLLIN, deadline_ns));
  }
  PassedFds passed;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t index = 0; index < count; ++index) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + index * sizeof(int), sizeof(int));
      passed.fds.emplace_back(fd);
    }
  }
  if (got == 0) return MakeError(ErrorKind::kPeerLost, "the other end closed");
  // Also if this process is out of descriptors: the kernel drops those that do not fit.
  if (got != static_cast<ssize_t>(sizeof(note)) || passed.fds.size() != note.count) {
    return MakeError(ErrorKind::kSystem, "expected " + std::to_string(note.count) +
                                             " descriptors and got " +
                                             std::to_string(passed.fds.size()));
  }
  passed.number = note.number;
  return passed;
}

}  // namespace horoacc
