// Messages of the control links, in the order of their sending.
#include <cstring>

#include "transport/mpi/plugin/session.h"

namespace horoacc::mpi {
namespace {

constexpr size_t kMostArriving = 32;

/// Starts to receive one message, if there is one.
int Match(ha_mpi* mpi, ha_mpi_channel channel, Inbox& inbox, bool* found, ha_mpi_error* error) {
  int flag = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  int code = MPI_Improbe(MPI_ANY_SOURCE, channel, mpi->comm, &flag, &handle, &status);
  if (code != MPI_SUCCESS) return Explain(error, "MPI_Improbe", code);
  *found = flag != 0;
  if (!*found) return 0;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  Incoming message;
  message.source = status.MPI_SOURCE;
  message.count = static_cast<size_t>(count);
  message.bytes = std::make_unique<char[]>(message.count);
  code = MPI_Imrecv(message.bytes.get(), count, MPI_BYTE, &handle, &message.request);
  if (code != MPI_SUCCESS) return Explain(error, "MPI_Imrecv", code);
  inbox.arriving.push_back(std::move(message));
  return 0;
}

}  // namespace

size_t Unsent(ha_mpi* mpi) {
  std::erase_if(mpi->outgoing, [](Outgoing& message) {
    int done = 0;
    // A failed request is done as well: the peer's death is noticed elsewhere.
    return MPI_Test(&message.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  });
  return mpi->outgoing.size();
}

int Send(ha_mpi* mpi, ha_mpi_channel channel, int peer, const void* bytes, size_t count,
         ha_mpi_error* error) {
  if (count > kLongest) return Say(error, "a message over MPI has at most 2^31 - 1 bytes");
  Unsent(mpi);
  Outgoing message;
  message.bytes = std::make_unique<char[]>(count);
  if (count > 0) std::memcpy(message.bytes.get(), bytes, count);
  const int code = MPI_Isend(message.bytes.get(), static_cast<int>(count), MPI_BYTE, peer, channel,
                             mpi->comm, &message.request);
  if (code != MPI_SUCCESS) return Explain(error, "MPI_Isend", code);
  mpi->outgoing.push_back(std::move(message));
  return 0;
}

int Receive(ha_mpi* mpi, ha_mpi_channel channel, int* source, const void** bytes, size_t* count,
            ha_mpi_error* error) {
  *source = -1;
  if (!mpi->outgoing.empty()) Unsent(mpi);
  Inbox& inbox = mpi->inbox(channel);
  for (bool found = true; found && inbox.arriving.size() < kMostArriving;) {
    if (Match(mpi, channel, inbox, &found, error) != 0) return -1;
  }
  if (inbox.arriving.empty()) return 0;
  Incoming& next = inbox.arriving.front();
  int done = 0;
  const int code = MPI_Test(&next.request, &done, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) return Explain(error, "receiving over MPI", code);
  if (done == 0) return 0;
  inbox.current = std::move(next);
  inbox.arriving.pop_front();
  *source = inbox.current.source;
  *bytes = inbox.current.bytes.get();
  *count = inbox.current.count;
  return 0;
}

}  // namespace horoacc::mpi
