#pragma once
// The C contract between the core and its MPI plug-in. The plug-in is compiled once for every MPI
// ABI (Open MPI, MPICH) and loaded after its libmpi; the core itself knows nothing of MPI. No
// function blocks, apart from `open` (MPI_Init_thread) and `finalize`.
#include <stddef.h>
#include <stdint.h>

#include "transport/data/tagged/transport_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HA_MPI_PLUGIN_VERSION 2u
#define HA_MPI_PLUGIN_SYMBOL "horoacc_mpi_plugin_v2"

/* One connection to MPI, with a communicator of its own. One thread at a time. */
typedef struct ha_mpi ha_mpi;

typedef struct {
  char message[512];
} ha_mpi_error;

typedef enum {
  HA_MPI_SINGLE = 0,
  HA_MPI_FUNNELED = 1,
  HA_MPI_SERIALIZED = 2,
  HA_MPI_MULTIPLE = 3
} ha_mpi_threads;

/* Messages of different channels do not mix. */
typedef enum { HA_MPI_BOOTSTRAP = 1, HA_MPI_CONTROL = 2 } ha_mpi_channel;

typedef struct {
  uint32_t version;    /* HA_MPI_PLUGIN_VERSION */
  const char* flavour; /* "openmpi" or "mpich": the ABI it was compiled for */

  /* Initialises MPI unless it is. Functions that return int: 0 is success, -1 fills *error. */
  int (*open)(ha_mpi** mpi, ha_mpi_error* error);
  /* Duplicates MPI_COMM_WORLD without blocking; all ranks call it until *ready is 1. Messages work
   * only after that. */
  int (*join)(ha_mpi* mpi, int* ready, ha_mpi_error* error);
  int (*rank)(const ha_mpi* mpi);
  int (*size)(const ha_mpi* mpi);
  /* The thread level that MPI was initialised with. */
  ha_mpi_threads (*threads)(const ha_mpi* mpi);
  const char* (*library_version)(const ha_mpi* mpi);

  /* Copies the bytes. */
  int (*send)(ha_mpi* mpi, ha_mpi_channel channel, int peer, const void* bytes, size_t count,
              ha_mpi_error* error);
  /* The next message of the channel: *source is its rank, or -1 if there is none. *bytes stay
   * valid until the next call for this channel. */
  int (*receive)(ha_mpi* mpi, ha_mpi_channel channel, int* source, const void** bytes,
                 size_t* count, ha_mpi_error* error);
  /* Progresses sends; the number of messages that MPI has not taken yet. */
  size_t (*unsent)(ha_mpi* mpi);

  /* Messages of data links, without copies; `self` is the ha_mpi. Their tags are above those of the
   * channels. `cancel` waits at most a second for a buffer that MPI is writing to. */
  ha_tagged_calls tagged;
  /* The largest tag. */
  uint32_t (*most_tag)(const ha_mpi* mpi);

  /* Frees everything, `mpi` too. With `abandon` MPI is not called: after an abort its calls could
   * wait for dead ranks. */
  void (*close)(ha_mpi* mpi, int abandon);
  /* Finalises MPI if HoroACC initialised it and it is not finalised yet. */
  int (*finalize)(ha_mpi_error* error);
} ha_mpi_plugin;

/* The plug-in's only symbol: returns the table above. */
typedef const ha_mpi_plugin* (*ha_mpi_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
