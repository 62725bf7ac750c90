// The MPI plug-in; see mpi_plugin.h. Compiled against one mpi.h into one shared object.
#include "transport/mpi_plugin.h"

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace {

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

/// Messages that were matched and are being received. In the order of their matching, which is
/// that of their sending; a short one behind a long one waits for it.
struct Inbox {
  std::deque<Incoming> arriving;
  Incoming current;  ///< what `receive` gave last
};

constexpr size_t kMostArriving = 32;
constexpr size_t kLongest = 0x7fffffff;
/// Kept as the name of MPI_COMM_SELF: who initialised MPI is a fact about the process, and this
/// way MPI itself remembers it for plug-ins that are opened later.
constexpr char kOurMark[] = "initialised by HoroACC";

int Explain(ha_mpi_error* error, const char* what, int code) {
  if (error == nullptr) return -1;
  char reason[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  std::snprintf(error->message, sizeof(error->message), "%s: %s", what, reason);
  return -1;
}

int Say(ha_mpi_error* error, const char* what) {
  if (error != nullptr) std::snprintf(error->message, sizeof(error->message), "%s", what);
  return -1;
}

bool Initialised() {
  int yes = 0;
  return MPI_Initialized(&yes) == MPI_SUCCESS && yes != 0;
}

bool Finalised() {
  int yes = 0;
  return MPI_Finalized(&yes) == MPI_SUCCESS && yes != 0;
}

}  // namespace

namespace {

/// A message of data links. One that is received starts as a place that no message has been matched
/// with: MPI is given the place only once the length is known to fit, because Open MPI writes past
/// a place that is too short.
struct Tagged {
  MPI_Request request = MPI_REQUEST_NULL;
  int peer = -1;
  int tag = -1;
  bool matched = true;
  std::vector<ha_piece> place;
  size_t length = 0;
  std::unique_ptr<char[]> aside;  ///< for what does not fit
};

}  // namespace

struct ha_mpi {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request joining = MPI_REQUEST_NULL;
  int rank = 0;
  int size = 1;
  ha_mpi_threads threads = HA_MPI_SINGLE;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  std::deque<Outgoing> outgoing;
  Inbox inboxes[2];
  std::map<std::pair<int, int>, std::deque<Tagged*>> places;  ///< unmatched, by peer and tag

  Inbox& inbox(ha_mpi_channel channel) { return inboxes[channel == HA_MPI_CONTROL]; }
};

namespace {

ha_mpi_threads Level(int provided) {
  if (provided == MPI_THREAD_MULTIPLE) return HA_MPI_MULTIPLE;
  if (provided == MPI_THREAD_SERIALIZED) return HA_MPI_SERIALIZED;
  if (provided == MPI_THREAD_FUNNELED) return HA_MPI_FUNNELED;
  return HA_MPI_SINGLE;
}

int Open(ha_mpi** result, ha_mpi_error* error) {
  if (Finalised()) return Say(error, "MPI was finalised in this process and cannot start again");
  int provided = MPI_THREAD_SINGLE;
  if (!Initialised()) {
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    if (code != MPI_SUCCESS) return Explain(error, "MPI_Init_thread", code);
    MPI_Comm_set_name(MPI_COMM_SELF, kOurMark);
  } else {
    MPI_Query_thread(&provided);
  }
  auto mpi = std::make_unique<ha_mpi>();
  mpi->threads = Level(provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mpi->size);
  int length = 0;
  MPI_Get_library_version(mpi->version, &length);
  if (char* line_end = std::strpbrk(mpi->version, "\r\n")) *line_end = '\0';
  *result = mpi.release();
  return 0;
}

int Join(ha_mpi* mpi, int* ready, ha_mpi_error* error) {
  if (mpi->comm == MPI_COMM_NULL && mpi->joining == MPI_REQUEST_NULL) {
    const int started = MPI_Comm_idup(MPI_COMM_WORLD, &mpi->comm, &mpi->joining);
    if (started != MPI_SUCCESS) return Explain(error, "MPI_Comm_idup", started);
  }
  const int code = MPI_Test(&mpi->joining, ready, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) return Explain(error, "duplicating MPI_COMM_WORLD", code);
  // From here on an error of MPI is ours to report; its default would end the process.
  if (*ready != 0) MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
  return 0;
}

int Rank(const ha_mpi* mpi) { return mpi->rank; }
int Size(const ha_mpi* mpi) { return mpi->size; }
ha_mpi_threads Threads(const ha_mpi* mpi) { return mpi->threads; }
const char* LibraryVersion(const ha_mpi* mpi) { return mpi->version; }

size_t Unsent(ha_mpi* mpi) {
  std::erase_if(mpi->outgoing, [](Outgoing& message) {
    int done = 0;
    // A request that fails is done as well: its error is the peer's, which others notice.
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

int Explain(ha_transport_error* error, const char* what, int code) {
  ha_mpi_error text = {};
  Explain(&text, what, code);
  if (error != nullptr) std::memcpy(error->message, text.message, sizeof(error->message));
  return -1;
}

/// The pieces as one element of a type, relative to MPI_BOTTOM. MPI counts in int.
int MakeType(const ha_piece* pieces, size_t count, MPI_Datatype* type) {
  constexpr size_t kBlock = 1 << 30;
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;
  for (size_t index = 0; index < count; ++index) {
    auto* const bytes = static_cast<char*>(pieces[index].bytes);
    for (size_t at = 0; at < pieces[index].count; at += kBlock) {
      MPI_Aint place = 0;
      MPI_Get_address(bytes + at, &place);
      places.push_back(place);
      lengths.push_back(static_cast<int>(std::min(kBlock, pieces[index].count - at)));
    }
  }
  const int code = MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                            places.data(), MPI_BYTE, type);
  return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

/// Calls `start` with the pieces as MPI wants them.
template <typename Start>
int WithPieces(const ha_piece* pieces, size_t count, const Start& start) {
  if (count == 0) return start(nullptr, 0, MPI_BYTE);
  if (count == 1 && pieces[0].count <= kLongest) {
    return start(pieces[0].bytes, static_cast<int>(pieces[0].count), MPI_BYTE);
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  int code = MakeType(pieces, count, &type);
  if (code == MPI_SUCCESS) code = start(MPI_BOTTOM, 1, type);
  // A type lives on until the messages that use it are done.
  if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
  return code;
}

int TaggedSend(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
               void** request, ha_transport_error* error) {
  auto* const mpi = static_cast<ha_mpi*>(self);
  auto started = std::make_unique<Tagged>();
  const int code = WithPieces(pieces, count, [&](void* bytes, int elements, MPI_Datatype type) {
    return MPI_Isend(bytes, elements, type, peer, static_cast<int>(tag), mpi->comm,
                     &started->request);
  });
  if (code != MPI_SUCCESS) return Explain(error, "MPI_Isend", code);
  *request = started.release();
  return 0;
}

int TaggedReceive(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
                  void** request, ha_transport_error* /*error*/) {
  auto* const mpi = static_cast<ha_mpi*>(self);
  auto place = std::make_unique<Tagged>();
  place->peer = peer;
  place->tag = static_cast<int>(tag);
  place->matched = false;
  place->place.assign(pieces, pieces + count);
  mpi->places[{place->peer, place->tag}].push_back(place.get());
  *request = place.release();
  return 0;
}

/// Starts to receive a message that has been matched with a place.
int Place(Tagged& place, MPI_Message* handle, const MPI_Status& status) {
  MPI_Count length = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &length);
  place.matched = true;
  place.length = static_cast<size_t>(length);
  size_t room = 0;
  for (const ha_piece& piece : place.place) room += piece.count;
  if (place.length > room) {
    place.aside = std::make_unique_for_overwrite<char[]>(place.length);
    place.place.assign(1, {place.aside.get(), place.length});
  }
  return WithPieces(place.place.data(), place.place.size(),
                    [&](void* bytes, int elements, MPI_Datatype type) {
                      return MPI_Imrecv(bytes, elements, type, handle, &place.request);
                    });
}

/// Matches messages from a peer with a tag with the places for them, oldest first.
int MatchPlaces(ha_mpi* mpi, int peer, int tag) {
  const auto lane = mpi->places.find({peer, tag});
  while (lane != mpi->places.end()) {
    int found = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    int code = MPI_Improbe(peer, tag, mpi->comm, &found, &handle, &status);
    if (code != MPI_SUCCESS || found == 0) return code;
    Tagged& place = *lane->second.front();
    lane->second.pop_front();
    const bool last = lane->second.empty();
    if (last) mpi->places.erase(lane);
    code = Place(place, &handle, status);
    if (code != MPI_SUCCESS || last) return code;
  }
  return MPI_SUCCESS;
}

int TaggedTest(void* self, void* request, int* done, size_t* bytes, ha_transport_error* error) {
  auto* const tested = static_cast<Tagged*>(request);
  *done = 0;
  if (!tested->matched) {
    const int code = MatchPlaces(static_cast<ha_mpi*>(self), tested->peer, tested->tag);
    if (code != MPI_SUCCESS) return Explain(error, "receiving over MPI", code);
    if (!tested->matched) return 0;
  }
  const int code = MPI_Test(&tested->request, done, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) return Explain(error, "a message over MPI", code);
  *bytes = tested->length;
  if (*done != 0) delete tested;
  return 0;
}

void TaggedCancel(void* self, void* request) {
  const std::unique_ptr<Tagged> place(static_cast<Tagged*>(request));
  auto* const mpi = static_cast<ha_mpi*>(self);
  if (!place->matched) {
    const auto lane = mpi->places.find({place->peer, place->tag});
    std::erase(lane->second, place.get());
    if (lane->second.empty()) mpi->places.erase(lane);
    return;
  }
  const double deadline = MPI_Wtime() + 1;
  for (int done = 0; done == 0 && MPI_Wtime() < deadline;) {
    if (MPI_Test(&place->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
  }
}

uint32_t MostTag(const ha_mpi* mpi) {
  int* most = nullptr;
  int found = 0;
  MPI_Comm_get_attr(mpi->comm, MPI_TAG_UB, static_cast<void*>(&most), &found);
  return found != 0 ? static_cast<uint32_t>(*most) : 32767;
}

void Close(ha_mpi* mpi, int abandon) {
  std::unique_ptr<ha_mpi> owner(mpi);
  const bool requests = !mpi->outgoing.empty() || !mpi->inboxes[0].arriving.empty() ||
                        !mpi->inboxes[1].arriving.empty() || mpi->joining != MPI_REQUEST_NULL;
  if (abandon != 0 || requests) {
    // MPI may still read and write these buffers: they stay where they are until the process ends.
    [[maybe_unused]] const ha_mpi* left = owner.release();
    return;
  }
  // Not MPI_Comm_free: it is collective, so that the rank that comes first could have to wait.
}

int Finalize(ha_mpi_error* error) {
  if (!Initialised() || Finalised()) return 0;
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length = 0;
  MPI_Comm_get_name(MPI_COMM_SELF, name, &length);
  if (std::strcmp(name, kOurMark) != 0) return 0;
  const int code = MPI_Finalize();
  return code == MPI_SUCCESS ? 0 : Explain(error, "MPI_Finalize", code);
}

constexpr ha_mpi_plugin kPlugin = {
    .version = HA_MPI_PLUGIN_VERSION,
#ifdef OPEN_MPI
    .flavour = "openmpi",
#else
    .flavour = "mpich",
#endif
    .open = Open,
    .join = Join,
    .rank = Rank,
    .size = Size,
    .threads = Threads,
    .library_version = LibraryVersion,
    .send = Send,
    .receive = Receive,
    .unsent = Unsent,
    .tagged = {.send = TaggedSend,
               .receive = TaggedReceive,
               .test = TaggedTest,
               .cancel = TaggedCancel},
    .most_tag = MostTag,
    .close = Close,
    .finalize = Finalize,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const ha_mpi_plugin* horoacc_mpi_plugin_v2(void) {
  return &kPlugin;
}
