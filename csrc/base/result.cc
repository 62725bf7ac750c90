#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace horoacc {

Error SystemError(const std::string& call) {
  const int code = errno;
  return MakeError(ErrorKind::kSystem, call + ": " + std::strerror(code));
}

std::string HintOf(const Error& error) {
  const std::string rank = error.culprit < 0 ? std::string("the rank at fault")
                                             : "rank " + std::to_string(error.culprit);
  const std::string there = rank + (error.host.empty() ? "" : " on host " + error.host);
  switch (error.kind) {
    case ErrorKind::kOk:
      return "";
    case ErrorKind::kMismatch:
      return "compare what " + there +
             " and the others pass for this tensor, and the order of their calls";
    case ErrorKind::kInvalid:
      return "look at this call's arguments on " + there;
    case ErrorKind::kPeerLost:
      return "look at the last lines that " + there +
             " wrote to stderr, at that machine's log for a process killed for its memory, and at "
             "the network between if it lives";
    case ErrorKind::kTimeout:
      return "look at what " + there +
             " was doing: at its Python stack in the stall's warning, or with horoaccrun explain "
             "in the records of HOROACC_FLIGHT_DIR";
    case ErrorKind::kAborted:
      return "look at why " + there + " left while this call was waiting";
    case ErrorKind::kConfig:
      return "compare the environment of " + there + " with the page on settings";
    case ErrorKind::kSystem:
      return "look at the limits of " + there + ": memory, shared memory, open files";
    case ErrorKind::kUnsupported:
      return "use another operation or another type for this tensor";
  }
  return "";
}

}  // namespace horoacc
