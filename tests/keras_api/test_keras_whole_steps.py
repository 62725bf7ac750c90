"""In an elastic job a step is applied whole or not at all, and states say when they know that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from lazy import hvd, keras, on_tensorflow, on_tf_keras, ranks, tf, tf_keras

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum and decay": lambda k: k.optimizers.SGD(0.5, momentum=0.5, weight_decay=0.5),
    "Adam": lambda k: k.optimizers.Adam(),
    "Nadam, clipped": lambda k: k.optimizers.Nadam(global_clipnorm=1.0),
    "averages": lambda k: k.optimizers.AdamW(use_ema=True, weight_decay=0.1),
}


@contextlib.contextmanager
def elastic() -> Iterator[None]:
    """As in a worker of an elastic job, but for the meeting of its ranks."""
    from horoacc import gradient_calls

    names = ("HOROACC_COORDINATOR", "HOROACC_WORKER")
    os.environ.update(dict.fromkeys(names, "0"))
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name)
        gradient_calls._notes.clear()


def model_of(k: Any) -> Any:
    return k.Sequential([k.layers.Input((3,)), k.layers.Dense(4), k.layers.Dense(1)])


def stepping(model: Any, optimizer: Any, tape_of: Callable[[Any], Any]) -> Callable[[], None]:
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones((2, 3))) ** 2)
        variables = model.trainable_variables
        gradients = tape_of(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


def too_early(step: Callable[[], None]) -> list[str]:
    """Changes of variables, in a function's graph, that do not wait for all of its reductions."""
    with mock.patch("horoacc.tensorflow.graph_buckets.LARGEST_MEMBER", -1):  # no op for all
        ops = tf.function(step).get_concrete_function().graph.get_operations()
    reductions = {op.name for op in ops if op.type == "HorovodAllreduce"}
    assert len(reductions) == 4, reductions
    before: dict[str, set[str]] = {}
    for op in ops:  # in the order in which they were made: inputs come first
        found = before[op.name] = {op.name} & reductions
        for other in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            found |= before[other.name]
    changes = [
        op for op in ops
        if op.type.startswith(("Assign", "ResourceApply", "ResourceScatter"))
        or op.type in ("If", "While", "PartitionedCall", "StatefulPartitionedCall")
    ]  # fmt: skip
    assert len(changes) >= 4
    return [op.name for op in changes if before[op.name] != reductions]


