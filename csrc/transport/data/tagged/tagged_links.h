#pragma once
// Data links over a carrier of tagged messages: MPI, or a transport from a shared library.
//
// The receiving end of a link chooses a tag that is free between the two ranks and sends it to the
// sending end (a grant). So a message cannot be taken for one of another link, however many
// collectives are in flight, and no message is sent without a receiver. Credits are sent the same
// way. Both are notices of a fixed size with tag kNoticeTag.
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/data/data_links.h"
#include "transport/data/tagged/transport_plugin.h"

namespace horoacc {

/// One rank's end of the transport that carries the messages.
struct TaggedCarrier {
  static constexpr uint32_t kNoticeTag = 3;  ///< mpi_plugin.h has the tags below
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

/// Data links over a carrier. MPI cannot keep the contract's promise for memory after Abort: it can
/// neither recall nor end a message in flight, so posted memory must stay until MPI is abandoned.
[[nodiscard]] std::unique_ptr<DataLinks> MakeTaggedLinks(TaggedCarrier carrier);

/// Data links over a transport from a shared library (transport_plugin.h). All ranks call it with
/// the same library. kConfig if the library cannot be loaded, is no transport or of another
/// version, or if a rank cannot open it.
Result<std::unique_ptr<DataLinks>> LoadDataLinks(Bootstrap& bootstrap, const std::string& path,
                                                 uint64_t epoch, int64_t deadline_ns);

}  // namespace horoacc
