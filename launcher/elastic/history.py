"""What happened to an elastic job: a line for each change, on stderr and in a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horoacc.launcher.elastic.membership import Epoch, Worker

FILE = "elastic.jsonl"


class History:
    """The changes of a job's ranks. Each is a line of JSON in `FOLDER/elastic.jsonl`."""

    def __init__(self, folder: str = "", clock: Callable[[], float] = time.time) -> None:
        """Begins an empty history; without a folder nothing is written."""
        self._clock = clock
        self._file = None
        if folder:
            with contextlib.suppress(OSError):  # the ranks tell of a folder that cannot be used
                os.makedirs(folder, exist_ok=True)
                # Others may write to the folder: the file is a new one, not what is there.
                path = os.path.join(folder, FILE)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                self._file = open(os.open(path, flags, 0o600), "w", buffering=1)  # noqa: SIM115
        self._causes: dict[int, str] = {}
        self._reasons: list[str] = []
        self._since: float | None = None

    def failed(self, worker: Worker, status: int, how: str = "") -> None:
        """A worker ended with an error."""
        self._causes[worker.number] = how or _how(status)
        self._mark()
        seat = worker.seat
        self._write(
            "failed", worker=worker.number, host=worker.host, why=self._causes[worker.number],
            rank=None if seat is None else seat.rank, epoch=None if seat is None else seat.epoch,
        )  # fmt: skip

    def dismissed(self, worker: Worker, why: str) -> None:
        """A worker is told to end."""
        if worker.seat is not None:
            self._causes[worker.number] = why
            self._write("left", worker=worker.number, host=worker.host, why=why,
                        rank=worker.seat.rank)  # fmt: skip

    def asked(self, worker: Worker, why: str) -> None:
        """A worker asks for a seat."""
        if worker.seat is not None:
            self._mark()
            self._write(
                "asks", worker=worker.number, rank=worker.seat.rank, why=why, **vars(worker.report)
            )

    def began(self, epoch: Epoch) -> str:
        """The ranks have changed. Returns what the user is told."""
        seconds = 0.0 if self._since is None else self._clock() - self._since
        self._since = None
        gone = [f"{self._causes.get(w.number, 'left the job')}" for w in epoch.left]
        text = f"epoch {epoch.number}: {len(epoch.workers)} ranks"
        if epoch.number > 1:
            text += f", {len(epoch.joined)} of them new" if epoch.joined else ""
            text += f"; {', '.join(gone)}" if gone else ""
            text += f"; they met again after {seconds:.2f} s"
            if epoch.anew:
                text += "; no rank has the state any more, and the training begins again"
            elif epoch.recover == "forward":
                text += " and lose no step"
            elif epoch.recover == "commit":
                text += f" and go back to their last commit: {epoch.why}{_again(epoch.lost)}"
        self._write(
            "epoch", epoch=epoch.number, sync=epoch.sync, seconds=seconds, gone=gone,
            recover=epoch.recover, why=epoch.why, lost=epoch.lost, anew=epoch.anew,
            ranks=[{"worker": w.number, "host": w.host, "slot": w.slot} for w in epoch.workers],
            new=[w.number for w in epoch.joined], left=[w.number for w in epoch.left],
        )  # fmt: skip
        return text

    def ended(self, why: str) -> None:
        """The job is given up."""
        self._write("given up", why=why)

    def close(self) -> None:
        """Ends the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _mark(self) -> None:
        if self._since is None:
            self._since = self._clock()

    def _write(self, what: str, **fields: Any) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a full disk must not end the job
            self._file.write(json.dumps({"time": self._clock(), "event": what, **fields}) + "\n")


def _again(steps: int) -> str:
    return f"; {steps} step{'s' * (steps != 1)} to be done again" if steps else ""


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def story(path: Path) -> list[str]:
    """Tells a history to a user: each change of the ranks, with its cause and its cost.

    Args:
        path: The file. A line that is damaged, as the last one may be, is left out.

    Returns:
        Lines of text.
    """
    lines: list[str] = []
    failures: list[str] = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            event = json.loads(text)
            clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
            if event["event"] == "failed":
                rank = (
                    "A worker without a rank" if event["rank"] is None else f"Rank {event['rank']}"
                )
                failures.append(f"{clock} {rank} on {event['host']}: {event['why']}.")
            elif event["event"] == "left":
                failures.append(
                    f"{clock} Rank {event['rank']} on {event['host']} left: {event['why']}."
                )
            elif event["event"] == "asks" and event.get("risk"):
                failures.append(
                    f"{clock} Rank {event['rank']} keeps its state as it was told to, though "
                    f"{event['risk']}: a batch may be applied twice."
                )
            elif event["event"] == "epoch":
                lines += [*failures, f"{clock} {_began(event)}"]
                failures = []
            elif event["event"] == "given up":
                lines += [*failures, f"{clock} The job was given up: {event['why']}."]
                failures = []
        except (ValueError, KeyError, TypeError):
            continue
    return lines + failures


def _began(event: dict[str, Any]) -> str:
    hosts: dict[str, int] = {}
    for rank in event["ranks"]:
        hosts[rank["host"]] = hosts.get(rank["host"], 0) + 1
    where = ", ".join(f"{count} on {host}" for host, count in hosts.items())
    text = f"Epoch {event['epoch']}: {len(event['ranks'])} ranks ({where})"
    if event["epoch"] > 1:
        text += f", {len(event['new'])} new, {len(event['left'])} left"
        text += f"; the others waited {event['seconds']:.2f} s"
        way = {
            "forward": ", and no step was lost",
            "commit": f", and went back to their last commit: {event['why']}"
            + _again(event["lost"]),
        }
        text += way.get(event["recover"], "")
        if event["anew"]:
            text += "; no rank had the state any more, and the training began again"
    return text + "."
