#pragma once
// The descriptors 0, 1 and 2, which is where everybody reads and writes without asking.
#include <fcntl.h>
#include <unistd.h>

namespace horoacc {

/// Has those that are closed lead nowhere. Otherwise the next descriptor that is opened becomes one
/// of them, and a warning is written into a peer's connection, or into memory that is reduced.
inline void KeepStandardDescriptors() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);  // the lowest free one
  if (fd > STDERR_FILENO) ::close(fd);
}

}  // namespace horoacc
