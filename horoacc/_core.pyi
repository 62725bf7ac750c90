"""The engine as Python sees it (pybind11 module over the C API)."""

from collections.abc import Sequence

ALLREDUCE: int
ALLGATHER: int
BROADCAST: int
ALLTOALL: int
REDUCESCATTER: int
BARRIER: int
REDUCE: int
GATHER: int
SCATTER: int
JOIN: int

class Output:
    """Memory that the engine allocated. Unless it is `on_gpu` it supports the buffer protocol
    (format 'B', writable, 1-D bytes) and keeps the memory alive."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def on_gpu(self) -> bool: ...
    def copy_to(self, to: int, stream: int) -> None:
        """Enqueues the copy of a result that is `on_gpu` to an address there, on a stream that has
        joined (`join_stream`). To be called before the handle is released."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> int: ...
    @property
    def received_splits(self) -> list[int] | None: ...

class Engine:
    """One rank's engine. Every method releases the GIL while it waits. Errors are raised as the
    types of `horoacc.errors` (through `horoacc.errors.from_core(kind, message, culprit)`)."""

    def __init__(self, settings: dict[str, str], placement: dict[str, object]) -> None:
        """placement keys: rank, size, local_rank, local_size, cross_rank, cross_size, bootstrap
        ("tcp"|"mpi"|"none"), rendezvous, rendezvous_fd, secret, mpi_plugin (a file, or the folder
        of both plug-ins), mpi_launcher ("openmpi", "mpich" or any other launcher's name),
        mpi_library (a libmpi that the user asks for), mpi_prefix (sys.prefix), check (a function
        that is called again and again while the ranks meet, and may raise an exception)."""
    @property
    def address(self) -> int:
        """The ha_engine pointer, for torch_ops and tensorflow_ops."""
    @property
    def calls(self) -> object:
        """The capsule of python_engine_calls.h, for torch_ops. It keeps the engine alive."""
    @property
    def placement(self) -> tuple[int, int, int, int, int, int]:
        """rank, size, local_rank, local_size, cross_rank, cross_size."""
    def shutdown(self) -> None: ...
    def abandon(self) -> None:
        """Shuts down without a word to the other ranks, before this process ends in failure."""
    def watch_stacks(self, talk: int, signal: int, fd: int, heed_requests: bool) -> None:
        """Says over which socket, else by which signal and in which file, the interpreter's stacks
        are to be had, and whether the signal of `hear_requests` asks for a record."""
    def serve_readings(self, listener: int) -> None:
        """Answers who connects to a listening Unix socket, which it takes over."""
    def finalize_mpi(self) -> None:
        """Before the process ends normally: finalises MPI if HoroACC initialised it."""
    @property
    def mpi_thread_level(self) -> int:
        """What MPI was initialised with: 0 to 3 for MPI_THREAD_SINGLE to _MULTIPLE; -1 without."""
    @property
    def object_key(self) -> bytes:
        """The key of the MACs of pickled objects; empty if data go nowhere without tags."""
    @property
    def arena_over(self) -> bool:
        """Whether the engine is shut down and no tensor lies in its arena."""
    def before_fork(self) -> None:
        """The three fork calls keep the arena's memory out of the child's reach."""
    def after_fork_in_parent(self) -> None: ...
    def after_fork_in_child(self) -> None: ...
    def add_process_set(self, ranks: Sequence[int], own_part: bool = False) -> int: ...
    def remove_process_set(self, process_set: int, own_part: bool = False) -> None: ...
    def claim_group(self, ranks: Sequence[int]) -> int: ...
    def join_group(self, group: int, ranks: Sequence[int]) -> None: ...
    def process_set_ids(self) -> list[int]: ...
    def process_set_ranks(self, process_set: int) -> list[int] | None: ...
    def submit(
        self,
        collective: int,
        tensors: Sequence[tuple[str | None, int, int, tuple[int, ...], int]],
        op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = 0,
        process_set: int = 0,
        splits: Sequence[int] | None = None,
        keep: object = None,
        validation_error: str | None = None,
        place: tuple[int, int] | None = None,
        grouped: bool = False,
    ) -> int:
        """tensors: (name, input pointer, output pointer or 0, shape, dtype number). `keep` is held
        until the handle is complete. With `validation_error`, why this rank cannot make the
        call, the call fails on all ranks. `place` is a GPU's number and the stream on which its
        memory gets ready, if the tensors lie there. `grouped`: the names are those of a group's
        members, "<name>_<i>of<n>". Returns a handle."""
    def allreduce(
        self,
        name: str | None,
        input: int,
        output: int,
        shape: tuple[int, ...],
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int,
        keep: object,
        wait: bool,
        place: tuple[int, int] | None = None,
    ) -> int:
        """The hot path of submit: one allreduce. With `wait` it returns
        when the result is there, raises what `wait` raises, and leaves no handle behind."""
    def reduce_array(
        self, input: object, output: object, name: str | None, op: int, process_set: int
    ) -> bool:
        """A blocking allreduce of an object with a buffer, without factors; `output` may be the
        same. False, without a call, if one of them is not contiguous or of another type than the
        core's, or `output` not writable. Raises what `wait` raises."""
    def barrier(self, process_set: int) -> None:
        """A blocking barrier. Raises what `wait` raises."""
    def join_stream(self, handle: int, stream: int) -> None:
        """Of a complete call with a `place`: what comes on `stream` from now on finds the results.
        Waits for nothing."""
    def poll(self, handle: int) -> bool:
        """Raises KeyError for an unknown handle."""
    def wait(self, handle: int, timeout: float | None = None) -> None:
        """Raises the handle's error; KeyboardInterrupt and other signal handlers run meanwhile."""
    def finish(self, handle: int) -> None:
        """`wait` and `release`; a call that ends in an error is not released."""
    def outputs(self, handle: int) -> list[Output]:
        """Of a complete handle; empty for members whose output the caller gave."""
    def release(self, handle: int) -> None:
        """Forgets a call and frees its name. For one in flight that happens at a submission after
        its completion, and its tensors are kept until then."""
    def arena_contains(self, pointer: int) -> bool: ...
    @property
    def tuned(self) -> tuple[int, int, int, int]:
        """fusion_threshold, last_arriver_bytes, window_bytes and the algorithm's number, as they
        are now; window_bytes and algorithm are 0 where the settings hold."""
    def tune(
        self, fusion_threshold: int, last_arriver_bytes: int, window_bytes: int, algorithm: int,
        trials: int = 0, kept: int = 0, story: str = "",
    ) -> None:  # fmt: skip
        """Changes settings between two steps, on all ranks alike. `algorithm`: 1 + its place in
        `algorithms`. Those who look see the rest; `story` is JSON."""
    def start_timeline(self, path: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> None: ...
    def counters(self) -> dict[str, int]: ...

def version() -> str: ...
def signal_is_free(signal: int) -> bool:
    """Whether nobody handles or ignores it, in Python or not."""

def hear_requests(signal: int) -> bool:
    """Counts how often a signal comes, if it is free. Says whether it was."""

def end_requests(signal: int) -> None:
    """Gives the signal back, unless somebody else has taken it since then."""

def cuda_trouble(plugin: str, device: int) -> str: ...
def nccl_version(library: str) -> tuple[str, str]: ...
def libcrypto_version(library: str) -> tuple[str, str]: ...
def setting_defaults() -> dict[str, str]: ...

class Fabric:
    """Links of a simulated cluster, with usual constants: seconds, and bytes a second."""

    local_latency: float
    local_bandwidth: float
    memory_bandwidth: float
    network_latency: float
    stream_bandwidth: float
    nic_bandwidth: float
    reduce_bandwidth: float
    overhead: float
    slice_bytes: float
    nics: int

class Prediction:
    """What the simulator says."""

    @property
    def seconds(self) -> float: ...
    @property
    def windows(self) -> int:
        """Into which the vector is best cut."""
    @property
    def events(self) -> int: ...

class Proof:
    """What the prover counted; bytes in parts of the vector."""

    @property
    def steps(self) -> int: ...
    @property
    def links(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def most_sent(self) -> float: ...
    @property
    def host_sends(self) -> float: ...
    @property
    def network_messages(self) -> int: ...

def algorithms() -> list[str]: ...
def simulate(
    algorithm: str, ranks_per_host: Sequence[int], bytes: float, fabric: Fabric, trees: int = 4
) -> Prediction: ...
def prove(algorithm: str, ranks_per_host: Sequence[int], root: int = 0, trees: int = 4) -> Proof:
    """At most 64 ranks. Raises what is wrong with the schedule, or with what was asked."""
