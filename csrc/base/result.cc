#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace horoacc {

Error SystemError(const std::string& call) {
  const int code = errno;
  return MakeError(ErrorKind::kSystem, call + ": " + std::strerror(code));
}

}  // namespace horoacc
