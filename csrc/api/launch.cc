#include "api/launch.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "api/hosts.h"
#include "base/clock.h"
#include "negotiate/control_segment/set_segment.h"
#include "runtime/job/agreed_settings.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/inproc.h"
#include "transport/bootstrap/tcp_rendezvous.h"
#include "transport/memory/memory_limits.h"
#include "transport/mpi/mpi_choice.h"
#include "transport/mpi/mpi_links.h"
#include "transport/net/sha256.h"

namespace horoacc {
namespace {

std::string TextOr(const char* text, const std::string& otherwise) {
  return text && *text ? std::string(text) : otherwise;
}

constexpr uint64_t kLeastMemory = 64 << 20;

// Address space, not memory: a page costs memory once it is touched. Every rank of the host maps
// the memory of all.
uint64_t MemoryBytes(const Settings& settings, int local_size, uint64_t control_bytes) {
  if (settings.arena_bytes > 0) return settings.arena_bytes;
  const auto parts = static_cast<uint64_t>(std::max(local_size, 1));
  const uint64_t addresses = std::max(AddressesForEach(parts, control_bytes), kLeastMemory);
  return std::min(MemoryLimit(), addresses);
}

// Each rank of a large job takes descriptors of this one; many systems allow 1024 at first.
void AllowDescriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // without it there may be enough all the same
}

Result<EngineParts> Alone(const Settings& settings) {
  const uint64_t control_bytes = ControlSegment::BytesFor(1);
  HA_ASSIGN(std::shared_ptr<InprocHub> hub,
            InprocHub::Create(1, control_bytes, MemoryBytes(settings, 1, control_bytes)));
  EngineParts parts;
  parts.bootstrap = hub->MakeBootstrap(0);
  parts.share = hub->MakeHostShare(0);
  parts.keep_alive.push_back(std::move(hub));
  return parts;
}

Result<std::shared_ptr<MpiSession>> OpenMpi(const ha_placement& placement, int64_t deadline_ns,
                                            const Cancellation& cancellation) {
  MpiOptions options;
  options.plugin = TextOr(placement.mpi_plugin, "");
  options.deadline_ns = deadline_ns;
  options.cancellation = cancellation;
  HA_ASSIGN(options.choice, ChooseMpi(LookAround(TextOr(placement.mpi_library, ""),
                                                 TextOr(placement.mpi_prefix, ""),
                                                 TextOr(placement.mpi_launcher, ""))));
  HA_ASSIGN(std::shared_ptr<MpiSession> session, MpiSession::Open(options));
  if (session->size() != placement.size || session->rank() != placement.rank) {
    const std::string kind = TextOr(placement.bootstrap, "tcp");
    return MakeError(
        ErrorKind::kConfig,
        "MPI says rank " + std::to_string(session->rank()) + " of " +
            std::to_string(session->size()) + ", but this is rank " +
            std::to_string(placement.rank) + " of " + std::to_string(placement.size) +
            (kind == "mpi"
                 ? ": the MPI library does not belong to the mpirun that started the job"
                 : ": setting 'control' can be 'mpi' only if one mpirun started all ranks"));
  }
  return session;
}

}  // namespace

Result<EngineParts> PrepareLaunch(const Settings& settings, const ha_placement& placement,
                                  const Cancellation& cancellation) {
  if (placement.size < 1 || placement.rank < 0 || placement.rank >= placement.size) {
    return MakeError(ErrorKind::kConfig, "rank " + std::to_string(placement.rank) +
                                             " of a job of " + std::to_string(placement.size) +
                                             " ranks");
  }
  const std::string kind = TextOr(placement.bootstrap, placement.size == 1 ? "none" : "tcp");
  const int64_t deadline = NowNs() + FromSeconds(settings.start_timeout_seconds);
  HA_ASSIGN(HostPlace place, PlaceOnHost(settings, placement));
  const Log log(placement.rank, settings.log_level, settings.log_hide_time);
  EngineParts parts;
  if (placement.size == 1 && kind != "mpi") {
    HA_ASSIGN(parts, Alone(settings));
  } else {
    AllowDescriptors();
    std::string secret = TextOr(placement.secret, "");
    if (kind == "mpi" || settings.control == ControlKind::kMpi) {
      HA_ASSIGN(parts.mpi, OpenMpi(placement, deadline, cancellation));
    }
    if (kind == "mpi") {
      parts.bootstrap = MakeMpiBootstrap(parts.mpi);
      if (secret.empty()) {
        HA_ASSIGN(secret, DrawSecret(*parts.bootstrap, deadline));
      }
    } else if (kind == "tcp") {
      if (secret.empty())
        return MakeError(ErrorKind::kConfig, "a job over TCP needs a secret (HOROACC_SECRET)");
      TcpOptions options;
      options.rank = placement.rank;
      options.size = placement.size;
      options.address = TextOr(placement.rendezvous, "");
      options.listen_fd = placement.rendezvous_fd;
      options.secret = secret;
      options.log = log;
      options.deadline_ns = deadline;
      options.cancellation = cancellation;
      HA_ASSIGN(parts.bootstrap, ConnectTcp(options));
    } else {
      return MakeError(ErrorKind::kConfig, "unknown bootstrap '" + kind + "'");
    }
    HA_TRY(CheckAlike(settings, ha_version(), *parts.bootstrap, deadline));
    parts.faults = std::make_shared<FaultPoints>(settings.fault, placement.rank);
    HA_FAULT(*parts.faults, kBootstrap);
    HA_ASSIGN(const uint64_t epoch, DrawEpoch(*parts.bootstrap, deadline));
    HostOptions host;
    host.label = place.label;
    host.secret = secret;
    host.epoch = epoch;
    host.log = log;
    // Room for the host's control segment, and for its links in a job on several hosts.
    const auto ranks = static_cast<uint32_t>(placement.size);
    host.control_bytes =
        ControlSegment::BytesFor(ranks) + MultiHostParts::ControlBytes(ranks, ranks);
    host.memory_bytes = MemoryBytes(settings, placement.local_size, host.control_bytes);
    host.deadline_ns = deadline;
    host.cancellation = cancellation;
    HA_ASSIGN(parts.share, ShareHost(*parts.bootstrap, host));
    HA_TRY(ConnectHosts(
        settings, {TextOr(placement.rendezvous, ""), secret, epoch, deadline, log, cancellation},
        parts));
    const bool data_are_sealed = settings.control != ControlKind::kMpi &&
                                 settings.transport_plugin.empty() &&
                                 settings.link_mac != LinkMac::kNone;
    if (parts.multi_host && !data_are_sealed) {
      const Digest key = HmacSha256(secret, "horoacc objects " + std::to_string(epoch));
      parts.object_key.assign(key.begin(), key.end());
    }
  }
  parts.placement = place.placement;
  return parts;
}

}  // namespace horoacc
