"""Checks the collectives of TensorFlow's tensors on a GPU; run on every rank, which may share one.

horoaccrun --tcp -np 4 python tests/gpu/check_tensorflow.py PART ...

A part is the name of a function below. `missing` says why this machine cannot run them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import horoacc.tensorflow as hvd

Call = Callable[..., Any]
DEVICE = "/device:GPU:0"
TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
         "float64", "complex64", "complex128")  # fmt: skip
COUNTS = (1, 20_003)


def put(array: Any, dtype: str | None = None) -> Any:
    """A tensor in the GPU's memory."""
    with tf.device("/device:CPU:0"):
        here = tf.cast(array, dtype or array.dtype)
    with tf.device(DEVICE):
        return tf.identity(here)


def late(tensor: Any) -> Any:
    """Twice the tensor, some time later on the GPU's stream."""
    with tf.device(DEVICE):
        slow = tf.ones([2048, 2048])
        for _ in range(10):
            slow = tf.linalg.matmul(slow, slow) / 2048.0
        return tensor * (slow[0, 0] + slow[1, 1])


def in_both(call: Call) -> Iterator[Call]:
    """The call, eagerly and in a tf.function."""
    yield call
    yield tf.function(call)


def given(rank: int, shape: tuple[int, ...]) -> Any:
    """A rank's input: small numbers, of which every sum is exact in every type."""
    return np.random.default_rng([rank, *shape]).integers(0, 3, shape)


def every(shape: tuple[int, ...]) -> Any:
    """The inputs of all ranks."""
    return np.stack([given(rank, shape) for rank in range(hvd.size())])


def same(found: Any, wanted: Any, dtype: str) -> None:
    """The very numbers, in the GPU's memory."""
    # TensorFlow keeps int32 results of functions in the host's memory.
    assert found.backing_device.endswith(DEVICE) or dtype == "int32", (found.backing_device, dtype)
    with tf.device("/device:CPU:0"):
        numbers = tf.cast(tf.identity(found), "complex128").numpy()
    np.testing.assert_array_equal(numbers, wanted.astype("complex128"), dtype)


def reductions_are_exact() -> None:
    """Every type, alone and in a group, eagerly and in a graph."""

    def reduce(tensors: list[Any], op: int) -> list[Any]:
        alone = [hvd.allreduce(tensor, op=op) for tensor in tensors]
        return alone + hvd.grouped_allreduce(tensors, op=op)

    for op, exact in ((hvd.Sum, np.sum), (hvd.Max, np.max), (hvd.Average, np.mean)):
        types = [name for name in TYPES if op == hvd.Sum or "complex" not in name]
        if op == hvd.Average:
            types = [name for name in types if "float" in name and hvd.size() in (1, 2, 4, 8)]
        for way in in_both(reduce):
            for count in COUNTS:
                tensors = [put(given(hvd.rank(), (count,)), name) for name in types]
                result = exact(every((count,)), axis=0)
                if tensors:
                    for found, name in zip(way(tensors, op), types * 2, strict=True):
                        same(found, result != 0 if name == "bool" else result, name)
    scaled = hvd.allreduce(put(given(hvd.rank(), (7, 5)), "float32"), op=hvd.Sum,
                           prescale_factor=0.5, postscale_factor=4.0)  # fmt: skip
    same(scaled, 2 * every((7, 5)).sum(0), "float32")
    assert hvd.allreduce(put(np.zeros((0, 3), np.float32))).shape == (0, 3)


def movements_are_exact() -> None:
    """The other collectives, with parts that differ."""
    me, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    every_row = every((rows, 3))
    # Each rank sends two rows to each other one, and a third one to the one behind it.
    shares = [[3 if to == (rank + 1) % size else 2 for to in range(size)] for rank in range(size)]

    def move(ragged: Any, flags: Any, whole: Any) -> tuple[list[Any], Any]:
        sent, counts = hvd.alltoall(whole, shares[me], name="uneven")
        return [
            hvd.allgather(ragged), *hvd.grouped_allgather([ragged, flags], name="both"),
            hvd.broadcast(whole, size - 1), hvd.alltoall(whole[: 2 * size], name="even"), sent,
            hvd.reducescatter(whole, op=hvd.Sum),
            *hvd.grouped_reducescatter([whole, whole[:1]], op=hvd.Sum, name="parts"),
        ], counts  # fmt: skip

    gathered = np.concatenate([given(r, (r + 1, 4)) for r in range(size)])
    flags = np.concatenate([given(r, (2, 1)) for r in range(size)]) != 0
    taken = [every_row[r, sum(shares[r][:me]) : sum(shares[r][: me + 1])] for r in range(size)]
    first = 2 * me + min(me, 1)
    mine = every_row.sum(0)[first : first + 2 + (me == 0)]
    wanted = [
        gathered, gathered, flags, every_row[size - 1],
        np.concatenate([array[2 * me : 2 * me + 2] for array in every_row]),
        np.concatenate(taken), mine, mine, every_row[:, : 1 if me == 0 else 0].sum(0),
    ]  # fmt: skip
    for way in in_both(move):
        found, counts = way(put(given(me, (me + 1, 4)), "float64"), put(given(me, (2, 1)), "bool"),
                            put(every_row[me], "float32"))  # fmt: skip
        assert counts.numpy().tolist() == [shares[r][me] for r in range(size)]
        for one, result in zip(found, wanted, strict=True):
            same(one, result, one.dtype.name)
    alone = hvd.add_process_set([size - 1])
    if alone.included():
        mine = put(every_row[me], "float32")
        same(hvd.reducescatter(mine, op=hvd.Sum, process_set=alone), every_row[me], "float32")
    hvd.remove_process_set(alone)


