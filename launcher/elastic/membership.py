"""Who is a rank of an elastic job, at what time: the rules, without processes or connections.

A *worker* is a process with a slot on a host. A *seat* is its place in one *epoch*: the job between
two changes of its ranks. Workers ask for seats; once all live workers of the present epoch have
asked, or are gone, there is a next epoch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from horoacc.launcher.hosts import Host

TOGETHER_SECONDS = 30.0
"""For so long newcomers wait for others that were started with them, to come in together."""
Recover = Literal["", "forward", "commit"]
INFINITE = float("inf")
ADDED, REMOVED = 2, 1
"""`HostUpdateResult`'s numbers."""


class Phase(Enum):
    """What a worker is doing, as far as the coordinator knows."""

    STARTING = "starting"
    WAITING = "waiting for a seat"
    SEATED = "seated"
    DISMISSED = "dismissed"  # told to end
    GONE = "gone"


@dataclass(frozen=True)
class Report:
    """How far a worker has come, when it asks for its next seat."""

    steps: int = -2
    """Steps that it has applied in the epoch; -1: its state is older than the epoch; -2: it never
    had the job's state."""
    commits: int = -2
    """Commits that it has made in the epoch; negative as `steps`."""
    failed: bool = False
    """It asks because of an error, and not because it was interrupted."""
    obstacle: str = ""
    """Why its state cannot be used as it stands, and it has to go back to its last commit."""
    risk: str = ""
    """What speaks against it, if it is told to use its state as it stands all the same."""
    uncommitted: int = 0
    """Steps since its last commit."""


@dataclass
class Worker:
    """A process of the job."""

    number: int
    host: str
    slot: int
    """-1 of a spare, until it takes the place of a rank on its host."""
    phase: Phase = Phase.STARTING
    seat: Seat | None = None
    """The last one."""
    address: str = ""
    """Where it would listen as rank 0."""
    master_port: int = 0
    report: Report = field(default_factory=lambda: Report())
    """What it said when it asked for a seat."""
    born: float = 0.0
    level: bool = False
    """It had come as far as the rank that leads the epoch, so that their states are equal."""
    waiting_since: float = INFINITE
    status: int | None = None

    @property
    def spare(self) -> bool:
        """Whether it has no slot yet."""
        return self.slot < 0

    @property
    def alive(self) -> bool:
        """Whether its process has not ended."""
        return self.phase is not Phase.GONE

    @property
    def holds(self) -> bool:
        """Whether it said that it has a state of the job's."""
        return self.report.steps > -2


@dataclass(frozen=True)
class Seat:
    """A worker's place in an epoch."""

    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class Limits:
    """How large a job may be, and what it puts up with."""

    least: int
    most: float
    resets: int = 0
    """0: any number."""
    failures_per_host: int = 3
    spares: int = 0
    """Processes beyond the slots that have prepared themselves."""
    cooldown: tuple[float, float] | None = None
    """The shortest and the longest time for which a host is left out after a failure."""


@dataclass
class HostRecord:
    """A host, as long as the job knows it."""

    name: str
    slots: int
    here: bool = True
    """Discovery finds it."""
    draining: bool = False
    failures: int = 0
    left_out_until: float = 0.0

    def usable(self, now: float) -> bool:
        """Whether workers may be started there."""
        return self.here and not self.draining and now >= self.left_out_until


@dataclass
class Epoch:
    """The ranks between two changes."""

    number: int
    workers: list[Worker]
    """By rank."""
    sync: bool
    """Whether the ranks have to share their state first."""
    recover: Recover = ""
    """Whether the ranks keep their states as they are, or go back to their last commits."""
    why: str = ""
    """Why they go back."""
    lost: int = 0
    """Steps that are done again, since they go back."""
    anew: bool = False
    """No rank has the job's state any more: the training begins again."""
    joined: list[Worker] = field(default_factory=list)
    """Those that were not in the one before."""
    left: list[Worker] = field(default_factory=list)
    """Those of the one before that are not in this one."""


