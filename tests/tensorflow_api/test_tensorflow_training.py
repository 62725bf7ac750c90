"""Horovod's tapes and layers for TensorFlow, against one rank with all data."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
calls = importlib.import_module("tensorflow_calls")
given, in_both, process_set = calls.given, calls.in_both, calls.process_set

pytestmark = pytest.mark.ranks(1, 2, 4, framework="horoacc.tensorflow")


def gradients_of(call: Callable[..., Any], *arrays: Any, upstream: list[Any]) -> list[list[Any]]:
    """The gradients of what `call` makes of the arrays: eagerly without a name, and in a
    tf.function with one."""

    def compute(name: str | None, *tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            results = call(*tensors, name=name)
            results = results if isinstance(results, (list, tuple)) else [results]
            total = tf.add_n([tf.reduce_sum(r * u) for r, u in zip(results, upstream, strict=True)])
        return tape.gradient(total, tensors)

    constants = [tf.constant(array) for array in arrays]
    both = [compute(None, *constants), tf.function(compute)("named", *constants)]
    return [[grad.numpy() for grad in grads] for grads in both]


def test_gradients_of_the_collectives() -> None:
    me, size = hvd.rank(), hvd.size()

    def up(label: str, shape: tuple[int, ...]) -> list[Any]:
        return given(f"to {label}", shape)

    def check(call: Any, *arrays: Any, upstream: list[Any], expected: list[Any]) -> None:
        for grads in gradients_of(call, *arrays, upstream=upstream):
            for grad, right in zip(grads, expected, strict=True):
                np.testing.assert_allclose(grad, right, rtol=1e-13, atol=1e-15)

    x = given("x", (4, 3))[me]
    ups = up("reduce", (4, 3))
    check(lambda x, **kw: hvd.allreduce(x, **kw, prescale_factor=2.0), x, upstream=[ups[me]],
          expected=[sum(ups) * 2.0 / size])  # fmt: skip
    one, two = up("one", (2,)), up("two", (5, 2))
    check(lambda a, b, **kw: hvd.grouped_allreduce([a, b], op=hvd.Sum, **kw), np.ones(2),
          np.ones((5, 2)), upstream=[one[me], two[me]], expected=[sum(one), sum(two)])  # fmt: skip
    rows = [rank % 2 + 1 for rank in range(size)]
    ups = up("gather", (sum(rows), 3))
    mine = slice(sum(rows[:me]), sum(rows[: me + 1]))
    check(lambda x, **kw: hvd.allgather(x, **kw), np.ones((rows[me], 3)), upstream=[ups[me]],
          expected=[(sum(ups) / size)[mine]])  # fmt: skip
    left, right = up("left", (sum(rows),)), up("right", (2 * size, 2))
    check(lambda a, b, **kw: hvd.grouped_allgather([a, b], **kw),
          np.ones(rows[me]), np.ones((2, 2)), upstream=[left[me], right[me]],
          expected=[(sum(left) / size)[mine],
                    (sum(right) / size)[2 * me : 2 * me + 2]])  # fmt: skip
    ups, root = up("send", (3,)), size - 1
    check(lambda x, **kw: hvd.broadcast(x, root, **kw), np.ones(3), upstream=[ups[me]],
          expected=[sum(ups) / size if me == root else np.zeros(3)])  # fmt: skip
    ups = up("exchange", (sum(range(size + 1)), 2))
    begin = sum(range(me + 1))
    check(lambda x, **kw: hvd.alltoall(x, [me + 1] * size, **kw)[0], np.ones(((me + 1) * size, 2)),
          upstream=[ups[me]],
          expected=[np.concatenate([u[begin : begin + me + 1] for u in ups])])  # fmt: skip
    # size rows: every rank gets one, and each gives its gradient to all.
    ups = up("scatter", (1, 2))
    for op, factor in ((hvd.Sum, float(size)), (hvd.Average, 1.0)):
        check(lambda x, op=op, **kw: hvd.reducescatter(x, op=op, **kw, postscale_factor=3.0),
              np.ones((size, 2)), upstream=[ups[me]],
              expected=[np.concatenate(ups) * 3.0 * factor])  # fmt: skip
        check(lambda x, op=op, **kw: hvd.grouped_reducescatter([x, 2 * x], op=op, **kw),
              np.ones((size, 2)), upstream=[ups[me], ups[me]],
              expected=[np.concatenate(ups) * 3.0 * factor])  # fmt: skip
    # Horovod's rule: the same operation on the gradient.
    for op, fold in ((hvd.Min, np.minimum), (hvd.Max, np.maximum), (hvd.Product, np.multiply)):
        ups = up(f"fold {op}", (4, 3))
        check(lambda x, op=op, **kw: hvd.allreduce(x, op=op, **kw, postscale_factor=3.0), x,
              upstream=[ups[me]], expected=[functools.reduce(fold, ups) * 3.0])  # fmt: skip


# --- tapes -----------------------------------------------------------------------------------

SHAPES = ((3, 2), (2,), (5,))


def batches() -> list[Any]:
    """Every rank's share of the data."""
    return given("data", (4, 3), "float32")


