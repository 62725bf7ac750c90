"""A worker that trains with tapes: tensorflow_worker.py FOLDER BATCHES SECONDS.

They are in a tf.function, unless "eager" is said. What is noted of a step is what the step used.
`probe` is of a function that is traced once, in the first epoch that the process sees, and has
every number that depends on the ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from elastic_plan import PLAN, happens, note
from regression import ADAM, FEATURES, MOMENTUM, RATE, late_gradient, model_of, samples

FOLDER, BATCHES, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
OPTIONS = json.loads((FOLDER / "options").read_text())
happens(worker=int(os.environ["HOROACC_WORKER"]))

import tensorflow as tf  # noqa: E402

import horoacc  # noqa: E402
import horoacc.tensorflow as hvd  # noqa: E402

hvd.init()
place = {"batch": 0, "rank": hvd.rank()}


def inside() -> None:
    if any(one.get("at") == "graph" and one.get("batch") == place["batch"] for one in PLAN):
        time.sleep(0.2)  # on all ranks, so that the other gradient is reduced everywhere
    happens(**place, at="graph")


late = late_gradient(inside)
# Each rank begins elsewhere: rank 0's values count.
first = tf.random.stateless_normal([FEATURES, 1], [1, hvd.rank()], dtype=tf.float64)
halves = tf.split(first, 2)
if OPTIONS["state"] == "variables":
    variables = [tf.Variable(half) for half in halves]
    moments = [tf.Variable(tf.zeros_like(half)) for half in halves]
    state: Any = hvd.elastic.TensorFlowState([*variables, *moments], batch=0)

    def predicted(x: Any) -> Any:
        one, two = tf.split(x, 2, axis=1)
        return one @ variables[0] + late(two @ variables[1])

    def apply(grads: Any) -> None:
        for weight, moment, grad in zip(variables, moments, grads, strict=True):
            moment.assign(MOMENTUM * moment + grad)
            weight.assign_sub(RATE * moment)
else:
    tf.keras.backend.set_floatx("float64")
    predicted = model = model_of(tf.keras, late)
    optimizer = {
        "sgd": lambda: tf.keras.optimizers.SGD(RATE, MOMENTUM),
        "adam": lambda: tf.keras.optimizers.Adam(**ADAM),
        "old": lambda: tf.keras.optimizers.legacy.Adam(**ADAM),
    }[OPTIONS.get("optimizer", "sgd")]()
    if OPTIONS["state"] == "distributed":
        optimizer = hvd.DistributedOptimizer(optimizer)
    variables = model.trainable_variables
    for variable, half in zip(variables, halves, strict=True):
        variable.assign(half)
    if OPTIONS["state"] == "counted":
        build = getattr(optimizer, "build", None) or optimizer._create_all_weights
        build(variables)
        counted = optimizer.variables
        counted = counted() if callable(counted) else counted
        state = hvd.elastic.TensorFlowState([*model.variables, *counted], batch=0)
    else:
        state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    def apply(grads: Any) -> None:
        optimizer.apply_gradients(zip(grads, variables, strict=True))


def step(x: Any, t: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((predicted(x) - t) ** 2)
    if OPTIONS["state"] != "distributed":
        tape = hvd.DistributedGradientTape(tape)
    apply(tape.gradient(loss, variables))


if OPTIONS.get("loop"):
    once = step

    def step(x: Any, t: Any) -> None:
        def body(number: Any) -> Any:
            once(x, t)
            return number + 1

        tf.while_loop(lambda number: number < 1, body, [tf.constant(0)])


step.__name__ = OPTIONS.get("name", "step")
if not OPTIONS.get("eager"):
    step = tf.function(step)


shared, own = tf.Variable(tf.ones([4, 1])), tf.Variable([1.0])
normalization = hvd.SyncBatchNormalization(momentum=0.0)
normalization.build((1, 1))
stepping = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
local = tf.Variable([0.0])
stepping.build([local])
stepping.register_local_var(local)


@tf.function
def probe() -> list[Any]:
    """Numbers of which each shows whether a function that was traced before knows the ranks."""
    with tf.GradientTape(persistent=True) as tape:
        rows = tf.nn.embedding_lookup(shared, [0])
        gathered = tf.reduce_sum(hvd.allgather(own, name="g") * tf.cast(hvd.size_op(), tf.float32))
        summed = tf.reduce_sum(hvd.reducescatter(tf.ones([12, 1]) * own, op=hvd.Sum, name="s"))
        mine = tf.reduce_sum(own)
    slices = hvd.allreduce(tape.gradient(rows, shared), op=hvd.Average, name="a")
    distributed = hvd.DistributedGradientTape(tape)
    distributed.register_local_source(own)
    normalization(tf.fill([1, 1], tf.cast(hvd.rank_op(), tf.float32)), training=True)
    local.assign([0.0])
    stepping.apply([tf.constant([1.0])], [local])
    return [
        tf.reduce_sum(tf.convert_to_tensor(slices)),
        tape.gradient(gathered, own)[0] / tf.cast(hvd.size_op(), tf.float32),
        tape.gradient(summed, own)[0],
        distributed.gradient(mine, own)[0],
        normalization.moving_mean[0],
        -local[0],
    ]


def weights() -> list[float]:
    return [float(number) for variable in variables for number in variable.numpy()[:, 0]]


def meet(size: int) -> None:
    """Waits until the job has so many ranks."""
    while size and hvd.size() != size:
        horoacc.barrier()  # so that all ranks make as many checks
        time.sleep(0.05)
        state.check_host_updates()


@hvd.elastic.run
def train(state: Any) -> None:
    while state.batch < BATCHES:
        batch = state.batch + 1
        if OPTIONS.get("ends") and batch % 20 == 0:  # all ranks, once one has seen it
            state.commit()  # for an error in this reduction is none of a gradient's
            if hvd.allreduce(float((FOLDER / "end").exists()), name="ends", op=hvd.Sum) > 0:
                return
        if hosts := OPTIONS.get("hosts", {}).get(str(batch)):
            (FOLDER / f"part.{hvd.rank()}").write_text(f"{hosts}\n")
            (FOLDER / f"part.{hvd.rank()}").rename(FOLDER / "hosts")
        meet(OPTIONS.get("sizes", {}).get(str(batch), 0))
        place.update(batch=batch, rank=hvd.rank())
        happens(**place, at="begin")
        before = weights()
        step(*(tf.constant(part) for part in samples(batch, hvd.rank())))
        happens(**place, at="applied")
        numbers = [float(number) for number in probe()] if OPTIONS.get("probe") else []
        note("batch", **place, epoch=hvd.elastic.epoch(), size=hvd.size(), before=before,
             weight=weights(), probe=numbers)  # fmt: skip
        state.batch = batch
        time.sleep(SECONDS)
        if batch % OPTIONS.get("commit_every", 1) == 0:
            state.commit()
            happens(**place, at="committed")
        else:
            state.check_host_updates()


def share() -> None:
    happens(rank=hvd.rank(), epoch=hvd.elastic.epoch(), at="sync")
    synced()


synced, state.sync = state.sync, share
note("begin", weight=weights(), rank=hvd.rank())
train(state)
note("end", rank=hvd.rank(), size=hvd.size(), batch=state.batch, weight=weights(),
     traces=0 if OPTIONS.get("eager") else step.experimental_get_tracing_count())  # fmt: skip
hvd.shutdown()
