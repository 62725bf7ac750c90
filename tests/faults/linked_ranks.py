"""Ranks that the test starts itself, as if each were on a host of its own, so that it can stand
between them: every rank gets an address of its own for the meeting.
"""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher_jobs import Job

PROGRAM = str(Path(__file__).with_name("linked_rank.py"))
SECONDS = 300.0
# The ranks' activities: all reduce, all wait for the last one, no rank calls.
PHASES = ("collective", "negotiating", "idle")
_WORDS = {"negotiating": "absent", "idle": "idle"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class LinkedRank:
    """One rank, and the lines that it has printed."""

    process: subprocess.Popen[bytes]
    said: list[dict[str, Any]] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        return [line.split(" warning: ", 1)[1] for line in self.err if " warning: " in line]


class LinkedRanks:
    """A job of such ranks."""

    def __init__(
        self, job: Job, folder: Path, size: int = 2, elements: int = 1000, program: str = PROGRAM
    ) -> None:
        self.job = job
        self.program = program
        self.size = size
        self.secret = secrets.token_hex(32)
        self.go = folder / "go"
        self.port = free_port()
        self.ranks: dict[int, LinkedRank] = {}
        self.elements = elements
        self._news = threading.Condition()
        self._readers: list[threading.Thread] = []

    def start(
        self, rank: int, address: str = "", prefix: tuple[str, ...] = (), **more: str
    ) -> None:
        """Starts one rank, which looks for rank 0 at `address`."""
        own = {
            "RANK": rank, "SIZE": self.size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1, "CROSS_RANK": rank,
            "CROSS_SIZE": self.size, "SECRET": self.secret, "LOG_HIDE_TIME": 1,
            "RENDEZVOUS": address or f"127.0.0.1:{self.port}",
            "SIMULATED_HOSTS": "+".join(["1"] * self.size),
        }  # fmt: skip
        environ = self.job.environ(**{f"HOROACC_{name}": str(value) for name, value in own.items()})
        process = subprocess.Popen(
            [*prefix, sys.executable, self.program, str(self.go), str(self.elements)],
            env=environ | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.ranks[rank] = one = LinkedRank(process)
        for pipe, hear in (
            (process.stdout, lambda line: one.said.append(json.loads(line))),
            (process.stderr, one.err.append),
        ):
            reader = threading.Thread(target=self._read, args=(pipe, hear), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, pipe: Any, hear: Callable[[str], None]) -> None:
        for line in pipe:
            with self._news:
                hear(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()

    def wait_for(self, true: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
        """Until something is so that the ranks' output tells."""
        with self._news:
            told = self._news.wait_for(true, seconds)
            assert told, (what, {r: (one.said[-3:], one.err) for r, one in self.ranks.items()})

    def await_start(self) -> None:
        self.await_steps(0)

    def step_of(self, rank: int) -> int:
        """The latest since the rank's latest start."""
        for said in reversed(self.ranks[rank].said):
            if "step" in said or said.get("at") == "start":
                return int(said.get("step", -1))
        return -1

    def await_steps(self, more: int) -> None:
        """Until every rank has done so many more steps."""
        goals = {rank: self.step_of(rank) + more + 1 for rank in self.ranks}
        self.wait_for(
            lambda: all(self.step_of(rank) >= goal for rank, goal in goals.items()), "steps"
        )

    def enter(self, phase: str) -> None:
        """Takes the ranks, which reduce, to another phase."""
        if phase == "collective":
            return
        before = {rank: self.count(rank, "away") for rank in self.ranks}
        away = self.ranks if phase == "idle" else [self.size - 1]
        self.go.with_suffix("." + _WORDS[phase]).touch()
        self.wait_for(lambda: all(self.count(rank, "away") > before[rank] for rank in away), phase)

    def resume(self) -> None:
        """Lets all ranks reduce again, or find that they cannot."""
        for word in _WORDS.values():
            self.go.with_suffix("." + word).unlink(missing_ok=True)

    def part(self) -> None:
        """Lets ranks that are idle leave; returns when all have begun to."""
        self.go.with_suffix(".leave").touch()
        self.wait_for(lambda: all(self.count(rank, "left") for rank in self.ranks), "leaving")

    def logged(self, word: str) -> int:
        """How many lines of the ranks' logs say so."""
        return sum(word in line for one in self.ranks.values() for line in one.err)

    def count(self, rank: int, word: str) -> int:
        """How often a rank has said something that has this word."""
        return sum(word in said for said in self.ranks[rank].said)

    def holds(self, rank: int, what: str) -> int:
        """The latest number of `fds` or `kib`."""
        return int([said[what] for said in self.ranks[rank].said if what in said][-1])

    def await_errors(self, *ranks: int) -> dict[int, dict[str, Any]]:
        """The errors of ranks (all, if none is named)."""
        chosen = ranks or tuple(self.ranks)

        def errors() -> dict[int, dict[str, Any]]:
            return {
                rank: said for rank in chosen for said in self.ranks[rank].said if "error" in said
            }

        self.wait_for(lambda: len(errors()) == len(chosen), "the errors")
        return errors()

    def end(self, *codes: int) -> None:
        """Lets the ranks end, with one of the codes (0); nothing of them may be left."""
        self.go.touch()
        for rank, one in self.ranks.items():
            assert one.process.wait(SECONDS) in (codes or (0,)), (rank, one.said[-3:], one.err)
        for reader in self._readers:
            reader.join(SECONDS)
        self.job.expect_nothing_left()

    def kill(self) -> None:
        """Ends the processes that a failed test has left."""
        for one in self.ranks.values():
            one.process.kill()
            one.process.wait()
