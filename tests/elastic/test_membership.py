"""Who is a rank at what time: the rules by themselves, and drawn histories that keep to them."""

from __future__ import annotations

import random

import pytest

from horoacc.launcher.elastic.membership import (
    ADDED,
    INFINITE,
    REMOVED,
    Epoch,
    Limits,
    Membership,
    Phase,
    Report,
    Worker,
)
from horoacc.launcher.hosts import Host


class Simulated:
    """A membership whose workers do at once what they are told."""

    def __init__(self, hosts: str, limits: Limits) -> None:
        self.now = 0.0
        self.membership = Membership(limits, seed=1)
        self.hosts(hosts)

    def hosts(self, text: str) -> int:
        pairs = [part.split(":") for part in text.split(",") if part]
        return self.membership.set_hosts([Host(name, int(slots)) for name, slots in pairs])

    def start(self) -> list[Worker]:
        return [self.membership.add(*place) for place in self.membership.wanted(self.now)]

    def ask(
        self, *workers: Worker, failed: bool = False, steps: int = 0, commits: int = 0,
        obstacle: str = "",
    ) -> None:  # fmt: skip
        report = Report(steps, commits, failed, obstacle)
        for worker in workers:
            own = report if worker.seat is not None else Report()
            self.membership.ask(worker, "here:1", 2, own, self.now)

    def form(self) -> Epoch | None:
        for worker in self.membership.to_dismiss():
            worker.phase = Phase.DISMISSED
        return self.membership.form()

    def begin(self) -> Epoch:
        self.ask(*self.start())
        epoch = self.form()
        assert epoch is not None
        return epoch

    def die(self, worker: Worker, status: int = -9) -> None:
        self.membership.ended(worker, status, self.now)

    def shape(self) -> list[tuple[str, int, int]]:
        """Host, slot and local rank by rank."""
        assert self.membership.epoch is not None
        found = []
        for worker in self.membership.epoch.workers:
            assert worker.seat is not None
            found.append((worker.host, worker.slot, worker.seat.local_rank))
        return found


def test_the_first_epoch_waits_for_all_that_start() -> None:
    job = Simulated("a:2,b:1", Limits(2, INFINITE))
    first, second, third = job.start()
    job.ask(first, second)
    assert job.form() is None
    job.die(third)
    epoch = job.form()
    assert epoch is not None and epoch.sync and [w.number for w in epoch.workers] == [0, 1]


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(1, 2, 2), (1, INFINITE, 5), (5, 5, 5), (1, 3, 3)]
)
def test_as_many_as_hosts_and_limits_allow(least: int, most: float, expected: int) -> None:
    job = Simulated("a:3,b:2", Limits(least, most))
    assert len(job.begin().workers) == expected
    assert job.start() == []


def test_places_after_a_death_and_a_replacement() -> None:
    job = Simulated("a:2,b:2", Limits(2, INFINITE))
    ranks = job.begin().workers
    assert job.shape() == [("a", 0, 0), ("a", 1, 1), ("b", 0, 0), ("b", 1, 1)]
    assert [(w.seat.cross_rank, w.seat.cross_size) for w in ranks if w.seat] == [
        (0, 2), (0, 2), (1, 2), (1, 2)
    ]  # fmt: skip
    job.die(ranks[0])
    assert job.membership.waits_for() == ranks[1:]
    job.ask(*ranks[1:3], failed=True)
    assert job.form() is None
    job.ask(ranks[3], failed=True)
    epoch = job.form()
    assert epoch is not None and epoch.sync
    assert job.shape() == [("a", 1, 0), ("b", 0, 0), ("b", 1, 1)]
    (fresh,) = job.start()  # in the slot of the one that died
    assert (fresh.host, fresh.slot) == ("a", 0)
    assert job.membership.change_due() == 0
    job.ask(fresh)
    assert job.membership.change_due() == ADDED
    job.ask(*epoch.workers)
    grown = job.form()
    # Rank 0 is an old one, so that the newcomer gets its state; local ranks follow the slots.
    assert grown is not None and grown.sync and grown.joined == [fresh]
    assert job.shape() == [("a", 1, 1), ("a", 0, 0), ("b", 0, 0), ("b", 1, 1)]


