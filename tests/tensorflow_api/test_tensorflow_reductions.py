"""Horovod's reductions for TensorFlow, row by row: values, an argument more, an error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
hvd = importlib.import_module("horoacc.tensorflow")
calls = importlib.import_module("tensorflow_calls")
given, in_both, process_set, same, wanted = (
    calls.given, calls.in_both, calls.process_set, calls.same, calls.wanted
)  # fmt: skip

pytestmark = pytest.mark.ranks(1, 2, 4, framework="horoacc.tensorflow")

DTYPES = (*oracle.DTYPES, "bfloat16")


def check_errors(call: Callable[..., Any], one: Callable[[Any], Any]) -> None:
    """What no call takes; and, on several ranks, what they disagree about."""
    x = tf.zeros([3])
    for way in in_both(lambda tensor: call(one(tensor), process_set=hvd.ProcessSet([0]))):
        with pytest.raises(tf.errors.InvalidArgumentError):
            way(x)
    with pytest.raises(TypeError, match="must be a ProcessSet"):
        call(one(x), process_set=3)
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        call(one(tf.zeros([3], tf.uint16)))
    if hvd.size() == 1:
        return
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
        call(one(tf.zeros([3 + hvd.rank()])), name="differs")
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
        tf.function(lambda tensor: call(one(tensor), name="differs"))(tf.zeros([3 + hvd.rank()]))
    with pytest.raises(tf.errors.FailedPreconditionError, match="type"):
        call(one(tf.zeros([3], tf.float32 if hvd.rank() else tf.int32)), name="types")
    with process_set() as members:
        if not members.included():
            with pytest.raises(tf.errors.InvalidArgumentError, match="process set"):
                call(one(x), process_set=members)


def test_allreduce() -> None:
    """Every type and reduction, in one graph that is traced once."""
    me = hvd.rank()
    cases = [
        (given(f"{dtype}.{op}", dtype=dtype), op)
        for dtype in DTYPES for op in oracle.OPS.values() if oracle.has_meaning(dtype, op)
    ]  # fmt: skip
    cases += [(given(f"shape {shape}", shape), hvd.Average) for shape in ((), (0,), (70001,))]
    for way in in_both(
        lambda tensors: [hvd.allreduce(x, op=op) for x, (_, op) in zip(tensors, cases, strict=True)]
    ):
        results = way([tf.constant(arrays[me]) for arrays, _ in cases])
        for got, (arrays, op) in zip(results, cases, strict=True):
            same(got, wanted(arrays, op))


def test_arguments_of_allreduce() -> None:
    me = hvd.rank()
    arrays = given("arguments")
    mine = tf.constant(arrays[me])
    with pytest.warns(DeprecationWarning):
        same(hvd.allreduce(mine, average=False), wanted(arrays, hvd.Sum))
    third = 1 / 3
    for way in in_both(
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=third, postscale_factor=3.0,
                                name="scaled")
    ):  # fmt: skip
        same(way(mine), wanted(arrays, hvd.Sum, third, 3.0))
    for way in in_both(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16)):
        narrow = [array.astype(np.float16) for array in arrays]
        same(way(mine), wanted(narrow, hvd.Average).astype(np.float64))
    with process_set() as members:
        if members.included():
            for way in in_both(lambda x: hvd.allreduce(x, op=hvd.Max, process_set=members)):
                same(way(mine), wanted(arrays[::2], hvd.Max))
    same(hvd.allreduce(arrays[me], op=hvd.Sum), wanted(arrays, hvd.Sum))
    same(hvd.allreduce(tf.Variable(mine), op=hvd.Sum), wanted(arrays, hvd.Sum))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="no reduction"):
        hvd.allreduce(mine, op=77)
    check_errors(hvd.allreduce, lambda x: x)


def test_allreduce_in_eight_bits() -> None:
    arrays = given("coded", (600,), "float32")
    exact = wanted(arrays, hvd.Average)
    bound = 2 * max(np.abs(array).max() for array in arrays) / 127
    for way in in_both(lambda x: hvd.allreduce(x, compression=hvd.Compression.int8, name="coded")):
        got = way(tf.constant(arrays[hvd.rank()]))
        np.testing.assert_allclose(got.numpy(), exact, atol=bound)


def test_adasum() -> None:
    arrays = given("adasum", (40,), "float64")
    for way in in_both(lambda x: hvd.allreduce(x, op=hvd.Adasum)):
        got = way(tf.constant(arrays[hvd.rank()])).numpy()
        if hvd.size() == 2:
            a, b = arrays
            dot = float(a @ b)
            expected = (1 - dot / (2 * float(a @ a))) * a + (1 - dot / (2 * float(b @ b))) * b
            np.testing.assert_allclose(got, expected, rtol=1e-12)
        if hvd.size() == 1:
            np.testing.assert_array_equal(got, arrays[0])
    # Where Horovod raises NotImplementedError: a process set, of one rank for a closed form.
    with process_set() as members:
        if members.included():
            got = hvd.allreduce(tf.constant(arrays[0]), op=hvd.Adasum, process_set=members)
            np.testing.assert_allclose(got.numpy(), arrays[0], rtol=1e-12)


def test_many_at_once_in_one_graph() -> None:
    """Ops of a graph start in any order, and on each rank in another."""
    me, size = hvd.rank(), hvd.size()

    @tf.function
    def step(x: Any) -> Any:
        return [hvd.allreduce(x + float(index), op=hvd.Sum) for index in range(50)]

    for turn in range(5):
        sums = step(tf.constant([float(me), float(turn)]))
        for index, got in enumerate(sums):
            np.testing.assert_array_equal(
                got.numpy(), [size * (size - 1) / 2 + index * size, (turn + index) * size]
            )


def test_a_constant_is_not_folded() -> None:
    """What a graph's optimizer could compute beforehand is still the other ranks' business."""

    @tf.function
    def step() -> Any:
        return hvd.allreduce(tf.fill([4], float(hvd.rank() + 1)), op=hvd.Sum)

    for _ in range(3):
        np.testing.assert_array_equal(step().numpy(), [sum(range(1, hvd.size() + 1))] * 4)


def test_allreduce_in_loops_and_branches() -> None:
    me, size = hvd.rank(), hvd.size()

    @tf.function
    def loop(x: Any) -> Any:
        total = tf.zeros_like(x)
        for index in tf.range(20):
            total += hvd.allreduce(x * tf.cast(index, x.dtype), op=hvd.Sum)
        return total

    x = tf.constant([1.0 + me])
    ranks = size * (size + 1) / 2
    np.testing.assert_array_equal(loop(x).numpy(), [190 * ranks])

    @tf.function
    def branch(x: Any, wanted: Any) -> Any:
        if wanted:
            return hvd.allreduce(x, op=hvd.Max)
        return hvd.allreduce(x, op=hvd.Min)

    assert branch(x, tf.constant(True)).numpy() == [size]
    assert branch(x, tf.constant(False)).numpy() == [1]


def test_slices() -> None:
    me, size = hvd.rank(), hvd.size()

    def mine(rank: int) -> Any:
        return tf.IndexedSlices(
            tf.constant([[1.0, 2.0], [3.0, float(rank)]]), tf.constant([rank, size]),
            tf.constant([size + 1, 2]),
        )  # fmt: skip

    dense = np.stack([tf.convert_to_tensor(mine(rank)).numpy() for rank in range(size)])
    for way in in_both(lambda: hvd.allreduce(mine(me), name="slices")):
        got = way()
        assert isinstance(got, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(got).numpy(), dense.mean(0))
    with process_set() as members:
        if members.included():
            got = hvd.allreduce(mine(me), op=hvd.Sum, process_set=members)
            np.testing.assert_allclose(tf.convert_to_tensor(got).numpy(), dense[::2].sum(0))
    with pytest.raises(NotImplementedError, match="averaged or summed"):
        hvd.allreduce(mine(me), op=hvd.Max)
    with pytest.raises(NotImplementedError, match="prescale_factor"):
        hvd.allreduce(mine(me), prescale_factor=2.0)


def test_grouped_allreduce() -> None:
    me = hvd.rank()
    first, second = given("one", (4,)), given("two", (2, 3), "int64")
    for arguments, op in (({}, hvd.Average), ({"op": hvd.Sum, "name": "group"}, hvd.Sum)):
        for way in in_both(lambda a, b, kw=arguments: hvd.grouped_allreduce([a, b], **kw)):
            got = way(tf.constant(first[me]), tf.constant(second[me]))
            same(got[0], wanted(first, op))
            same(got[1], wanted(second, op))
    with process_set() as members:
        if members.included():
            (got,) = hvd.grouped_allreduce([first[me]], op=hvd.Max, process_set=members,
                                           postscale_factor=2.0)  # fmt: skip
            same(got, wanted(first[::2], hvd.Max, 1.0, 2.0))
    (got,) = hvd.grouped_allreduce([first[me]], compression=hvd.Compression.bf16)
    narrow = [tf.cast(array, tf.bfloat16).numpy() for array in first]
    same(got, wanted(narrow, hvd.Average).astype(np.float64))
    for empty in ([], tf.zeros([3])):
        with pytest.raises(ValueError, match="list of at least one"):
            hvd.grouped_allreduce(empty)
    check_errors(hvd.grouped_allreduce, lambda x: [x])


def check_scatter(call: Callable[..., Any]) -> None:
    """One tensor, by itself or as a group of one."""
    me, size = hvd.rank(), hvd.size()
    for rows in (size + 1, 1):
        arrays = given(f"scatter {rows}", (rows, 2))
        mine = oracle.rows_of(rows, me, size)
        for way in in_both(call):
            same(way(tf.constant(arrays[me])), wanted(arrays, hvd.Average)[mine])
        for way in in_both(
            lambda x: call(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
        ):
            same(way(tf.constant(arrays[me])), wanted(arrays, hvd.Sum, 2.0, 0.5)[mine])
    with process_set() as members:
        if members.included():
            got = call(arrays[me], op=hvd.Sum, process_set=members)
            mine = oracle.rows_of(1, members.rank() or 0, members.size() or 1)
            same(got, wanted(arrays[::2], hvd.Sum)[mine])
    for op in (hvd.Max, hvd.Adasum):
        for way in in_both(lambda x, op=op: call(x, op=op)):
            with pytest.raises(tf.errors.AbortedError, match="only supports Average and Sum"):
                way(tf.constant(arrays[me]))
    with pytest.raises(ValueError, match="not for reducescatter"):
        call(arrays[me], compression=hvd.Compression.int8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one dimension"):
        call(tf.constant(1.0))
    narrow = call(np.full(size, 1 / 3), compression=hvd.Compression.fp16)
    same(narrow, np.full(1, 1 / 3).astype(np.float16).astype(np.float64))


def test_reducescatter() -> None:
    check_scatter(hvd.reducescatter)
    check_errors(hvd.reducescatter, lambda x: x)


def test_grouped_reducescatter() -> None:
    check_scatter(lambda x, **kw: hvd.grouped_reducescatter([x], **kw)[0])
    me, size = hvd.rank(), hvd.size()
    left, right = given("left", (size, 2)), given("right", (2 * size + 1,), "int32")
    for way in in_both(lambda a, b: hvd.grouped_reducescatter([a, b], op=hvd.Sum)):
        got = way(tf.constant(left[me]), tf.constant(right[me]))
        same(got[0], wanted(left, hvd.Sum)[oracle.rows_of(size, me, size)])
        same(got[1], wanted(right, hvd.Sum)[oracle.rows_of(2 * size + 1, me, size)])
    with pytest.raises(ValueError, match="list of at least one"):
        hvd.grouped_reducescatter([])
    check_errors(hvd.grouped_reducescatter, lambda x: [x])


def test_autograph_does_not_rewrite_the_calls() -> None:
    """It would say that it cannot, and take its time for all that a call calls."""
    callers = []

    class Seen(hvd.Compression.none):  # type: ignore[misc]
        @staticmethod
        def compress(tensor: Any) -> Any:
            callers.append(sys._getframe(1).f_code.co_filename)
            return tensor, None

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Sum, compression=Seen)
        tape = hvd.DistributedGradientTape(tape, compression=Seen, op=hvd.Sum)
        return tape.gradient(y, x)

    np.testing.assert_array_equal(step(tf.ones([2])).numpy(), [float(hvd.size()) ** 2] * 2)
    assert {Path(caller).name for caller in callers} == {"reductions.py"}


def test_names_of_calls() -> None:
    """Alike on ranks that have traced more than others, and unlike in one graph."""
    me, size = hvd.rank(), hvd.size()

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum, name="same")

    @tf.function
    def outer(x: Any) -> Any:
        with tf.name_scope("scope"):
            first = hvd.allreduce(x, op=hvd.Max, name="same")
        second = hvd.allreduce(x, op=hvd.Min, name="same")
        third = inner(2 * x) + inner(3 * x)
        total = tf.zeros_like(x)
        for _ in tf.range(2):
            total += hvd.allreduce(4 * x, op=hvd.Sum, name="same")
        return [first, second, third, total]

    for turn in range(1 + me):  # as batches of other lengths on some ranks
        outer.get_concrete_function(tf.zeros([2 + turn]))
    total = size * (size + 1) / 2
    for _ in range(3):
        got = [result.numpy()[0] for result in outer(tf.fill([2], me + 1.0))]
        assert got == [size, 1, 5 * total, 8 * total]
    graph = outer.get_concrete_function(tf.zeros([2])).graph
    mine = [
        tf.compat.as_str(op.get_attr("tensor_name"))
        for op in graph.get_operations() if op.type == "HorovodAllreduce"
    ]  # fmt: skip
    assert mine == ["outer/scope/allreduce.same", "outer/allreduce.same"]


def test_names_of_gradients() -> None:
    """Of calls in loops and branches, on ranks that have traced more than others."""
    me, size = hvd.rank(), hvd.size()

    @tf.function
    def slope(x: Any, times: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(times):
                y = hvd.allreduce(y * x, op=hvd.Sum, name="loop") / size
            y = hvd.allreduce(y, op=hvd.Sum, name="branch") / size if times > 1 else 2 * y
        return tape.gradient(y, x)

    for turn in range(3 * me):
        slope.get_concrete_function(tf.zeros([2 + turn]), tf.constant(0))
    x = tf.fill([1], 2.0)
    for _ in range(2):
        # Equal ranks: reducing changes neither values nor slopes. It is x^3, and 2 x^2.
        assert slope(x, tf.constant(2)).numpy()[0] == 3 * 2.0**2
        assert slope(x, tf.constant(1)).numpy()[0] == 2 * 2 * 2.0
