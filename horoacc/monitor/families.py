"""The metrics of a rank, by names as Prometheus wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """Metrics of one name, which differ in a label."""

    name: str
    """Without `_total`, which counters get."""
    kind: str
    """"counter" or "gauge"."""
    help: str
    label: str = ""
    """The name of the label, if there is one."""
    counters: tuple[tuple[str, str], ...] = ()
    """Names of `hvd.counters()`, each with the label's value."""
    unit: float = 1
    """What one of the counter is in the metric's unit."""


def _counter(name: str, counter: str, text: str) -> Family:
    return Family(name, "counter", text, "", ((counter, ""),))


FAMILIES = (
    _counter("horoacc_submissions", "submissions", "Tensors that the rank has submitted."),
    _counter("horoacc_decisions", "decisions", "Calls that the ranks have agreed on."),
    _counter("horoacc_buckets", "buckets", "Decisions that reduced a bucket of tensors."),
    _counter(
        "horoacc_last_arriver_decisions", "last_arriver",
        "Decisions that came with their result: the last rank of the host had reduced.",
    ),
    Family(
        "horoacc_reduced_bytes", "counter", "Bytes of allreduces, by the way that they took.",
        "path",
        (
            ("arena_bytes", "arena"), ("window_bytes", "window"),
            ("link_bytes", "link"),
            ("gpu_leader_bytes", "gpu_leader"), ("gpu_stream_bytes", "gpu_stream"),
            ("gpu_kernel_bytes", "gpu_kernel"), ("gpu_nccl_bytes", "gpu_nccl"),
            ("gpu_composed_bytes", "gpu_composed"),
        ),
    ),
    Family(
        "horoacc_copied_bytes", "counter", "Bytes that were copied first, by where from.", "source",
        (("staged_bytes", "memory"), ("gpu_bytes", "gpu")),
    ),
    _counter(
        "horoacc_gpu_moved_bytes", "gpu_moved_bytes",
        "Bytes of other collectives that went from GPU to GPU.",
    ),
    _counter(
        "horoacc_gpu_overlapped_buckets", "gpu_overlapped_buckets",
        "Buckets that a GPU packed while it or others reduced earlier ones of the process set.",
    ),
    _counter(
        "horoacc_control_messages", "control_messages",
        "Messages of the negotiation to other hosts.",
    ),
    _counter("horoacc_control_bytes", "control_bytes", "Bytes of these messages."),
    _counter(
        "horoacc_data_connections", "data_connections",
        "Connections for data between hosts that came into being.",
    ),
    Family(
        "horoacc_data_system_calls", "counter", "System calls on these connections.", "way",
        (("data_send_calls", "send"), ("data_receive_calls", "receive")),
    ),
    _counter(
        "horoacc_driven_waits", "driven_waits", "Waits in which the caller drove the engine itself."
    ),
    _counter(
        "horoacc_coordinator_wakes", "coordinator_wakes",
        "Times that the coordinator thread woke up.",
    ),
    Family(
        "horoacc_waited_seconds", "counter", "Time that callers were blocked in calls.", "",
        (("waited_ns", ""),), 1e-9,
    ),
    _counter("horoacc_plan_locks", "plan_locks", "Agreements of the ranks on a locked plan."),
    _counter(
        "horoacc_plan_rounds", "plan_rounds", "Steps whose gradients needed one call a bucket."
    ),
    _counter(
        "horoacc_plan_granted", "plan_granted",
        "Calls of such steps, and of TensorFlow's gradients, that began without a message to other "
        "hosts.",
    ),
    _counter("horoacc_plan_dropped", "plan_dropped", "Those of them that were dropped."),
    Family(
        "horoacc_plan_unlocks", "counter", "Ends of such rounds, by their reason.", "reason",
        tuple(
            (f"plan_unlocks_{reason}", reason)
            for reason in ("changed", "wait", "join", "refused", "peer", "end", "tuned")
        ),
    ),
    Family(
        "horoacc_tuned_bytes", "gauge",
        "Settings as autotune has them now; a window of 0 is as the settings say.", "setting",
        (
            ("tuned_fusion_threshold", "fusion_threshold"),
            ("tuned_last_arriver_bytes", "last_arriver_bytes"),
            ("tuned_window_bytes", "window_bytes"),
        ),
    ),
    Family(
        "horoacc_tuned_algorithm", "gauge",
        "The algorithm that autotune has now, by its number; 0: as the settings say.", "",
        (("tuned_algorithm", ""),),
    ),
    _counter("horoacc_autotune_trials", "autotune_trials", "Trials of autotune that have ended."),
    _counter("horoacc_autotune_kept", "autotune_kept", "Those of them whose values were kept."),
    Family(
        "horoacc_arena_bytes", "gauge", "The rank's arena in shared memory, by state.", "state",
        (("arena_in_use", "used"), ("arena_touched", "touched")),
    ),
)  # fmt: skip
"""All of them but `horoacc_rank_up` and `horoacc_job`."""


class Sample(NamedTuple):
    """One number of a rank."""

    family: Family
    value: str
    """Of the label."""
    number: float

    @property
    def name(self) -> str:
        """As Prometheus shows it, without the labels that say which rank it is of."""
        total = "_total" if self.family.kind == "counter" else ""
        label = f'{{{self.family.label}="{self.value}"}}' if self.family.label else ""
        return f"{self.family.name}{total}{label}"


def samples(counters: Mapping[str, int]) -> Iterator[Sample]:
    """Gives the numbers of a rank.

    Args:
        counters: Of `hvd.counters()`.
    """
    for family in FAMILIES:
        for counter, value in family.counters:
            if counter in counters:  # those of GPUs and of other hosts may not be there
                number = counters[counter]
                yield Sample(family, value, number if family.unit == 1 else number * family.unit)