def test_the_rank_that_has_come_farthest_leads() -> None:
    job = Simulated("a:2,b:2", Limits(2, INFINITE))
    ranks = job.begin().workers
    job.die(ranks[0])
    for worker, progress in zip(ranks[1:], (4, 5, 5), strict=True):
        job.ask(worker, failed=True, steps=progress, obstacle="" if progress == 5 else "behind")
    epoch = job.form()
    assert epoch is not None and epoch.recover == "forward"
    assert [w.number for w in epoch.workers] == [2, 3, 1]  # b first, for its rank leads
    assert [w.level for w in epoch.workers] == [True, True, False]


@pytest.mark.parametrize(
    ("reports", "recover", "leader"),
    [  # steps, commits and obstacle of ranks 1 and 2
        ([(4, 1, "it"), (5, 1, "")], "forward", 2),
        ([(5, 1, "it"), (5, 1, "")], "commit", 1),
        ([(5, 1, "it"), (4, 2, "")], "commit", 2),
        ([(-1, -1, ""), (0, 0, "")], "forward", 2),
        ([(-1, -1, ""), (-1, -1, "")], "commit", 1),
    ],
)
def test_the_way_on(reports: list[tuple[int, int, str]], recover: str, leader: int) -> None:
    job = Simulated("a:3", Limits(1, INFINITE))
    ranks = job.begin().workers
    job.die(ranks[0])
    for worker, (steps, commits, obstacle) in zip(ranks[1:], reports, strict=True):
        job.ask(worker, failed=True, steps=steps, commits=commits, obstacle=obstacle)
    epoch = job.form()
    assert epoch is not None and (epoch.recover, epoch.workers[0].number) == (recover, leader)
    assert epoch.workers[0].level


def test_old_rank_0_leads_if_others_are_no_farther() -> None:
    job = Simulated("a:3", Limits(1, INFINITE))
    ranks = job.begin().workers
    job.die(ranks[2])
    job.ask(*ranks[:2], failed=True, steps=7)
    epoch = job.form()
    assert epoch is not None and epoch.workers == ranks[:2]


def test_hosts_that_go_are_left_without_sharing_state() -> None:
    job = Simulated("a:1,b:1", Limits(1, INFINITE))
    ranks = job.begin().workers
    assert job.hosts("b:1") == REMOVED
    assert job.membership.change_due() == REMOVED
    job.ask(*ranks)
    epoch = job.form()
    assert epoch is not None and epoch.workers == [ranks[1]] and not epoch.sync
    assert ranks[0].phase is Phase.DISMISSED
    job.die(ranks[0], 0)
    assert not job.membership.over and job.membership.hosts["a"].failures == 0


def test_the_last_that_have_the_state_stay_until_others_have_it() -> None:
    job = Simulated("a:2", Limits(1, INFINITE))
    ranks = job.begin().workers
    job.hosts("b:1")
    assert job.membership.change_due() == 0  # nobody else has it
    (fresh,) = job.start()
    job.ask(fresh)
    assert job.membership.change_due() == ADDED
    job.ask(*ranks)
    epoch = job.form()
    assert epoch is not None and epoch.workers == [*ranks, fresh] and epoch.sync
    assert job.membership.change_due() == REMOVED
    job.ask(*epoch.workers)
    epoch = job.form()
    assert epoch is not None and epoch.workers == [fresh] and not epoch.anew


