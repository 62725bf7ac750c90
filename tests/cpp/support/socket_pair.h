#pragma once
// Two sockets of this process that are connected and do not block.
#include <sys/socket.h>

#include "support/check.h"
#include "transport/net/fd.h"

struct SocketPair {
  SocketPair() {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    near = horoacc::Fd(ends[0]);
    far = horoacc::Fd(ends[1]);
  }
  horoacc::Fd near;
  horoacc::Fd far;
};
