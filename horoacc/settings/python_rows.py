"""The rows of the table that only this package's Python, or only horoaccrun, reads."""

from __future__ import annotations

from horoacc.settings.setting import Audience, Kind, Setting, Value

PYTHON_ROWS: tuple[Setting, ...] = (
    Setting(
        "arena",
        "str",
        "gradients",
        "HOROACC_ARENA",
        "Which CPU tensors of torch and TensorFlow lie in shared memory and are reduced in place: "
        "those that become `gradients`, `all` from 64 KiB on, or none (`off`).",
        scope="python",
        flag="--arena",
        yaml=("params", "arena"),
        choices=("gradients", "all", "off"),
    ),
    Setting(
        "changed_gradients",
        "str",
        "warn",
        "HOROACC_CHANGED_GRADIENTS",
        "What happens where a program changes a gradient of torch while it is being reduced, as by "
        "clipping before `synchronize()`: a warning on the rank, once an optimizer (`warn`), or an "
        "exception of `synchronize()` and `step()` (`raise`).",
        scope="python",
        audience="experts",
        flag="--changed-gradients",
        yaml=("params", "changed_gradients"),
        choices=("warn", "raise"),
    ),
    Setting(
        "mpi_library",
        "str",
        "",
        "HOROACC_MPI_LIBRARY",
        "Path of the libmpi to use if the process has loaded none and that of the launcher which "
        "started the job is not found.",
        scope="python",
        audience="experts",
        flag="--mpi-library",
        yaml=("library_options", "mpi_library"),
    ),
    Setting(
        "cache_dir",
        "str",
        "",
        "HOROACC_CACHE_DIR",
        "Folder of measured algorithms, and of ops. These are framework ops that no installation "
        "built. Empty: `horoacc` in `$XDG_CACHE_HOME` or `~/.cache`.",
        scope="python",
        flag="--cache-dir",
        yaml=("library_options", "cache_dir"),
    ),
    Setting(
        "tcp",
        "bool",
        False,
        "HOROACC_TCP",
        "The ranks use no MPI: they meet over TCP. They negotiate in shared memory where they can, "
        "unless `control` says otherwise. On this host they need no mpirun either. The values of "
        "Horovod's variable are `gloo` and `mpi`.",
        scope="launcher",
        horovod_env="HOROVOD_CONTROLLER",
        horovod_words=(("gloo", True), ("mpi", False)),
        flag="--tcp",
        opposite="--mpi",
        aliases=("--gloo",),
        yaml=("launcher", "tcp"),
    ),
    Setting(
        "mpirun",
        "str",
        "",
        "HOROACC_MPIRUN",
        "Path of the mpirun to use. Empty: the one beside this Python, else the first on PATH.",
        scope="launcher",
        flag="--mpirun",
        yaml=("launcher", "mpirun"),
    ),
    Setting(
        "mpi_args",
        "str",
        "",
        "HOROACC_MPI_ARGS",
        "More arguments for mpirun, as one string.",
        scope="launcher",
        flag="--mpi-args",
        yaml=("launcher", "mpi_args"),
    ),
    Setting(
        "launch_agent",
        "str",
        "",
        "HOROACC_LAUNCH_AGENT",
        "Program that starts a command on another host, in place of ssh. mpirun calls it as "
        "`PROGRAM HOST WORD...`. Empty: mpirun's own choice.",
        scope="launcher",
        flag="--launch-agent",
        yaml=("launcher", "launch_agent"),
    ),
    Setting(
        "output_filename",
        "str",
        "",
        "HOROACC_OUTPUT_FILENAME",
        "A folder that gets each rank's output in `rank.N/stdout` and `rank.N/stderr`.",
        scope="launcher",
        flag="--output-filename",
        yaml=("launcher", "output_filename"),
    ),
    Setting(
        "prefix_timestamp",
        "bool",
        False,
        "HOROACC_PREFIX_TIMESTAMP",
        "Puts the time in front of every rank's lines.",
        scope="launcher",
        flag="--prefix-output-with-timestamp",
        aliases=("-prefix-timestamp",),
        yaml=("launcher", "prefix_output_with_timestamp"),
    ),
    Setting(
        "as_horovod",
        "bool",
        False,
        "HOROACC_AS_HOROVOD",
        "Makes `import horovod` give HoroACC in the ranks. Also in their child processes, and "
        "where a Horovod is installed.",
        scope="launcher",
        flag="--as-horovod",
        yaml=("launcher", "as_horovod"),
    ),
    Setting(
        "verbose",
        "bool",
        False,
        "HOROACC_VERBOSE",
        "Makes `horoaccrun` say what it starts and how.",
        scope="launcher",
        flag="--verbose",
        yaml=("launcher", "verbose"),
    ),
    Setting(
        "grace_seconds",
        "float",
        5.0,
        "HOROACC_GRACE_SECONDS",
        "How long ranks may take to end after one has failed, and after SIGTERM. After a failure "
        "the others get SIGTERM then; those that are still there as long after it are killed.",
        scope="launcher",
        flag="--grace-seconds",
        yaml=("launcher", "grace_seconds"),
        least=0,
    ),
)


