#pragma once
// All settings of the core in one immutable struct. Python's settings table reads the environment
// and hands over key=value; nothing in csrc/ calls getenv.
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "base/result.h"

namespace horoacc {

/// Which controller carries negotiation inside a host.
enum class ControlKind { kAuto, kSegment, kTcp, kMpi };
/// Forces a data path, for tests; kAuto lets the selection table choose.
enum class PathKind { kAuto, kStaged, kWindows };
/// How tensors on GPUs are reduced (execute/cuda/host/mode.h); kAuto lets the ranks choose.
enum class GpuMode { kAuto, kCpuReduce, kLeader, kStream, kKernel, kNccl };
/// How the ranks of a job agree on a setting: not at all; rank 0's value holds; the values must be
/// the same; or all ranks, or none, must have given one.
enum class Agreement { kOwn, kRank0, kSame, kSameUse };
/// What authenticates the frames of connections between hosts; kAuto: AES-GCM if all hosts have a
/// libcrypto, HMAC-SHA256 if none has.
enum class LinkMac { kAuto, kAesGcm, kHmacSha256, kNone };
enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

struct Settings {
  ControlKind control = ControlKind::kAuto;
  uint64_t fusion_threshold = 64ull << 20;  ///< bytes of a bucket; 0: no fusion
  uint64_t plan_rounds = 3;  ///< unchanged rounds of gradients until their plan is locked; 0: never
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;  ///< 0: never
  bool stall_check_disable = false;
  double heartbeat_warning_seconds = 5;    ///< without a heartbeat; 0: never
  bool check_numerics = false;             ///< refuse to reduce infinite or NaN elements
  double heartbeat_timeout_seconds = 600;  ///< without a heartbeat, then the job ends; 0: never
  double host_timeout_seconds = 12;        ///< without an acknowledgement of another host; 0: never
  std::string timeline;                    ///< path of the trace, or empty
  bool timeline_mark_cycles = false;
  LogLevel log_level = LogLevel::kWarning;
  bool log_hide_time = false;
  double start_timeout_seconds = 60;
  uint64_t arena_bytes = 0;        ///< address space of this rank's memory; 0: physical memory
  int64_t spin_microseconds = -1;  ///< < 0: spin if every rank of the host has a core, else yield
  uint64_t window_bytes = 0;       ///< 0: the engine's own choice
  uint64_t last_arriver_bytes = 256 << 10;  ///< up to here the last rank to arrive reduces
  bool autotune = false;                    ///< the frontends'; here, since ranks must not differ
  std::string reduction = "auto";           ///< "canonical" and "fast" matter between hosts only
  std::vector<int> thread_affinity;  ///< a core for each local rank's engine thread; empty: any
  PathKind reduce_path = PathKind::kAuto;
  std::string network_interfaces;    ///< names separated by commas; empty: chosen
  int tcp_streams = 0;               ///< connections between two ranks; 0: chosen
  uint64_t socket_buffer_bytes = 0;  ///< 0: follows the bandwidth-delay product
  bool tcp_checksums = false;        ///< of payload; headers and control messages have them anyway
  LinkMac link_mac = LinkMac::kAuto;
  bool encrypt = false;          ///< what goes over connections between hosts
  std::string crypto_library;    ///< path or soname of libcrypto; empty: OpenSSL 3's or 1.1's
  std::string transport_plugin;  ///< path of a shared library, or empty
  std::string cuda_plugin;       ///< the same; empty: the one that was built with the core
  GpuMode gpu_mode = GpuMode::kAuto;
  uint64_t gpu_chunk_bytes = 2 << 20;  ///< of what the CPU reduces for GPUs, on its way at a time
  std::string nccl_library = "libnccl.so.2";  ///< path or soname, of gpu_mode "nccl"
  std::string algorithm;        ///< between hosts: names with commas between them; empty: chosen
  std::string selection_table;  ///< what was measured here (schedule/measured.h); rank 0's holds
  std::string flight_dir;  ///< where the latest events go when something is wrong; empty: nowhere
  uint64_t flight_events = 4096;  ///< of how many calls they are kept; 0: none
  FaultOrder fault;               ///< for tests
  std::string
      simulated_hosts;  ///< for tests: ranks that are as if on hosts of their own ("2+1", "each")

  /// Sets one of them from text. kConfig names an unknown key or a bad value.
  Status Set(const std::string& key, const std::string& value);
  /// Those on which ranks agree in this way, as keys and text that `Set` takes.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> Values(Agreement agreement) const;

  /// Parses key=value pairs over the defaults. kConfig as for `Set`.
  static Result<Settings> Parse(std::span<const std::pair<std::string, std::string>> pairs);
  /// Every key with its default, as "key=value" lines (a test holds Python's table against it).
  static std::string Defaults();
};

/// The names of the GPU modes, by GpuMode: in settings, events and tables of measured times.
inline constexpr std::pair<const char*, GpuMode> kGpuModes[] = {
    {"auto", GpuMode::kAuto},     {"cpu_reduce", GpuMode::kCpuReduce}, {"leader", GpuMode::kLeader},
    {"stream", GpuMode::kStream}, {"kernel", GpuMode::kKernel},        {"nccl", GpuMode::kNccl}};

}  // namespace horoacc
