#include "transport/mpi_links.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/gather_wire.h"

namespace horoacc {
namespace {

/// Waits between looks at MPI, which can wake nobody: a short spin, then longer and longer sleeps.
class Patience {
 public:
  void Wait() {
    if (NowNs() - start_ < 100 * kMicrosecond) return;
    const timespec pause{0, sleep_ns_};
    ::ppoll(nullptr, 0, &pause, nullptr);
    sleep_ns_ = std::min(sleep_ns_ * 2, kMillisecond);
  }

 private:
  int64_t start_ = NowNs();
  int64_t sleep_ns_ = 50 * kMicrosecond;
};

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
      // One that is mapped already gets its symbols made visible to what it loads itself.
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
  // A message that MPI still reads must outlive this; what is not taken by then stays for good.
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
  const ha_mpi_threads threads = session->plugin_->threads(session->mpi_);
  if (threads < HA_MPI_SERIALIZED) {
    session->Abandon();  // the communicator is on its way and can only be left alone
    return MakeError(ErrorKind::kConfig,
                     std::string("MPI was initialised with ") + NameOf(threads) +
                         ", but several threads take turns here; set mpi4py.rc.thread_level = "
                         "'multiple' before mpi4py.MPI is imported, or let HoroACC initialise MPI");
  }
  HA_TRY(session->Join(options.deadline_ns));
  return session;
}

Status MpiSession::Join(int64_t deadline_ns) {
  Patience patience;
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
    patience.Wait();
  }
}

int MpiSession::rank() const { return plugin_->rank(mpi_); }

int MpiSession::size() const { return plugin_->size(mpi_); }

std::string MpiSession::library_version() const { return plugin_->library_version(mpi_); }

Status MpiSession::Finalize() {
  if (abandoned_) return {};
  ha_mpi_error error = {};
  if (plugin_->finalize(&error) != 0) return PluginError(error);
  abandoned_ = true;  // nothing of MPI may be called any more
  return {};
}

Status MpiSession::Send(ha_mpi_channel channel, int peer, std::span<const std::byte> bytes) {
  if (abandoned_) return MakeError(ErrorKind::kAborted, "MPI was abandoned after an abort");
  ha_mpi_error error = {};
  if (plugin_->send(mpi_, channel, peer, bytes.data(), bytes.size(), &error) == 0) return {};
  return MakeError(ErrorKind::kPeerLost, "rank " + std::to_string(peer) + ": " + error.message,
                   peer);
}

