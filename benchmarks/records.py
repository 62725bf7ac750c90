"""What a run leaves: a JSON line for every figure and every target, and a table to read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from benchmarks.group import Group
from benchmarks.slices import Contender, Sample

FOLDER = Path(__file__).resolve().parents[1] / "bench"

_VERDICTS = {True: "yes", False: "NO", None: "?"}
_HEAD = (
    f"{'system':<24}{'ranks':>6}{'size(B)':>12}{'count':>11}{'type':>7}{'redop':>7}"
    f"{'time(us)':>12}{'min':>11}{'max':>11}{'algbw':>8}{'busbw':>8}{'#wrong':>8}"
)


class Records:
    """Writes each record as it comes, so that a run that is cut short leaves what it has."""

    def __init__(self, path: Path, keep: Callable[[str], bool] = lambda benchmark: False) -> None:
        """Begins a file.

        Args:
            path: The file. One of an earlier run is replaced.
            keep: Whether that one's records of a benchmark stay.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        earlier = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        kept = [record for record in earlier if keep(record["benchmark"])]
        self._file: TextIO = path.open("w")
        self._benchmark = ""
        self._headed = False
        self._lines: list[str] = []
        self.all: list[dict[str, Any]] = []
        self.failures = 0
        for record in kept:
            self.write(record)

    def begin(self, benchmark: str) -> None:
        """Says which benchmark the records that follow belong to."""
        self._benchmark = benchmark
        self._headed = False
        self._say(f"\n== {benchmark}")

    def write(self, record: dict[str, Any]) -> dict[str, Any]:
        """Writes a record as it is."""
        record = {"benchmark": self._benchmark, **record}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self.all.append(record)
        return record

    def allreduce(self, contender: Contender, size: int, sample: Sample, **more: Any) -> None:
        """Writes an allreduce's figures, with the columns and definitions of nccl-tests."""
        ranks = contender.group.ranks
        algbw = size / sample.median / 1e9
        record = self.write(
            {
                "system": contender.name,
                **origin(contender.group),
                "memory": contender.memory,
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "time": _microseconds(sample.median),
                "min": _microseconds(min(sample.seconds)),
                "max": _microseconds(max(sample.seconds)),
                "algbw": round(algbw, 4),
                "busbw": round(algbw * 2 * (ranks - 1) / ranks, 4),
                "wrong": sample.wrong,
                "slices": len(sample.seconds),
                "iterations": sample.iterations,
                **more,
            }
        )
        self.failures += sample.wrong > 0
        if not self._headed:
            self._say(_HEAD)
            self._headed = True
        self._say(
            f"{contender.name:<24}{ranks:>6}{size:>12}{size // 4:>11}{'float':>7}{'sum':>7}"
            f"{record['time']:>12.1f}{record['min']:>11.1f}{record['max']:>11.1f}"
            f"{record['algbw']:>8.2f}{record['busbw']:>8.2f}{record['wrong']:>8}"
        )

    def figure(self, what: str, value: float, unit: str, group: Group, **more: Any) -> None:
        """Writes a figure that is not the time of one allreduce."""
        self.write({"figure": what, "value": value, "unit": unit, **origin(group), **more})
        self._say(f"  {what}: {value:.4g} {unit}")

    def target(
        self,
        what: str,
        measured: float,
        limit: float,
        unit: str,
        at_most: bool,
        quartiles: tuple[float, float] | None = None,
        interval: tuple[float, float] | None = None,
        **more: Any,
    ) -> bool | None:
        """Compares a figure with its target. Nothing fails for a missed one.

        Args:
            what: What is measured.
            measured: The figure.
            limit: The target.
            unit: Of both.
            at_most: Whether the figure should be below it.
            quartiles: The lower and the upper one of what `measured` is the median of. A limit
                between them is neither met nor missed.
            interval: Of the median, in their place.
            more: Facts for the record.

        Returns:
            Whether it is met; None if the run does not tell.
        """
        worse, better = sorted(interval or quartiles or (measured, measured), reverse=at_most)
        met: bool | None = worse <= limit if at_most else worse >= limit
        if not met and (better <= limit if at_most else better >= limit):
            met = None
        record = {
            "target": what, "measured": measured, "limit": limit,
            "sense": "at most" if at_most else "at least", "unit": unit, "met": met,
        }  # fmt: skip
        for name, bounds in (("quartiles", quartiles), ("interval", interval)):
            if bounds:
                record[name] = [round(value, 3) for value in bounds]
        self.write(record | more)
        return met

    def reporter_of_failures(self, ranks: int) -> Callable[[str, str], None]:
        """Makes what is told that a system could not be measured with so many ranks, and why."""
        return lambda system, why: self.report_failure(system, ranks, why)

    def report_failure(self, system: str, ranks: int, why: str) -> None:
        """Notes that a system could not be measured."""
        self.failures += 1
        self.write({"system": system, "ranks": ranks, "failed": why})
        print(f"{system} with {ranks} ranks was not measured: {why}", file=sys.stderr, flush=True)

    def _say(self, line: str) -> None:
        self._lines.append(line)
        print(line, flush=True)

    def table(self) -> str:
        """Everything that was shown, and the targets."""
        return "\n".join([*self._lines, self.summary()]) + "\n"

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def summary(self) -> str:
        """The targets of this run, as a table."""
        lines = [f"\n{'target':<84}{'measured':>10}{'limit':>13}      met"]
        for record in self.all:
            if "target" not in record:
                continue
            limit = f"{'<=' if record['sense'] == 'at most' else '>='} {record['limit']:.4g}"
            what = f"{record['benchmark']}: {record['target']}"
            note = f"  ({record['note']})" if "note" in record else ""
            lines.append(
                f"{what:<84}{record['measured']:>10.4g}{limit:>13} {record['unit']:<3}  "
                f"{_VERDICTS[record['met']]}{note}"
            )
        return "\n".join(lines)


def origin(group: Group) -> dict[str, Any]:
    """What every figure says about where it comes from."""
    launch = group.launch
    return {
        "version": launch.version,
        "flags": launch.flags,
        "transport": launch.transport,
        "binding": launch.binding,
        "ranks": group.ranks,
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
