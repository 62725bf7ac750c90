"""Horovod's exchanges, variables, objects and questions for TensorFlow, row by row."""

from __future__ import annotations

import importlib
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

MOVED = (*oracle.DTYPES, "bfloat16", "uint16", "uint32", "uint64")


def movable(dtype: str, shape: tuple[int, ...], label: str) -> list[Any]:
    """Every rank's array, of any type that can be moved."""
    if dtype.startswith("uint") and dtype != "uint8":
        return [np.abs(array).astype(dtype) for array in given(label, shape, "int64")]
    return given(label, shape, dtype)


def check_sets(call: Any) -> None:
    """What no call takes; and, on several ranks, what they disagree about."""
    x = tf.zeros([3])
    unknown = hvd.ProcessSet([0])
    for number in (None, 99):
        unknown.process_set_id = number
        for way in in_both(lambda x: call(x, process_set=unknown)):
            with pytest.raises(ValueError, match="not registered") as refused:
                way(x)
            assert isinstance(refused.value, tf.errors.InvalidArgumentError)
    if hvd.size() > 1:
        for way in in_both(lambda x: call(x, name="differs")):
            with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
                way(tf.zeros([3, 3 + hvd.rank()]))
        with process_set() as members:
            if not members.included():
                with pytest.raises(tf.errors.InvalidArgumentError, match="process set"):
                    call(x, process_set=members)


