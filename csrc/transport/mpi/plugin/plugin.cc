// The MPI plug-in; see mpi_plugin.h. Compiled against one mpi.h into one shared object.
#include <cstdio>
#include <cstring>
#include <memory>

#include "transport/mpi/plugin/session.h"

namespace horoacc::mpi {

int Explain(ha_mpi_error* error, const char* what, int code) {
  if (error == nullptr) return -1;
  char reason[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, reason, &length);
  std::snprintf(error->message, sizeof(error->message), "%s: %s", what, reason);
  return -1;
}

int Explain(ha_transport_error* error, const char* what, int code) {
  ha_mpi_error text = {};
  Explain(&text, what, code);
  if (error != nullptr) std::memcpy(error->message, text.message, sizeof(error->message));
  return -1;
}

int Say(ha_mpi_error* error, const char* what) {
  if (error != nullptr) std::snprintf(error->message, sizeof(error->message), "%s", what);
  return -1;
}

namespace {

/// The name of MPI_COMM_SELF if HoroACC initialised MPI, which plug-ins opened later read.
constexpr char kOurMark[] = "initialised by HoroACC";

bool Initialised() {
  int yes = 0;
  return MPI_Initialized(&yes) == MPI_SUCCESS && yes != 0;
}

bool Finalised() {
  int yes = 0;
  return MPI_Finalized(&yes) == MPI_SUCCESS && yes != 0;
}

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
  // Errors of MPI are returned; its default handler would end the process.
  if (*ready != 0) MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
  return 0;
}

int Rank(const ha_mpi* mpi) { return mpi->rank; }
int Size(const ha_mpi* mpi) { return mpi->size; }
ha_mpi_threads Threads(const ha_mpi* mpi) { return mpi->threads; }
const char* LibraryVersion(const ha_mpi* mpi) { return mpi->version; }

void Close(ha_mpi* mpi, int abandon) {
  std::unique_ptr<ha_mpi> owner(mpi);
  const bool requests = !mpi->outgoing.empty() || !mpi->inboxes[0].arriving.empty() ||
                        !mpi->inboxes[1].arriving.empty() || mpi->joining != MPI_REQUEST_NULL;
  if (abandon != 0 || requests) {
    // MPI may still read and write these buffers: they are never freed.
    [[maybe_unused]] const ha_mpi* left = owner.release();
    return;
  }
  // Not MPI_Comm_free: it is collective, so the first rank could have to wait.
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
}  // namespace horoacc::mpi

extern "C" __attribute__((visibility("default"))) const ha_mpi_plugin* horoacc_mpi_plugin_v2(void) {
  return &horoacc::mpi::kPlugin;
}