def _elastic(
    key: str,
    kind: Kind,
    default: Value,
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    horovod_env: str | None = None,
    least: float = 0,
    words: int = 1,
    audience: Audience = "experts",
) -> Setting:
    """A row of elastic jobs, whose names follow from its key."""
    return Setting(
        key, kind, default, f"HOROACC_{key.upper()}", doc, scope="launcher",
        horovod_env=horovod_env, flag=f"--{key.replace('_', '-')}", aliases=aliases,
        yaml=("elastic", key), least=least, words=words, audience=audience,
    )  # fmt: skip


ELASTIC_ROWS: tuple[Setting, ...] = (
    _elastic(
        "min_np", "int", 0,
        "Fewest ranks that an elastic job goes on with. With fewer it waits. 0: as many as `-np`. "
        "It makes a job elastic.", aliases=("--min-num-proc",), audience="users",
    ),
    _elastic(
        "max_np", "int", 0,
        "Most ranks. 0: as many as its hosts have slots.",
        aliases=("--max-num-proc",), audience="users",
    ),
    _elastic(
        "host_discovery_script", "str", "",
        "Program that prints the hosts, a line `name:slots` each. It runs each second. It makes a "
        "job elastic.", audience="users",
    ),
    _elastic(
        "slots_per_host", "int", 0,
        "Slots of a host for which the discovery script prints none, and of this host if no host "
        "is named.", aliases=("--slots",),
    ),
    _elastic(
        "elastic_timeout", "float", 600.0,
        "Time after which an elastic job ends that has too few ranks.",
        horovod_env="HOROVOD_ELASTIC_TIMEOUT",
    ),
    Setting(
        "recover", "str", "auto", "HOROACC_RECOVER",
        "How an elastic job goes on after an error: from its last `commit`, or `forward` from the "
        "last step that a rank has applied. `auto`: forward where that repeats nothing.",
        scope="python", audience="experts", flag="--recover", yaml=("elastic", "recover"),
        choices=("auto", "forward", "commit"),
    ),
    _elastic(
        "reset_limit", "int", 0,
        "Number of changes of its ranks after which an elastic job ends. 0: any number.",
    ),
    _elastic(
        "failures_per_host", "int", 3,
        "Failures of ranks on a host after which nothing is started there any more.", least=1,
    ),
    _elastic(
        "warm_spares", "int", 0,
        "Processes that an elastic job keeps beyond its slots. They have made their models, and "
        "take the places of ranks that die on their hosts.",
    ),
    _elastic(
        "blacklist_cooldown_range", "str", "",
        "Shortest and longest time, in seconds, for which a host is left out after a failure "
        "instead. It doubles with each.", words=2,
    ),
)  # fmt: skip
"""The rows of elastic jobs: docs/elastic.md."""

