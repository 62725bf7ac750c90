"""The rows of the table that the C++ core takes (csrc/base/settings.cc has the same keys)."""

from __future__ import annotations

from horoacc.settings.setting import Setting

_MIB = 1 << 20

CORE_ROWS: tuple[Setting, ...] = (
    Setting(
        "control",
        "str",
        "auto",
        "HOROACC_CONTROL",
        "What carries the negotiation between hosts; the ranks of a job on one host always "
        "negotiate in shared memory. `auto` is `tcp`; with `mpi`, MPI carries the data too; `shm` "
        "is an error if the ranks do not all share one host's memory.",
        flag="--control",
        yaml=("params", "control"),
        choices=("auto", "shm", "tcp", "mpi"),
        former_choices=(("board", "shm"),),
        audience="experts",
    ),
    Setting(
        "fusion_threshold",
        "int",
        64 * _MIB,
        "HOROACC_FUSION_THRESHOLD",
        "Size of a fusion bucket; 0 reduces every tensor alone. The variable counts bytes, the "
        "flag and the key MiB. Rank 0's value holds.",
        horovod_env="HOROVOD_FUSION_THRESHOLD",
        flag="--fusion-threshold-mb",
        yaml=("params", "fusion_threshold_mb"),
        factor=_MIB,
        least=0,
    ),
    Setting(
        "plan_rounds",
        "int",
        3,
        "HOROACC_PLAN_ROUNDS",
        "After so many steps in which a torch optimizer's gradients came as before, the ranks of a "
        "host agree on a plan, by which a bucket of gradients is one call; 0: never. Rank 0's "
        "value holds.",
        flag="--plan-rounds",
        yaml=("params", "plan_rounds"),
        least=0,
        audience="experts",
    ),
    Setting(
        "arena_bytes",
        "int",
        0,
        "HOROACC_ARENA_BYTES",
        "Address space reserved for a rank's arena. Pages are taken only when they are used. 0: as "
        "much as the machine has memory, or the control group may have, or the rank's share of the "
        "addresses that `ulimit -v` leaves it.",
        flag="--arena-bytes",
        yaml=("params", "arena_bytes"),
        least=0,
        audience="experts",
    ),
    Setting(
        "spin_microseconds",
        "int",
        -1,
        "HOROACC_SPIN_MICROSECONDS",
        "How long a waiting thread spins before it sleeps. -1: a little if every rank of the host "
        "has a core, otherwise it yields its core to the others, a little longer.",
        flag="--spin-microseconds",
        yaml=("params", "spin_microseconds"),
        least=-1,
        audience="experts",
    ),
    Setting(
        "window_bytes",
        "int",
        0,
        "HOROACC_WINDOW_BYTES",
        "Size of the parts in which a tensor outside the arena is copied and reduced, and in which "
        "schedules between hosts work on a tensor. 0: 256 KiB, and between hosts 512 KiB to "
        "4 MiB, by the algorithm. Rank 0's value holds.",
        flag="--window-bytes",
        yaml=("params", "window_bytes"),
        least=0,
        audience="experts",
    ),
    Setting(
        "last_arriver_bytes",
        "int",
        256 << 10,
        "HOROACC_LAST_ARRIVER_BYTES",
        "Up to this size the last rank to arrive reduces for all; above it the ranks share. Rank "
        "0's value holds.",
        flag="--last-arriver-bytes",
        yaml=("params", "last_arriver_bytes"),
        least=0,
        audience="experts",
    ),
    Setting(
        "reduction",
        "str",
        "auto",
        "HOROACC_REDUCTION",
        "The order of summation between hosts. Inside a host it is always a balanced binary tree "
        "over the ranks. `canonical`: that tree between hosts too, with the bits of one host, "
        "whatever it costs. `auto`: that tree where it costs next to nothing, as on two or four "
        "hosts of the same power of two of ranks, otherwise as `fast`; a host rounds its 16-bit "
        "sums before it sends them. `fast`: the schedule that is expected to end first. "
        "Rank 0's value holds.",
        flag="--reduction",
        yaml=("params", "reduction"),
        choices=("auto", "canonical", "fast"),
    ),
    Setting(
        "reduce_path",
        "str",
        "auto",
        "HOROACC_REDUCE_PATH",
        "Forces the data path of reductions.",
        flag="--reduce-path",
        yaml=("params", "reduce_path"),
        choices=("auto", "windows", "staged"),
        audience="tests",
    ),
    Setting(
        "network_interfaces",
        "str",
        "",
        "HOROACC_NETWORK_INTERFACES",
        "Network interfaces that carry data between hosts, with commas between them. The ranks of "
        "a host use them in turn, by local rank. Empty: the fastest on the network that joins most "
        "hosts. mpirun gets them too: Open MPI 5 for its own messages, and MPICH, only the first.",
        flag="--network-interfaces",
        aliases=("--network-interface", "--nics"),
        horovod_env="HOROVOD_GLOO_IFACE",
        yaml=("network", "network_interfaces"),
    ),
    Setting(
        "tcp_streams",
        "int",
        0,
        "HOROACC_TCP_STREAMS",
        "TCP connections over which a message to another host is spread, 1 to 64. A rank uses the "
        "second only while the first is full. 0: one, and 7 more once it was full, for the first "
        "32 peers that a rank dials and whose connection fills.",
        flag="--tcp-streams",
        yaml=("network", "tcp_streams"),
        least=0,
        audience="experts",
    ),
    Setting(
        "socket_buffer_bytes",
        "int",
        0,
        "HOROACC_SOCKET_BUFFER_BYTES",
        "The kernel's buffers of a connection between hosts. 0: the kernel's own choice up to its "
        "limit (`tcp_wmem`, `tcp_rmem`), and beyond that twice the measured product of bandwidth "
        "and delay, as far as the process may.",
        flag="--socket-buffer-bytes",
        yaml=("network", "socket_buffer_bytes"),
        least=0,
        audience="experts",
    ),
    Setting(
        "tcp_checksums",
        "bool",
        False,
        "HOROACC_TCP_CHECKSUMS",
        "Puts checksums on data between hosts where `HOROACC_LINK_MAC` is `none`. A byte that the "
        "network damages then ends the job instead of going into a result. Headers and control "
        "messages always have them.",
        flag="--tcp-checksums",
        yaml=("network", "tcp_checksums"),
        audience="experts",
    ),
    Setting(
        "link_mac",
        "str",
        "auto",
        "HOROACC_LINK_MAC",
        "What authenticates HoroACC's own connections between hosts: a byte that somebody on the "
        "way changes, adds, repeats or leaves out ends the job. `auto`: AES-GCM, by the libcrypto "
        "of OpenSSL; HMAC-SHA256, with a warning, if no host has it; an error if only some have. "
        "`aes-gcm` and `hmac-sha256`: that one. `none`: nothing does, for networks that nobody "
        "else reaches; HoroACC's objects still have MACs, those of torch.distributed have not. "
        "Ranks must not differ.",
        flag="--link-mac",
        yaml=("network", "link_mac"),
        choices=("auto", "aes-gcm", "hmac-sha256", "none"),
        audience="experts",
    ),
    Setting(
        "encrypt",
        "bool",
        False,
        "HOROACC_ENCRYPT",
        "Encrypts data between hosts by AES-256-GCM. It is for HoroACC's own connections: without "
        "a libcrypto, over MPI or with a transport plug-in the job does not start. Ranks must not "
        "differ.",
        flag="--encrypt",
        yaml=("network", "encrypt"),
    ),
    Setting(
        "crypto_library",
        "str",
        "",
        "HOROACC_CRYPTO_LIBRARY",
        "OpenSSL's libcrypto, as a path or a name. Empty: libcrypto.so.3 or libcrypto.so.1.1.",
        flag="--crypto-library",
        yaml=("network", "crypto_library"),
        audience="experts",
    ),
    Setting(
        "transport_plugin",
        "str",
        "",
        "HOROACC_TRANSPORT_PLUGIN",
        "Path of a shared library that carries the data between hosts. It exports the functions of "
        "`csrc/transport/data/tagged/transport_plugin.h`. Every rank needs one, at a path of its "
        "own host.",
        flag="--transport-plugin",
        yaml=("network", "transport_plugin"),
        audience="experts",
    ),
    Setting(
        "algorithm",
        "str",
        "",
        "HOROACC_ALGORITHM",
        "Forces the schedules of collectives between hosts. Names of docs/schedules.md, such as "
        "`ring` or `hierarchical`, with commas between them, one for a collective; they win over "
        "`reduction`. Empty: chosen. Rank 0's value holds.",
        flag="--algorithm",
        yaml=("params", "algorithm"),
        audience="experts",
    ),
    Setting(
        "selection_table",
        "str",
        "",
        "HOROACC_SELECTION_TABLE",
        "A table of measured algorithms, which `horoaccrun tune` writes and rank 0 reads. Empty: "
        "this machine's in the cache folder, if there is one; `off`: none.",
        flag="--selection-table",
        yaml=("params", "selection_table"),
        audience="experts",
    ),
    Setting(
        "check_numerics",
        "bool",
        False,
        "HOROACC_CHECK_NUMERICS",
        "Refuses to reduce a tensor with an infinite or NaN element. The error, on all ranks, "
        "names tensor, rank and element.",
        flag="--check-numerics",
        yaml=("params", "check_numerics"),
    ),
    Setting(
        "flight_dir",
        "str",
        "",
        "HOROACC_FLIGHT_DIR",
        "Folder in which a rank records its latest events and calls in flight on a failure. Each "
        "rank writes one file, when the job fails, a call is given up, or the rank gets SIGUSR1; "
        "`horoaccrun explain` reads them. Empty: nothing is written.",
        flag="--flight-dir",
        yaml=("stall_check", "flight_dir"),
    ),
    Setting(
        "flight_events",
        "int",
        4096,
        "HOROACC_FLIGHT_EVENTS",
        "How many calls a rank keeps for that record, with their events, in 192 bytes each. "
        "0: none.",
        flag="--flight-events",
        yaml=("stall_check", "flight_events"),
        least=0,
        audience="experts",
    ),
    Setting(
        "fault",
        "str",
        "",
        "HOROACC_FAULT",
        "`site:rank:nth:action`: a fault that a rank has when it comes to a place in the core for "
        "the n-th time (docs/faults.md). Empty: none.",
        flag="--fault",
        yaml=("params", "fault"),
        audience="tests",
    ),
    Setting(
        "simulated_hosts",
        "str",
        "",
        "HOROACC_SIMULATED_HOSTS",
        "Numbers of ranks, such as `2+1`, that share memory only among themselves, as if each part "
        "of the job were on a host of its own. `each`: every rank is as if on a host of its own.",
        former="parted_hosts",
        flag="--simulated-hosts",
        yaml=("params", "simulated_hosts"),
        audience="tests",
    ),
    Setting(
        "timeline",
        "str",
        "",
        "HOROACC_TIMELINE",
        "Writes a Chrome trace of every tensor to this file. `DYNAMIC` waits for `start_timeline`, "
        "which works without it too.",
        horovod_env="HOROVOD_TIMELINE",
        flag="--timeline-filename",
        yaml=("timeline", "filename"),
    ),
    Setting(
        "timeline_mark_cycles",
        "bool",
        False,
        "HOROACC_TIMELINE_MARK_CYCLES",
        "Marks every negotiation round in the trace.",
        horovod_env="HOROVOD_TIMELINE_MARK_CYCLES",
        flag="--timeline-mark-cycles",
        yaml=("timeline", "mark_cycles"),
    ),
    Setting(
        "stall_check_disable",
        "bool",
        False,
        "HOROACC_STALL_CHECK_DISABLE",
        "Turns off the warning about tensors that some ranks have submitted and others have not.",
        horovod_env="HOROVOD_STALL_CHECK_DISABLE",
        flag="--stall-check",
        yaml=("stall_check", "enabled"),
        inverted=True,
    ),
    Setting(
        "stall_warning_seconds",
        "float",
        60.0,
        "HOROACC_STALL_CHECK_TIME_SECONDS",
        "Time after which a stalled tensor is reported, with the ranks that miss it.",
        horovod_env="HOROVOD_STALL_CHECK_TIME_SECONDS",
        flag="--stall-check-warning-time-seconds",
        yaml=("stall_check", "warning_time_seconds"),
        least=0,
    ),
    Setting(
        "stall_shutdown_seconds",
        "float",
        0.0,
        "HOROACC_STALL_SHUTDOWN_TIME_SECONDS",
        "Time after which a stalled tensor ends the job; 0: never. Not below the warning's time. "
        "In an elastic job the rank that is missing is expelled instead, and without a value the "
        "time is 600 s, or the heartbeat's or the warning's if one of them is longer.",
        horovod_env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        flag="--stall-check-shutdown-time-seconds",
        yaml=("stall_check", "shutdown_time_seconds"),
        least=0,
    ),
    Setting(
        "heartbeat_warning_seconds",
        "float",
        5.0,
        "HOROACC_HEARTBEAT_WARNING_SECONDS",
        "Time without a heartbeat after which a rank is reported as stopped or cut off; 0: never. "
        "At least 1.",
        former="silence_warning_seconds",
        flag="--heartbeat-warning-seconds",
        yaml=("stall_check", "heartbeat_warning_seconds"),
        least=0,
        audience="experts",
    ),
    Setting(
        "heartbeat_timeout_seconds",
        "float",
        600.0,
        "HOROACC_HEARTBEAT_TIMEOUT_SECONDS",
        "Time without a rank's heartbeat after which the job ends; 0: never, as for a debugger. At "
        "least 1.",
        former="hang_limit_seconds",
        flag="--heartbeat-timeout-seconds",
        yaml=("stall_check", "heartbeat_timeout_seconds"),
        least=0,
    ),
    Setting(
        "host_timeout_seconds",
        "float",
        12.0,
        "HOROACC_HOST_TIMEOUT_SECONDS",
        "Time without an acknowledgement from another host after which its ranks are lost; 0: "
        "never. The host, or the network between, has then vanished. A rank that is only stopped "
        "is not lost, for the kernel of its host acknowledges.",
        flag="--host-timeout-seconds",
        yaml=("stall_check", "host_timeout_seconds"),
        least=0,
    ),
    Setting(
        "thread_affinity",
        "str",
        "",
        "HOROACC_THREAD_AFFINITY",
        "Cores with commas between them, one for the engine thread of each local rank. At least as "
        "many as there are local ranks.",
        horovod_env="HOROVOD_THREAD_AFFINITY",
        flag="--thread-affinity",
        yaml=("library_options", "thread_affinity"),
    ),
    Setting(
        "log_level",
        "str",
        "warning",
        "HOROACC_LOG_LEVEL",
        "The least severe message that the core prints.",
        horovod_env="HOROVOD_LOG_LEVEL",
        flag="--log-level",
        yaml=("logging", "level"),
        choices=("trace", "debug", "info", "warning", "error", "fatal"),
    ),
    Setting(
        "log_hide_time",
        "bool",
        False,
        "HOROACC_LOG_HIDE_TIME",
        "Leaves the time out of the core's messages.",
        horovod_env="HOROVOD_LOG_HIDE_TIME",
        flag="--log-without-timestamp",
        opposite="--log-with-timestamp",
        aliases=("--log-hide-timestamp",),
        yaml=("logging", "hide_timestamp"),
    ),
    Setting(
        "start_timeout_seconds",
        "float",
        60.0,
        "HOROACC_START_TIMEOUT",
        "How long ranks wait for each other in `init`.",
        horovod_env="HOROVOD_START_TIMEOUT",
        flag="--start-timeout",
        yaml=("launcher", "start_timeout"),
        least=0,
    ),
    Setting(
        "cuda_plugin",
        "str",
        "",
        "HOROACC_CUDA_PLUGIN",
        "A shared library through which the core reaches GPUs. Empty: the one that was built with "
        "HoroACC, where there is a driver.",
        flag="--cuda-plugin",
        yaml=("params", "cuda_plugin"),
        audience="experts",
    ),
    Setting(
        "gpu_mode",
        "str",
        "auto",
        "HOROACC_GPU_MODE",
        "Where tensors on GPUs are reduced. `leader`: by one rank's kernels, on the GPU of all "
        "ranks; `kernel`: by kernels that wait for each other, where no two ranks share a GPU; "
        "`stream`: by every rank's kernels, on streams that wait for each other; `cpu_reduce`: by "
        "the CPU; `nccl`: by NCCL, in NCCL's order, if all ranks can load it. Process sets on "
        "several hosts have `nccl` and `cpu_reduce` of these. `auto`: the first of these but "
        "`nccl` that all ranks of a process set can, `kernel` only on GPUs that no other process "
        "may use; or, for sizes where `horoaccrun tune -- --gpus` has measured another of them, "
        "or `nccl`, to be faster, that one. A mode that is given and impossible is an error "
        "on all ranks that says why. Rank 0's value holds.",
        flag="--gpu-mode",
        yaml=("params", "gpu_mode"),
        choices=("auto", "cpu_reduce", "leader", "stream", "kernel", "nccl"),
    ),
    Setting(
        "nccl_library",
        "str",
        "libnccl.so.2",
        "HOROACC_NCCL_LIBRARY",
        "NCCL's library: its path, or its name where the loader finds it (torch's, if torch has "
        "loaded one). It is loaded only with `HOROACC_GPU_MODE=nccl`, or where `auto` has measured "
        "it.",
        flag="--nccl-library",
        yaml=("params", "nccl_library"),
        audience="experts",
    ),
    Setting(
        "gpu_chunk_bytes",
        "int",
        2 << 20,
        "HOROACC_GPU_CHUNK_BYTES",
        "Size of the chunks in which the CPU reduces larger tensors of GPUs, at least 4096. Copies "
        "in, reductions and copies out of different chunks overlap. Rank 0's value holds.",
        flag="--gpu-chunk-bytes",
        yaml=("params", "gpu_chunk_bytes"),
        least=0,
        audience="experts",
    ),
)
