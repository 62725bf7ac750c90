#include <utility>

#include "transport/data/tagged/tagged_links.h"

namespace horoacc {

std::unique_ptr<DataLinks> MakeMpiDataLinks(std::shared_ptr<MpiSession> session, uint64_t epoch) {
  TaggedCarrier carrier;
  carrier.calls = MpiSession::TaggedCalls();
  carrier.self = session.get();
  carrier.rank = session->rank();
  carrier.size = session->size();
  carrier.most_tag = session->most_tag();
  carrier.kind = "mpi";
  carrier.epoch = epoch;
  carrier.owner = std::move(session);
  return MakeTaggedLinks(std::move(carrier));
}

}  // namespace horoacc
