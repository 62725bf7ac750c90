"""Training of three small networks on 2 ranks, against the same two processes alone.

SGD with momentum, one thread a rank. Each rank has the network twice: one copy is
trained with the others, one alone. Short blocks of both take turns, each pair of blocks gives an
efficiency, and the figure is their median. A first block alone runs before `hvd.init()`, so that
what idle threads cost is seen as well.

Ranks in lockstep wait for whoever is slower in that step, however fast the communication is. The
blocks alone say how much that is: the mean step against the mean of the slower rank's steps.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any, cast

from benchmarks.adapters import HoroaccAdapter
from benchmarks.group import Group, GroupFailed, groups
from benchmarks.machine import cores
from benchmarks.rank import Rank
from benchmarks.records import Records

RANKS = 2
_LIMITS = {"mlp": 90, "cnn": 95, "deep": 85}
_NAMES = {
    "mlp": "MLP 1024-2048-2048-1000, batch 32",
    "cnn": "ResNet-20-shaped CNN, batch 16",
    "deep": "100 x Linear(64,64) + Linear(64,10), batch 32",
}
_ROUNDS, _BLOCK_SECONDS = 24, 0.25
_WARM_STEPS = 2


# --- on the ranks ------------------------------------------------------------------------------


class Training:
    """One copy of a network on a rank, trained alone or with the others."""

    def __init__(self, net: str, rank: int) -> None:
        import torch

        from benchmarks.nets import NETS

        torch.manual_seed(1 + rank)
        self.task = NETS[net]()
        self.data = self.task.data()
        parameters = self.task.model.parameters()
        self.optimizer: Any = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def join(self, hvd: Any) -> None:
        """From now on with the others."""
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer, named_parameters=self.task.model.named_parameters()
        )
        hvd.broadcast_parameters(self.task.model.state_dict(), root_rank=0)

    def step(self) -> None:
        import torch

        x, y = self.data
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.task.model(x), y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def build(rank: Rank, net: str) -> int:
    """Makes both copies of the network; gives the number of its parameters' tensors."""
    for copy in ("alone", "together"):
        rank.kept[copy] = Training(net, rank.adapter.rank)
    return len(list(rank.kept["alone"].task.model.parameters()))


def join(rank: Rank) -> None:
    """Joins the job and wraps the optimizer of one copy."""
    hvd = cast(HoroaccAdapter, rank.adapter).hvd
    hvd.init()
    rank.kept["together"].join(hvd)


def train(rank: Rank, copy: str, steps: int) -> list[float]:
    """Trains one copy; gives the seconds of each step."""
    training: Training = rank.kept[copy]
    for _ in range(_WARM_STEPS):
        training.step()
    clock = [time.perf_counter()]
    for _ in range(steps):
        training.step()
        clock.append(time.perf_counter())
    return [after - before for before, after in pairwise(clock)]


def in_place(rank: Rank) -> float:
    """Gives the share of all bytes that were reduced where autograd had put them."""
    counted = cast(HoroaccAdapter, rank.adapter).hvd.counters()
    moved = [counted[name] for name in ("arena_bytes", "window_bytes", "staged_bytes")]
    return float(moved[0] / max(1, sum(moved)))


def same(rank: Rank) -> bool:
    """Says whether all ranks have the same parameters, bit for bit."""
    import torch

    hvd = cast(HoroaccAdapter, rank.adapter).hvd
    model = rank.kept["together"].task.model
    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    least, most = hvd.allreduce(own, op=hvd.Min), hvd.allreduce(own, op=hvd.Max)
    return bool(torch.equal(own, least) and torch.equal(own, most))


# --- in the driver -----------------------------------------------------------------------------


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    report_failure = records.reporter_of_failures(RANKS)
    for net in _NAMES:
        # New processes for each, so that its first baseline really is before init().
        late = {"BENCH_LATE": "1", "HOROACC_ARENA": "gradients"}
        with groups(["horoacc"], RANKS, report_failure, False, **late) as up:
            if "horoacc" in up:
                try:
                    _measure(records, up["horoacc"], net, quick)
                except GroupFailed as error:
                    report_failure(f"horoacc, {net}", str(error))

    _keeping(records, quick)


def _keeping(records: Records, quick: bool) -> None:
    """What it brings that horoaccrun lets the C library keep freed memory: the network with large
    activations alone, on ranks that it started and on ranks that it did not."""
    report_failure = records.reporter_of_failures(RANKS)
    with groups(["horoacc", "gloo"], RANKS, report_failure, False, BENCH_LATE="1") as up:
        if len(up) < 2:
            return
        gains = []
        for group in up.values():
            group.run(build, "cnn")
            group.run(train, "alone", 2)
        for _ in range(2 if quick else _ROUNDS // 2):
            kept, given_back = (
                _mean(up[name].run(train, "alone", 2 if quick else 5))
                for name in ("horoacc", "gloo")
            )
            gains.append(100 * (given_back / kept - 1))
        what = f"{_NAMES['cnn']}: a step without freed memory kept takes longer by"
        records.figure(what, round(statistics.median(gains), 1), "%", up["horoacc"])


def _measure(records: Records, group: Group, net: str, quick: bool) -> None:
    tensors = group.run(build, net)[0]
    group.run(train, "alone", 3)
    before = group.run(train, "alone", 3 if quick else 10)
    group.run(join)
    steps = max(2, int(_BLOCK_SECONDS / _mean(before)))
    shares: list[float] = []
    lockstep: list[float] = []
    seconds: dict[str, list[float]] = {"alone": [], "together": []}
    for turn in range(3 if quick else _ROUNDS):
        for copy in ("alone", "together") if turn % 2 else ("together", "alone"):
            block = group.run(train, copy, steps)
            seconds[copy].append(_mean(block))
            if copy == "alone":
                slower = statistics.mean(map(max, zip(*block, strict=True)))
                lockstep.append(100 * seconds[copy][-1] / slower)
        shares.append(100 * seconds["alone"][-1] / seconds["together"][-1])
    if not all(group.run(same)):
        records.report_failure(f"horoacc, {net}", RANKS, "the ranks' parameters differ")
    share, name = statistics.median(shares), _NAMES[net]
    records.figure(
        f"{name}: efficiency", round(share, 1), "%", group,
        net=net, tensors=tensors, quartiles=_quartiles(shares),
        step_us={copy: round(1e6 * statistics.median(found), 1) for copy, found in seconds.items()},
        step_before_init_us=round(1e6 * _mean(before), 1),
        reduced_in_place=round(100 * min(group.run(in_place)), 1),
    )  # fmt: skip
    least = statistics.median(lockstep)
    records.figure(f"{name}: waiting for the slower rank alone leaves", round(least, 1), "%", group)
    records.target(
        f"{name}, {RANKS} ranks on {cores()} cores", share, _LIMITS[net], "%", False,
        lockstep=round(least, 1),
    )  # fmt: skip


def _mean(block: list[list[float]]) -> float:
    return statistics.mean(statistics.mean(steps) for steps in block)


def _quartiles(values: list[float]) -> list[float]:
    return [round(value, 1) for value in statistics.quantiles(values, n=4)]
