#pragma once
// Ranks that are threads of one process: the transport of the unit tests, and of size 1.
#include <memory>
#include <vector>

#include "transport/bootstrap/bootstrap.h"
#include "transport/control/control_links.h"
#include "transport/memory/host_share.h"

namespace horoacc {

/// Joins `size` ranks in this process. Create one, give it to every rank's thread.
class InprocHub {
 public:
  static Result<std::shared_ptr<InprocHub>> Create(int size, size_t control_bytes,
                                                   size_t memory_bytes);
  ~InprocHub();
  [[nodiscard]] int size() const;
  [[nodiscard]] std::unique_ptr<Bootstrap> MakeBootstrap(int rank);
  /// Mailboxes behind a mutex, with an eventfd as WaitFd.
  [[nodiscard]] std::unique_ptr<ControlLinks> MakeControlLinks(int rank);
  /// Every rank gets the same mappings.
  [[nodiscard]] HostShare MakeHostShare(int rank);

 private:
  struct State;
  explicit InprocHub(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace horoacc