def weights() -> list[Any]:
    generator = np.random.default_rng(7)
    return [
        tf.Variable(generator.standard_normal(shape).astype(np.float32), name=f"w{index}")
        for index, shape in enumerate(SHAPES)
    ]


def loss_of(variables: list[Any], data: Any) -> Any:
    hidden = tf.nn.relu(data @ variables[0] + variables[1])
    return tf.reduce_mean(tf.square(hidden)) + tf.reduce_sum(tf.gather(variables[2], [0, 2]) ** 2)


def whole(variables: list[Any]) -> list[Any]:
    """The gradients of one rank that has all data."""
    with tf.GradientTape() as tape:
        loss = loss_of(variables, tf.constant(np.concatenate(batches())))
    return [tf.convert_to_tensor(grad).numpy() for grad in tape.gradient(loss, variables)]


def check_tape(make: Callable[[Any], Any], factor: float = 1.0, rtol: float = 2e-5) -> None:
    """Gradients of a distributed tape: those of the whole batch times a factor."""
    variables = weights()
    data = tf.constant(batches()[hvd.rank()])

    def compute(data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(variables, data)
        return make(tape).gradient(loss, variables)

    right = whole(variables)
    for way in in_both(compute):
        for grad, expected in zip(way(data), right, strict=True):
            got = tf.convert_to_tensor(grad).numpy()
            np.testing.assert_allclose(got, expected * factor, rtol=rtol, atol=rtol)


def test_distributed_gradient_tape() -> None:
    me, size = hvd.rank(), hvd.size()
    check_tape(hvd.DistributedGradientTape)
    check_tape(lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum), size)
    check_tape(lambda tape: hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0))
    check_tape(lambda tape: hvd.DistributedGradientTape(tape, sparse_as_dense=True, num_groups=2))
    check_tape(
        lambda tape: hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16), rtol=3e-3
    )
    variables = weights()
    with hvd.DistributedGradientTape(
        tf.GradientTape(), groups=[[variables[1], variables[0]]]
    ) as tape:
        loss = loss_of(variables, tf.constant(batches()[me]))
    assert isinstance(tape, tf.GradientTape) and type(tape).__name__ == "GradientTape"
    # A structure of sources, and one that has no gradient.
    grads = tape.gradient(
        loss, {"a": variables[0], "b": [tf.Variable(1.0)]}, use_generic_names=True
    )
    assert grads["b"] == [None]
    np.testing.assert_allclose(grads["a"].numpy(), whole(variables)[0], rtol=2e-5, atol=2e-5)
    for arguments, text in (
        ({"groups": -1}, "non-negative integer"),
        ({"groups": [variables[0]]}, "list of lists"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "not supported with op"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedGradientTape(tf.GradientTape(), **arguments)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedGradientTape(tape)
    if size > 1:
        with tf.GradientTape() as tape:
            variable = tf.Variable(tf.zeros([1 + me]))
            loss = tf.reduce_sum(variable * 2.0)
        with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
            hvd.DistributedGradientTape(tape).gradient(loss, [variable])


def test_tape_of_a_process_set() -> None:
    me = hvd.rank()
    with process_set() as members:
        variable = tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * float(me + 1))
        tape = hvd.DistributedGradientTape(tape, process_set=members)
        # Whoever is not in the set trains by itself.
        own = np.mean([rank + 1 for rank in members.ranks]) if members.included() else me + 1
        np.testing.assert_allclose(tape.gradient(loss, variable).numpy(), [own, own])


def test_local_sources() -> None:
    me, size = hvd.rank(), hvd.size()
    for scaled in (True, False):
        shared, local = tf.Variable(1.0), tf.Variable(1.0)

        def compute(scaled: bool = scaled, shared: Any = shared, local: Any = local) -> Any:
            with tf.GradientTape() as tape:
                loss = shared * float(me + 1) + local * float(me + 1)
            tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
            tape.register_local_source(local)
            return tape.gradient(loss, [shared, local])

        for way in in_both(compute):
            mean, own = way()
            assert mean.numpy() == pytest.approx((size + 1) / 2)
            assert own.numpy() == pytest.approx((me + 1) / (size if scaled else 1))
    with tf.GradientTape() as tape:
        loss = shared * float(me + 1) + local * float(me + 1)
    tape = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
    tape.register_local_source(local)
    here, everywhere = tape.get_local_and_global_gradients(loss, [shared, local])
    assert here[0] is None and here[1].numpy() == me + 1
    assert everywhere[1] is None and everywhere[0].numpy() == pytest.approx((size + 1) / 2)


def test_partial_distributed_gradient_tape() -> None:
    import keras

    me, size = hvd.rank(), hvd.size()
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    data = tf.fill([2, 1], float(me + 1))

    def compute(scaled: bool = True) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layers[0](data)) + tf.reduce_mean(layers[1](data))
        tape = hvd.PartialDistributedGradientTape(
            tape, local_layers=[layers[1]], scale_local_gradients=scaled
        )
        return tape.gradient(loss, [layer.kernel for layer in layers])

    compute()
    for way in in_both(compute):
        mean, own = way()
        assert mean.numpy()[0, 0] == pytest.approx((size + 1) / 2)
        assert own.numpy()[0, 0] == pytest.approx((me + 1) / size)
    assert compute(scaled=False)[1].numpy()[0, 0] == me + 1
    with pytest.raises(ValueError, match="Keras layers"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["dense"])


