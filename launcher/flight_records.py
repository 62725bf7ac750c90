"""The records that ranks leave in HOROACC_FLIGHT_DIR (csrc/runtime/trace/telemetry.cc)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horoacc.launcher.tuning import Tuning, tuning

__all__ = ["Call", "Event", "Record", "parse", "read_records"]

_FORMAT = 1
_MOST_RANKS = 1 << 20
_LONGEST_TIME = 1e11  # seconds


@dataclass(frozen=True)
class Call:
    """A call in flight."""

    tensor: str
    process_set: int
    ranks: tuple[int, ...]
    age: float
    collective: int
    """Its number; 0: not agreed on."""
    ready: tuple[int, ...]
    """The ranks that had made it, as far as the writer knew."""
    missing: tuple[int, ...] = ()
    """The others, if it knew."""
    blocks: bool = False
    """Whether a caller waits for it."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a call."""

    what: str
    tensor: str
    age: float
    process_set: int = 0
    collective: int = 0
    waited: float = 0
    """Of a call that is done: how long callers were blocked in it."""
    kind: str = ""
    """Of a call that is queued: its collective, as the next two."""
    bytes: int = 0
    type: str = ""


@dataclass(frozen=True)
class Plans:
    """A rank's locked plans of gradients, so far."""

    rounds: int = 0
    """Steps that needed one call a bucket."""
    unlocks: dict[str, int] = field(default_factory=dict)
    """How often such steps ended, by the reason."""
    left: str = ""
    """Why this rank ended them, the last time."""
    lacks: dict[str, str] = field(default_factory=dict)
    """By bucket, the gradients that this rank had not submitted."""


@dataclass(frozen=True)
class Record:
    """One rank's record; times are seconds."""

    rank: int
    size: int
    host: str
    pid: int
    time: float
    reason: str
    stack: str
    calls: tuple[Call, ...]
    events: tuple[Event, ...]
    clock: float = 0
    """Its host's monotonic clock."""
    # Of a rank that was asked while it ran:
    since: float = 0
    """When its part in the job began, by that clock; 0: not told."""
    cpu: float = 0
    """What the process has used of a processor."""
    no_cpu: float = 0
    """For how long its main thread was ready to run and had none."""
    failure: str = ""
    """Why the job has failed."""
    host_ranks: tuple[int, ...] = ()
    flight_events: int = 0
    """Of how many calls it keeps the events."""
    counters: Mapping[str, int] = field(default_factory=dict)
    plans: Plans = field(default_factory=Plans)
    """Of its gradients."""
    tuning: Tuning | None = None
    """Of rank 0, if the job is tuned while it runs."""


def read_records(folder: Path) -> tuple[dict[int, Record], dict[str, str]]:
    """Reads a folder's files rank.N.json: the records by rank, and each damaged file's error."""
    records: dict[int, Record] = {}
    damaged: dict[str, str] = {}
    for path in sorted(folder.glob("rank.*.json")):
        try:
            record = parse(path.read_text(errors="replace"))
            if f"rank.{record.rank}.json" != path.name:
                raise ValueError(f"it is of rank {record.rank}")
            records[record.rank] = record
        except KeyError as error:
            damaged[path.name] = f"it lacks {error}"
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            damaged[path.name] = str(error)
    return dict(sorted(records.items())), damaged


def parse(text: str | bytes) -> Record:
    """Reads one record.

    Raises:
        KeyError: It lacks something.
        ValueError: Or TypeError, AttributeError, RecursionError: it is no record.
    """
    return _record(json.loads(text))


def _record(said: Any) -> Record:
    if said["format"] != _FORMAT:
        raise ValueError("it is of another version of HoroACC")
    size = _whole(said["size"], 1, _MOST_RANKS)
    return Record(
        rank=_whole(said["rank"], 0, size - 1),
        size=size,
        host=str(said["host"]),
        pid=_whole(said["pid"], 0, 1 << 32),
        time=_seconds(said["time"]),
        reason=str(said["reason"]),
        stack=str(said["stack"]),
        calls=tuple(_call(call, size) for call in said["calls"]),
        events=tuple(
            Event(
                str(event["what"]), str(event["tensor"]), _seconds(event["age"]),
                _whole(event.get("set", 0), 0, 1 << 32),
                _whole(event.get("collective", 0), 0, 1 << 64), _seconds(event.get("waited", 0)),
                str(event.get("detail", "")), _whole(event.get("bytes", 0), 0, 1 << 64),
                str(event.get("type", "")),
            )
            for event in said["events"]
        ),
        clock=_seconds(said.get("clock", 0)),
        since=_seconds(said.get("since", 0)),
        cpu=_seconds(said.get("cpu", 0)),
        no_cpu=_seconds(said.get("no_cpu", 0)),
        failure=str(said.get("failure", "")),
        host_ranks=tuple(_whole(rank, 0, size - 1) for rank in said.get("host_ranks", ())),
        flight_events=_whole(said.get("flight_events", 0), 0, 1 << 64),
        counters={
            str(name): _whole(value, 0, 1 << 64)
            for name, value in said.get("counters", {}).items()
        },
        plans=_plans(said["plans"]) if "plans" in said else Plans(),
        tuning=tuning(said["tuning"]) if "tuning" in said else None,
    )  # fmt: skip


def _call(said: Any, size: int) -> Call:
    return Call(
        tensor=str(said["tensor"]),
        process_set=_whole(said["set"], 0, 1 << 32),
        ranks=tuple(_whole(rank, 0, size - 1) for rank in said["ranks"]),
        age=_seconds(said["age"]),
        collective=_whole(said["collective"], 0, 1 << 64),
        ready=tuple(_whole(rank, 0, size - 1) for rank in said.get("ready", ())),
        missing=tuple(_whole(rank, 0, size - 1) for rank in said.get("missing", ())),
        blocks=bool(said.get("blocks", False)),
    )


def _plans(said: Any) -> Plans:
    return Plans(
        rounds=_whole(said["rounds"], 0, 1 << 64),
        unlocks={str(why): _whole(count, 0, 1 << 64) for why, count in said["unlocks"].items()},
        left=str(said["left"]),
        lacks={str(bucket): str(names) for bucket, names in said["lacks"].items()},
    )


def _whole(number: Any, least: int, most: int) -> int:
    if not isinstance(number, int) or not least <= number <= most:
        raise ValueError(f"it says {str(number)[:40]!r} where a number from {least} on belongs")
    return number


def _seconds(number: Any) -> float:
    value = float(number)
    if not math.isfinite(value) or abs(value) > _LONGEST_TIME:
        raise ValueError(f"{value} is no time")
    return value
