"""TensorFlow on 2 ranks: allreduce of its tensors against the peers, and training steps in a
`tf.function` against the same script alone (`benchmarks.steps`).

What TensorFlow allocates lies in the arena, unless HOROACC_ARENA=off. Each call gives a new tensor.
"""

from __future__ import annotations

import importlib.util
import time
from itertools import pairwise
from typing import Any

from benchmarks import memory_bound
from benchmarks.allreduce import ARENA, PEERS, PRIVATE
from benchmarks.group import Group, groups
from benchmarks.rank import Rank
from benchmarks.records import Records
from benchmarks.slices import Contender, Effort, Rotation, Slices, compete
from benchmarks.steps import RANKS, compare

EAGER, GRAPH = "tensorflow eager", "tensorflow graph"
OFF = "tensorflow eager, HOROACC_ARENA=off"
_SIZES = tuple(1 << shift for shift in (20, 24, 26))
_MIB = 1 << 20
_LAYERS = (1024, 2048, 2048, 1000)
_BATCH = 32
_NET = "MLP 1024-2048-2048-1000, batch 32, tf.function"
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


def build(rank: Rank) -> int:
    """Makes both copies of the network, with one thread for each op; gives a copy's bytes."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    for copy in ("alone", "together"):
        rank.kept[copy] = Copy(rank.adapter.rank, copy == "together")
    return 4 * sum(above * below for above, below in pairwise(_LAYERS))


def train(rank: Rank, copy: str, steps: int) -> float:
    """Trains one copy; gives the seconds of a step."""
    made: Copy = rank.kept[copy]
    meet = rank.kept.get("meet", {}).get(copy, lambda: None)  # see benchmarks.lockstep
    for _ in range(_WARM_STEPS):
        made.step()
        meet()
    begin = time.perf_counter()
    for _ in range(steps):
        made.step()
        meet()
    return (time.perf_counter() - begin) / steps


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
    report_failure = records.reporter_of_failures(RANKS)
    with (
        groups(["horoacc", *PEERS, "bound"], RANKS, report_failure) as up,
        groups(["horoacc"], RANKS, report_failure, HOROACC_ARENA="off") as off,
    ):
        if "horoacc" in off:
            up = {**up, OFF: off["horoacc"]}
        for size in _SIZES[:1] if quick else _SIZES:
            _allreduce(records, up, size, Effort.of(quick, RANKS))
    compare(records, _NET, build, train, same, quick)


def _allreduce(records: Records, up: dict[str, Group], size: int, effort: Effort) -> None:
    found = [Contender(peer, up[peer]) for peer in PEERS if peer in up and not up[peer].broken]
    if "horoacc" in up and not up["horoacc"].broken:
        found += [
            Contender(ARENA, up["horoacc"], "arena"),
            Contender(PRIVATE, up["horoacc"]),
            Contender(EAGER, up["horoacc"], how="eager"),
            Contender(GRAPH, up["horoacc"], how="graph"),
        ]
    if OFF in up and not up[OFF].broken:
        found.append(Contender(OFF, up[OFF], how="eager"))
    entries = [Slices(one, Rotation, size, one.memory, one.how) for one in found]
    if "bound" in up:
        entries += memory_bound.entries(up["bound"], size, RANKS)
    samples = compete(entries, effort, records.reporter_of_failures(RANKS))
    for one in found:
        if one.name in samples:
            records.allreduce(one, size, samples[one.name])
    bound = 0.0
    if "bound" in up:
        bound = memory_bound.record(records, up["bound"], size, RANKS, samples)
    peers = {name: samples[name].median for name in PEERS if name in samples}
    if not peers:
        return
    best = min(peers, key=lambda name: peers[name])
    beyond = bool(bound) and peers[best] < 2 * bound
    note = {"note": f"the bound itself is {peers[best] / bound:.2g} x"} if beyond else {}
    for name in (EAGER, GRAPH, OFF):
        if name in samples:
            records.target(
                f"{name} against {best}, {size // _MIB} MiB at {RANKS} ranks",
                peers[best] / samples[name].median, 2, "x", False,
                size=size, best_peer=best, **note,
            )  # fmt: skip
