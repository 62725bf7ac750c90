"""How long a recorded job's steps would take on other hosts and links."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from horoacc import _core
from horoacc.launcher.look.recording import Call, Recording

CALL_SECONDS = 20e-6
ERROR = (
    "with links that were fitted, steps of three networks on two and four hosts were 4 to 15% off, "
    "and one 26% (docs/replay.md); computation takes what it took in the record, whatever else its "
    "cores do"
)
_CANDIDATES = {
    "allreduce": (
        "ring", "double_tree", "trees", "hierarchical", "hierarchical_tree", "cpu_reduce",
        "cpu_reduce_tree", "canonical",
    ),
    "allgather": ("ring_all_gather", "log_all_gather"),
    "broadcast": ("tree_broadcast", "chain_broadcast"),
    "alltoall": ("direct_all_to_all", "rail_all_to_all"),
    "reducescatter": ("ring_reduce_scatter", "log_reduce_scatter"),
}  # fmt: skip


@dataclass
class Predicted:
    """What the simulator says."""

    step: float = 0.0
    """Seconds: the median."""
    waiting: float = 0.0
    """Of rank 0 in a step: the median."""
    algorithms: set[str] = field(default_factory=set)
    """That are quickest for its allreduces."""


@dataclass
class _Rank:
    """How far a recorded rank's part has come."""

    time: float = 0.0
    next: int = 0
    waiting: float = 0.0
    open: list[int] = field(default_factory=list)
    """Calls for which it has not waited."""
    marks: list[tuple[float, float]] = field(default_factory=list)
    """When each step began, and how long it had waited until then."""


class _Links:
    """What collectives cost on some hosts."""

    def __init__(
        self, hosts: Sequence[int], fabric: _core.Fabric, algorithm: str | None, call: float
    ) -> None:
        self._hosts = list(hosts)
        self._fabric = fabric
        self._algorithm = algorithm
        levels = math.ceil(math.log2(len(hosts)))
        # A tree of messages up and down.
        self.agreement = call + 2 * levels * (fabric.network_latency + fabric.overhead)
        self.used: set[str] = set()

    @functools.cached_property
    def _known(self) -> dict[tuple[str, int], float]:
        return {}

    def seconds(self, kind: str, size: int) -> float:
        """What the bytes take, by the quickest algorithm."""
        if kind == "barrier" or size == 0 or sum(self._hosts) == 1:
            return 0.0
        if (kind, size) not in self._known:
            names = _CANDIDATES[kind]
            if kind == "allreduce" and self._algorithm:
                names = (self._algorithm,)
            times = {
                name: _core.simulate(name, self._hosts, size, self._fabric).seconds
                for name in names
            }
            best = min(times, key=lambda name: times[name])
            if kind == "allreduce":
                self.used.add(best)
            self._known[kind, size] = times[best]
        return self._known[kind, size]


def predict(
    recording: Recording,
    hosts: Sequence[int],
    fabric: _core.Fabric,
    compute: float = 1.0,
    algorithm: str | None = None,
    call_seconds: float = CALL_SECONDS,
) -> Predicted:
    """Plays a recording through: each bucket begins once all ranks have come, one after the other.

    Args:
        recording: What the ranks did; rank r of the hosts does what the recorded rank r mod their
            number did.
        hosts: How many ranks each host has.
        fabric: Their links.
        compute: Computation takes so many times as long.
        algorithm: Of allreduces; None: for each size the quickest.
        call_seconds: What a call costs beside its bytes.
    """
    links = _Links(hosts, fabric, algorithm, call_seconds)
    size = sum(hosts)
    played = sorted({recording.of(rank) for rank in range(size)})
    ranks = {rank: _Rank() for rank in played}
    left: dict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(recording.calls):
        left[call.bucket].append(number)
    submitted: dict[int, dict[int, float]] = defaultdict(dict)
    done: dict[int, float] = {}
    free = 0.0
    while True:
        for number, rank in ranks.items():
            _go_on(recording, number, rank, compute, submitted, done)
        if not left:
            break
        there = {
            bucket: [call for call in calls if len(submitted[call]) == len(ranks)]
            for bucket, calls in left.items()
        }
        whole = {bucket: calls for bucket, calls in there.items() if calls == left[bucket]}
        # A part of a bucket only if nothing else goes on, since a rank waits for it.
        ready = {
            max(max(submitted[call].values()) for call in calls): bucket
            for bucket, calls in (whole or there).items()
            if calls
        }
        if not ready:
            raise ValueError("the recorded ranks wait for each other")
        latest = min(ready)
        bucket = ready[latest]
        members = [recording.calls[call] for call in there[bucket]]
        start = max(latest + links.agreement, free)
        free = start + links.seconds(members[0].kind, sum(_bytes(c, size) for c in members))
        done.update(dict.fromkeys(there[bucket], free))
        left[bucket] = [call for call in left[bucket] if call not in done]
        if not left[bucket]:
            del left[bucket]
    first = ranks[recording.of(0)]
    first.marks.append((max(max(rank.time for rank in ranks.values()), free), first.waiting))
    steps = [(after[0] - at[0], after[1] - at[1]) for at, after in itertools.pairwise(first.marks)]
    step, waiting = (statistics.median(parts) for parts in zip(*steps, strict=True))
    return Predicted(step, waiting, links.used)


def _bytes(call: Call, size: int) -> int:
    """Of the whole vector: of gathered parts the sum over the ranks."""
    if call.kind == "allgather":
        return sum(call.bytes[rank % len(call.bytes)] for rank in range(size))
    return max(call.bytes)


def _go_on(
    recording: Recording,
    number: int,
    rank: _Rank,
    compute: float,
    submitted: dict[int, dict[int, float]],
    done: dict[int, float],
) -> None:
    """Until it waits for a call that is not done, or has come to the end."""
    actions = recording.ranks[number]
    while rank.next <= len(actions):
        if rank.next == len(actions):
            needed = rank.open
        else:
            action = actions[rank.next]
            needed = [action.call] if action.waits else _before(recording, rank.open, action.call)
        if any(call not in done for call in needed):
            return
        if rank.next < len(actions):
            if not rank.marks or (not action.waits and action.call in recording.starts[1:]):
                rank.marks.append((rank.time, rank.waiting))
            rank.time += compute * action.gap
        over = max((done[call] for call in needed), default=0.0)
        rank.waiting += max(over - rank.time, 0.0)
        rank.time = max(rank.time, over)
        rank.open = [call for call in rank.open if call not in needed]
        if rank.next < len(actions) and not action.waits:
            submitted[action.call][number] = rank.time
            rank.open.append(action.call)
        rank.next += 1


def _before(recording: Recording, open_: Sequence[int], call: int) -> list[int]:
    """The calls that must be over before this one: those of its name."""
    name = recording.calls[call].name
    return [other for other in open_ if recording.calls[other].name == name]