def test_a_newcomer_never_leads_those_that_have_the_state() -> None:
    job = Simulated("a:2,b:1", Limits(1, INFINITE))
    ranks = job.begin().workers
    job.die(ranks[0])
    job.ask(*ranks[1:], failed=True)
    job.form()
    (fresh,) = job.start()
    job.ask(fresh)
    job.ask(*ranks[1:], steps=7)
    epoch = job.form()
    assert epoch is not None and epoch.workers[:2] == [ranks[1], fresh]
    job.die(ranks[1])  # the leader, before the newcomer got the state
    job.membership.ask(fresh, "here:1", 2, Report(), job.now)
    job.ask(ranks[2], steps=7)  # it had no error: it says again what it said
    epoch = job.form()
    assert epoch is not None and epoch.workers[0] is ranks[2] and epoch.sync and not epoch.anew
    job.die(ranks[2])
    job.membership.ask(fresh, "here:1", 2, Report(-2, -2, True), job.now)
    epoch = job.form()
    assert epoch is not None and epoch.anew


def test_fewer_slots_and_a_host_that_comes_back() -> None:
    job = Simulated("a:2,b:1", Limits(1, INFINITE))
    job.begin()
    assert job.hosts("a:1,b:1") == REMOVED and job.membership.change_due() == REMOVED
    assert job.hosts("b:1") == REMOVED
    assert job.hosts("a:1,b:1") == ADDED
    assert list(job.membership.hosts) == ["b", "a"]  # it is the youngest now


def test_a_host_is_left_out_after_failures() -> None:
    job = Simulated("a:2", Limits(1, INFINITE, failures_per_host=2))
    ranks = job.begin().workers
    job.die(ranks[0])
    job.ask(ranks[1], failed=True)
    assert job.form() is not None
    (fresh,) = job.start()
    job.die(fresh, 1)
    assert job.start() == [] and job.membership.excluded() == ["a"]
    assert "nothing is started on a any more" in job.membership.shortage()


def test_a_cooldown_doubles() -> None:
    job = Simulated("a:1,b:1", Limits(1, INFINITE, cooldown=(10, 30)))
    ranks = job.begin().workers
    job.ask(ranks[0], failed=True)
    for least, most in ((7.5, 12.5), (15, 25), (22.5, 37.5), (22.5, 37.5)):
        worker = next(w for w in job.membership.live() if w.host == "b")
        job.die(worker, 1)
        if job.membership.epoch is not None and job.membership.epoch.number == 1:
            assert job.form() is not None
        until = job.membership.next_look(job.now)
        assert least <= until - job.now <= most
        assert job.start() == []
        job.now = until
        assert [w.host for w in job.start()] == ["b"]


def test_a_spare_takes_the_place_of_a_rank_on_its_host() -> None:
    job = Simulated("a:2,b:1", Limits(1, INFINITE, spares=2))
    started = job.start()
    assert [(w.host, w.spare) for w in started[3:]] == [("a", True), ("b", True)]
    job.ask(*started[:3])
    epoch = job.form()  # it does not wait for the spares
    assert epoch is not None and len(epoch.workers) == 3
    job.ask(started[3])
    assert job.membership.change_due() == 0 and job.start() == []
    job.die(started[0])
    assert [(w.host, w.slot) for w in job.start()] == []  # the spare will have its slot
    job.ask(*started[1:3], failed=True)
    epoch = job.form()
    assert epoch is not None and [w.number for w in epoch.workers] == [1, 3, 2]
    assert started[3].slot == 0 and not started[3].spare and not epoch.workers[1].level
    assert [(w.host, w.spare) for w in job.start()] == [("a", True)]
    job.die(started[2])  # of b, whose spare is still starting
    assert [(w.host, w.slot) for w in job.start()] == [("b", 0)]


def test_a_rank_that_ends_without_an_error_ends_the_job() -> None:
    job = Simulated("a:2", Limits(1, INFINITE))
    ranks = job.begin().workers
    job.die(ranks[0], 0)
    job.ask(ranks[1], failed=True)
    assert job.form() is None and ranks[1].phase is Phase.DISMISSED
    assert job.start() == []


