#pragma once
// Shared by the files of the MPI plug-in. The functions are for the table of plugin.cc alone, and
// not visible outside of the shared object.
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "transport/mpi/mpi_plugin.h"

namespace horoacc::mpi {

inline constexpr size_t kLongest = 0x7fffffff;  ///< MPI counts in int

struct Outgoing {
  MPI_Request request = MPI_REQUEST_NULL;
  std::unique_ptr<char[]> bytes;
};

struct Incoming {
  MPI_Request request = MPI_REQUEST_NULL;
  std::unique_ptr<char[]> bytes;
  size_t count = 0;
  int source = -1;
};

/// Messages that were matched and are being received, in the order of their sending; a short one
/// behind a long one waits for it.
struct Inbox {
  std::deque<Incoming> arriving;
  Incoming current;  ///< the last result of `receive`
};

/// A message of data links. A receive starts without a matched message: MPI gets the buffer only
/// once the length is known to fit, because Open MPI writes past a buffer that is too short.
struct Tagged {
  MPI_Request request = MPI_REQUEST_NULL;
  int peer = -1;
  int tag = -1;
  bool matched = true;
  std::vector<ha_piece> place;
  size_t length = 0;
  std::unique_ptr<char[]> aside;  ///< for a message that does not fit
};

/// Fills in the error's text, and returns -1.
int Explain(ha_mpi_error* error, const char* what, int code);
int Explain(ha_transport_error* error, const char* what, int code);
int Say(ha_mpi_error* error, const char* what);

// Messages of the control links.
int Send(ha_mpi* mpi, ha_mpi_channel channel, int peer, const void* bytes, size_t count,
         ha_mpi_error* error);
int Receive(ha_mpi* mpi, ha_mpi_channel channel, int* source, const void** bytes, size_t* count,
            ha_mpi_error* error);
size_t Unsent(ha_mpi* mpi);

// Messages of the data links; `self` is the ha_mpi.
int TaggedSend(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
               void** request, ha_transport_error* error);
int TaggedReceive(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
                  void** request, ha_transport_error* error);
int TaggedTest(void* self, void* request, int* done, size_t* bytes, ha_transport_error* error);
void TaggedCancel(void* self, void* request);
uint32_t MostTag(const ha_mpi* mpi);

}  // namespace horoacc::mpi

struct ha_mpi {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request joining = MPI_REQUEST_NULL;
  int rank = 0;
  int size = 1;
  ha_mpi_threads threads = HA_MPI_SINGLE;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  std::deque<horoacc::mpi::Outgoing> outgoing;
  horoacc::mpi::Inbox inboxes[2];
  std::map<std::pair<int, int>, std::deque<horoacc::mpi::Tagged*>>
      places;  ///< unmatched, by peer and tag

  horoacc::mpi::Inbox& inbox(ha_mpi_channel channel) { return inboxes[channel == HA_MPI_CONTROL]; }
};
