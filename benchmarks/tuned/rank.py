"""A rank of the benchmark of autotune: `python -m benchmarks.tuned.rank NET`.

It trains a network under every combination of values, then looks for good ones in three ways: the
quickest of all, which was measured again; autotune's tuner, which may spend what it wants; and
optuna's TPE, if that is installed, with as many trials as autotune may make. Blocks with what each
has found take turns, and rank 0 prints their times.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import horoacc.torch as hvd
from benchmarks.nets import NETS, WIDE_NETS, Task
from horoacc import _core, arrays, process
from horoacc.autotune.tuner import SETTLE, Limits, Tuner, Values
from horoacc.trials import LEAST

TRIALS = 30
_FINALISTS, _AGAIN, _TURNS = 6, 3, 12
_LAST_ARRIVER = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20)
_ALGORITHMS = ("ring", "double_tree", "trees", "canonical")
_WINDOW = 4 << 20


def square() -> Task:
    """2 MiB of gradients and hardly any work."""
    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    return Task(torch.nn.Sequential(*layers), (4, 256), 256)


_NETS = NETS | WIDE_NETS | {"square": square}


class Trained:
    """A network, of which rank 0 says how it is trained."""

    def __init__(self, net: str) -> None:
        torch.manual_seed(1)
        task = _NETS[net]()
        self._x, self._y = task.data()
        self._model = task.model
        self._optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(task.model.parameters(), lr=1e-4),
            named_parameters=task.model.named_parameters(),
        )
        self.bytes = sum(4 * parameter.numel() for parameter in task.model.parameters())
        self._names = ["", *_core.algorithms()]
        self.start = Values(*process.engine().tuned[:2])

    def block(self, values: Values | None, settle: int, steps: int) -> list[float]:
        """Trains so many steps with these values; their times. None: that is all, for all ranks."""
        order = np.zeros(7, np.int64)
        if hvd.rank() == 0 and values is not None:
            order[:] = (*values[:3], self._names.index(values.algorithm), settle, steps, 1)
        *now, settle, steps, goes_on = arrays.allreduce(order, op=hvd.Sum, name="order").tolist()
        if not goes_on:
            return []
        threshold, last_arriver, window, algorithm = now
        process.engine().tune(threshold, last_arriver, window, algorithm)
        times = []
        for _ in range(settle + steps):
            began = time.perf_counter()
            self._optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self._model(self._x), self._y)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            times.append(time.perf_counter() - began)
        return times or [0.0]

    def median(self, values: Values) -> float:
        """Of the steps of one block."""
        return statistics.median(self.block(values, SETTLE, LEAST)[SETTLE:])


def sweep(trained: Trained, grid: dict[str, Sequence[Any]]) -> tuple[Values, int]:
    """The quickest of all combinations; how many there are."""
    every = [Values(*one) for one in itertools.product(*grid.values())]
    random.Random(1).shuffle(every)
    once = {values: trained.median(values) for values in every}
    best = sorted(once, key=lambda values: once[values])[:_FINALISTS]
    again = {values: [once[values]] for values in best}
    for values in itertools.chain.from_iterable([best] * _AGAIN):
        again[values].append(trained.median(values))
    return min(best, key=lambda values: statistics.median(again[values])), len(every)


def autotune(trained: Trained, limits: Limits) -> tuple[Values, int]:
    """What the tuner has chosen, and the trials that it took."""
    tuner = Tuner(
        trained.start, limits, None, warmup=LEAST, steps=LEAST, most=TRIALS,
        ended=lambda trial: print(trial, file=sys.stderr), found=lambda _: None, budget=math.inf,
    )  # fmt: skip
    times: list[float] = []
    while tuner.state != "has chosen":
        order = tuner.next(times)
        times = trained.block(order.values, order.settle, order.steps)
    return tuner.best, len(tuner.trials)


def optuna(trained: Trained, grid: dict[str, Sequence[Any]]) -> tuple[Values, int]:
    """What TPE has found, of the same values; it begins with the job's own."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    study.enqueue_trial(trained.start._asdict())

    def seconds(trial: Any) -> float:
        drawn = {name: trial.suggest_categorical(name, every) for name, every in grid.items()}
        return trained.median(Values(**drawn))

    study.optimize(seconds, n_trials=TRIALS)
    return Values(**study.best_params), TRIALS


def main() -> None:
    (net,) = sys.argv[1:]
    torch.set_num_threads(1)
    hvd.init()
    trained = Trained(net)
    if hvd.rank() != 0:
        while trained.block(None, 0, 0):
            pass
        hvd.shutdown()
        return
    one_host = hvd.cross_size() == 1
    whole = min(trained.start.fusion_threshold, trained.bytes)
    limits = (
        Limits(whole, _LAST_ARRIVER[-1]) if one_host else Limits(whole, 0, _WINDOW, _ALGORITHMS)
    )
    thresholds = [-(-whole // 4**k) for k in (1, 2, 3)]
    grid: dict[str, Sequence[Any]] = {
        "fusion_threshold": [trained.start.fusion_threshold,
                             *(value for value in thresholds if value >= 64 << 10)],
        "last_arriver_bytes": _LAST_ARRIVER if one_host else [trained.start.last_arriver_bytes],
        "window_bytes": [0] if one_host else [0, _WINDOW // 16, _WINDOW // 4, 2 * _WINDOW],
        "algorithm": [""] if one_host else ["", *_ALGORITHMS],
    }  # fmt: skip
    trained.block(trained.start, 0, 2 * LEAST)
    found = {"the job's own": (trained.start, 0), "sweep": sweep(trained, grid),
             "autotune": autotune(trained, limits)}  # fmt: skip
    if importlib.util.find_spec("optuna"):
        found["optuna"] = optuna(trained, grid)
    times: dict[str, list[float]] = {who: [] for who in found}
    for turn in range(_TURNS):
        for who in list(found) if turn % 2 else reversed(list(found)):
            times[who].append(trained.median(found[who][0]))
    trained.block(None, 0, 0)
    told = {
        who: {"values": values._asdict(), "trials": trials, "times": times[who]}
        for who, (values, trials) in found.items()
    }
    print(json.dumps({"found": told}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
