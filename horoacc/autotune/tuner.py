"""Rank 0's decisions: which values to try next, which to keep, and when trials cost too much."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from horoacc import trials
from horoacc.trials import Interval

SETTLE = 6
"""Steps after a change that do not count: the plan of the gradients is agreed on anew meanwhile."""
_GLANCE, _GLARING = 2, 2.5
_PROBE, _MUCH_SLOWER = 3, 1.3
"""A trial is broken off if after so many steps one, or the first that count, are so much slower."""
_BUDGET = 0.01
_PAUSE = 5.0
"""A step that takes so many times the usual was a pause, as for a checkpoint, and costs no more."""
_STEADY = 0.1
"""A trial counts only if steps before and after it do not differ by more than this part."""
_STEPS_BETWEEN_CHECKS = 500
_LEAST_THRESHOLD = 64 << 10
_LEAST_LAST_ARRIVER = 4 << 10
_FACTOR = 4
_LEAST_WINDOW = 64 << 10
_TOLD = 40


class Values(NamedTuple):
    """The settings that change while a job runs."""

    fusion_threshold: int
    last_arriver_bytes: int
    window_bytes: int = 0
    """Between hosts; 0: as the job's settings say."""
    algorithm: str = ""
    """The same."""


class Limits(NamedTuple):
    """What can be tried."""

    gradient_bytes: int
    """Of all gradients, since a larger threshold changes nothing; 0: no plan reduces them."""
    last_arriver_bytes: int
    """The most; 0: the ranks do not share memory, and so none reduces for all."""
    window_bytes: int = 0
    """Of the job's setting; 0: gradients do not travel between hosts."""
    algorithms: tuple[str, ...] = ()
    """Between hosts; none if the bits must stay, or the job's settings name one."""

    def winner(self, start: Values, known: Mapping[str, Any]) -> Values | None:
        """Reads what an earlier job remembered; None if it cannot be used."""
        if any(type(known.get(field)) is not type(of) for field, of in start._asdict().items()):
            return None
        found = Values(**{field: known[field] for field in Values._fields})
        most = max(self.last_arriver_bytes, start.last_arriver_bytes)
        possible = (
            0 <= found.fusion_threshold <= start.fusion_threshold
            and 0 <= found.last_arriver_bytes <= most
            and (
                found.window_bytes == 0
                or _LEAST_WINDOW <= found.window_bytes <= 2 * self.window_bytes
            )
            and found.algorithm in ("", *self.algorithms)
        )
        return found if possible else None


class Order(NamedTuple):
    """An order to all ranks: so many steps with these values."""

    values: Values
    settle: int
    steps: int


class Trial(NamedTuple):
    """One that has ended."""

    values: Values
    against: Values
    ratio: Interval | None
    """Of its steps to those before and after; None: it was broken off."""
    kept: bool
    why: str


_Work = Generator[Order, "tuple[Sequence[float], Sequence[float]]", Any]