STEPS, RATE = 20, 0.1


def tolerance() -> float:
    """How far apart a training may end in float32 whose sums are made in another order.

    A gradient is a sum over the rows of all ranks, of products that were rounded up to 8 times. A
    sum of n numbers is off by at most n * 2^-24 of the sum of their sizes, on either side. A step
    moves a weight by RATE of that, and adds nothing to what is apart before: the square of a relu
    is smooth and convex, and RATE below 2 by its curvature. Gradients are largest at the start.
    """
    kernel, bias, rows = (variable.numpy() for variable in weights())
    data = np.concatenate(batches()).astype(float)
    hidden = np.maximum(data @ kernel + bias, 0)
    curvature = np.linalg.eigvalsh(2 * data.T @ data / len(data)).max() + 2
    assert RATE * curvature < 2
    inner = np.abs(data).T @ (2 * hidden) / hidden.size
    largest = max(inner.max(), (2 * hidden).sum(0).max() / hidden.size, 2 * np.abs(rows).max())
    return float(STEPS * RATE * largest * 2 * (len(data) + 8) * 2.0**-24)


def test_training_gives_the_weights_of_one_rank_with_all_data() -> None:
    me = hvd.rank()
    ours, alone = weights(), weights()
    hvd.broadcast_variables(ours, root_rank=0)
    mine, everything = tf.constant(batches()[me]), tf.constant(np.concatenate(batches()))

    @tf.function
    def step(variables: Any, data: Any, distributed: bool) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(variables, data)
        if distributed:
            tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
        for variable, grad in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(RATE * tf.convert_to_tensor(grad))

    for _ in range(STEPS):
        step(ours, mine, True)
        step(alone, everything, False)
    for one, other in zip(ours, alone, strict=True):
        assert np.abs(one.numpy() - other.numpy()).max() <= tolerance()
        gathered = hvd.allgather(one[tf.newaxis]).numpy()
        assert (gathered == gathered[0]).all()


def test_sync_batch_normalization() -> None:
    import keras

    me, size = hvd.rank(), hvd.size()
    batches = [np.random.default_rng(rank).normal(5.0, 2.0, (rank + 2, 3, 4)).astype(np.float32)
               for rank in range(size)]  # fmt: skip
    together = np.concatenate(batches)
    begin = sum(len(batch) for batch in batches[:me])
    mine = slice(begin, begin + len(batches[me]))
    layers = [
        hvd.SyncBatchNormalization(momentum=0.5),
        keras.layers.BatchNormalization(momentum=0.5),
    ]

    def run(layer: Any, data: Any, up: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(data)
            out = layer(data, training=True)
            loss = tf.reduce_sum(out * up)
        return out, tape.gradient(loss, [data, *layer.trainable_variables])

    ups = np.random.default_rng(99).standard_normal(together.shape).astype(np.float32)
    for layer in layers:
        layer.build(together.shape)
    for way in in_both(run):
        out, grads = way(layers[0], tf.constant(batches[me]), tf.constant(ups[mine]))
        right, all_grads = way(layers[1], tf.constant(together), tf.constant(ups))
        np.testing.assert_allclose(out.numpy(), right.numpy()[mine], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(grads[0].numpy(), all_grads[0].numpy()[mine], rtol=1e-3,
                                   atol=1e-4)  # fmt: skip
        for grad, whole in zip(grads[1:], all_grads[1:], strict=True):
            summed = hvd.allreduce(grad, op=hvd.Sum).numpy()
            np.testing.assert_allclose(summed, whole.numpy(), rtol=1e-3, atol=1e-3)
        for one, other in zip(layers[0].variables, layers[1].variables, strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(  # no collective: the ranks' batches differ in number
        layers[0](together[: me + 1]).numpy().shape, together[: me + 1].shape
    )
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)
