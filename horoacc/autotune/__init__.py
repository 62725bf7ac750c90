"""Settings that are tuned while a job trains: rank 0 orders, all ranks follow, step by step.

At the end of a step in which an order is through, the ranks meet in one small allreduce, in which
only rank 0's numbers are not zero, and change their settings. Ranks may do so one sooner than the
other: what must be alike on all ranks does not follow from these settings but by agreement.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horoacc import _core, arrays, dtypes, process, settings, trials
from horoacc.autotune.tuner import Limits, Trial, Tuner, Values

__all__ = ["CALL", "Follower", "Gradients", "step_ended"]

CALL = "horoacc.autotune"
"""The name of the collective in which the ranks meet."""
_KIND = "autotune"
_ALGORITHMS = ("ring", "double_tree", "trees", "canonical")
"""Those that differ between ranks of as many hosts, one of each, as rails are."""
_WINDOW_BYTES = 4 << 20
"""Of most algorithms between hosts, if no setting says otherwise."""
_OTHERS = 50
"""After so many steps of other optimizers without one of its own, an optimizer is out of use."""
_HEADS = (
    *Values._fields, *(f"against_{field}" for field in Values._fields), "low", "ratio", "high",
    "kept", "why",
)  # fmt: skip

Gradients = Sequence[tuple[str, str, Sequence[int], int]]
"""Name, type, shape and bytes of each; 0 bytes where no plan reduces them."""


def step_ended(reducer: object, gradients: Callable[[], Gradients], planned: bool) -> None:
    """The gradients of a step are reduced over all ranks. Nothing is done without `--autotune`.

    Args:
        reducer: Whose step it was.
        gradients: Lists its gradients, in an order that is alike on all ranks.
        planned: Whether they can be reduced by a locked plan.

    Raises:
        HorovodInternalError: The ranks met, and one of them did not answer.
    """
    follower = process.tuner(_follower)
    if follower is not None:
        follower.step(reducer, gradients, planned)


def _follower() -> Follower | None:
    values = settings.read(os.environ)
    return Follower(values) if values["autotune"] and process.position().size > 1 else None


class Follower:
    """One rank's part. All ranks make the same steps with the same optimizers, but for `join`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._engine = process.engine()
        self._one_host = process.position().cross_size == 1
        threshold, last_arriver, window, algorithm = self._engine.tuned
        self._start = Values(threshold, last_arriver, window, _name_of(algorithm))
        self._values = values
        self._reducer: weakref.ref[Any] | None = None
        self._others = 0
        self._tuner: Tuner | None = None
        self._tuned = ""
        self._left = 0
        self._times: list[float] = []
        self._ended = 0.0
        self._alone = False

    def step(self, reducer: object, gradients: Callable[[], Gradients], planned: bool) -> None:
        """One step is over. Of several optimizers' the first one's count, while it is in use."""
        if self._alone or not (planned or self._one_host):  # between hosts plans alone are tuned
            return
        if self._reducer is None or self._reducer() is not reducer:
            self._others += 1
            if self._reducer is not None and self._others < _OTHERS:
                return
            self._begin(reducer, gradients, planned)
        self._others = 0
        now = time.perf_counter()
        if self._ended:
            self._times.append(now - self._ended)
        self._ended = now
        if self._left > 1:
            self._left -= 1
            return
        self._meet()
        self._ended = time.perf_counter()  # the meeting is no part of a step

    def join_ended(self) -> None:
        """All ranks have joined, and train together again: they may have made unequal steps."""
        self._alone = False
        self._reducer = None
        self._pause()

    def _pause(self) -> None:
        self._left = 0
        self._times.clear()
        self._ended = 0.0

    def _begin(self, reducer: object, gradients: Callable[[], Gradients], planned: bool) -> None:
        self._reducer = weakref.ref(reducer)
        self._pause()
        if process.position().rank != 0:
            return
        listed = gradients()
        told = json.dumps([planned, *(list(gradient) for gradient in listed)])
        tuned = hashlib.sha256(told.encode()).hexdigest()
        if tuned != self._tuned:
            self._tuned = tuned
            self._tuner = self._make_tuner(tuned, sum(size for *_, size in listed), planned)

    def _make_tuner(self, tuned: str, gradient_bytes: int, planned: bool) -> Tuner:
        place, values = process.position(), self._values
        name = trials.key(_KIND, tuned, self._start, *place[1:])
        shape = {"ranks": place.size, "on this host": place.local_size, "hosts": place.cross_size}
        log = str(values["autotune_log"])
        most_alone = max(int(values["gpu_chunk_bytes"]), self._start.last_arriver_bytes)
        same_bits = values["reduction"] == "canonical" or values["algorithm"]
        limits = Limits(
            gradient_bytes if planned else 0,
            most_alone if self._one_host else 0,
            0 if self._one_host else int(values["window_bytes"]) or _WINDOW_BYTES,
            () if self._one_host or same_bits else _ALGORITHMS,
        )

        def found(best: Values) -> None:
            try:
                trials.remember(os.environ, _KIND, name, {"topology": shape, **best._asdict()})
            except OSError as error:
                warnings.warn(f"autotune's winner is not remembered: {error}", stacklevel=2)

        known = trials.recall(os.environ, _KIND, name) or {}
        steps = max(trials.LEAST, int(values["autotune_steps_per_sample"]))
        return Tuner(
            self._start, limits, limits.winner(self._start, known),
            warmup=steps * int(values["autotune_warmup_samples"]), steps=steps,
            most=int(values["autotune_bayes_opt_max_samples"]),
            ended=lambda trial: _log(log, trial), found=found,
        )  # fmt: skip

    def _meet(self) -> None:
        given = np.zeros(len(Values._fields) + 4, np.int64)
        if self._tuner is not None:
            order = self._tuner.next(self._times)
            values = (*order.values[:3], _number_of(order.values.algorithm))
            counts = (len(self._tuner.trials), self._tuner.kept)
            given[:] = (*values, *counts, order.settle, order.steps)
        agreed = arrays.allreduce(given, op=dtypes.Sum, name=CALL).tolist()
        self._times.clear()
        threshold, last_arriver, window, algorithm, count, kept, settle, steps = agreed
        if steps == 0:  # rank 0 has joined: nobody orders until the others have, too
            self._alone = True
            return
        story = json.dumps(self._tuner.story()) if self._tuner is not None else ""
        self._engine.tune(threshold, last_arriver, window, algorithm, count, kept, story)
        self._left = settle + steps


def _name_of(number: int) -> str:
    return _core.algorithms()[number - 1] if number else ""


def _number_of(algorithm: str) -> int:
    return _core.algorithms().index(algorithm) + 1 if algorithm else 0


def _log(file: str, trial: Trial) -> None:
    if not file:
        return
    ratio = [""] * 3 if trial.ratio is None else [f"{x:.4f}" for x in trial.ratio]
    row = [*trial.values, *trial.against, *ratio, int(trial.kept), trial.why]
    path = Path(file).expanduser()
    new = not path.exists()
    try:
        with path.open("a", newline="") as stream:
            writer = csv.writer(stream)
            if new:
                writer.writerow(_HEADS)
            writer.writerow(row)
    except OSError as error:  # of rank 0 alone: the job is worth more
        warnings.warn(f"a trial of autotune is not logged: {error}", stacklevel=2)
