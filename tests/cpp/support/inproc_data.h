#pragma once
// Data links between ranks that are threads of one process, for tests: a network that delays, and
// now and then copies, as real ones do.
#include <cstdint>
#include <memory>

#include "base/result.h"
#include "transport/data/data_links.h"

namespace horoacc {

/// How the links behave. Every choice is drawn from the seed, for each rank on its own.
struct InprocDataOptions {
  uint32_t seed = 1;
  /// A message may be held back for up to so many looks at it; 0: none is. Those of one link stay
  /// in order, links overtake each other.
  uint32_t longest_delay = 0;
  /// Messages are put where Expect said, or lie in memory of the link, as from a socket; otherwise
  /// they are shown where the sender has them.
  bool network = true;
};

/// Joins the ranks. What a rank posts is read by its peers' threads until they take it or their
/// links are gone: after an Abort or a lost peer it must stay until all threads have stopped.
class InprocDataHub {
 public:
  static Result<std::shared_ptr<InprocDataHub>> Create(int size, const InprocDataOptions& options);
  ~InprocDataHub();
  /// Peers that still have a link to the rank learn of its end (kPeerLost).
  [[nodiscard]] std::unique_ptr<DataLinks> MakeLinks(int rank);
  /// What one rank has posted to another so far.
  [[nodiscard]] uint64_t BytesBetween(int sender, int receiver) const;

 private:
  struct State;
  class Links;
  class Sender;
  class Receiver;
  explicit InprocDataHub(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace horoacc
