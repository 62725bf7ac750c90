"""Training of three small networks on 2 ranks, against the same two processes alone.

SGD with momentum, one thread a rank. The baseline runs in the same processes, both at once, first
before `hvd.init()` and then in turns with the training, after `hvd.shutdown()`.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, cast

from benchmarks.doors import HoroaccDoor
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
_LEAST_STEPS = 5


# --- on the ranks ------------------------------------------------------------------------------


class Training:
    """One network on a rank, trained alone or with the others."""

    def __init__(self, net: str, rank: int) -> None:
        import torch

        from benchmarks.nets import NETS

        torch.manual_seed(1 + rank)
        self.task = NETS[net]()
        self.data = self.task.data()
        self.optimizer: Any = self._plain()

    def _plain(self) -> Any:
        import torch

        return torch.optim.SGD(self.task.model.parameters(), lr=1e-3, momentum=0.9)

    def join(self, hvd: Any) -> None:
        """From now on with the others."""
        parameters = self.task.model.named_parameters()
        self.optimizer = hvd.DistributedOptimizer(self._plain(), named_parameters=parameters)
        hvd.broadcast_parameters(self.task.model.state_dict(), root_rank=0)

    def leave(self) -> None:
        """From now on alone, with nothing left of the hooks."""
        for parameter in self.task.model.parameters():
            parameter.grad = None
        self.optimizer = self._plain()

    def step(self) -> None:
        import torch

        x, y = self.data
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.task.model(x), y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def build(rank: Rank, net: str) -> int:
    """Makes the network anew; gives the number of its parameters' tensors."""
    rank.kept["training"] = made = Training(net, rank.door.rank)
    return len(list(made.task.model.parameters()))


def alone(rank: Rank, seconds: float) -> float:
    """Trains without a word to anybody for that long; gives the seconds of a step."""
    training: Training = rank.kept["training"]
    for _ in range(_LEAST_STEPS):
        training.step()
    steps, begin = 0, time.perf_counter()
    # By the clock, so that both processes work until the end.
    while steps < _LEAST_STEPS or time.perf_counter() - begin < seconds:
        training.step()
        steps += 1
    return (time.perf_counter() - begin) / steps


def join(rank: Rank) -> None:
    """Joins the job and wraps the optimizer."""
    hvd = cast(HoroaccDoor, rank.door).hvd
    hvd.init()
    rank.kept["training"].join(hvd)


def together(rank: Rank, steps: int) -> tuple[float, float]:
    """Trains with the others; gives the seconds of a step, and the share of bytes that were
    reduced where autograd had put them."""
    hvd = cast(HoroaccDoor, rank.door).hvd
    training: Training = rank.kept["training"]
    for _ in range(_LEAST_STEPS):
        training.step()
    hvd.barrier()
    before = hvd.counters()
    begin = time.perf_counter()
    for _ in range(steps):
        training.step()
    seconds = (time.perf_counter() - begin) / steps
    after = hvd.counters()
    moved = {
        name: after[name] - before[name] for name in ("arena_bytes", "window_bytes", "staged_bytes")
    }
    return seconds, moved["arena_bytes"] / max(1, sum(moved.values()))


def same(rank: Rank) -> bool:
    """Says whether all ranks have the same parameters, bit for bit."""
    import torch

    hvd = cast(HoroaccDoor, rank.door).hvd
    training: Training = rank.kept["training"]
    own = torch.cat([p.detach().reshape(-1) for p in training.task.model.parameters()])
    least, most = hvd.allreduce(own, op=hvd.Min), hvd.allreduce(own, op=hvd.Max)
    return bool(torch.equal(own, least) and torch.equal(own, most))


def leave(rank: Rank) -> None:
    """Leaves the job."""
    rank.kept["training"].leave()
    cast(HoroaccDoor, rank.door).hvd.shutdown()


# --- in the driver -----------------------------------------------------------------------------


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    complain = records.complainer(RANKS)
    for net in _NAMES:
        # New processes for each, so that its first baseline really is before init().
        late = {"BENCH_LATE": "1", "HOROACC_ARENA": "gradients"}
        with groups(["horoacc"], RANKS, complain, **late) as up:
            if "horoacc" in up:
                try:
                    _measure(records, up["horoacc"], net, quick)
                except GroupFailed as error:
                    complain(f"horoacc, {net}", str(error))


def _measure(records: Records, group: Group, net: str, quick: bool) -> None:
    rounds, seconds = (2, 0.2) if quick else (6, 1.5)
    tensors = group.run(build, net)[0]
    apart: list[float] = []
    joint: list[float] = []
    in_place = 0.0
    for _ in range(rounds):
        apart.append(statistics.mean(group.run(alone, seconds)))
        group.run(join)
        steps = max(_LEAST_STEPS, int(seconds / apart[-1]))
        found = group.run(together, steps)
        joint.append(statistics.mean(step for step, _ in found))
        in_place = min(share for _, share in found)
        if not all(group.run(same)):
            records.complain(f"horoacc, {net}", RANKS, "the ranks' parameters differ")
        group.run(leave)
    # Each block of training against the baseline just before it: both saw the same machine.
    shares = [100 * a / j for a, j in zip(apart, joint, strict=True)]
    share = statistics.median(shares)
    name = _NAMES[net]
    records.figure(
        f"{name}: efficiency", round(share, 1), "%", group,
        net=net, tensors=tensors, min=round(min(shares), 1), max=round(max(shares), 1),
        step_alone_us=[round(1e6 * one, 1) for one in apart],
        step_together_us=[round(1e6 * one, 1) for one in joint],
        first_baseline_share=round(100 * apart[0] / statistics.median(joint), 1),
        reduced_in_place=round(100 * in_place, 1),
    )  # fmt: skip
    records.target(f"{name}, {RANKS} ranks on {cores()} cores", share, _LIMITS[net], "%", False)