def test_allgather() -> None:
    me, size = hvd.rank(), hvd.size()
    cases = [[array[: rank + 1] for rank, array in enumerate(movable(dtype, (size, 2), dtype))]
             for dtype in MOVED]  # fmt: skip
    cases.append([np.zeros((rank % 2, 3)) for rank in range(size)])
    for way in in_both(lambda tensors: [hvd.allgather(x) for x in tensors]):
        results = way([tf.constant(arrays[me]) for arrays in cases])
        for got, arrays in zip(results, cases, strict=True):
            same(got, np.concatenate(arrays))
    traced = tf.function(lambda x: hvd.allgather(x)).get_concrete_function(tf.zeros([2, 3]))
    assert traced.outputs[0].shape.as_list() == [None, 3]
    with process_set() as members:
        if members.included():
            for way in in_both(lambda x: hvd.allgather(x, name="even", process_set=members)):
                same(way(tf.constant([me])), np.arange(0, size, 2, np.int32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one dimension"):
        hvd.allgather(tf.constant(1.0))
    check_sets(hvd.allgather)


def test_grouped_allgather() -> None:
    me, size = hvd.rank(), hvd.size()
    first, second = given("first", (2,)), given("second", (1, 3), "int32")
    for way in in_both(lambda a, b: hvd.grouped_allgather([a, b], name="both")):
        got = way(tf.constant(first[me]), tf.constant(second[me]))
        same(got[0], np.concatenate(first))
        same(got[1], np.concatenate(second))
    with process_set() as members:
        if members.included():
            (got,) = hvd.grouped_allgather([first[me]], process_set=members)
            same(got, np.concatenate(first[::2]))
    with pytest.raises(ValueError, match="list of at least one"):
        hvd.grouped_allgather([])
    check_sets(lambda x, **kw: hvd.grouped_allgather([x], **kw))
    assert size >= 1


def test_broadcast() -> None:
    me, size = hvd.rank(), hvd.size()
    root = size - 1
    cases = [movable(dtype, (2, 3), dtype) for dtype in MOVED] + [given("large", (70001,))]
    for way in in_both(lambda tensors: [hvd.broadcast(x, root) for x in tensors]):
        given_here = [tf.constant(arrays[me]) for arrays in cases]
        results = way(given_here)
        for got, arrays, mine in zip(results, cases, given_here, strict=True):
            same(got, arrays[root])
            same(mine, arrays[me])  # not received in place of what somebody holds
    with process_set() as members:
        if members.included():
            got = hvd.broadcast(tf.constant(me), members.ranks[-1], process_set=members)
            assert got.numpy() == members.ranks[-1]
    for way in in_both(lambda x: hvd.broadcast(x, root_rank=size, name="nobody")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
            way(tf.zeros([2]))
    check_sets(lambda x, **kw: hvd.broadcast(x, 0, **kw))


def test_broadcast_in_place() -> None:
    me, root = hvd.rank(), hvd.size() - 1
    arrays, whole = given("variable"), given("whole", (4,), "int64")
    for step in (lambda v: hvd.broadcast_(v, root), tf.function(lambda v: hvd.broadcast_(v, root))):
        variables = [tf.Variable(arrays[me]), tf.Variable(whole[me])]
        before = variables[0].read_value()
        values = step(variables)
        for variable, value, sent in zip(variables, values, (arrays, whole), strict=True):
            same(variable.read_value(), sent[root])
            same(value, sent[root])
        same(before, arrays[me])
        variables[0].assign_add(tf.ones_like(variables[0]))
        same(variables[0].read_value(), arrays[root] + 1)
    with process_set() as members:
        if members.included():
            variable = tf.Variable(arrays[me])
            hvd.broadcast_([variable], 0, name="even", process_set=members)
            same(variable.read_value(), arrays[0])
    for nothing in ([], tf.Variable(1.0)):
        with pytest.raises(ValueError, match="at least one variable"):
            hvd.broadcast_(nothing, 0)
    with pytest.raises(ValueError, match="received in place"):
        hvd.broadcast_([tf.zeros([2])], 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
        hvd.broadcast_([tf.Variable(1.0)], hvd.size())
    if hvd.size() > 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
            hvd.broadcast_([tf.Variable(tf.zeros([1 + me]))], 0)
        # One of several that fails on one rank is an error of the whole call on all.
        with pytest.raises(tf.errors.OpError, match="cannot be broadcast"):
            hvd.broadcast_([tf.Variable(1.0), tf.Variable("text" if me else 2.0)], 0, name="odd")


def test_reference_variables() -> None:
    """Those of TensorFlow 1, beside resource variables, in a graph."""
    me, root = hvd.rank(), hvd.size() - 1
    arrays, whole = given("reference"), given("whole", (4,), "int64")
    kinds = [(arrays, False), (whole, False), (arrays, True), (arrays, False)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.Variable(values[me], use_resource=resource) for values, resource in kinds
        ]
        sent = hvd.broadcast_(variables, root, name="both kinds")
        again = hvd.broadcast_variables(variables, 0, inplace=True)
        session.run(tf.compat.v1.global_variables_initializer())
        for got in (session.run(sent), session.run(variables)):
            for found, (values, _) in zip(got, kinds, strict=True):
                np.testing.assert_array_equal(found, values[root])
        session.run(variables[0].assign(arrays[me]))
        session.run(again)
        np.testing.assert_array_equal(session.run(variables[0]), arrays[0])
        ops = {op.type for op in session.graph.get_operations()}
        assert {"HorovodBroadcastInplace", "HorovodBroadcastInplaceResource"} <= ops
        blank = tf.compat.v1.Variable([1.0], use_resource=False)
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"initialized|uninitialized"):
            session.run(hvd.broadcast_variables([blank], 0))
        with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
            session.run(hvd.broadcast_([variables[0]], hvd.size()))
        if hvd.size() > 1:
            ragged = tf.compat.v1.Variable(tf.zeros([1 + me]), use_resource=False)
            session.run(ragged.initializer)
            with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
                session.run(hvd.broadcast_variables([ragged], 0))


def test_broadcast_variables() -> None:
    me, root = hvd.rank(), hvd.size() - 1
    for arguments in ({}, {"inplace": True}):
        variables = [tf.Variable(float(me)), tf.Variable([me, me]), tf.Variable([me > 0])]
        hvd.broadcast_variables(variables, root, **arguments)
        assert [v.numpy().tolist() for v in variables] == [root, [root, root], [root > 0]]
    hvd.broadcast_variables([], root_rank=0)
    with process_set() as members:
        if members.included():
            variable = tf.Variable(me)
            hvd.broadcast_variables([variable], members.ranks[-1], process_set=members)
            assert variable.numpy() == members.ranks[-1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
        hvd.broadcast_variables([tf.Variable(1.0)], -1)


def test_alltoall() -> None:
    me, size = hvd.rank(), hvd.size()
    # Rank r sends s + 1 rows with its number to rank s.
    splits = [other + 1 for other in range(size)]
    for dtype in MOVED:
        if dtype == "bool":
            continue
        mine = tf.cast(tf.fill([sum(splits), 2], me), dtype)
        expected = np.repeat(np.arange(size), me + 1)
        ways = in_both(hvd.alltoall) if dtype == "float32" else [hvd.alltoall]
        for way in ways:
            got, received = way(mine, tf.constant(splits))
            assert got.dtype.name == dtype
            np.testing.assert_array_equal(tf.cast(got, tf.int32).numpy()[:, 0], expected)
            assert received.numpy().tolist() == [me + 1] * size
    for way in in_both(lambda x: hvd.alltoall(x, name="even")):
        got = way(tf.fill([2 * size], me))
        np.testing.assert_array_equal(got.numpy(), np.repeat(np.arange(size), 2))
    with process_set() as members:
        if members.included():
            got, _ = hvd.alltoall(tf.fill([members.size()], me), [1] * members.size(),
                                  process_set=members)  # fmt: skip
            np.testing.assert_array_equal(got.numpy(), members.ranks)
    for way in in_both(lambda x: hvd.alltoall(x, tf.ones([1, size], tf.int32))):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one dimension"):
            way(tf.zeros([size]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="split"):
        hvd.alltoall(tf.zeros([size]), [2] * size)


def test_join() -> None:
    me, size = hvd.rank(), hvd.size()
    for way in in_both(lambda: hvd.join()):
        assert way().numpy() in range(size)
    if size > 1:
        if me == 0:
            got = hvd.allreduce(tf.constant([3.0]), name="late")
            np.testing.assert_array_equal(got.numpy(), [3.0 / size])
            with pytest.raises(tf.errors.FailedPreconditionError, match="join"):
                hvd.allgather(tf.constant([3.0]), name="too late")
        last = hvd.join().numpy()
        assert len({int(one) for one in hvd.allgather(tf.constant([last])).numpy()}) == 1

    @tf.function
    def last_step(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum), hvd.join()

    for _ in range(3):
        summed, last = last_step(tf.constant([1.0]))
        assert summed.numpy() == [size] and 0 <= last.numpy() < size


def test_questions() -> None:
    me, size = hvd.rank(), hvd.size()
    for way in in_both(
        lambda: (hvd.rank_op(name="me"), hvd.size_op(), hvd.local_rank_op(name="mine"),
                 hvd.local_size_op(name="here"),
                 hvd.process_set_included_op())
    ):  # fmt: skip
        numbers = way()
        assert [one.numpy() for one in numbers] == [me, size, me, size, 1]
        assert {one.dtype for one in numbers} == {tf.int32}
    with process_set() as members:
        number = members.process_set_id
        assert hvd.size_op(process_set_id=number).numpy() == len(members.ranks)
        assert hvd.process_set_included_op(process_set_id=number).numpy() == (me % 2 == 0)
    for op in (hvd.size_op, hvd.process_set_included_op):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no process set"):
            op(process_set_id=999)


def test_objects() -> None:
    me, size = hvd.rank(), hvd.size()
    root = size - 1
    thing = {"rank": me, "array": np.arange(me + 1), "text": "x" * 1000 * me}
    got = hvd.broadcast_object(thing, root_rank=root, session=None, name="thing")
    assert got["rank"] == root and got["array"].tolist() == list(range(root + 1))
    assert hvd.broadcast_object_fn(root_rank=root, name="fn")(me) == root
    assert hvd.allgather_object({me: "x" * me}) == [{rank: "x" * rank} for rank in range(size)]
    with process_set() as members:
        if members.included():
            assert hvd.allgather_object(me, process_set=members) == members.ranks
            assert hvd.broadcast_object(me, 0, process_set=members) == 0
        else:
            with pytest.raises(ValueError, match="not in the process set"):
                hvd.allgather_object(me, process_set=members)
    if size == 1:
        with pytest.raises(TypeError):
            hvd.broadcast_object(one for one in ())


def test_xla_is_refused_with_what_to_do() -> None:
    compiled = tf.function(lambda x: 2 * hvd.allreduce(x), jit_compile=True)
    with pytest.raises(tf.errors.UnimplementedError, match="jit_compile=False"):
        compiled(tf.ones([2]))

    @tf.function(jit_compile=True)
    def nested(x: Any) -> Any:
        return tf.function(lambda y: hvd.allreduce(y))(x)

    with pytest.raises(tf.errors.UnimplementedError, match="outside of the function"):
        nested(tf.ones([2]))
    # What the text says to do.
    gradient = tf.function(lambda x: 2 * x, jit_compile=True)(tf.ones([2]))
    same(hvd.allreduce(gradient), np.array([2, 2], np.float32))


def test_what_is_no_tensor_is_told_to_the_others() -> None:
    """Only the last rank's is none; the others' calls end, and calls without names stay in step."""
    me, last = hvd.rank(), hvd.size() - 1
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    sparse = tf.sparse.from_dense([[1.0, 0.0]])
    good = tf.ones([hvd.size()])
    for call in (hvd.allreduce, hvd.allgather, lambda one: hvd.broadcast(one, 0), hvd.alltoall,
                 hvd.reducescatter):  # fmt: skip
        for bad, text in ((ragged, r"\.flat_values"), (sparse, r"\.values"), ([[1], [2, 3]], ".")):
            if me == last:
                with pytest.raises((TypeError, ValueError), match=text):
                    call(bad)
            else:
                with pytest.raises(tf.errors.FailedPreconditionError, match=f"rank {last}"):
                    call(good)
    assert hvd.allreduce(good, op=hvd.Sum).numpy()[0] == hvd.size()