@pytest.mark.parametrize("seed", range(300))
def test_drawn_histories(seed: int) -> None:
    draw = random.Random(seed)
    least = draw.randint(1, 3)
    most, spares = draw.choice([INFINITE, least + 2]), draw.choice([0, 0, 1, 2])
    limits = Limits(least, most, failures_per_host=50, spares=spares)
    job = Simulated("a:2,b:2", limits)
    for _ in range(200):
        live = job.membership.live()
        members = job.membership.members()
        move = draw.choice(["start", "ask", "die", "hosts", "form", "interrupt"])
        if move == "start":
            job.start()
        elif move == "ask" and live:
            worker = draw.choice(live)
            asks = worker in job.membership.waits_for() or worker.phase is Phase.STARTING
            if asks and (job.membership.epoch is not None or not worker.spare):
                job.ask(worker, failed=True, steps=draw.randint(-1, 3), commits=draw.randint(-1, 3))
        elif move == "die" and live:
            worker = draw.choice(live)
            job.die(worker, 0 if worker.phase is Phase.DISMISSED else -9)
        elif move == "hosts" and draw.random() < 0.3:
            names = draw.sample("abc", draw.randint(1, 3))
            job.hosts(",".join(f"{name}:{draw.randint(1, 3)}" for name in names))
        elif move == "interrupt" and job.membership.change_due():
            job.ask(*members, steps=2)
        elif move == "form" and (epoch := job.form()) is not None:
            _check(job, epoch, members)
        taken = [(w.host, w.slot) for w in job.membership.live() if not w.spare]
        assert len(taken) == len(set(taken)), "two workers in one slot"
    # Whatever happened: with a host and time the job goes on.
    job.hosts("d:9")
    for _ in range(20):
        for worker in job.membership.live():
            if worker.phase is Phase.DISMISSED:
                job.die(worker, 0)
        job.ask(*(w for w in job.start() if not w.spare))
        if job.membership.change_due():
            job.ask(*job.membership.members())
        job.ask(*job.membership.waits_for(), failed=True)
        starting = [w for w in job.membership.live() if w.phase is Phase.STARTING]
        job.ask(*(w for w in starting if job.membership.epoch is not None or not w.spare))
        job.form()
    final = job.membership.epoch
    assert final is not None and {w.host for w in final.workers} == {"d"}
    assert len(final.workers) == min(9, limits.most)


def _check(job: Simulated, epoch: Epoch, members: list[Worker]) -> None:
    """What holds of every epoch."""
    limits = job.membership.limits

    def belongs(worker: Worker) -> bool:
        record = job.membership.hosts[worker.host]
        return record.here and worker.slot < record.slots

    assert limits.least <= len(epoch.workers) <= limits.most
    assert all(worker.phase is Phase.SEATED for worker in epoch.workers)
    old = [worker for worker in members if worker in epoch.workers and worker.holds]
    if old:
        assert epoch.workers[0] in old, "a newcomer leads, whose state is not the job's"
        measure = "commits" if epoch.recover == "commit" else "steps"
        progress = [getattr(worker.report, measure) for worker in old]
        assert getattr(epoch.workers[0].report, measure) == max(progress)
    assert epoch.sync or not epoch.joined
    seats = [worker.seat for worker in epoch.workers if worker.seat is not None]
    assert [seat.rank for seat in seats] == list(range(len(epoch.workers)))
    by_host: dict[str, list[int]] = {}
    for worker, seat in zip(epoch.workers, seats, strict=True):
        # Only the last that have the state stay where they may not.
        assert belongs(worker) or (worker in old and not any(map(belongs, old)))
        by_host.setdefault(worker.host, []).append(seat.local_rank)
        assert seat.local_size == sum(other.host == worker.host for other in epoch.workers)
    for local_ranks in by_host.values():
        assert sorted(local_ranks) == list(range(len(local_ranks)))