def streams_are_kept() -> None:
    """The call waits for a slow stream, and the stream for its result."""
    total = sum(range(1, hvd.size() + 1))

    def steps(tensor: Any) -> list[Any]:
        found = []
        for step in range(12):
            # The input is freed at once, and its memory used again.
            reduced = hvd.allreduce(late(tensor + step), op=hvd.Sum, name=f"step{step}")
            found.append(late(reduced))
        return found

    mine = np.full(40_000, hvd.rank() + 1)
    for way in in_both(steps):
        for step, found in enumerate(way(put(mine, "float32"))):
            same(found, np.full(40_000, 4 * (total + hvd.size() * step)), "float32")


def variables_are_broadcast() -> None:
    """Into variables of the GPU and of the CPU at once; values read before stay as they were."""
    me, root = hvd.rank(), hvd.size() - 1

    def make() -> list[Any]:
        with tf.device(DEVICE):
            there = [tf.Variable(np.full((300, 7), me, np.float32)), tf.Variable(me + 5.0)]
        with tf.device("/device:CPU:0"):
            here = tf.Variable(me, dtype=tf.int32)
        return [there[0], here, there[1]]

    def send() -> None:
        hvd.broadcast_variables(variables, root_rank=root)

    for way in in_both(send):
        variables = make()
        assert [v.device.endswith(DEVICE) for v in variables] == [True, False, True]
        before = variables[0].read_value()
        way()
        same(variables[0].read_value(), np.full((300, 7), root), "float32")
        assert [float(v.numpy()) for v in variables[1:]] == [root, root + 5.0]
        same(before, np.full((300, 7), me), "float32")
    with tf.device(DEVICE):
        source = tf.Variable(put(given(me, (9,)), "float64"))
    (value,) = hvd.broadcast_([source], root)
    same(value, given(root, (9,)), "float64")


def sessions_broadcast_variables() -> None:
    """Of TensorFlow 1, by reference and by handle, on the GPU, on the CPU and anywhere."""
    me, root = hvd.rank(), hvd.size() - 1
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = []
        for place in (DEVICE, "/device:CPU:0", None):
            for resource in (True, False):
                value = given(me, (30, 2)).astype(np.float32)
                with tf.device(place):
                    variables.append(tf.compat.v1.Variable(value, use_resource=resource))
        variables.append(tf.compat.v1.Variable(me, dtype=tf.int32, use_resource=True))
        sent = hvd.broadcast_global_variables(root)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(sent)
        for value in session.run(variables[:-1]):
            np.testing.assert_array_equal(value, given(root, (30, 2)))
        assert session.run(variables[-1]) == root


def gradients_are_the_same() -> None:
    """Of variables on the GPU, dense and as slices, against NumPy; then a step."""
    me, size = hvd.rank(), hvd.size()
    draw = np.random.default_rng(7)
    start = [draw.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (50, 3))]
    data = draw.standard_normal((size, 5, 6)).astype(np.float32)
    with tf.device(DEVICE):
        variables = [tf.Variable(array) for array in start]

    def step(x: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            picked = tf.gather(variables[1].read_value(), [me, 20, me])
            loss = tf.reduce_sum((x @ variables[0]) ** 2) + tf.reduce_sum(picked**2)
        grads = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variables)
        assert isinstance(grads[1], tf.IndexedSlices)
        return [grads[0], tf.convert_to_tensor(grads[1])]

    dense = sum(2 * x.T @ (x @ start[0]) for x in data.astype(np.float64))
    slices = np.zeros((50, 3))
    for rank in range(size):
        for row in (rank, 20, rank):
            slices[row] += 2 * start[1][row]
    for way in in_both(step):
        found = way(tf.constant(data[me]))
        np.testing.assert_allclose(found[0].numpy(), dense, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found[1].numpy(), slices, rtol=1e-5)
    for variable, grad in zip(variables, found, strict=True):
        variable.assign(variable - 0.1 * grad)
    after = hvd.allgather(tf.convert_to_tensor(variables[0])[None]).numpy()
    assert all(np.array_equal(after[0], other) for other in after)


def missing() -> str:
    """Why there is nothing to check here, or an empty string."""
    if not tf.test.is_built_with_cuda():
        return f"TensorFlow {tf.__version__} was built without CUDA"
    gpus = tf.config.list_physical_devices("GPU")
    return "" if gpus else f"TensorFlow {tf.__version__} finds no GPU that it can use"


def _on_gpus() -> int:
    return sum(count for name, count in hvd.counters().items() if name.startswith("gpu_"))


def main() -> None:
    """Runs the parts that were named."""
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    own = gpus[hvd.local_rank() % len(gpus)]
    tf.config.set_visible_devices(own, "GPU")
    tf.config.experimental.set_memory_growth(own, True)  # ranks share it
    before = _on_gpus()
    for part in sys.argv[1:]:
        globals()[part]()
        if hvd.rank() == 0:
            print(f"{part}: good, {hvd.size()} ranks", flush=True)
    assert _on_gpus() > before, "nothing was on a GPU"
    hvd.shutdown()


if __name__ == "__main__":
    main()