@on_tf_keras
@ranks(1)
@pytest.mark.parametrize("way", ["tape", "distributed"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("legacy", [False, True], ids=["keras", "tf_keras"])
def test_nothing_is_applied_before_all_gradients_are_there(
    kind: str, way: str, legacy: bool
) -> None:
    import horoacc.tensorflow as hvd_tf

    package = tf_keras if legacy else keras

    def made() -> Callable[[], None]:
        optimizer = OPTIMIZERS[kind](package)
        if way == "distributed":
            return stepping(model_of(package), hvd.DistributedOptimizer(optimizer), lambda t: t)
        return stepping(model_of(package), optimizer, hvd_tf.DistributedGradientTape)

    with elastic():
        assert too_early(made()) == []


@on_tensorflow
@ranks(1)
def test_nor_by_a_programs_own_assignments() -> None:
    import horoacc.tensorflow as hvd_tf

    class ByHand:
        def apply_gradients(self, pairs: Any) -> None:
            for gradient, variable in pairs:
                variable.assign(variable - gradient)

    with elastic():
        assert too_early(stepping(model_of(keras), ByHand(), hvd_tf.DistributedGradientTape)) == []


@on_tensorflow
@ranks(2)
def test_another_job_does_not_wait() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam())
    assert too_early(stepping(model_of(keras), optimizer, lambda tape: tape))


def lost(tensor: str = "step/allreduce.DistributedGradientTape.0") -> Any:
    from horoacc.errors import PeerLost

    return PeerLost("gone", 1, tensor=tensor)


def state_after(
    train: Callable[[Any, Any], None], optimizer: Any = None, state: Any = None, **values: Any
) -> Any:
    """A state that one model and optimizer have trained, once."""
    import horoacc.tensorflow as hvd_tf

    model = model_of(keras)
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    found = (state or hvd_tf.elastic.TensorFlowKerasState)(model, optimizer, **values)
    train(model, optimizer)
    return found


def by_tape(model: Any, optimizer: Any, tapes: int = 1, graph: bool = True, **how: Any) -> None:
    import horoacc.tensorflow as hvd_tf

    def several() -> None:
        for _ in range(tapes):
            stepping(model, optimizer, lambda tape: hvd_tf.DistributedGradientTape(tape, **how))()

    (tf.function(several) if graph else several)()


def in_a_loop(model: Any, optimizer: Any) -> None:
    import horoacc.tensorflow as hvd_tf

    step = stepping(model, optimizer, hvd_tf.DistributedGradientTape)

    @tf.function
    def several() -> None:
        def body(count: Any) -> Any:
            step()
            return (count + 1,)

        tf.while_loop(lambda count: count < 3, body, (0,))

    several()


@on_tensorflow
@ranks(1)
def test_what_a_job_goes_forward_after() -> None:
    import numpy as np

    import horoacc.tensorflow as hvd_tf

    class Own(hvd_tf.elastic.TensorFlowKerasState):
        def save(self) -> None:
            super().save()

    def two_tapes(model: Any, optimizer: Any) -> None:
        by_tape(model, optimizer)
        by_tape(model_of(keras), keras.optimizers.SGD(0.1))

    def adasum(model: Any, optimizer: Any) -> None:
        by_tape(model, optimizer, op=hvd_tf.Adasum)

    def twice(model: Any, optimizer: Any) -> None:
        by_tape(model, optimizer, tapes=2)

    def twice_eagerly(model: Any, optimizer: Any) -> None:
        by_tape(model, optimizer, tapes=2, graph=False)

    def by_another(model: Any, optimizer: Any) -> None:
        stepping(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), lambda t: t)()

    def by_itself(model: Any, optimizer: Any) -> None:
        for _ in range(2):
            stepping(model, optimizer, lambda tape: tape)()

    def compiled(model: Any, optimizer: Any) -> None:
        model.compile(optimizer, steps_per_execution=2)
        by_tape(model, optimizer)

    own = "allreduce.gradients.of4.0.kernel"
    rows: list[tuple[str, Any, dict[str, Any], str]] = [
        ("", by_tape, {"steps": 3, "name": "x", "rate": 0.5, "nothing": None}, ""),
        ("", twice_eagerly, {}, ""),
        ("several steps", twice, {}, ""),
        ("several steps", in_a_loop, {}, ""),
        ("several optimizers", two_tapes, {}, ""),
        ("Adasum", adasum, {}, ""),
        ("no gradient", by_tape, {}, "allreduce.loss"),
        ("no gradient", by_tape, {}, "allreduce.DistributedGradientTape2.0"),
        ("a call without a name", by_tape, {}, "-"),
        ("may change at any time", by_tape, {"batch": np.zeros(3)}, ""),
        ("a save of its own", by_tape, {"state": Own}, ""),
        ("another optimizer", by_another, {}, own),
        ("no gradient", by_itself, {}, own),
        ("steps_per_execution=2", compiled, {}, ""),
        ("several backward passes", by_tape,
         {"optimizer": keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)}, ""),
        ("", by_itself, {"optimizer": hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))}, own),
        ("", by_itself, {
            "optimizer": keras.optimizers.LossScaleOptimizer(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
            ),
            "state": hvd.elastic.KerasState,
        }, own),
        ("several backward passes", by_itself, {"optimizer": hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=2)}, own),
    ]  # fmt: skip
    for part, train, how, tensor in rows:
        with elastic():
            state = state_after(train, **how)
            found = state.obstacle(lost(*([tensor.strip("-")] if tensor else [])))
            assert (part in found) if part else found == "", (part, found, train)
        assert type(state).steps(state) >= 0


@on_tensorflow
@ranks(1)
def test_steps_are_counted_but_not_what_is_shared() -> None:
    import horoacc.tensorflow as hvd_tf

    with elastic():
        model, optimizer = model_of(keras), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        for state in (
            hvd_tf.elastic.TensorFlowKerasState(model, optimizer, batch=0),
            hvd_tf.elastic.TensorFlowState([*model.variables, *optimizer.variables], batch=0),
            hvd.elastic.KerasState(model, optimizer, batch=0),
        ):
            before = state.steps()
            by_tape(model, optimizer)
            by_tape(model, optimizer, graph=False)
            assert state.obstacle(lost()) == ""
            assert state.steps() == before + 2
            state.restore()
            assert state.steps() == before + 2 and int(optimizer.iterations) == 0
            optimizer.iterations.assign(40)
            state.save()
            state.sync()
            optimizer.iterations.assign(0)
            state.save()
        raw = hvd_tf.elastic.TensorFlowState([tf.Variable(1.0)])
        assert "no count" in raw.obstacle(lost()) and raw.steps() == 0