class Tuner:
    """Compares values with the best so far, in blocks of steps before, with and after them."""

    def __init__(
        self, start: Values, limits: Limits, known: Values | None, *,
        warmup: int, steps: int, most: int,
        ended: Callable[[Trial], None], found: Callable[[Values], None], budget: float = _BUDGET,
    ) -> None:  # fmt: skip
        """Begins with the winner of an earlier job, or else with the job's own settings.

        Args:
            start: The job's settings; a threshold above it is never tried.
            limits: What can be tried.
            known: The winner of an earlier job.
            warmup: Steps before the first trial.
            steps: Of each block of a trial.
            most: Trials of a search before the best is taken.
            ended: Hears of each trial.
            found: Hears of the winner.
            budget: No trial begins while those before have cost more than this part of the time.
        """
        self.start = start
        self.best = known or start
        self.trials: list[Trial] = []
        self.state = "begins with the winner of an earlier job" if known else "begins"
        self._limits = limits
        # A winner that was only the job's own values may have been a noisy moment's.
        self._explored = known is not None and known != start
        self._changed = False
        self._warmup = warmup
        self._steps = max(trials.LEAST, steps)
        self._most = most
        self._ended = ended
        self._found = found
        self._budget = budget
        self._usual = 0.0  # of a step with the job's own settings
        self._ratio = 1.0  # of a step with the best values to one of those
        self._spent = self._elapsed = 0.0
        self._latest: tuple[Values, list[float]] | None = None
        self._work = self._run()
        self._order: Order | None = None

    def next(self, times: Sequence[float]) -> Order:
        """Takes the times of the steps of the last order; gives the next order.

        That is the same one if there are fewer times: something came between.
        """
        if self._order is None:
            self._order = next(self._work)
        elif len(times) == self._order.settle + self._order.steps:
            settle = self._order.settle
            self._order = self._work.send((times[:settle], times[settle:]))
        return self._order

    def story(self) -> dict[str, Any]:
        """What was tried and why the values are as they are."""
        return {
            "state": self.state,
            "start": self.start._asdict(),
            "best": self.best._asdict(),
            "now": self.best._asdict() if self._order is None else self._order.values._asdict(),
            "count": len(self.trials),
            "kept": self.kept,
            "trials": [
                {
                    "values": trial.values._asdict(), "against": trial.against._asdict(),
                    "ratio": trial.ratio, "kept": trial.kept, "why": trial.why,
                }
                for trial in self.trials[-_TOLD:]
            ],
        }  # fmt: skip

    @property
    def kept(self) -> int:
        """How many trials had a winner of their own."""
        return sum(trial.kept for trial in self.trials)

    def _run(self) -> _Work:
        yield from self._block(self.best, max(self._warmup, 1))
        yield from self._block(self.best, self._steps)  # what a step usually takes
        while True:
            if not self._explored:
                self.state = "tries"
                yield from self._explore()
                self._explored = True
            if self.best != self.start:
                self.state = "compares the winner with the job's own settings"
                yield from self._afford()
                if (yield from self._compare(self.best, self.start)):
                    self._ratio = 1.0
                    # What changed may have another winner, which is looked for once.
                    self._explored, self._changed = self._changed, True
            self._found(self.best)
            self.state = "has chosen"
            for _ in range(_STEPS_BETWEEN_CHECKS // 100):
                yield from self._block(self.best, 100)

    def _explore(self) -> _Work:
        """One setting after the other: along its ladder, until a value does not help after one that
        did.
        """
        tried = 0
        for setting, ladders in self._ladders().items():
            for ladder in ladders:
                helped = False
                for value in ladder:
                    if tried >= self._most:
                        return
                    tried += 1
                    yield from self._afford()
                    new = self.best._replace(**{setting: value})
                    if not (yield from self._compare(self.best, new)) and helped:
                        break
                    helped = self.best == new
                if helped and setting != "algorithm":
                    break  # the other direction was behind

    def _ladders(self) -> dict[str, list[list[Any]]]:
        whole = min(self.start.fusion_threshold, self._limits.gradient_bytes)
        down = [-(-whole // _FACTOR**k) for k in (1, 2, 3)]
        found: dict[str, list[list[Any]]] = {
            "algorithm": [[name] for name in self._limits.algorithms],
            "fusion_threshold": [[value for value in down if value >= _LEAST_THRESHOLD]],
        }
        now, most = self.start.last_arriver_bytes, self._limits.last_arriver_bytes
        up = [now * _FACTOR**k for k in (1, 2)]
        less = [now // _FACTOR**k for k in (1, 2)]
        found["last_arriver_bytes"] = [
            [value for value in up if 0 < value <= most],
            [value for value in less if _LEAST_LAST_ARRIVER <= value <= most],
        ]
        window = self._limits.window_bytes
        less = [window // _FACTOR**k for k in (1, 2)]
        found["window_bytes"] = [
            [value for value in less if value >= _LEAST_WINDOW],
            [2 * window] if window else [],
        ]
        return found

    def _afford(self) -> _Work:
        """Waits until trials have cost little of the time; what they have gained is a credit."""
        while self._spent > self._budget * self._elapsed:
            yield from self._block(self.best, self._steps)

    def _compare(self, old: Values, new: Values) -> _Work:
        """One trial; whether the new values are the best now."""
        if self._latest is None or self._latest[0] != old:
            yield from self._block(old, self._steps)
        before = (self._latest or (old, []))[1][-self._steps :]
        usual = statistics.median(before)
        (first,) = yield from self._block(new, 1, _GLANCE)
        during = [first]
        if first <= _GLARING * usual:
            during = yield from self._block(new, _PROBE, SETTLE - _GLANCE - 1)
        ratio: Interval | None = None
        if statistics.median(during) > _MUCH_SLOWER * usual:
            yield from self._block(old, self._steps)
            why = "its first steps were much slower"
        else:
            during += yield from self._block(new, self._steps - _PROBE)
            after = yield from self._block(old, self._steps)
            change = statistics.median(after) / usual
            around = [(one + other) / 2 for one, other in zip(before, after, strict=True)]
            ratio = trials.ratios(during, around)
            if abs(change - 1) > _STEADY:
                why = f"the job itself changed: steps after it took {change:.2f} of those before"
            elif ratio.high < 1:
                why = "quicker"
            else:
                why = "slower" if ratio.low > 1 else "not certain to be quicker"
        kept = why == "quicker"
        if kept and ratio is not None:
            self.best = new
            self._ratio = min(1.0, self._ratio * ratio.median)
        self.trials.append(Trial(new, old, ratio, kept, why))
        self._ended(self.trials[-1])
        return kept

    def _block(self, values: Values, steps: int, settle: int | None = None) -> _Work:
        """Some steps with these values, after some that do not count; their times."""
        changes = self._order is None or self._order.values != values
        if settle is None:
            settle = SETTLE if changes else 0
        settling, times = yield Order(values, settle, steps)
        taken = [*settling, *times]
        if values == self.best and len(times) >= trials.LEAST:
            self._usual = statistics.median(times) / self._ratio
        if self._usual > 0:
            capped = [min(time, _PAUSE * self._usual) for time in taken]
            self._elapsed += sum(capped)
            if values != self.start or changes:
                self._spent += sum(capped) - self._usual * len(capped)
        self._latest = (values, list(times))
        return list(times)
