"""Elastic jobs of tests: a worker's program, what is to happen to it, and what its ranks did."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher_jobs import Job, Result

WORKER = Path(__file__).with_name("elastic_worker.py")


@dataclass
class Elastic:
    """One elastic job in a folder.

    Attributes:
        plan: What happens, once each: {"batch": 5, "rank": 0, "do": "kill"}. A step without a batch
            happens before `init`, to the worker with the number `worker`.
    """

    job: Job
    folder: Path
    plan: list[dict[str, Any]] = field(default_factory=list)
    batches: int = 12
    seconds: float = 0.03
    hosts: str = ""
    """If given, what the discovery script prints."""

    def arguments(self, *flags: str, program: str = "") -> list[str]:
        """horoaccrun's command line."""
        (self.folder / "plan").write_text(json.dumps(self.plan))
        found = []
        if self.hosts:
            self.set_hosts(self.hosts)
            script = self.folder / "discover"
            script.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\n")
            script.chmod(0o755)
            found = ["--host-discovery-script", str(script)]
        command = [sys.executable, program or str(WORKER), str(self.folder)]
        return [*found, *flags, *command, str(self.batches), str(self.seconds)]

    def set_hosts(self, text: str) -> None:
        part = self.folder / "hosts.part"
        part.write_text(text.replace(",", "\n") + "\n")
        part.rename(self.folder / "hosts")

    def run(self, *flags: str, code: int | None = 0, program: str = "", **more: str) -> Result:
        result = self.job.run(*self.arguments(*flags, program=program), code=code, **more)
        self.job.expect_nothing_left()
        return result

    def lines(self) -> list[dict[str, Any]]:
        """What the workers noted, in the order in which they did."""
        log = self.folder / "log"
        found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return sorted(found, key=lambda line: line["time"])

    def steps(self) -> list[dict[str, Any]]:
        """The batches that ranks completed."""
        return self.lines_of("batch")

    def lines_of(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["what"] == what]

    def reached(self, batch: int) -> bool:
        return any(line["batch"] >= batch for line in self.steps())

    def timeline(self) -> list[dict[str, Any]]:
        """The steps that the final weights are made of: of each batch the last epoch that did it.

        For workers that note their weights.
        """
        last: dict[int, dict[str, Any]] = {}
        for line in self.steps():
            known = last.get(line["batch"])
            if known is None or line["epoch"] > known["epoch"]:
                last[line["batch"]] = line
            elif line["epoch"] == known["epoch"]:
                assert line["weight"] == known["weight"], "two ranks of an epoch differ"
        assert sorted(last) == list(range(1, self.batches + 1))
        return [last[batch] for batch in sorted(last)]

    def repeated(self) -> list[int]:
        """Batches that a process which lived to the end did in two epochs: the first was lost."""
        survivors = {line["pid"] for line in self.lines_of("end")}
        epochs: dict[tuple[int, int], set[int]] = {}
        for line in self.steps():
            if line["pid"] in survivors:
                epochs.setdefault((line["batch"], line["pid"]), set()).add(line["epoch"])
        return sorted({batch for (batch, _), found in epochs.items() if len(found) > 1})

    def workers(self) -> list[int]:
        """The processes of the job that run the worker's program, importing or training."""
        found = []
        for pid, line in self.job.alive():
            words = line.split()
            if len(words) > 1 and words[1].endswith("_worker.py"):
                found.append(pid)
        return found

    def check(self) -> list[int]:
        """Replays the log: every batch's sum is that of its epoch's ranks, all ranks end with the
        same weights, and no batch that was committed is done again.

        Returns:
            The sizes of the epochs, in their order.
        """
        lines = self.lines()
        epochs: dict[int, int] = {}
        ends = [line for line in lines if line["what"] == "end"]
        for line in lines:
            if line["what"] != "batch":
                continue
            assert epochs.setdefault(line["epoch"], line["size"]) == line["size"], line
            assert line["sum"] == line["size"] * line["batch"], line
        # The weights are the sum of means of what the ranks gave, so they follow from the batches.
        expected = float(sum(range(1, self.batches + 1)))
        assert ends and all(end["weight"] == expected for end in ends), (expected, ends)
        assert all(end["batch"] == self.batches for end in ends)
        assert self.repeated() == []  # each batch is committed
        return [epochs[number] for number in sorted(epochs)]


def pids(lines: list[dict[str, Any]], epoch: int) -> set[int]:
    """The processes that completed batches of an epoch."""
    return {line["pid"] for line in lines if line.get("epoch") == epoch}


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
