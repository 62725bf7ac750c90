"""Optimizers, variables and hooks of sessions: graphs as TensorFlow 1 had them."""

from __future__ import annotations

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


def slope(rank: int) -> float:
    return float(rank + 1)


def graph_loss(variable: Any) -> Any:
    return tf.reduce_sum(variable * slope(hvd.rank()))


def trained(make: Callable[[Any], Any], steps: int, **minimize: Any) -> Any:
    """A weight after some steps in a TF1-style graph."""
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("w", initializer=[1.0, 2.0])
        optimizer = make(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        step = optimizer.minimize(graph_loss(variable), **minimize)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(tf.compat.v1.local_variables_initializer())
            for _ in range(steps):
                session.run(step)
            return session.run(variable)


def test_optimizer_of_tf1() -> None:
    me, size = hvd.rank(), hvd.size()
    mean = sum(slope(rank) for rank in range(size)) / size
    for arguments, factor in (
        ({}, 1.0),
        ({"op": hvd.Sum}, float(size)),
        ({"gradient_predivide_factor": 4.0, "groups": 1, "name": "mine"}, 1.0),
    ):
        got = trained(lambda o, kw=arguments: hvd.DistributedOptimizer(o, **kw), 3)
        np.testing.assert_allclose(got, np.array([1, 2]) - 3 * 0.5 * mean * factor, rtol=1e-6)

    def local(optimizer: Any) -> Any:
        wrapped = hvd.DistributedOptimizer(optimizer, scale_local_gradients=False)
        wrapped.register_local_var(tf.compat.v1.global_variables()[0])
        return wrapped

    np.testing.assert_allclose(trained(local, 2), np.array([1, 2]) - slope(me), rtol=1e-6)
    with pytest.raises(ValueError, match="optimizer of"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="positive integer"):
        hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer(), backward_passes_per_step=0)
    wrapped = hvd.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
    variable = tf.Variable([1.0])
    wrapped.minimize(lambda: variable * slope(me), var_list=[variable])
    np.testing.assert_allclose(variable.numpy(), [1 - 0.1 * mean], rtol=1e-6)
    assert wrapped.get_slot_names() == ["momentum"]
    np.testing.assert_allclose(wrapped.get_slot(variable, "momentum").numpy(), [mean], rtol=1e-6)
    assert len(wrapped.variables()) == 1


def test_backward_passes_per_step_of_tf1() -> None:
    size = hvd.size()
    mean = sum(slope(rank) for rank in range(size)) / size
    for average in (False, True):

        def make(optimizer: Any, average: bool = average) -> Any:
            return hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=2, average_aggregated_gradients=average
            )

        factor = 1 if average else 2
        for steps, applied in ((1, 0), (2, 1), (5, 2)):
            got = trained(make, steps)
            right = np.array([1, 2]) - applied * 0.5 * factor * mean
            np.testing.assert_allclose(got, right, rtol=1e-6)
    aggregation = hvd.LocalGradientAggregationHelper(2, lambda grads, variables: grads)
    with pytest.raises(ValueError, match="IndexedSlices"):
        aggregation.compute_gradients([tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))], [None])


def test_adasum_of_tf1() -> None:
    """All gradients point one way: Adasum of parallel steps is their mean."""
    size = hvd.size()

    def make(optimizer: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)

    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("w", initializer=[1.0, 2.0])
        step = make(tf.compat.v1.train.GradientDescentOptimizer(0.5)).minimize(
            tf.reduce_sum(variable * 3.0)
        )
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(2):
                session.run(step)
            np.testing.assert_allclose(session.run(variable), [-2.0, -1.0], rtol=1e-6)
    if size > 1:
        got = trained(make, 1)
        gathered = hvd.allgather(tf.constant(got)[tf.newaxis]).numpy()
        assert (gathered == gathered[0]).all()


def test_broadcast_global_variables() -> None:
    me, root = hvd.rank(), hvd.size() - 1
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        resource = tf.compat.v1.get_variable("resource", initializer=[float(me)])
        old = tf.compat.v1.Variable([float(me)], use_resource=False)
        send = hvd.broadcast_global_variables(root_rank=root)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(send)
        assert session.run([resource, old]) == [[root], [root]]


def test_broadcast_global_variables_hook() -> None:
    me, root = hvd.rank(), hvd.size() - 1
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("w", initializer=[float(me)])
        tf.compat.v1.train.create_global_step()
        hook = hvd.BroadcastGlobalVariablesHook(root, device="")
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(variable) == [root]
    assert isinstance(hook, tf.compat.v1.train.SessionRunHook)
    with pytest.raises(RuntimeError, match="eager"):
        hvd.BroadcastGlobalVariablesHook(0).begin()
