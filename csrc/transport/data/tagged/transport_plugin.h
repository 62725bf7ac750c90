#pragma once
// The C contract of a transport that the core does not have: a shared library that carries tagged
// messages between ranks, over a network of its own. The core makes data links of it
// (tagged_links.h). HOROACC_TRANSPORT_PLUGIN names the library.
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

/* A part of a message. The list may go when a call returns, the bytes not before the request is
 * done. */
typedef struct {
  void* bytes;
  size_t count;
} ha_piece;

/* What ha_tagged_calls.test may say of a message that was longer than the place for it, if it does
 * not know the length. Nothing is written past a place. */
#define HA_TRANSPORT_TOO_LONG SIZE_MAX

/* Messages from one rank to another with the same tag arrive in the order in which they were sent,
 * in the places that were named for that tag, in the order in which they were named. Messages of
 * different tags do not wait for each other, and a message waits for its place. */
typedef struct {
  /* Starts to send, or names the place for a message; *request is the call's until test says that
   * it is done. */
  int (*send)(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
              void** request, ha_transport_error* error);
  int (*receive)(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
                 void** request, ha_transport_error* error);
  /* Moves messages on. If *done, the request is gone, and for a received message *bytes is its
   * length. An error means that the peer is lost. */
  int (*test)(void* self, void* request, int* done, size_t* bytes, ha_transport_error* error);
  /* Gives a place back: nothing is written there any more. The request is gone. */
  void (*cancel)(void* self, void* request);
} ha_tagged_calls;

typedef struct {
  uint32_t version;  /* HA_TRANSPORT_PLUGIN_VERSION */
  const char* name;  /* for messages: "efa" */
  uint32_t most_tag; /* the largest tag; at least 32767 */

  int (*open)(void** self, int rank, int size, ha_transport_error* error);
  /* Where the others find this rank: bytes without meaning to the core, at most `room`. */
  int (*address)(void* self, void* bytes, size_t room, size_t* count, ha_transport_error* error);
  /* Everybody's, by rank; called once, before anything is sent. */
  int (*connect)(void* self, const ha_piece* addresses, ha_transport_error* error);
  ha_tagged_calls calls;
  /* A descriptor that is readable when test has news, or -1: then the core looks again and again.
   */
  int (*wait_fd)(void* self);
  /* `abandon`: after an abort; peers may be dead. */
  void (*close)(void* self, int abandon);
} ha_transport_plugin;

/* The library's only symbol: returns the table above. */
typedef const ha_transport_plugin* (*ha_transport_plugin_entry)(void);

#ifdef __cplusplus
}
#endif
