"""What autotune tried in a job and why it kept what it kept (horoacc/autotune), as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Tuning", "headline", "latest", "sentences", "tuning"]

_TOLD = 8
_AS_SET = ("window_bytes", "algorithm")
"""0 and "" of these are as the job's settings say."""


Values = Mapping[str, "int | str"]
"""Settings by name: bytes, or the name of an algorithm."""


@dataclass(frozen=True)
class Trial:
    """One comparison of two sets of values."""

    values: Values
    against: Values
    ratio: tuple[float, ...]
    """Low, middle and high of the steps' times to those of the other values; or empty."""
    kept: bool
    why: str


@dataclass(frozen=True)
class Tuning:
    """How far it is."""

    state: str
    start: Values
    """The job's own settings."""
    best: Values
    now: Values
    """Not the best while others are tried."""
    count: int
    """Of trials so far."""
    kept: int
    trials: tuple[Trial, ...]
    """The latest."""


def tuning(said: Any) -> Tuning:
    """Reads what rank 0 tells.

    Raises:
        KeyError: It lacks something.
        ValueError: Or TypeError, AttributeError: it is something else.
    """
    return Tuning(
        str(said["state"]),
        _values(said["start"]),
        _values(said["best"]),
        _values(said["now"]),
        int(said["count"]),
        int(said["kept"]),
        tuple(
            Trial(
                _values(trial["values"]),
                _values(trial["against"]),
                tuple(float(part) for part in trial["ratio"] or ()),
                bool(trial["kept"]),
                str(trial["why"]),
            )
            for trial in said["trials"]
        ),
    )


def _values(said: Any) -> dict[str, int | str]:
    return {
        str(name): value if isinstance(value, str) else int(value) for name, value in said.items()
    }


def headline(told: Tuning) -> str:
    """What holds, and what is tried now."""
    own = "the job's own" if told.best == told.start else f"the job's own: {_set(told.start)}"
    tries = "" if told.now == told.best else f", tries {_against(told.now, told.best)}"
    return (
        f"{told.state}: {_set(told.best)} ({own}){tries}; {told.count} trials so far, "
        f"{told.kept} kept"
    )


def sentences(told: Tuning) -> Iterator[str]:
    """The headline, and one for each of the latest trials."""
    yield f"Autotune {headline(told)}."
    for trial in told.trials[-_TOLD:]:
        yield f"Autotune tried {_outcome(trial)}."


def latest(told: Tuning) -> str:
    """How the latest trial ended; empty before the first has."""
    return _outcome(told.trials[-1]) if told.trials else ""


def _outcome(trial: Trial) -> str:
    return (
        f"{_against(trial.values, trial.against)}: {_took(trial.ratio)}{trial.why}; "
        f"{'kept' if trial.kept else 'went back'}"
    )


def _against(values: Values, others: Values) -> str:
    """Names the values that differ."""
    new = {name: value for name, value in values.items() if value != others.get(name)}
    old = {name: others[name] for name in new if name in others}
    return f"{_named(new)} against {_named(old)}"


def _took(ratio: tuple[float, ...]) -> str:
    if len(ratio) != 3 or not all(map(math.isfinite, ratio)):
        return ""
    low, middle, high = ratio
    return f"steps took {middle:.3f} of the time [{low:.3f}, {high:.3f}], "


def _set(values: Values) -> str:
    return _named({name: value for name, value in values.items() if value or name not in _AS_SET})


def _named(values: Values) -> str:
    return ", ".join(f"{name} {_shown(name, value)}" for name, value in values.items())


def _shown(name: str, value: int | str) -> str:
    if not value and name in _AS_SET:
        return "as set"
    if isinstance(value, str):
        return value
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} B"