Result<std::optional<ControlMessage>> MpiSession::Receive(ha_mpi_channel channel) {
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

bool MpiSession::Drain(int64_t deadline_ns) {
  Patience patience;
  while (!abandoned_ && plugin_->unsent(mpi_) > 0) {
    if (NowNs() >= deadline_ns) return false;
    patience.Wait();
  }
  return !abandoned_;
}

// ---------------------------------------------------------------------------------------------

namespace {

/// The star of gather_wire.h over MPI messages. Their first byte is the kind.
class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(std::shared_ptr<MpiSession> session) : session_(std::move(session)) {}

  [[nodiscard]] int rank() const override { return session_->rank(); }
  [[nodiscard]] int size() const override { return session_->size(); }

  Result<std::vector<std::string>> AllGather(const std::string& blob,
                                             int64_t deadline_ns) override {
    if (failed_) return *failed_;
    if (blob.size() > kLongestBlob) {
      return MakeError(ErrorKind::kInvalid, "a blob of the bootstrap has at most 64 MiB");
    }
    auto blobs = rank() == 0 ? Lead(blob, deadline_ns) : Follow(blob, deadline_ns);
    if (!blobs.ok()) failed_ = blobs.error();
    return blobs;
  }

 private:
  Status Say(int peer, GatherKind kind, const std::string& payload) {
    return session_->Send(HA_MPI_BOOTSTRAP, peer, BytesOf(static_cast<char>(kind) + payload));
  }

  Result<std::vector<std::string>> Lead(const std::string& blob, int64_t deadline_ns) {
    auto blobs = Collect(blob, deadline_ns);
    const std::string payload = blobs.ok() ? PackTable(blobs.value()) : PackError(blobs.error());
    const GatherKind kind = blobs.ok() ? kGatherTable : kGatherFailure;
    for (int peer = 1; peer < size(); ++peer) {
      const Status said = Say(peer, kind, payload);
      if (!said.ok() && blobs.ok()) return said.error();
    }
    // Messages only move inside calls of MPI, and the next call may be far away.
    const int64_t patience_ns = blobs.ok() ? WithVerdictGrace(deadline_ns) : NowNs() + kSecond;
    if (!session_->Drain(patience_ns) && blobs.ok()) {
      return MakeError(ErrorKind::kTimeout, "bootstrap: some ranks do not receive from rank 0");
    }
    return blobs;
  }

  Result<std::vector<std::string>> Collect(const std::string& blob, int64_t deadline_ns) {
    std::vector<std::string> blobs(size());
    std::vector<bool> present(size(), false);
    blobs[0] = blob;
    present[0] = true;
    Patience patience;
    while (std::ranges::find(present, false) != present.end()) {
      HA_ASSIGN(std::optional<ControlMessage> message, session_->Receive(HA_MPI_BOOTSTRAP));
      if (message && !message->bytes.empty()) {
        // No rank is ahead: the next blob follows the table of this one.
        blobs[message->source] = TextOf(std::span(message->bytes).subspan(1));
        present[message->source] = true;
        patience = Patience();
      } else if (NowNs() >= deadline_ns) {
        return StillMissing(present);
      } else {
        patience.Wait();
      }
    }
    return blobs;
  }

  Result<std::vector<std::string>> Follow(const std::string& blob, int64_t deadline_ns) {
    HA_TRY(Say(0, kGatherBlob, blob));
    Patience patience;
    while (true) {
      HA_ASSIGN(std::optional<ControlMessage> message, session_->Receive(HA_MPI_BOOTSTRAP));
      if (message && !message->bytes.empty()) {
        const auto payload = std::span<const std::byte>(message->bytes).subspan(1);
        const auto kind = static_cast<GatherKind>(message->bytes.front());
        if (kind == kGatherFailure) return UnpackError(payload);
        return UnpackTable(payload, size());
      }
      if (NowNs() >= WithVerdictGrace(deadline_ns)) {
        return MakeError(ErrorKind::kTimeout, "bootstrap: no answer from rank 0", 0);
      }
      patience.Wait();
    }
  }

  std::shared_ptr<MpiSession> session_;
  std::optional<Error> failed_;
};

class MpiControlLinks final : public ControlLinks {
 public:
  explicit MpiControlLinks(std::shared_ptr<MpiSession> session) : session_(std::move(session)) {}

  Status Send(int peer, std::span<const std::byte> bytes) override {
    if (peer < 0 || peer >= session_->size() || peer == session_->rank()) {
      return MakeError(ErrorKind::kInvalid, "no control link to rank " + std::to_string(peer));
    }
    HA_TRY(session_->Send(HA_MPI_CONTROL, peer, bytes));
    ++messages_sent_;
    bytes_sent_ += bytes.size();
    return {};
  }

  Result<std::optional<ControlMessage>> Receive() override {
    return session_->Receive(HA_MPI_CONTROL);
  }

  [[nodiscard]] int WaitFd() const override { return -1; }
  [[nodiscard]] const char* kind() const override { return "mpi"; }
  [[nodiscard]] uint64_t messages_sent() const override { return messages_sent_; }
  [[nodiscard]] uint64_t bytes_sent() const override { return bytes_sent_; }

 private:
  std::shared_ptr<MpiSession> session_;
  uint64_t messages_sent_ = 0;
  uint64_t bytes_sent_ = 0;
};

}  // namespace

std::unique_ptr<Bootstrap> MpiSession::MakeBootstrap() {
  return std::make_unique<MpiBootstrap>(shared_from_this());
}

std::unique_ptr<ControlLinks> MpiSession::MakeControlLinks() {
  return std::make_unique<MpiControlLinks>(shared_from_this());
}

}  // namespace horoacc
