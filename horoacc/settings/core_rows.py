"""The rows of the table that the C++ core takes."""

from __future__ import annotations

from horoacc.settings.setting import Setting

_MIB = 1 << 20

CORE_ROWS: tuple[Setting, ...] = (
    Setting(
        "control",
        "str",
        "auto",
        "HOROACC_CONTROL",
        "The plane that carries negotiation. `auto` and `board` use shared memory inside the host; "
        "`tcp` and `mpi` send all of it through that plane, even inside a host. Between hosts "
        "`auto` is `tcp`, and `mpi` carries the data too.",
        flag="--control",
        yaml=("params", "control"),
        choices=("auto", "board", "tcp", "mpi"),
    ),
    Setting(
        "fusion_threshold",
        "int",
        64 * _MIB,
        "HOROACC_FUSION_THRESHOLD",
        "Bytes of a bucket; 0 reduces every tensor alone. The flag and the key count MiB.",
        horovod_env="HOROVOD_FUSION_THRESHOLD",
        flag="--fusion-threshold-mb",
        yaml=("params", "fusion_threshold_mb"),
        factor=_MIB,
        least=0,
    ),
    Setting(
        "arena_bytes",
        "int",
        0,
        "HOROACC_ARENA_BYTES",
        "Address space reserved for a rank's arena; pages are taken only when used. 0: as much as "
        "the machine has memory.",
        flag="--arena-bytes",
        yaml=("params", "arena_bytes"),
        least=0,
    ),
    Setting(
        "spin_microseconds",
        "int",
        -1,
        "HOROACC_SPIN_MICROSECONDS",
        "How long a wait spins before it sleeps. -1: a little if every rank of the host has a "
        "core, otherwise not at all.",
        flag="--spin-microseconds",
        yaml=("params", "spin_microseconds"),
        least=-1,
    ),
    Setting(
        "window_bytes",
        "int",
        0,
        "HOROACC_WINDOW_BYTES",
        "Window in which memory outside the arena is copied and reduced, and part of a vector that "
        "schedules between hosts work on at a time. 0: 256 KiB, and between hosts what suits the "
        "algorithm: 512 KiB to 4 MiB.",
        flag="--window-bytes",
        yaml=("params", "window_bytes"),
        least=0,
    ),
    Setting(
        "last_arriver_bytes",
        "int",
        256 << 10,
        "HOROACC_LAST_ARRIVER_BYTES",
        "Up to this size the last rank to arrive reduces for all; above it the ranks share.",
        flag="--last-arriver-bytes",
        yaml=("params", "last_arriver_bytes"),
        least=0,
    ),
    Setting(
        "reduction",
        "str",
        "auto",
        "HOROACC_REDUCTION",
        "The order of summation between hosts; inside a host it is always a balanced binary tree "
        "over the ranks. `canonical`: that tree, with the bits of one host, whatever it costs. "
        "`auto`: that tree where the hosts' shape lets it cost next to nothing, as on two or four "
        "hosts of the same power of two of ranks, otherwise as `fast`; 16-bit sums are rounded "
        "where they leave a host. `fast`: whatever is expected to end first.",
        flag="--reduction",
        yaml=("params", "reduction"),
        choices=("auto", "canonical", "fast"),
    ),
    Setting(
        "reduce_path",
        "str",
        "auto",
        "HOROACC_REDUCE_PATH",
        "Forces the data path of reductions; for tests and measurements.",
        flag="--reduce-path",
        yaml=("params", "reduce_path"),
        choices=("auto", "windows", "staged"),
    ),
    Setting(
        "network_interfaces",
        "str",
        "",
        "HOROACC_NETWORK_INTERFACES",
        "Names of the network interfaces that carry data between hosts, separated by commas; the "
        "ranks of a host use them in turn, by local rank. Empty: the fastest on the network that "
        "joins most hosts. mpirun gets them too; Open MPI 5 for its own messages, and MPICH, the "
        "first.",
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
        "TCP connections over which a message to another host is scattered, 1 to 64. 0: one, and "
        "7 more once it was full, for the first 32 ranks that one dials and that it happens to; a "
        "second is used only while the first is full.",
        flag="--tcp-streams",
        yaml=("network", "tcp_streams"),
        least=0,
    ),
    Setting(
        "socket_buffer_bytes",
        "int",
        0,
        "HOROACC_SOCKET_BUFFER_BYTES",
        "The kernel's buffers of such a connection. 0: the kernel's own choice up to its limit "
        "(`tcp_wmem`, `tcp_rmem`), and beyond that twice the measured product of bandwidth and "
        "delay, as far as the process may.",
        flag="--socket-buffer-bytes",
        yaml=("network", "socket_buffer_bytes"),
        least=0,
    ),
    Setting(
        "tcp_checksums",
        "bool",
        False,
        "HOROACC_TCP_CHECKSUMS",
        "1: data between hosts carries checksums, so that a byte that was damaged on its way ends "
        "the job instead of going into a result. Headers and control messages always do.",
        flag="--tcp-checksums",
        yaml=("network", "tcp_checksums"),
    ),
    Setting(
        "transport_plugin",
        "str",
        "",
        "HOROACC_TRANSPORT_PLUGIN",
        "Path of a shared library with a transport of its own "
        "(`csrc/transport/transport_plugin.h`), which carries the data between hosts. All ranks "
        "need one, each on its own host.",
        flag="--transport-plugin",
        yaml=("network", "transport_plugin"),
    ),
    Setting(
        "algorithm",
        "str",
        "",
        "HOROACC_ALGORITHM",
        "Forces schedules of collectives between hosts: names of docs/schedules.md, such as "
        "`ring` or `hierarchical`, with commas between them, one for a collective; it wins over "
        "`reduction`. Empty: chosen.",
        flag="--algorithm",
        yaml=("params", "algorithm"),
    ),
    Setting(
        "selection_table",
        "str",
        "",
        "HOROACC_SELECTION_TABLE",
        "Path of a table of measured algorithms, which `horoaccrun tune` writes and rank 0 reads. "
        "Empty: this machine's in the cache folder, if there is one; `off`: none.",
        flag="--selection-table",
        yaml=("params", "selection_table"),
    ),
    Setting(
        "check_numerics",
        "bool",
        False,
        "HOROACC_CHECK_NUMERICS",
        "Looks at every tensor that is to be reduced: one with an infinite element, or one that is "
        "no number, is an error on all ranks that names tensor, rank and element.",
        flag="--check-numerics",
        yaml=("params", "check_numerics"),
    ),
    Setting(
        "flight_dir",
        "str",
        "",
        "HOROACC_FLIGHT_DIR",
        "Directory in which each rank writes its latest events and the calls in flight, one file a "
        "rank, when the job fails, a call is given up, or the rank gets SIGUSR1; "
        "`horoaccrun explain` reads them. Empty: nothing is written.",
        flag="--flight-dir",
        yaml=("stall_check", "flight_dir"),
    ),
    Setting(
        "flight_events",
        "int",
        4096,
        "HOROACC_FLIGHT_EVENTS",
        "How many calls a rank keeps for that, with what became of each, in 128 bytes each; "
        "0: none.",
        flag="--flight-events",
        yaml=("stall_check", "flight_events"),
        least=0,
    ),
    Setting(
        "fault",
        "str",
        "",
        "HOROACC_FAULT",
        "For tests: `site:rank:nth:action`, something that happens to a rank when it comes to a "
        "place in the core for the n-th time (docs/faults.md). Empty: nothing does.",
        flag="--fault",
        yaml=("params", "fault"),
    ),
    Setting(
        "parted_hosts",
        "str",
        "",
        "HOROACC_PARTED_HOSTS",
        "For tests: numbers of ranks, such as `2+1`, that share memory only among themselves, as "
        "if each part of the job were on a host of its own.",
        flag="--parted-hosts",
        yaml=("params", "parted_hosts"),
    ),
    Setting(
        "timeline",
        "str",
        "",
        "HOROACC_TIMELINE",
        "Writes a Chrome trace of every tensor's way to this file. `DYNAMIC` waits for "
        "`start_timeline`, which works without it too.",
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
        "After how long a stalled tensor is reported, with the ranks that miss it.",
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
        "After how long a stalled tensor ends the job; 0: never. Not below the warning's time.",
        horovod_env="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        flag="--stall-check-shutdown-time-seconds",
        yaml=("stall_check", "shutdown_time_seconds"),
        least=0,
    ),
    Setting(
        "silence_warning_seconds",
        "float",
        5.0,
        "HOROACC_SILENCE_WARNING_SECONDS",
        "After how long without a sign of life a rank is reported: it is stopped, or cut off. 0: "
        "never; at least 1.",
        flag="--silence-warning-seconds",
        yaml=("stall_check", "silence_warning_seconds"),
        least=0,
    ),
    Setting(
        "hang_limit_seconds",
        "float",
        600.0,
        "HOROACC_HANG_LIMIT_SECONDS",
        "After how long without a sign of life of some rank the job ends; 0: never, which suits a "
        "debugger; at least 1.",
        flag="--hang-limit-seconds",
        yaml=("stall_check", "hang_limit_seconds"),
        least=0,
    ),
    Setting(
        "host_timeout_seconds",
        "float",
        12.0,
        "HOROACC_HOST_TIMEOUT_SECONDS",
        "After how long without an acknowledgement from another host its ranks are lost: it has "
        "vanished, or the network between. 0: never. A rank that is only stopped is none of it, "
        "for its host acknowledges.",
        flag="--host-timeout-seconds",
        yaml=("stall_check", "host_timeout_seconds"),
        least=0,
    ),
    Setting(
        "thread_affinity",
        "str",
        "",
        "HOROACC_THREAD_AFFINITY",
        "Comma-separated cores, one for the engine thread of each local rank: at least as many as "
        "there are.",
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
)
