#pragma once
// The C contract of a transport plug-in: a shared library that carries tagged messages between
// ranks. The core makes data links of it (tagged_links.h). HOROACC_TRANSPORT_PLUGIN names it.
//
// No function blocks. One thread at a time calls them. Functions that return int: 0 is success, -1
// fills *error.
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HA_TRANSPORT_PLUGIN_VERSION 1u
#define HA_TRANSPORT_PLUGIN_SYMBOL "horoacc_transport_plugin_v1"

typedef struct {
  char message[512];
} ha_transport_error;

/* A part of a message. The list may be freed when a call returns, the bytes not before the request
 * is done. */
typedef struct {
  void* bytes;
  size_t count;
} ha_piece;

/* The length that ha_tagged_calls.test may report for a message longer than its buffer. Nothing is
 * written past a buffer. */
#define HA_TRANSPORT_TOO_LONG SIZE_MAX

/* Messages from one rank to another with the same tag arrive in the order of their sending, in the
 * buffers of that tag's receives, in their order. A message waits for its receive; messages of
 * different tags do not wait for each other. */
typedef struct {
  /* Starts to send, or to receive into the pieces; *request is valid until test reports it done. */
  int (*send)(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
              void** request, ha_transport_error* error);
  int (*receive)(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
                 void** request, ha_transport_error* error);
  /* Progresses messages. If *done, the request is gone, and *bytes is the length of a received
   * message. An error means that the peer is lost. */
  int (*test)(void* self, void* request, int* done, size_t* bytes, ha_transport_error* error);
  /* Ends a receive: its buffer is not written to any more. The request is gone. */
  void (*cancel)(void* self, void* request);
} ha_tagged_calls;

typedef struct {
  uint32_t version;  /* HA_TRANSPORT_PLUGIN_VERSION */
  const char* name;  /* for messages: "efa" */
  uint32_t most_tag; /* the largest tag; at least 32767 */

  int (*open)(void** self, int rank, int size, ha_transport_error* error);
  /* This rank's address: at most `room` bytes, without meaning to the core. */
  int (*address)(void* self, void* bytes, size_t room, size_t* count, ha_transport_error* error);
  /* The addresses of all ranks; called once, before any send. */
  int (*connect)(void* self, const ha_piece* addresses, ha_transport_error* error);
  ha_tagged_calls calls;
  /* A descriptor that is readable when test has news, or -1: then the core polls. */
  int (*wait_fd)(void* self);
  /* `abandon`: after an abort; peers may be dead. */
  void (*close)(void* self, int abandon);
} ha_transport_plugin;

/* The library's only symbol: returns the table above. */
typedef const ha_transport_plugin* (*ha_transport_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
