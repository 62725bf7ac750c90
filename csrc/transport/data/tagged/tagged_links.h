#pragma once
// Data links over whatever carries tagged messages: MPI, or a transport from a shared library.
//
// The receiving end of a link chooses a tag that is free between the two ranks and tells the
// sending end (a grant); so a message can only be taken for one of its own link, however many
// collectives are under way, and nothing is sent that nobody will receive. Credits go back the same
// way. Both are notices of a fixed size with tag kNoticeTag.
#include <cstdint>
#include <memory>
#include <string>

#include "transport/data/data_links.h"
#include "transport/data/tagged/transport_plugin.h"
#include "transport/mpi/mpi_session.h"

namespace horoacc {

/// One rank's end of what carries the messages.
struct TaggedCarrier {
  static constexpr uint32_t kNoticeTag = 3;  ///< below are those of mpi_plugin.h
  static constexpr uint32_t kFirstTag = 16;

  ha_tagged_calls calls{};
  void* self = nullptr;
  int rank = 0;
  int size = 1;
  uint32_t most_tag = 32767;
  int wait_fd = -1;
  std::string kind;
  uint64_t epoch = 0;
  std::shared_ptr<void> owner;  ///< kept as long as the links
};

/// Data links over it. What the contract promises of memory after Abort holds as far as the carrier
/// keeps it: over MPI a message that is on its way can be neither recalled nor cut off, so memory
/// that was posted must stay until MPI is left for good.
[[nodiscard]] std::unique_ptr<DataLinks> MakeTaggedLinks(TaggedCarrier carrier);

/// Data links over MPI. After an abort the session is to be abandoned.
[[nodiscard]] std::unique_ptr<DataLinks> MakeMpiDataLinks(std::shared_ptr<MpiSession> session,
                                                          uint64_t epoch);

}  // namespace horoacc