class Membership:
    """The members of one job."""

    def __init__(self, limits: Limits, seed: int | None = None) -> None:
        self.limits = limits
        self.hosts: dict[str, HostRecord] = {}
        """In the order in which they came, so that the oldest is first."""
        self.workers: dict[int, Worker] = {}
        self.epoch: Epoch | None = None
        self.over = False
        """A rank has ended without an error: no rank is replaced any more."""
        self._random = random.Random(seed)

    # --- hosts --------------------------------------------------------------------------------

    def set_hosts(self, found: Sequence[Host]) -> int:
        """Takes the hosts that there are now. Returns what changed: ADDED, REMOVED, both or 0."""
        change = 0
        slots = {host.name: host.slots for host in found}
        for name, count in slots.items():
            record = self.hosts.get(name)
            if record is None or not record.here:
                # A host that comes back is the youngest.
                failures = record.failures if record else 0
                until = record.left_out_until if record else 0.0
                self.hosts.pop(name, None)
                self.hosts[name] = HostRecord(name, count, True, False, failures, until)
                change |= ADDED
            elif record.slots != count:
                change |= ADDED if count > record.slots else REMOVED
                record.slots = count
        for record in self.hosts.values():
            if record.here and record.name not in slots:
                record.here = False
                change |= REMOVED
        return change

    def drain(self, name: str) -> None:
        """Has the workers of a host leave at their next check, and starts none there."""
        self.hosts[name].draining = True

    def lose_host(self, name: str, now: float) -> None:
        """A host is gone, or cannot be used: it is left out as after too many failures."""
        record = self.hosts[name]
        enough = 0 if self.limits.cooldown else self.limits.failures_per_host
        record.failures = max(record.failures + 1, enough)
        self._leave_out(record, now)

    def _leave_out(self, record: HostRecord, now: float) -> None:
        if self.limits.cooldown is not None:
            shortest, longest = self.limits.cooldown
            seconds = min(shortest * 2 ** min(record.failures - 1, 60), longest)
            # So that hosts that failed together do not come back together.
            record.left_out_until = now + seconds * self._random.uniform(0.75, 1.25)
        elif record.failures >= self.limits.failures_per_host:
            record.left_out_until = INFINITE

    def excluded(self) -> list[str]:
        """Hosts on which nothing is started any more because of failures."""
        return [h.name for h in self.hosts.values() if h.left_out_until == INFINITE]

    # --- workers ------------------------------------------------------------------------------

    def live(self) -> list[Worker]:
        """Workers whose processes have not ended."""
        return [worker for worker in self.workers.values() if worker.alive]

    def wanted(self, now: float) -> list[tuple[str, int]]:
        """Hosts and slots of the workers that are to be started now."""
        if self.over:
            return []
        usable = [host for host in self.hosts.values() if host.usable(now)]
        live = [w for w in self.live() if w.phase is not Phase.DISMISSED]
        free = self.limits.most - sum(self._belongs(w) for w in live if not w.spare)
        found: list[tuple[str, int]] = []
        for host in usable:
            # A spare that is ready takes the place of a rank as soon as the ranks change.
            ready = sum(w.spare and w.phase is Phase.WAITING for w in live if w.host == host.name)
            found += [(host.name, slot) for slot in self._free_slots(host.name)[ready:]]
        found = found[: int(min(max(free, 0), len(found)))]
        spares = {host.name: 0 for host in usable}
        for worker in live:
            if worker.spare and worker.host in spares:
                spares[worker.host] += 1
        while spares and sum(spares.values()) < self.limits.spares:
            fewest = min(spares, key=lambda name: spares[name])
            spares[fewest] += 1
            found.append((fewest, -1))
        return found

    def _free_slots(self, name: str) -> list[int]:
        taken = {worker.slot for worker in self.live() if worker.host == name}
        return [slot for slot in range(self.hosts[name].slots) if slot not in taken]

    def _ready_spares(self) -> list[tuple[Worker, int]]:
        """Spares that wait, each with a slot of its host that is free."""
        found = []
        free = {name: self._free_slots(name) for name in self.hosts}
        for worker in self.live():
            waits = worker.spare and worker.phase is Phase.WAITING and self._belongs(worker)
            if waits and free[worker.host]:
                found.append((worker, free[worker.host].pop(0)))
        return found

    def add(self, host: str, slot: int, now: float = 0.0) -> Worker:
        """A worker is started there."""
        worker = Worker(len(self.workers), host, slot, born=now)
        self.workers[worker.number] = worker
        return worker

    def ask(
        self, worker: Worker, address: str, master_port: int, report: Report, now: float
    ) -> None:
        """A worker asks for a seat in the next epoch."""
        worker.phase = Phase.WAITING
        worker.address = address
        worker.master_port = master_port
        worker.report = report
        worker.waiting_since = now

    def ended(self, worker: Worker, status: int, now: float) -> bool:
        """A worker's process has ended. Returns whether that is a failure."""
        dismissed = worker.phase is Phase.DISMISSED
        worker.phase = Phase.GONE
        worker.status = status
        if dismissed:
            return False
        if status == 0 and worker.seat is not None:
            self.over = True
            return False
        if not self.over:
            host = self.hosts[worker.host]
            host.failures += 1
            self._leave_out(host, now)
        return True

    def expected(self, worker: Worker) -> Seat:
        """The place that a worker will have about, which prepares itself beside the others.

        Two such workers expect different ranks, and the local rank is that of the slot.
        """
        members = self.members()
        others = [w for w in self.live() if w.phase is Phase.STARTING and w.number < worker.number]
        rank = len(members) + len(others)
        slots = sorted({w.slot for w in members if w.host == worker.host} | {worker.slot})
        local = len(slots) - 1 if worker.spare else slots.index(worker.slot)
        hosts = list(dict.fromkeys([*(other.host for other in members), worker.host]))
        return Seat(0, rank, rank + 1, local, len(slots), hosts.index(worker.host), len(hosts))

    def _belongs(self, worker: Worker) -> bool:
        """Whether a worker's slot is one that the job may use."""
        return not self.why_leaves(worker)

    def why_leaves(self, worker: Worker) -> str:
        """Why a worker has no place any more; "" if it has one."""
        host = self.hosts[worker.host]
        if self.over:
            return "the job is over"
        if host.draining:
            return "its host is asked to end"
        return "" if host.here and worker.slot < host.slots else "its host or slot left the job"

    # --- epochs -------------------------------------------------------------------------------

    def members(self) -> list[Worker]:
        """The live workers of the present epoch."""
        return [worker for worker in self.epoch.workers if worker.alive] if self.epoch else []

    def numbers(self) -> list[int]:
        """The numbers of the live workers of the present epoch."""
        return [worker.number for worker in self.members()]

    def newcomers(self) -> list[Worker]:
        """Workers that wait for a first seat and may have one, in the order of their hosts."""
        members = set(map(id, self.members()))
        waiting = [w for w in self.workers.values() if w.phase is Phase.WAITING]
        return sorted(
            (w for w in waiting if id(w) not in members and not w.spare and self._belongs(w)),
            key=self._place,
        )

    def to_dismiss(self) -> list[Worker]:
        """Workers that wait for a seat and cannot have one: their host or slot is gone.

        If only such workers have the job's state, they stay until others have it.
        """
        waiting = [w for w in self.live() if w.phase is Phase.WAITING]
        if not self.over and self._all_leave():
            waiting = [worker for worker in waiting if not worker.holds]
        return [worker for worker in waiting if self.over or not self._belongs(worker)]

    def _all_leave(self) -> bool:
        """Whether no member that may stay has the job's state, or will say so."""
        return not any(
            self._belongs(w) and (w.holds or w.phase is Phase.SEATED) for w in self.members()
        )

    def not_needed(self) -> list[Worker]:
        """Workers that are starting, for a job that is over or in a slot that is gone."""
        return [
            worker
            for worker in self.live()
            if worker.phase is Phase.STARTING and (self.over or not self._belongs(worker))
        ]

    def change_due(self, now: float = 0.0) -> int:
        """Why the ranks should be interrupted: ADDED, REMOVED, both or 0."""
        if (
            self.epoch is None
            or self.over
            or any(w.phase is not Phase.SEATED for w in self.members())
        ):
            return 0
        leave = any(not self._belongs(worker) for worker in self.members())
        change = REMOVED if leave and not self._all_leave() else 0
        starting = any(
            w.phase is Phase.STARTING and not w.spare and now < w.born + TOGETHER_SECONDS
            for w in self.live()
        )
        room = len(self.members()) < self.limits.most
        # All that were started together come in together.
        come = room and not starting and (self.newcomers() or self._ready_spares())
        return change | (ADDED if come else 0)

    def enough(self) -> bool:
        """Whether the next epoch will have its ranks once all that start have come."""
        there = [w for w in self.live() if w.phase in (Phase.STARTING, Phase.WAITING)]
        return sum(self._belongs(w) for w in there if not w.spare) >= self.limits.least

    def waits_for(self) -> list[Worker]:
        """Members that have not asked for a seat while another member has, or is gone."""
        if self.epoch is None:
            return []
        broken = any(w.phase is not Phase.SEATED for w in self.epoch.workers)
        return [w for w in self.members() if w.phase is Phase.SEATED] if broken else []

    def form(self) -> Epoch | None:
        """The next epoch, if there is to be one now; the caller has dismissed who is to go."""
        if self.over:
            return None
        members = [worker for worker in self.members() if worker.phase is Phase.WAITING]
        if self.epoch is None:
            if any(w.phase is Phase.STARTING and not w.spare for w in self.live()):
                return None
        elif all(w.phase is Phase.SEATED for w in self.epoch.workers) or self.waits_for():
            return None
        most = int(min(self.limits.most, len(self.workers)))
        chosen = (members + self.newcomers())[:most]
        spares = self._ready_spares()[: most - len(chosen)]
        if len(chosen) + len(spares) < self.limits.least:
            return None
        for worker, slot in spares:
            worker.slot = slot
            chosen.append(worker)
        return self._seat(chosen, members)

    def _seat(self, chosen: list[Worker], members: list[Worker]) -> Epoch:
        before = self.epoch
        old = [worker for worker in chosen if worker in members and worker.holds]
        recover, why = _way_on(old)
        progress = {id(w): w.report.commits if recover == "commit" else w.report.steps for w in old}
        farthest = max(progress.values(), default=0)
        for worker in chosen:
            worker.level = progress.get(id(worker)) == farthest
        leader = min(
            (worker for worker in old if worker.level),
            key=lambda w: w.seat.rank if w.seat else 0,
            default=min(chosen, key=self._place),
        )
        leader.level = True
        order = sorted(
            chosen,
            key=lambda w: (w.host != leader.host, self._age(w.host), w is not leader, w.slot),
        )
        slots = {name: sorted(w.slot for w in chosen if w.host == name) for name in self.hosts}
        hosts = list(dict.fromkeys(worker.host for worker in order))
        number = before.number + 1 if before else 1
        joined = [worker for worker in order if worker not in members]
        left = [w for w in before.workers if w not in order] if before else []
        failed = recover or any(w.phase is Phase.GONE and w.status for w in left)
        behind = any(worker.report.steps < 0 for worker in order)
        sync = bool(joined or failed or behind or before is None)
        anew = before is not None and not old
        lost = max((w.report.uncommitted for w in old if w.level), default=0)
        lost = lost if recover == "commit" else 0
        epoch = Epoch(number, order, sync, recover, why, lost, anew, joined, left)
        for rank, worker in enumerate(order):
            local = slots[worker.host].index(worker.slot)
            rows = [name for name in hosts if len(slots[name]) > local]
            worker.seat = Seat(
                number, rank, len(order), local, len(slots[worker.host]),
                rows.index(worker.host), len(rows),
            )  # fmt: skip
            worker.phase = Phase.SEATED
            worker.waiting_since = INFINITE
        self.epoch = epoch
        return epoch

    def _age(self, host: str) -> int:
        return list(self.hosts).index(host)

    def _place(self, worker: Worker) -> tuple[int, int]:
        return self._age(worker.host), worker.slot

    def next_look(self, now: float) -> float:
        """When a host that was left out may be used again, or newcomers wait no longer; or never.

        Args:
            now: The time.
        """
        back = [h.left_out_until for h in self.hosts.values()]
        late = [w.born + TOGETHER_SECONDS for w in self.live() if w.phase is Phase.STARTING]
        return min((time for time in back + late if time > now), default=INFINITE)

    def shortage(self) -> str:
        """Why there is no next epoch, for an error."""
        waiting = [w for w in self.workers.values() if w.phase is Phase.WAITING]
        text = f"{len(waiting)} of at least {self.limits.least} ranks are there"
        starting = sum(w.phase is Phase.STARTING for w in self.live())
        if starting:
            text += f", {starting} start"
        if excluded := self.excluded():
            text += f"; after failures nothing is started on {', '.join(excluded)} any more"
        if missing := [h.name for h in self.hosts.values() if not h.here]:
            text += f"; {', '.join(missing)} went"
        return text


def _way_on(old: Sequence[Worker]) -> tuple[Recover, str]:
    """How the ranks of an epoch that has failed go on, and why they have to go back.

    They can keep their states if those that have come farthest can: the others get theirs.
    """
    if not any(worker.report.failed for worker in old):
        return "", ""
    farthest = max(worker.report.steps for worker in old)
    if farthest < 0:
        return "commit", "the rank whose state they were getting is lost"
    found = [w.report.obstacle for w in old if w.report.steps == farthest and w.report.obstacle]
    return ("commit", found[0]) if found else ("forward", "")
