#pragma once
// The C contract between the core and its MPI plug-in. The plug-in is compiled once for every MPI
// ABI (Open MPI, MPICH) and loaded after the libmpi that it belongs to; the core itself knows
// nothing of MPI. No function blocks, apart from `open` (MPI_Init_thread) and `finalize`.
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
  const char* flavour; /* "openmpi" or "mpich": what it was compiled for */

  /* Initialises MPI unless somebody has. Functions that return int: 0 is success, -1 fills
   * *error. */
  int (*open)(ha_mpi** mpi, ha_mpi_error* error);
  /* Duplicates the world's communicator, one look at a time; all ranks call it until *ready is 1.
   * Messages work only after that. */
  int (*join)(ha_mpi* mpi, int* ready, ha_mpi_error* error);
  int (*rank)(const ha_mpi* mpi);
  int (*size)(const ha_mpi* mpi);
  /* What MPI was initialised with. */
  ha_mpi_threads (*threads)(const ha_mpi* mpi);
  const char* (*library_version)(const ha_mpi* mpi);

  /* Copies the bytes. */
  int (*send)(ha_mpi* mpi, ha_mpi_channel channel, int peer, const void* bytes, size_t count,
              ha_mpi_error* error);
  /* The next message of the channel: *source is its rank, or -1 if there is none. *bytes stay
   * valid until the next call for this channel. */
  int (*receive)(ha_mpi* mpi, ha_mpi_channel channel, int* source, const void** bytes,
                 size_t* count, ha_mpi_error* error);
  /* Moves what was sent on; the number of messages that MPI has not taken yet. */
  size_t (*unsent)(ha_mpi* mpi);

  /* Messages of data links, from and to where they lie; `self` is the ha_mpi. Their tags do not mix
   * with the channels if they are above those. A place that is being written to when it is given
   * back is waited for, at most a second. */
  ha_tagged_calls tagged;
  /* The largest tag. */
  uint32_t (*most_tag)(const ha_mpi* mpi);

  /* Frees everything; `mpi` is gone. With `abandon` nothing of MPI is touched any more: after an
   * abort its calls could wait for the dead. */
  void (*close)(ha_mpi* mpi, int abandon);
  /* Finalises MPI if a plug-in of ours initialised it and nobody has finalised it. */
  int (*finalize)(ha_mpi_error* error);
} ha_mpi_plugin;

/* The plug-in's only symbol: returns the table above. */
typedef const ha_mpi_plugin* (*ha_mpi_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