METRICS_ROWS: tuple[Setting, ...] = (
    Setting(
        "metrics_port", "int", 0, "HOROACC_METRICS_PORT",
        "Port at which the lowest rank of each host serves the metrics of the host's ranks to "
        "Prometheus, over HTTP; docs/metrics.md. 0: none.",
        scope="python", audience="experts", flag="--metrics-port", yaml=("metrics", "port"),
        least=0,
    ),
    Setting(
        "metrics_address", "str", "127.0.0.1", "HOROACC_METRICS_ADDRESS",
        "The address that `metrics_port` is of. Whoever reaches it may read the metrics.",
        scope="python", audience="experts", flag="--metrics-address", yaml=("metrics", "address"),
    ),
    Setting(
        "metrics_file", "str", "", "HOROACC_METRICS_FILE",
        "File, `*.prom`, into which the lowest rank of each host writes the same, for the textfile "
        "collector of Prometheus' node exporter, and removes at the end. Empty: none.",
        scope="python", audience="experts", flag="--metrics-file", yaml=("metrics", "file"),
    ),
    Setting(
        "metrics_seconds", "float", 5.0, "HOROACC_METRICS_SECONDS",
        "Time between two writings of `metrics_file`.",
        scope="python", audience="experts", flag="--metrics-seconds", yaml=("metrics", "seconds"),
        least=0.1,
    ),
    Setting(
        "look_dir", "str", "", "HOROACC_LOOK_DIR",
        "Folder of the sockets by which `horoaccrun top` and `horoaccrun explain` find the ranks "
        "of a running job; docs/operate.md. It must be one of the user's alone. Empty: "
        "`/tmp/horoacc-UID`.",
        scope="python", audience="experts", flag="--look-dir", yaml=("metrics", "look_dir"),
    ),
)  # fmt: skip
"""The rows of docs/metrics.md, and of what looks at a running job."""

AUTOTUNE_ROWS: tuple[Setting, ...] = (
    Setting(
        "autotune", "bool", False, "HOROACC_AUTOTUNE",
        "Tries other settings during training, and keeps what is quicker. Those are "
        "`fusion_threshold` and `last_arriver_bytes`, and between hosts `algorithm` and "
        "`window_bytes`, of torch and Keras; docs/autotune.md. "
        "Ranks must not differ.",
        horovod_env="HOROVOD_AUTOTUNE", flag="--autotune", yaml=("autotune", "enabled"),
    ),
    Setting(
        "autotune_log", "str", "", "HOROACC_AUTOTUNE_LOG",
        "File to which rank 0 adds a line of CSV for each trial of `autotune`. Empty: none.",
        scope="python", horovod_env="HOROVOD_AUTOTUNE_LOG", flag="--autotune-log-file",
        yaml=("autotune", "log_file"), audience="experts",
    ),
    Setting(
        "autotune_warmup_samples", "int", 3, "HOROACC_AUTOTUNE_WARMUP_SAMPLES",
        "How many samples of `autotune` pass before the first trial.",
        scope="python", horovod_env="HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        flag="--autotune-warmup-samples", yaml=("autotune", "warmup_samples"), least=0,
        audience="experts",
    ),
    Setting(
        "autotune_steps_per_sample", "int", 12, "HOROACC_AUTOTUNE_STEPS_PER_SAMPLE",
        "Steps of a sample; fewer than twelve count as twelve. A trial is a sample between two of "
        "the values so far.",
        scope="python", horovod_env="HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        flag="--autotune-steps-per-sample", yaml=("autotune", "steps_per_sample"), least=1,
        audience="experts",
    ),
    Setting(
        "autotune_bayes_opt_max_samples", "int", 20, "HOROACC_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "Trials of `autotune` after which the best values stay. One setting is tried after the "
        "other; the name is Horovod's.",
        scope="python", horovod_env="HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        flag="--autotune-bayes-opt-max-samples", yaml=("autotune", "bayes_opt_max_samples"),
        least=0, audience="experts",
    ),
)  # fmt: skip
"""The rows of horoacc.autotune; the core knows `autotune` itself, so that ranks do not differ."""
