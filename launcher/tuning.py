"""What autotune tried in a job and why it kept what it kept (horoacc/autotune), as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Tuning", "sentences", "tuning"]

_TOLD = 8


@dataclass(frozen=True)
class Trial:
    """One comparison of two sets of values."""

    values: Mapping[str, int]
    against: Mapping[str, int]
    ratio: tuple[float, ...]
    """Low, middle and high of the steps' times to those of the other values; or empty."""
    kept: bool
    why: str


@dataclass(frozen=True)
class Tuning:
    """How far it is."""

    state: str
    start: Mapping[str, int]
    """The job's own settings."""
    best: Mapping[str, int]
    trials: tuple[Trial, ...]


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


def _values(said: Any) -> dict[str, int]:
    return {str(name): int(value) for name, value in said.items()}


def sentences(told: Tuning) -> Iterator[str]:
    """One of what holds now, and one for each of the latest trials."""
    kept = sum(trial.kept for trial in told.trials)
    own = "the job's own" if told.best == told.start else f"the job's own: {_named(told.start)}"
    yield (
        f"Autotune {told.state}: {_named(told.best)} ({own}); {len(told.trials)} trials so far, "
        f"{kept} kept."
    )
    for trial in told.trials[-_TOLD:]:
        new = {name: value for name, value in trial.values.items()
               if value != trial.against.get(name)}  # fmt: skip
        old = {name: trial.against[name] for name in new if name in trial.against}
        yield (
            f"Autotune tried {_named(new)} against {_named(old)}: {_took(trial.ratio)}"
            f"{trial.why}; {'kept' if trial.kept else 'went back'}."
        )


def _took(ratio: tuple[float, ...]) -> str:
    if len(ratio) != 3 or not all(map(math.isfinite, ratio)):
        return ""
    low, middle, high = ratio
    return f"steps took {middle:.3f} of the time [{low:.3f}, {high:.3f}], "


def _named(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_bytes(value)}" for name, value in values.items())


def _bytes(value: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} B"
