"""Trains as the scripts of Horovod's elastic tests: scenario_worker.py FOLDER EPOCHS BATCHES.

Each step takes 1 from a weight, whatever the ranks are; so the weight counts the steps that it is
made of. At the beginning of an epoch rank 0 has the discovery find other hosts, and all wait until
the ranks are as many as the options say.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from elastic_plan import FOLDER, happens, note

EPOCHS, BATCHES = int(sys.argv[2]), int(sys.argv[3])
OPTIONS = json.loads((FOLDER / "options").read_text())
WORKER = int(os.environ["HOROACC_WORKER"])
started = time.time()
happens(worker=WORKER)

import horoacc  # noqa: E402
from horoacc.errors import HostsUpdatedInterrupt  # noqa: E402

START = {"host": os.environ["HOROVOD_HOSTNAME"], "started": started}


def meet(state: Any) -> None:
    """Has the hosts change that are to change in this epoch, and waits for the ranks."""
    epoch = str(int(state.epoch))
    if (hosts := OPTIONS.get("hosts", {}).get(epoch)) is not None and horoacc.rank() == 0:
        part = FOLDER / f"hosts.{epoch}"
        with contextlib.suppress(FileExistsError):  # once in the job
            with part.open("x") as file:
                file.write(hosts.replace(",", "\n") + "\n")
            os.link(part, FOLDER / "linked")
            (FOLDER / "linked").rename(FOLDER / "hosts")
    size = OPTIONS.get("sizes", {}).get(epoch, 0)
    where = OPTIONS.get("where", {}).get(epoch)
    while (size and horoacc.size() != size) or (
        where and set(horoacc.allgather_object(START["host"])) != set(where)
    ):
        horoacc.barrier()  # so that all ranks make as many checks
        time.sleep(0.05)
        check(state)
    time.sleep(OPTIONS.get("seconds", {}).get(epoch, 0.0))


def check(state: Any, commits: bool = False) -> None:
    try:
        (state.commit if commits else state.check_host_updates)()
    except HostsUpdatedInterrupt as news:
        note("news", epoch=int(state.epoch), batch=int(state.batch), rank=horoacc.rank(),
             size=horoacc.size(), skip_sync=news.skip_sync)  # fmt: skip
        raise


def exit_if_planned(state: Any) -> None:
    happens(epoch=int(state.epoch), batch=int(state.batch), rank=horoacc.rank())


def log(state: Any) -> None:
    note("epoch", epoch=int(state.epoch), membership=horoacc.elastic.epoch(), rank=horoacc.rank(),
         size=horoacc.size(), local=[horoacc.local_rank(), horoacc.local_size()],
         cross=[horoacc.cross_rank(), horoacc.cross_size()], **START)  # fmt: skip


def loop(state: Any, step: Callable[[], None]) -> None:
    while state.epoch < EPOCHS:
        if state.batch == 0:
            meet(state)
        while state.batch < BATCHES:
            exit_if_planned(state)
            step()
            state.batch += 1
            check(state, commits=True)
        log(state)
        state.epoch += 1
        state.batch = 0
        check(state, commits=True)


def with_torch() -> float:
    import torch

    import horoacc.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=model.named_parameters()
    )

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()

    state = hvd.elastic.TorchState(model, optimizer, epoch=0, batch=0)
    hvd.elastic.run(loop)(state, step)
    return float(model.weight)


def with_tensorflow() -> float:
    import tensorflow as tf

    import horoacc.tensorflow as hvd

    hvd.init()
    weight = tf.Variable(0.0)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = weight * 1.0
        (grad,) = hvd.DistributedGradientTape(tape).gradient(loss, [weight])
        weight.assign_sub(grad)

    state = hvd.elastic.TensorFlowState([weight], epoch=0, batch=0)
    hvd.elastic.run(loop)(state, step)
    return float(weight)


def with_keras() -> float:
    import keras
    import numpy as np

    import horoacc.keras as hvd

    hvd.init()
    model = keras.Sequential([
        keras.Input((1,)),
        keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
    ])  # fmt: skip
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, loss=lambda _, found: keras.ops.mean(found))
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    ones = np.ones((BATCHES, 1), np.float32)

    class Schedule(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if state.batch == 0:
                meet(state)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            exit_if_planned(state)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            log(state)

    callbacks = [
        Schedule(),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ]

    @hvd.elastic.run
    def train(state: Any) -> None:
        model.fit(
            ones, ones, batch_size=1, initial_epoch=state.epoch, epochs=EPOCHS,
            callbacks=callbacks, verbose=0,
        )  # fmt: skip

    train(state)
    return float(model.get_weights()[0][0, 0])


def without_framework() -> float:
    import numpy as np

    import horoacc as hvd

    hvd.init()

    def step() -> None:
        state.weight -= float(hvd.allreduce(np.ones(1), name="step")[0])

    state = hvd.elastic.ObjectState(epoch=0, batch=0, weight=0.0)
    hvd.elastic.run(loop)(state, step)
    return float(state.weight)


ways = {"torch": with_torch, "tensorflow": with_tensorflow, "keras": with_keras}
weight = ways.get(OPTIONS["framework"], without_framework)()
note("end", rank=horoacc.rank(), size=horoacc.size(), weight=weight)
