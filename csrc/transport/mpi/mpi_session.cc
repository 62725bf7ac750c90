#include "transport/mpi/mpi_session.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "transport/wake/backoff.h"

namespace horoacc {
namespace {

Error PluginError(const ha_mpi_error& error, ErrorKind kind = ErrorKind::kSystem) {
  return MakeError(kind, error.message);
}

const char* NameOf(ha_mpi_threads threads) {
  switch (threads) {
    case HA_MPI_SINGLE:
      return "MPI_THREAD_SINGLE";
    case HA_MPI_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case HA_MPI_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case HA_MPI_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
  }
  return "an unknown thread level";
}

int Refuse(ha_transport_error* error) {
  constexpr std::string_view kText = "MPI was abandoned after an abort";
  if (error != nullptr) kText.copy(error->message, sizeof(error->message) - 1);
  return -1;
}

std::string PluginPath(const MpiOptions& options) {
  struct stat info = {};
  if (::stat(options.plugin.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return options.plugin;
  return options.plugin + "/libhoroacc_mpi_" + NameOf(options.choice.flavour) + ".so";
}

}  // namespace

/// Stays loaded for the life of the process: neither Open MPI nor MPICH survives dlclose.
struct MpiSession::Libraries {
  const ha_mpi_plugin* plugin = nullptr;

  static Result<std::unique_ptr<Libraries>> Load(const MpiOptions& options) {
    std::string reasons;
    bool loaded = false;
    for (const std::string& library : options.choice.libraries) {
      // RTLD_GLOBAL also for a mapped one: the libraries that MPI loads need its symbols.
      loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
      if (loaded) break;
      reasons += std::string("; ") + ::dlerror();
    }
    const std::string title = NameOf(options.choice.flavour);
    if (!loaded) {
      return MakeError(ErrorKind::kConfig, "cannot load the MPI library of " + title + " (" +
                                               options.choice.reason +
                                               "); set HOROACC_MPI_LIBRARY to its path" + reasons);
    }
    const std::string path = PluginPath(options);
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return MakeError(ErrorKind::kConfig,
                       "cannot load the MPI plug-in for " + title + ": " + ::dlerror());
    }
    const auto entry = reinterpret_cast<ha_mpi_plugin_entry>(::dlsym(handle, HA_MPI_PLUGIN_SYMBOL));
    const ha_mpi_plugin* plugin = entry == nullptr ? nullptr : entry();
    if (plugin == nullptr || plugin->version != HA_MPI_PLUGIN_VERSION) {
      return MakeError(ErrorKind::kConfig, path + " is not an MPI plug-in of this version");
    }
    if (plugin->flavour != title) {
      return MakeError(ErrorKind::kConfig, path + " was built for " + plugin->flavour +
                                               ", but this process uses " + title + " (" +
                                               options.choice.reason + ")");
    }
    auto libraries = std::make_unique<Libraries>();
    libraries->plugin = plugin;
    return libraries;
  }
};

MpiSession::MpiSession(std::unique_ptr<Libraries> libraries)
    : libraries_(std::move(libraries)), plugin_(libraries_->plugin) {}

MpiSession::~MpiSession() {
  if (mpi_ == nullptr) return;
  // MPI may still read messages: those that it has not taken within a second are never freed.
  if (!abandoned_) Drain(NowNs() + kSecond);
  plugin_->close(mpi_, abandoned_ ? 1 : 0);
}

Result<std::shared_ptr<MpiSession>> MpiSession::Open(const MpiOptions& options) {
  HA_ASSIGN(std::unique_ptr<Libraries> libraries, Libraries::Load(options));
  std::shared_ptr<MpiSession> session(new MpiSession(std::move(libraries)));
  ha_mpi_error error = {};
  if (session->plugin_->open(&session->mpi_, &error) != 0) {
    return PluginError(error, ErrorKind::kConfig);
  }
  const ha_mpi_threads threads = session->threads();
  if (threads < HA_MPI_SERIALIZED) {
    return MakeError(ErrorKind::kConfig,
                     std::string("MPI was initialised with ") + NameOf(threads) +
                         ", but several threads take turns here; set mpi4py.rc.thread_level = "
                         "'multiple' before mpi4py.MPI is imported, or let HoroACC initialise MPI");
  }
  session->cancellation_ = options.cancellation;
  HA_TRY(session->Join(options.deadline_ns));
  return session;
}

Status MpiSession::Join(int64_t deadline_ns) {
  Backoff backoff(cancellation_);
  while (true) {
    int ready = 0;
    ha_mpi_error error = {};
    if (plugin_->join(mpi_, &ready, &error) != 0) return PluginError(error);
    if (ready != 0) return {};
    if (NowNs() >= deadline_ns) {
      Abandon();
      return MakeError(ErrorKind::kTimeout,
                       "not all ranks joined HoroACC's MPI communicator in time");
    }
    if (Status waited = backoff.Wait(); !waited.ok()) {
      Abandon();
      return waited;
    }
  }
}

int MpiSession::rank() const { return plugin_->rank(mpi_); }

int MpiSession::size() const { return plugin_->size(mpi_); }

ha_mpi_threads MpiSession::threads() const { return plugin_->threads(mpi_); }

std::string MpiSession::library_version() const {
  std::string text = plugin_->library_version(mpi_);
  text.resize(std::min(text.size(), text.find(',')));
  std::erase_if(text, [](char c) { return c == '\t'; });
  return text;
}

Status MpiSession::Finalize() {
  std::lock_guard lock(mutex_);
  if (abandoned_) return {};
  ha_mpi_error error = {};
  if (plugin_->finalize(&error) != 0) return PluginError(error);
  abandoned_ = true;  // nothing of MPI may be called any more
  return {};
}

Status MpiSession::Send(ha_mpi_channel channel, int peer, std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  if (abandoned_) return MakeError(ErrorKind::kAborted, "MPI was abandoned after an abort");
  ha_mpi_error error = {};
  if (plugin_->send(mpi_, channel, peer, bytes.data(), bytes.size(), &error) == 0) return {};
  return MakeError(ErrorKind::kPeerLost, "rank " + std::to_string(peer) + ": " + error.message,
                   peer);
}

Result<std::optional<ControlMessage>> MpiSession::Receive(ha_mpi_channel channel) {
  std::lock_guard lock(mutex_);
  if (abandoned_) return MakeError(ErrorKind::kAborted, "MPI was abandoned after an abort");
  ha_mpi_error error = {};
  int source = -1;
  const void* bytes = nullptr;
  size_t count = 0;
  if (plugin_->receive(mpi_, channel, &source, &bytes, &count, &error) != 0) {
    return PluginError(error);
  }
  if (source < 0) return std::optional<ControlMessage>();
  const auto* first = static_cast<const std::byte*>(bytes);
  return std::optional<ControlMessage>(ControlMessage{source, {first, first + count}});
}

bool MpiSession::HasUnsent() {
  std::lock_guard lock(mutex_);
  return !abandoned_ && plugin_->unsent(mpi_) > 0;
}

bool MpiSession::Drain(int64_t deadline_ns) {
  Backoff backoff(cancellation_);
  while (HasUnsent()) {
    if (NowNs() >= deadline_ns || !backoff.Wait().ok()) return false;
  }
  return !abandoned_;
}

uint32_t MpiSession::most_tag() const { return plugin_->most_tag(mpi_); }

ha_tagged_calls MpiSession::TaggedCalls() {
  // The last argument of all three functions is where an error goes.
  static constexpr auto kForward = [](auto function, void* self, auto... rest) {
    auto* const own = static_cast<MpiSession*>(self);
    std::lock_guard lock(own->mutex_);
    if (own->abandoned_) return Refuse(std::get<sizeof...(rest) - 1>(std::tie(rest...)));
    return (own->plugin_->tagged.*function)(own->mpi_, rest...);
  };
  ha_tagged_calls calls = {};
  calls.send = [](auto... all) { return kForward(&ha_tagged_calls::send, all...); };
  calls.receive = [](auto... all) { return kForward(&ha_tagged_calls::receive, all...); };
  calls.test = [](auto... all) { return kForward(&ha_tagged_calls::test, all...); };
  calls.cancel = [](void* self, void* request) {
    auto* const own = static_cast<MpiSession*>(self);
    std::lock_guard lock(own->mutex_);
    if (!own->abandoned_) own->plugin_->tagged.cancel(own->mpi_, request);
  };
  return calls;
}

}  // namespace horoacc
