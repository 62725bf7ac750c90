"""TensorFlow on 2 ranks: allreduce of its tensors against the peers, and training steps in a
`tf.function` against the same two processes alone.

TensorFlow owns its memory, so its tensors go the way of private memory; a call gives a new tensor.
Each rank has the network twice: one copy is trained with a distributed tape, one alone. Short
blocks of both take turns, and each pair gives an efficiency, as in `training`.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from itertools import pairwise
from typing import Any

from benchmarks.allreduce import PEERS, PRIVATE
from benchmarks.group import Group, GroupFailed, groups
from benchmarks.machine import cores
from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.slices import Contender, Effort, Rotation, Slices, compete

RANKS = 2
EAGER, GRAPH = "tensorflow eager", "tensorflow graph"
_SIZES = tuple(1 << shift for shift in (20, 24, 26))
_MIB = 1 << 20
_LAYERS = (1024, 2048, 2048, 1000)
_BATCH = 32
_NET = "MLP 1024-2048-2048-1000, batch 32, tf.function"
_LIMIT = 90
_ROUNDS, _BLOCK_SECONDS = 24, 0.25
_WARM_STEPS = 2


# --- on the ranks ------------------------------------------------------------------------------


class Copy:
    """One copy of the network on a rank, trained alone or with the others."""

    def __init__(self, rank: int, distributed: bool) -> None:
        import tensorflow as tf

        import horoacc.tensorflow as hvd

        generator = tf.random.Generator.from_seed(1 + rank)
        self.weights = [
            tf.Variable(generator.normal([above, below], stddev=above**-0.5))
            for above, below in pairwise(_LAYERS)
        ]
        momenta = [tf.Variable(tf.zeros_like(weight)) for weight in self.weights]
        self.x = generator.normal([_BATCH, _LAYERS[0]])
        self.y = tf.cast(generator.uniform([_BATCH], 0, _LAYERS[-1], tf.int32), tf.int64)
        if distributed:
            hvd.broadcast_variables(self.weights, root_rank=0)

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                for weight in self.weights[:-1]:
                    x = tf.nn.relu(x @ weight)
                logits = x @ self.weights[-1]
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
                )
            if distributed:
                tape = hvd.DistributedGradientTape(tape)
            grads = tape.gradient(loss, self.weights)
            for weight, momentum, grad in zip(self.weights, momenta, grads, strict=True):
                momentum.assign(0.9 * momentum + grad)
                weight.assign_sub(1e-3 * momentum)

        self._step = step

    def step(self) -> None:
        self._step(self.x, self.y)


def build(rank: Rank) -> None:
    """Makes both copies of the network, with one thread for each op."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    for copy in ("alone", "together"):
        rank.kept[copy] = Copy(rank.door.rank, copy == "together")


def train(rank: Rank, copy: str, steps: int) -> list[float]:
    """Trains one copy; gives the seconds of each step."""
    made: Copy = rank.kept[copy]
    for _ in range(_WARM_STEPS):
        made.step()
    clock = [time.perf_counter()]
    for _ in range(steps):
        made.step()
        clock.append(time.perf_counter())
    return [after - before for before, after in pairwise(clock)]


def same(rank: Rank) -> bool:
    """Says whether all ranks have the same weights, bit for bit."""
    import horoacc.tensorflow as hvd

    made: Copy = rank.kept["together"]
    return all(
        bool((hvd.allreduce(weight, op=op).numpy() == weight.numpy()).all())
        for weight in made.weights for op in (hvd.Min, hvd.Max)
    )  # fmt: skip


# --- in the driver -----------------------------------------------------------------------------


def run(records: Records, quick: bool) -> None:
    """Measures and compares with the targets."""
    if importlib.util.find_spec("tensorflow") is None:
        records.write({"skipped": "TensorFlow is not installed"})
        return
    complain = records.complainer(RANKS)
    with groups(["horoacc", *PEERS], RANKS, complain) as up:
        for size in _SIZES[:1] if quick else _SIZES:
            _allreduce(records, up, size, Effort.of(quick, RANKS))
    with groups(["horoacc"], RANKS, complain, bound=False) as up:
        if "horoacc" in up:
            try:
                _steps(records, up["horoacc"], quick)
            except GroupFailed as error:
                complain(f"horoacc, {_NET}", str(error))


def _allreduce(records: Records, up: dict[str, Group], size: int, effort: Effort) -> None:
    found = [Contender(peer, up[peer]) for peer in PEERS if peer in up and not up[peer].broken]
    if "horoacc" in up and not up["horoacc"].broken:
        found += [
            Contender(PRIVATE, up["horoacc"]),
            Contender(EAGER, up["horoacc"], how="eager"),
            Contender(GRAPH, up["horoacc"], how="graph"),
        ]
    entries = [Slices(one, Rotation, size, one.memory, one.how) for one in found]
    samples = compete(entries, effort, records.complainer(RANKS))
    for one in found:
        if one.name in samples:
            records.allreduce(one, size, samples[one.name])
    peers = {name: samples[name].median for name in PEERS if name in samples}
    if not peers:
        return
    best = min(peers, key=lambda name: peers[name])
    for name in (EAGER, GRAPH):
        if name in samples:
            records.target(
                f"{name} against {best}, {size // _MIB} MiB at {RANKS} ranks",
                peers[best] / samples[name].median, 2, "x", False, size=size, best_peer=best,
            )  # fmt: skip


def _steps(records: Records, group: Group, quick: bool) -> None:
    group.run(build)
    first = group.run(train, "alone", 3 if quick else 10)
    steps = max(2, int(_BLOCK_SECONDS / _mean(first)))
    seconds: dict[str, list[float]] = {"alone": [], "together": []}
    shares = []
    for turn in range(3 if quick else _ROUNDS):
        for copy in ("alone", "together") if turn % 2 else ("together", "alone"):
            seconds[copy].append(_mean(group.run(train, copy, steps)))
        shares.append(100 * seconds["alone"][-1] / seconds["together"][-1])
    if not all(group.run(same)):
        records.complain(f"horoacc, {_NET}", RANKS, "the ranks' weights differ")
    share = statistics.median(shares)
    records.figure(
        f"{_NET}: efficiency", round(share, 1), "%", group,
        step_us={copy: round(1e6 * statistics.median(found), 1) for copy, found in seconds.items()},
    )  # fmt: skip
    records.target(f"{_NET}, {RANKS} ranks on {cores()} cores", share, _LIMIT, "%", False)


def _mean(block: list[list[float]]) -> float:
    return statistics.mean(statistics.mean(steps) for steps in block)
