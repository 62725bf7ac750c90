"""What TensorFlow reduces is born where the ranks of a host see it, and nothing else changes."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from pool import Pools

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
calls = importlib.import_module("tensorflow_calls")
ops = importlib.import_module("horoacc.tensorflow._ops")

FRAMEWORK = "horoacc.tensorflow"
ROOT = Path(__file__).resolve().parents[2]
COUNT = 40_000  # float32: 160 kB, staged if it is private
LARGE = 200_000  # 800 kB: through windows if it is private


def in_place(call: Any) -> tuple[Any, int]:
    """The result, and the bytes that were reduced in the arena."""
    before = hvd.counters()["arena_bytes"]
    result = call()
    return result, hvd.counters()["arena_bytes"] - before


def made(count: int, rank: int) -> Any:
    """A tensor of which TensorFlow has allocated the memory."""
    return tf.range(count, dtype=tf.float32) + float(rank)


def summed(count: int) -> Any:
    size = hvd.size()
    return np.arange(count, dtype=np.float32) * size + size * (size - 1) / 2


@pytest.mark.parametrize("count", [COUNT, LARGE])
@pytest.mark.ranks(2, 4, framework=FRAMEWORK)
def test_sizes_that_are_reduced_move_into_the_arena(count: int) -> None:
    count += 8  # of no other test
    for call in calls.in_both(lambda x: hvd.allreduce(x, op=hvd.Sum)):
        first, _ = in_place(lambda call=call: call(made(count, hvd.rank())))
        again, moved = in_place(lambda call=call: call(made(count, hvd.rank())))
        assert moved == 4 * count
        _, of_other_size = in_place(lambda call=call: call(made(64, hvd.rank())))
        assert of_other_size == 0
        for found in (first, again):
            np.testing.assert_array_equal(found.numpy(), summed(count))


def test_training_gives_the_same_bits(pools: Pools) -> None:
    # `gradients` is what a job has without the variable.
    settings = {mode: {"HOROACC_ARENA": mode} for mode in ("off", "all")} | {"gradients": {}}
    found = {
        mode: pools.get(2, FRAMEWORK, variables).run(Path(__file__), "trained", {}, 120)
        for mode, variables in settings.items()
    }
    assert len({bits for ranks in found.values() for bits, _ in ranks}) == 1
    for mode, ranks in found.items():
        for _, moved in ranks:
            assert (moved > 0) == (mode != "off"), mode


def trained() -> tuple[bytes, int]:
    """Weights after some steps, of a layer above and one below the size of the arena's blocks."""
    generator = np.random.default_rng(3)
    weights = [
        tf.Variable(generator.normal(size=shape).astype(np.float32))
        for shape in ((120, 300), (300, 10))
    ]
    own = np.random.default_rng(7 + hvd.rank()).normal(size=(4, 8, 120)).astype(np.float32)

    @tf.function
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.nn.relu(x @ weights[0]) @ weights[1]))
        grads = hvd.DistributedGradientTape(tape).gradient(loss, weights)
        for weight, grad in zip(weights, grads, strict=True):
            weight.assign_sub(1e-4 * grad)

    def steps() -> None:
        for batch in own:
            step(tf.constant(batch))

    _, moved = in_place(steps)
    return b"".join(weight.numpy().tobytes() for weight in weights), moved


@pytest.mark.parametrize("env", [{"HOROACC_ARENA": "all"}])
@pytest.mark.ranks(1, 2, framework=FRAMEWORK)
def test_tensors_outlive_the_engine(ranks: int) -> None:
    def held(value: float) -> Any:
        return tf.fill([1 << 16], value)

    before = held(3.0)
    found, moved = in_place(lambda tensor=before: hvd.allreduce(tensor, op=hvd.Sum))
    assert float(found[5]) == 3.0 * ranks
    assert moved == (4 << 16 if ranks > 1 else 0)
    hvd.shutdown()
    assert float(tf.reduce_sum(before)) == 3.0 * (1 << 16)
    between = held(4.0)
    hvd.init()
    again = held(5.0)
    for tensor, value in ((before, 3.0), (between, 4.0), (again, 5.0)):
        assert float(hvd.allreduce(tensor, op=hvd.Sum)[5]) == value * ranks
    del tensor, before, between
    assert float(tf.reduce_sum(again)) == 5.0 * (1 << 16)


@pytest.mark.parametrize("env", [{"HOROACC_ARENA": "all"}])
@pytest.mark.ranks(2, framework=FRAMEWORK)
def test_a_forked_child_has_its_own_copy() -> None:
    held = tf.fill([1 << 16], 3.0)
    seen = np.asarray(memoryview(held))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # the parent has written
        ok = bool((seen == 3.0).all())
        del held, seen
        os._exit(0 if ok else 1)
    ctypes.memset(seen.ctypes.data, 0, seen.nbytes)
    os.close(reading)
    os.write(writing, b"!")
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    assert float(tf.reduce_sum(hvd.allreduce(held, op=hvd.Sum))) == 0.0


@pytest.mark.parametrize("env", [{"HOROACC_ARENA": "all"}])
@pytest.mark.ranks(2, framework=FRAMEWORK)
def test_a_rank_that_could_not_redirect() -> None:
    """It warns, and what one rank has in the arena and another has not is reduced all the same."""
    late = hvd.rank() == 1
    hvd.shutdown()
    with (
        warnings.catch_warnings(record=True) as said,
        mock.patch.object(ops, "redirect", lambda: not late),
    ):
        warnings.simplefilter("always")
        hvd.init()
    assert any("had allocated memory before" in str(one.message) for one in said) == late
    for count in (COUNT, LARGE):
        tensor = made(count, hvd.rank())
        found, moved = in_place(lambda tensor=tensor: hvd.allreduce(tensor, op=hvd.Sum))
        np.testing.assert_array_equal(found.numpy(), summed(count))
        # The other rank's is staged for this one, unless it is too large for that.
        assert moved == (4 * COUNT if count == COUNT and not late else 0)
    hvd.shutdown()
    hvd.init()
    _, moved = in_place(lambda: hvd.allreduce(made(COUNT, hvd.rank()), op=hvd.Sum))
    assert moved == 4 * COUNT


LATE = """
import tensorflow as tf
first = tf.range(40_000)
import horoacc.tensorflow as hvd
from horoacc.tensorflow import _ops
assert not _ops.redirect()
hvd.init()
assert int(hvd.allreduce(first, op=hvd.Sum)[39_999]) == 39_999
print("done")
"""


def test_an_import_after_the_first_allocation_changes_nothing() -> None:
    """TensorFlow ends a process that registers an allocator then."""
    done = subprocess.run(
        [sys.executable, "-c", LATE], cwd=ROOT, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.split() == ["done"], done.stderr
